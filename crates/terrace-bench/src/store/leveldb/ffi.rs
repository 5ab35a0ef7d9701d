//! Safe bindings to the part of LevelDB's C interface (leveldb/c.h) that the benchmark needs.
//!
//! Every handle is owned by one value here, made by its `create` function and freed once, when the
//! value is dropped. The library copies keys and values passed to it before it returns.
//!
//! Invariants
//!   L1  A pointer to a handle is never null: a `create` function does not return null, and a
//!       failed open reports an error.
//!   L2  The options, cache and filter of a database are freed after the database.

#![allow(unsafe_code, reason = "the interface of a C++ library")]

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::time::Duration;

/// An opaque handle of the library, never dereferenced.
#[derive(Debug)]
enum Opaque {}

type Handle = *mut Opaque;
type Error = *mut *mut c_char;

#[link(name = "leveldb")]
unsafe extern "C" {
    fn leveldb_open(options: Handle, name: *const c_char, error: Error) -> Handle;
    fn leveldb_close(db: Handle);
    fn leveldb_put(
        db: Handle,
        options: Handle,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
        error: Error,
    );
    fn leveldb_delete(
        db: Handle,
        options: Handle,
        key: *const c_char,
        key_len: usize,
        error: Error,
    );
    fn leveldb_write(db: Handle, options: Handle, batch: Handle, error: Error);
    fn leveldb_get(
        db: Handle,
        options: Handle,
        key: *const c_char,
        key_len: usize,
        value_len: *mut usize,
        error: Error,
    ) -> *mut c_char;
    fn leveldb_property_value(db: Handle, name: *const c_char) -> *mut c_char;
    fn leveldb_compact_range(
        db: Handle,
        start: *const c_char,
        start_len: usize,
        limit: *const c_char,
        limit_len: usize,
    );
    fn leveldb_create_iterator(db: Handle, options: Handle) -> Handle;
    fn leveldb_iter_destroy(iter: Handle);
    fn leveldb_iter_valid(iter: Handle) -> c_uchar;
    fn leveldb_iter_seek_to_first(iter: Handle);
    fn leveldb_iter_seek_to_last(iter: Handle);
    fn leveldb_iter_seek(iter: Handle, key: *const c_char, key_len: usize);
    fn leveldb_iter_next(iter: Handle);
    fn leveldb_iter_prev(iter: Handle);
    fn leveldb_iter_key(iter: Handle, len: *mut usize) -> *const c_char;
    fn leveldb_iter_value(iter: Handle, len: *mut usize) -> *const c_char;
    fn leveldb_iter_get_error(iter: Handle, error: Error);
    fn leveldb_writebatch_create() -> Handle;
    fn leveldb_writebatch_destroy(batch: Handle);
    fn leveldb_writebatch_clear(batch: Handle);
    fn leveldb_writebatch_put(
        batch: Handle,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
    );
    fn leveldb_writebatch_delete(batch: Handle, key: *const c_char, key_len: usize);
    fn leveldb_options_create() -> Handle;
    fn leveldb_options_destroy(options: Handle);
    fn leveldb_options_set_filter_policy(options: Handle, policy: Handle);
    fn leveldb_options_set_create_if_missing(options: Handle, yes: c_uchar);
    fn leveldb_options_set_error_if_exists(options: Handle, yes: c_uchar);
    fn leveldb_options_set_write_buffer_size(options: Handle, bytes: usize);
    fn leveldb_options_set_cache(options: Handle, cache: Handle);
    fn leveldb_options_set_block_size(options: Handle, bytes: usize);
    fn leveldb_options_set_max_file_size(options: Handle, bytes: usize);
    fn leveldb_options_set_compression(options: Handle, compression: c_int);
    fn leveldb_filterpolicy_create_bloom(bits_per_key: c_int) -> Handle;
    fn leveldb_filterpolicy_destroy(policy: Handle);
    fn leveldb_readoptions_create() -> Handle;
    fn leveldb_readoptions_destroy(options: Handle);
    fn leveldb_writeoptions_create() -> Handle;
    fn leveldb_writeoptions_destroy(options: Handle);
    fn leveldb_writeoptions_set_sync(options: Handle, yes: c_uchar);
    fn leveldb_cache_create_lru(bytes: usize) -> Handle;
    fn leveldb_cache_destroy(cache: Handle);
    fn leveldb_free(memory: *mut c_void);
    fn leveldb_major_version() -> c_int;
    fn leveldb_minor_version() -> c_int;
}

fn start_of(bytes: &[u8]) -> *const c_char {
    bytes.as_ptr().cast()
}

/// Runs `call` with a slot for its error, and takes the error if there is one.
fn checked<T>(call: impl FnOnce(Error) -> T) -> Result<T, String> {
    let mut error = ptr::null_mut();
    let done = call(&mut error);
    if error.is_null() {
        return Ok(done);
    }
    // SAFETY: a failed call has stored a string there that ends with a zero and is ours to free.
    let what = unsafe { CStr::from_ptr(error) }
        .to_string_lossy()
        .into_owned();
    // SAFETY: it came from the library, and no pointer to it is left.
    unsafe { leveldb_free(error.cast()) };
    Err(what)
}

/// Returns the version of the library.
pub(super) fn version() -> (i32, i32) {
    // SAFETY: the functions take nothing and return a constant.
    unsafe { (leveldb_major_version(), leveldb_minor_version()) }
}

/// The settings of a database.
pub(super) struct Settings {
    pub(super) create: bool,
    pub(super) write_buffer_bytes: usize,
    pub(super) cache_bytes: usize,
    pub(super) block_bytes: usize,
    pub(super) table_bytes: usize,
    pub(super) filter_bits: i32,
    pub(super) compress: bool,
}

/// Options, cache and filter of a database.
struct Parts {
    options: Handle,
    cache: Handle,
    filter: Handle,
}

impl Parts {
    fn of(settings: &Settings) -> Parts {
        // SAFETY: the create functions take plain numbers and return handles (L1); the others get
        // such handles, and keep cache and filter, which live as long as the options (L2).
        unsafe {
            let parts = Parts {
                options: leveldb_options_create(),
                cache: leveldb_cache_create_lru(settings.cache_bytes),
                filter: leveldb_filterpolicy_create_bloom(settings.filter_bits),
            };
            let options = parts.options;
            leveldb_options_set_create_if_missing(options, settings.create.into());
            leveldb_options_set_error_if_exists(options, settings.create.into());
            leveldb_options_set_write_buffer_size(options, settings.write_buffer_bytes);
            leveldb_options_set_cache(options, parts.cache);
            leveldb_options_set_filter_policy(options, parts.filter);
            leveldb_options_set_block_size(options, settings.block_bytes);
            leveldb_options_set_max_file_size(options, settings.table_bytes);
            leveldb_options_set_compression(options, settings.compress.into());
            parts
        }
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        // SAFETY: the handles are ours, are freed only here, and no database uses them any more
        // (L2).
        unsafe {
            leveldb_options_destroy(self.options);
            leveldb_cache_destroy(self.cache);
            leveldb_filterpolicy_destroy(self.filter);
        }
    }
}

/// An open database.
pub(super) struct Db {
    db: Handle,
    read: Handle,
    /// Freed after the database, which is closed in `drop` (L2).
    _parts: Parts,
}

// SAFETY: a database may be used by any number of threads at once (doc/index.md, "Concurrency"),
// and read options are never changed.
unsafe impl Send for Db {}
// SAFETY: as above.
unsafe impl Sync for Db {}

impl Db {
    pub(super) fn open(path: &Path, settings: &Settings) -> Result<Db, String> {
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| format!("{} has a zero byte in its name", path.display()))?;
        let parts = Parts::of(settings);
        // SAFETY: options and name are valid for the call.
        let db = checked(|error| unsafe { leveldb_open(parts.options, name.as_ptr(), error) })?;
        Ok(Db {
            db,
            // SAFETY: the function takes nothing.
            read: unsafe { leveldb_readoptions_create() },
            _parts: parts,
        })
    }

    pub(super) fn put(
        &self,
        options: &WriteOptions,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), String> {
        let (key_start, value_start) = (start_of(key), start_of(value));
        let (db, options) = (self.db, options.0);
        // SAFETY: the handles live, and the bytes are valid for the call.
        checked(|error| unsafe {
            leveldb_put(
                db,
                options,
                key_start,
                key.len(),
                value_start,
                value.len(),
                error,
            );
        })
    }

    pub(super) fn delete(&self, options: &WriteOptions, key: &[u8]) -> Result<(), String> {
        // SAFETY: the handles live, and the bytes are valid for the call.
        checked(|error| unsafe {
            leveldb_delete(self.db, options.0, start_of(key), key.len(), error);
        })
    }

    pub(super) fn write(&self, options: &WriteOptions, batch: &mut Batch) -> Result<(), String> {
        // SAFETY: the handles live, and the batch is borrowed exclusively.
        checked(|error| unsafe { leveldb_write(self.db, options.0, batch.0, error) })
    }

    /// Shows the value of `key` to `see`; returns whether there is one.
    pub(super) fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, String> {
        let mut len = 0;
        // SAFETY: the handles live, and the bytes are valid for the call.
        let value = checked(|error| unsafe {
            leveldb_get(
                self.db,
                self.read,
                start_of(key),
                key.len(),
                &mut len,
                error,
            )
        })?;
        if value.is_null() {
            return Ok(false);
        }
        let value = Allocated(value.cast());
        // SAFETY: the library allocated `len` bytes there, which are ours until they are freed
        // below.
        see(unsafe { std::slice::from_raw_parts(value.0.cast(), len) });
        Ok(true)
    }

    pub(super) fn iter(&self) -> Iter<'_> {
        Iter {
            // SAFETY: the handles live; the iterator is freed before the database, which it
            // borrows.
            iter: unsafe { leveldb_create_iterator(self.db, self.read) },
            db: PhantomData,
        }
    }

    /// Compacts everything.
    pub(super) fn compact_all(&self) {
        // SAFETY: the handle lives, and null stands for no bound.
        unsafe { leveldb_compact_range(self.db, ptr::null(), 0, ptr::null(), 0) };
    }

    /// Waits until compactions are idle.
    pub(super) fn rest(&self) {
        // The statistics change only when a compaction ends, so this must exceed the time of one.
        const PATIENCE: Duration = Duration::from_secs(2);
        let mut before = self.property(c"leveldb.stats");
        // BOUND: without new writes, compactions end.
        loop {
            std::thread::sleep(PATIENCE);
            let now = self.property(c"leveldb.stats");
            if now == before {
                return;
            }
            before = now;
        }
    }

    fn property(&self, name: &CStr) -> Option<Vec<u8>> {
        // SAFETY: the handle lives, and the name ends with a zero.
        let value = unsafe { leveldb_property_value(self.db, name.as_ptr()) };
        if value.is_null() {
            return None;
        }
        let value = Allocated(value.cast());
        // SAFETY: the library allocated a string there that ends with a zero.
        Some(
            unsafe { CStr::from_ptr(value.0.cast()) }
                .to_bytes()
                .to_vec(),
        )
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        // SAFETY: both are ours, freed only here, and no iterator is left, since iterators borrow
        // the database.
        unsafe {
            leveldb_close(self.db);
            leveldb_readoptions_destroy(self.read);
        }
    }
}

/// Memory allocated by the library, to be freed here.
struct Allocated(*mut c_void);

impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: it came from the library and is freed only here.
        unsafe { leveldb_free(self.0) };
    }
}

/// The options of writes.
pub(super) struct WriteOptions(Handle);

// SAFETY: the options never change after creation.
unsafe impl Send for WriteOptions {}
// SAFETY: as above.
unsafe impl Sync for WriteOptions {}

impl WriteOptions {
    pub(super) fn new(sync: bool) -> WriteOptions {
        // SAFETY: the first function returns a handle (L1), which the second one gets.
        unsafe {
            let options = leveldb_writeoptions_create();
            leveldb_writeoptions_set_sync(options, sync.into());
            WriteOptions(options)
        }
    }
}

impl Drop for WriteOptions {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and freed only here.
        unsafe { leveldb_writeoptions_destroy(self.0) };
    }
}

/// A batch of writes.
pub(super) struct Batch(Handle);

impl Batch {
    pub(super) fn new() -> Batch {
        // SAFETY: the function takes nothing.
        Batch(unsafe { leveldb_writebatch_create() })
    }

    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) {
        let (key_start, value_start) = (start_of(key), start_of(value));
        // SAFETY: the handle lives, and the bytes are valid for the call.
        unsafe { leveldb_writebatch_put(self.0, key_start, key.len(), value_start, value.len()) };
    }

    pub(super) fn delete(&mut self, key: &[u8]) {
        // SAFETY: the handle lives, and the bytes are valid for the call.
        unsafe { leveldb_writebatch_delete(self.0, start_of(key), key.len()) };
    }

    pub(super) fn clear(&mut self) {
        // SAFETY: the handle lives.
        unsafe { leveldb_writebatch_clear(self.0) };
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and freed only here.
        unsafe { leveldb_writebatch_destroy(self.0) };
    }
}

/// An iterator, at an entry or past one end.
pub(super) struct Iter<'a> {
    iter: Handle,
    db: PhantomData<&'a Db>,
}

impl Iter<'_> {
    pub(super) fn seek_to_first(&mut self) {
        // SAFETY: the handle lives.
        unsafe { leveldb_iter_seek_to_first(self.iter) };
    }

    pub(super) fn seek_to_last(&mut self) {
        // SAFETY: the handle lives.
        unsafe { leveldb_iter_seek_to_last(self.iter) };
    }

    /// Moves to `key` or the next larger one.
    pub(super) fn seek(&mut self, key: &[u8]) {
        // SAFETY: the handle lives, and the bytes are valid for the call.
        unsafe { leveldb_iter_seek(self.iter, start_of(key), key.len()) };
    }

    /// Moves to the next entry; the iterator must be at an entry.
    pub(super) fn next(&mut self) {
        if self.is_valid() {
            // SAFETY: the handle lives and is at an entry.
            unsafe { leveldb_iter_next(self.iter) };
        }
    }

    /// Moves to the previous entry; the iterator must be at an entry.
    pub(super) fn prev(&mut self) {
        if self.is_valid() {
            // SAFETY: the handle lives and is at an entry.
            unsafe { leveldb_iter_prev(self.iter) };
        }
    }

    fn is_valid(&self) -> bool {
        // SAFETY: the handle lives.
        unsafe { leveldb_iter_valid(self.iter) != 0 }
    }

    /// Returns key and value of the current entry, valid until the iterator moves.
    pub(super) fn entry(&self) -> Option<(&[u8], &[u8])> {
        if !self.is_valid() {
            return None;
        }
        let (mut key_len, mut value_len) = (0, 0);
        // SAFETY: the handle lives and is at an entry; the bytes stay valid until it moves, which
        // needs it mutably, so not while these slices borrow it.
        unsafe {
            let key = leveldb_iter_key(self.iter, &mut key_len);
            let value = leveldb_iter_value(self.iter, &mut value_len);
            Some((
                std::slice::from_raw_parts(key.cast(), key_len),
                std::slice::from_raw_parts(value.cast(), value_len),
            ))
        }
    }

    /// Returns the error of the moves so far, if any.
    pub(super) fn status(&self) -> Result<(), String> {
        // SAFETY: the handle lives.
        checked(|error| unsafe { leveldb_iter_get_error(self.iter, error) })
    }
}

impl Drop for Iter<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and freed only here.
        unsafe { leveldb_iter_destroy(self.iter) };
    }
}

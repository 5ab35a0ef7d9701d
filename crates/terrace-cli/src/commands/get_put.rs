//! `terrace get`, `put` and `delete`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};
use terrace::WriteBatch;

use crate::args::{DeleteArgs, GetArgs, PutArgs, StoreArgs, TextArgs};
use crate::error::CliError;
use crate::format::escape::{escaped, unescape};
use crate::output::{Output, insert_bytes, insert_expiry};
use crate::store::{Access, Store};

/// Returns the bytes of an argument.
pub(super) fn bytes_of(argument: &OsStr, text: &TextArgs) -> Result<Vec<u8>, CliError> {
    if !text.escaped {
        return Ok(argument.as_bytes().to_vec());
    }
    unescape(argument.as_bytes()).map_err(|problem| {
        let argument = argument.to_string_lossy();
        CliError::Usage(format!("cannot parse the argument {argument:?}: {problem}"))
    })
}

pub(super) fn get(args: &GetArgs, store: &StoreArgs, json: bool) -> Result<(), CliError> {
    let key = bytes_of(&args.key, &args.text)?;
    let store = Store::open(&args.db, store, Access::Read)?;
    let found = store.keyspace.get_with_expiry(&key)?;
    let mut out = Output::new();
    if json {
        let mut object = Map::new();
        insert_bytes(&mut object, "key", &key);
        object.insert("found".to_string(), Value::from(found.is_some()));
        if let Some((value, expiry)) = &found {
            insert_bytes(&mut object, "value", value);
            insert_expiry(&mut object, *expiry);
        }
        out.line(Value::Object(object))?;
    } else if let Some((value, _)) = &found {
        if args.raw {
            out.bytes(value)?;
        } else {
            out.line(escaped(value))?;
        }
    }
    out.finish()?;
    store.close()?;
    match found {
        Some(_) => Ok(()),
        None => Err(CliError::Failed(format!(
            "there is no key {}",
            escaped(&key)
        ))),
    }
}

/// The bounds of a range of keys.
pub(super) type KeyBounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// Returns the bounds of the keys from `from` on and before `to`.
pub(super) fn bounds_of(
    from: &Option<OsString>,
    to: &Option<OsString>,
    text: &TextArgs,
) -> Result<KeyBounds, CliError> {
    let end = |key: &Option<OsString>| key.as_ref().map(|key| bytes_of(key, text)).transpose();
    let low = end(from)?.map_or(Bound::Unbounded, Bound::Included);
    let high = end(to)?.map_or(Bound::Unbounded, Bound::Excluded);
    Ok((low, high))
}

pub(super) fn put(args: &PutArgs, store: &StoreArgs, json: bool) -> Result<(), CliError> {
    let key = bytes_of(&args.key, &args.text)?;
    let value = match (&args.value, &args.file) {
        (Some(value), _) => bytes_of(value, &args.text)?,
        (None, Some(file)) => read_whole(file)?,
        (None, None) => return Err(CliError::Usage("put needs a value".to_string())),
    };
    let ttl = args.ttl.map(Duration::try_from_secs_f64).transpose();
    let ttl = ttl.map_err(|e| CliError::Usage(format!("--ttl takes seconds, 0 or more: {e}")))?;
    let store = Store::open(&args.db, store, Access::Create)?;
    match ttl {
        Some(ttl) => store.keyspace.put_with_ttl(&key, &value, ttl)?,
        None => store.keyspace.put(&key, &value)?,
    }
    store.close()?;
    report(json, json!({ "put": 1, "value_bytes": value.len() }))
}

pub(super) fn delete(args: &DeleteArgs, store: &StoreArgs, json: bool) -> Result<(), CliError> {
    let keys: Vec<Vec<u8>> = args
        .keys
        .iter()
        .map(|key| bytes_of(key, &args.text))
        .collect::<Result<_, _>>()?;
    let bounds = bounds_of(&args.from, &args.to, &args.text)?;
    let store = Store::open(&args.db, store, Access::Change)?;
    let mut batch = WriteBatch::new();
    for key in &keys {
        batch.delete_in(&store.keyspace, key);
    }
    if bounds != (Bound::Unbounded, Bound::Unbounded) {
        batch.delete_range_in(&store.keyspace, bounds);
        let durability = store.db.options().durability;
        store.db.write(batch, durability)?;
        store.close()?;
        return report(json, json!({ "deleted_ranges": 1 }));
    }
    let durability = store.db.options().durability;
    store.db.write(batch, durability)?;
    store.close()?;
    report(json, json!({ "deleted": keys.len() }))
}

/// Reports the result to programs; people take silence as success.
fn report(json: bool, what: Value) -> Result<(), CliError> {
    if !json {
        return Ok(());
    }
    let mut out = Output::new();
    out.line(what)?;
    out.finish()
}

fn read_whole(file: &Path) -> Result<Vec<u8>, CliError> {
    if file != Path::new("-") {
        return fs::read(file).map_err(|e| CliError::io("read", file, e));
    }
    let mut bytes = Vec::new();
    let read = io::stdin().lock().read_to_end(&mut bytes);
    let what = || "read the standard input".to_string();
    read.map(|_| bytes).map_err(|source| CliError::Io {
        what: what(),
        source,
    })
}

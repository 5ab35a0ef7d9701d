//! The OPTIONS file of a database: the options fixed at creation, and those that the database keeps
//! (`kept.rs`).
//!
//! Each line is `name = value`, readable by people, and the last one is a checksum, which detects a
//! torn or edited file. The file is replaced as a whole (write, sync, rename, sync the directory),
//! at creation and by an open with other options.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use terrace_media::{FileSystem, OpenMode, OsFs};

use super::Options;
use super::kept::Kept;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{DbId, draft_of};

/// The version of all formats of a database on media.
pub(crate) const FORMAT: u32 = 2;
/// The name of the file.
pub(crate) const NAME: &str = "OPTIONS";
/// BOUND: a longer file is not an OPTIONS file.
const BYTES_MAX: u64 = 64 * 1024;

/// The names of the lines outside `kept`.
const OWN: [&str; 9] = [
    "format",
    "id",
    "design",
    "folder",
    "moves",
    "pool",
    "pool_uuid",
    "pool_size_bytes",
    "checksum",
];

/// The options fixed at creation, and those kept with them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OptionsFile {
    pub(crate) id: DbId,
    pub(crate) design: String,
    /// `None`: medium `Dram`. A moved pool is found at its last name.
    pub(crate) pool_path: Option<PathBuf>,
    pub(crate) pool_uuid: String,
    /// The directory of the database when this was written, if a copy of the directory would name
    /// the same pool.
    pub(crate) folder: Option<PathBuf>,
    /// The number of times that the database was opened in another directory than before. Also
    /// stored in the pool.
    pub(crate) moves: u64,
    /// The cap of the memory, or of the pool's file, which is only ever raised.
    pub(crate) pool_size_bytes: u64,
    pub(crate) kept: Kept,
}

impl OptionsFile {
    /// Returns what `options` fix for the database `id` and the pool with this uuid.
    pub(crate) fn of(options: &Options, id: DbId, pool_uuid: String) -> OptionsFile {
        OptionsFile {
            id,
            design: options.design_of_new().to_string(),
            pool_path: options.pool.path.clone(),
            pool_uuid,
            folder: None,
            moves: 0,
            pool_size_bytes: options.pool.size_bytes,
            kept: Kept::of(options),
        }
    }

    pub(super) fn print(&self) -> String {
        let pool = self
            .pool_path
            .as_ref()
            .map(|p| p.display().to_string())
            .unwrap_or_default();
        let folder = self.folder.as_ref();
        let folder = folder.map_or_else(String::new, |dir| {
            format!("folder = {}\nmoves = {}\n", dir.display(), self.moves)
        });
        let mut text = format!(
            "# Written by Terrace; do not edit.\nformat = {FORMAT}\nid = {}\ndesign = {}\n{folder}pool = {pool}\n\
             pool_uuid = {}\npool_size_bytes = {}\n{}",
            self.id,
            self.design,
            self.pool_uuid,
            self.pool_size_bytes,
            self.kept.print(),
        );
        let crc = crc_fast::crc32_iscsi(text.as_bytes());
        text.push_str(&format!("checksum = {crc:08x}\n"));
        text
    }

    pub(super) fn parse(text: &str, path: &Path) -> Result<OptionsFile> {
        let damaged = |what: String| {
            Error::corruption(format!(
                "{} is damaged ({what}); restore it from a copy of the database, or recover the \
                 readable data with \"terrace repair\"",
                path.display()
            ))
        };
        let lines = text.split('\n').filter_map(|line| line.split_once(" = "));
        let values: BTreeMap<&str, &str> = lines.collect();
        let get = |name: &str| {
            values
                .get(name)
                .copied()
                .ok_or_else(|| damaged(format!("the line {name} is missing")))
        };
        let number = |name: &str| {
            let value = get(name)?;
            value
                .parse::<u64>()
                .map_err(|_| damaged(format!("{name} is {value:?}, not a number")))
        };
        let format = number("format")?;
        if format > u64::from(FORMAT) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{} has format {format}, but this version knows formats up to {FORMAT}: open \
                     the database with a newer version",
                    path.display()
                ),
            ));
        }
        if format < u64::from(FORMAT) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{} has format {format}, from before the first release, but this version knows \
                     format {FORMAT}: dump the database with the version that wrote it, and load \
                     the dump into a new one",
                    path.display()
                ),
            ));
        }
        let body = text.rfind("checksum = ").unwrap_or(text.len());
        let crc = format!("{:08x}", crc_fast::crc32_iscsi(&text.as_bytes()[..body]));
        if get("checksum")? != crc || !text.ends_with(&format!("checksum = {crc}\n")) {
            return Err(damaged("its checksum is wrong".into()));
        }
        let pool = get("pool")?;
        let kept = values.iter().filter(|(name, _)| !OWN.contains(name));
        let kept = kept.map(|(&name, &value)| (name.to_owned(), value.to_owned()));
        let id = get("id")?;
        let id = DbId::parse(id).ok_or_else(|| damaged(format!("id is {id:?}, not a valid id")))?;
        Ok(OptionsFile {
            id,
            design: get("design")?.to_owned(),
            pool_path: (!pool.is_empty()).then(|| PathBuf::from(pool)),
            pool_uuid: get("pool_uuid")?.to_owned(),
            folder: values.get("folder").map(PathBuf::from),
            moves: match values.get("moves") {
                Some(_) => number("moves")?,
                None => 0,
            },
            pool_size_bytes: number("pool_size_bytes")?,
            kept: Kept::from_lines(kept.collect()),
        })
    }

    /// Returns the same, written for the directory `dir`.
    pub(crate) fn in_folder(self, dir: &Path) -> OptionsFile {
        // Any other path is inside the directory, so a copy contains the pool too. A name with a
        // line break cannot be stored.
        let is_outside = |pool: &PathBuf| {
            pool.is_absolute() || pool.components().any(|c| c == Component::ParentDir)
        };
        let has_line = dir.to_str().is_some_and(|dir| !dir.contains('\n'));
        let folder = self.pool_path.as_ref().filter(|pool| is_outside(pool));
        OptionsFile {
            folder: folder.filter(|_| has_line).map(|_| dir.to_owned()),
            ..self
        }
    }

    /// Returns the options of the database in the directory `dir`, if the caller gives none.
    pub(crate) fn options(&self, dir: &Path) -> Result<Options> {
        let mut options = Options {
            design: Some(self.design.parse()?),
            ..Options::default()
        };
        options.pool.path = self.pool_path.clone();
        options.pool.size_bytes = self.pool_size_bytes;
        // The checksum is right, so this was written deliberately.
        self.kept.apply(&mut options).map_err(|problem| {
            Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{}: {problem} that this version knows: open the database with the version \
                     that wrote it, or give all options",
                    dir.join(NAME).display()
                ),
            )
        })?;
        Ok(options)
    }

    /// Reads the file in the directory `dir`; `None` if there is none.
    pub(crate) fn read(fs: &Arc<dyn FileSystem>, dir: &Path) -> Result<Option<OptionsFile>> {
        let path = dir.join(NAME);
        if !fs
            .exists(&path)
            .map_err(|e| Error::io("check for", &path, e))?
        {
            return Ok(None);
        }
        let file = fs
            .open(&path, OpenMode::Read)
            .map_err(|e| Error::io("open", &path, e))?;
        let len = file.len().map_err(|e| Error::io("read", &path, e))?;
        if len > BYTES_MAX {
            return Err(Error::corruption(format!(
                "{} has {len} bytes, too many for an OPTIONS file; restore it from a copy, or \
                 recover the readable data with \"terrace repair\"",
                path.display()
            )));
        }
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(0, &mut bytes)
            .map_err(|e| Error::io("read", &path, e))?;
        OptionsFile::parse(&String::from_utf8_lossy(&bytes), &path).map(Some)
    }

    /// Replaces the file, durably on return.
    pub(crate) fn write(&self, fs: &Arc<dyn FileSystem>, dir: &Path) -> Result<()> {
        self.write_as(fs, dir, &|draft, path| fs.rename(draft, path))
    }

    /// Creates the file if there is none, durably on return.
    pub(crate) fn write_new(&self, fs: &Arc<dyn FileSystem>, dir: &Path) -> Result<()> {
        self.write_as(fs, dir, &|draft, path| fs.rename_new(draft, path))
    }

    fn write_as(
        &self,
        fs: &Arc<dyn FileSystem>,
        dir: &Path,
        rename: &dyn Fn(&Path, &Path) -> std::io::Result<()>,
    ) -> Result<()> {
        let path = dir.join(NAME);
        let draft = draft_of(&path, self.id);
        let written = || {
            let file = fs.open(&draft, OpenMode::Truncate)?;
            file.write_at(0, self.print().as_bytes())?;
            // PERSIST: the text before the name. Reversed, a power loss could leave an empty file.
            file.sync_data()?;
            rename(&draft, &path)?;
            fs.sync_dir(dir)
        };
        written().map_err(|e| {
            let _ = fs.remove(&draft);
            Error::io("write", &path, e)
        })
    }
}

impl Options {
    /// Returns the options kept by the database in the directory `path`; `None` if there is no
    /// database. Those of the pool and of the shape of the data ([`Options::kept`]) are as they
    /// were when it was last opened to write; the others, which belong to the process (cache,
    /// threads, rates, open files), to the machine (medium, pre-faulting) or to one call
    /// (durability), have their defaults.
    ///
    /// Use this to open a database that another program created, and change single options:
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # drop(terrace::Db::open(folder.path(), terrace::testing::small_options())?);
    /// use terrace::{Db, Options};
    /// let mut options = Options::load(folder.path())?.unwrap_or_default();
    /// options.bottom.leveled.cache_bytes = 64 << 20;
    /// let db = Db::open(folder.path(), options)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Io` if the file cannot be read, `Corruption` if it is damaged, `Unsupported` if a newer
    /// version wrote it.
    pub fn load(path: impl AsRef<Path>) -> Result<Option<Options>> {
        let fs: Arc<dyn FileSystem> = Arc::new(OsFs);
        let dir = path.as_ref();
        match OptionsFile::read(&fs, dir)? {
            Some(fixed) => fixed.options(dir).map(Some),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed() -> OptionsFile {
        let mut options = Options::default();
        options.pool.path = Some("pool = with spaces".into());
        let fixed = OptionsFile::of(&options, DbId(*b"sixteen bytes id"), "00ff".into());
        OptionsFile {
            folder: Some("a directory".into()),
            ..fixed
        }
    }

    /// A directory whose name would be several lines of the file is not stored.
    #[test]
    fn names_of_folders_are_no_lines() {
        let mut options = Options::default();
        options.pool.path = Some("/pool".into());
        let fixed = OptionsFile::of(&options, DbId(*b"sixteen bytes id"), "00ff".into());
        for (dir, noted) in [("/a = b", true), ("/a\nid = 0", false)] {
            let fixed = fixed.clone().in_folder(Path::new(dir));
            assert_eq!(fixed.folder.is_some(), noted, "{dir}");
            let read = OptionsFile::parse(&fixed.print(), Path::new(NAME)).unwrap();
            assert_eq!(read, fixed);
        }
    }

    /// A printed file parses back to the same; with any byte changed it never parses to something
    /// else.
    #[test]
    fn a_changed_byte_is_noticed() {
        let text = fixed().print();
        let path = Path::new("OPTIONS");
        assert_eq!(OptionsFile::parse(&text, path).unwrap(), fixed());
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let changed = String::from_utf8_lossy(&bytes).into_owned();
            if let Ok(found) = OptionsFile::parse(&changed, path) {
                panic!("byte {at} changed, but {found:?} was accepted");
            }
        }
        for end in 0..text.len() {
            assert!(
                OptionsFile::parse(&text[..end], path).is_err(),
                "cut at byte {end}"
            );
        }
    }

    /// Values keep leading and trailing characters, whatever they look like.
    #[test]
    fn values_keep_their_ends() {
        for pool in ["pool =", "pool = ", " pool", "="] {
            let fixed = OptionsFile {
                pool_path: Some(pool.into()),
                ..fixed()
            };
            let found = OptionsFile::parse(&fixed.print(), Path::new("OPTIONS")).unwrap();
            assert_eq!(found, fixed);
        }
    }

    /// A newer format is refused as such.
    #[test]
    fn a_newer_format_is_unsupported() {
        let text = fixed().print().replace("format = 2", "format = 3");
        let error = OptionsFile::parse(&text, Path::new("OPTIONS")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }

    /// A file of a version that kept three options opens, and the others have their defaults.
    #[test]
    fn a_file_with_fewer_lines_opens() {
        let mut text =
            "# Written by Terrace; do not edit.\nformat = 2\nid = 000102030405060708090a0b0c0d0e0f\ndesign = leveled\npool = \n\
                        pool_uuid = 00ff\npool_size_bytes = 8589934592\nmemtable_bytes = 8192\n\
                        levels = 3\nextent_bytes = 16384\n"
                .to_owned();
        text.push_str(&format!(
            "checksum = {:08x}\n",
            crc_fast::crc32_iscsi(text.as_bytes())
        ));
        let fixed = OptionsFile::parse(&text, Path::new("OPTIONS")).unwrap();
        let options = fixed.options(Path::new("db")).unwrap();
        assert_eq!(options.front.memtable_bytes, 8192);
        assert_eq!(
            (options.buffer.levels, options.bottom.extent_bytes),
            (3, 16384)
        );
        assert_eq!(options.bottom.leveled.growth, 10);
    }

    /// A value unknown to this version is no damage, and the error names the remedy.
    #[test]
    fn an_unknown_value_is_unsupported() {
        let mut fixed = fixed();
        let lines = [("bottom.leveled.compression".to_owned(), "brotli".to_owned())];
        fixed.kept = Kept::from_lines(lines.into());
        let parsed = OptionsFile::parse(&fixed.print(), Path::new("OPTIONS")).unwrap();
        let error = parsed.options(Path::new("db")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let message = error.to_string();
        assert!(
            message.contains("bottom.leveled.compression is \"brotli\""),
            "{message}"
        );
    }
}

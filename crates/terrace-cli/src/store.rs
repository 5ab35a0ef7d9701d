//! Opening the database of a command: options of the user override those that the database keeps,
//! which override the defaults.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use terrace::{Db, Design, Emulation, Keyspace, Options, Prefault, Progress, Sizes};
use terrace_bench::units;

use crate::args::StoreArgs;
use crate::error::CliError;

/// The default pool's file in the directory of a new database.
pub(crate) const POOL_FILE: &str = "pool";

/// The access of a command to its database. Only `Create` creates a missing one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Create,
    Change,
    /// Options that shape the data are those of this command, and are not kept.
    Read,
}

/// An open database and the keyspace to work in.
pub(crate) struct Store {
    pub(crate) db: Db,
    pub(crate) keyspace: Keyspace,
    /// Whether the user named the keyspace.
    pub(crate) is_named: bool,
}

impl Store {
    /// Opens the database at `path` for a command.
    pub(crate) fn open(path: &Path, args: &StoreArgs, access: Access) -> Result<Store, CliError> {
        let db = open(path, args, access)?;
        let name = args.keyspace.as_deref();
        let keyspace = match (name, access) {
            (None, _) => db.default_keyspace(),
            (Some(name), Access::Create) => db.create_keyspace(name)?,
            (Some(name), Access::Change | Access::Read) => db.keyspace(name)?.ok_or_else(|| {
                let all = db.list_keyspaces().unwrap_or_default().join(", ");
                CliError::Failed(format!(
                    "there is no keyspace {name:?}; the keyspaces are: {all}"
                ))
            })?,
        };
        Ok(Store {
            db,
            keyspace,
            is_named: name.is_some(),
        })
    }

    /// Returns the keyspace that the user named, or all of them.
    pub(crate) fn chosen(&self) -> Result<Vec<Keyspace>, CliError> {
        match self.is_named {
            true => Ok(vec![self.keyspace.clone()]),
            false => keyspaces(&self.db),
        }
    }

    /// Closes the database, which completes its writes.
    pub(crate) fn close(self) -> Result<(), CliError> {
        Ok(self.db.close()?)
    }
}

/// Opens all keyspaces of a database.
pub(crate) fn keyspaces(db: &Db) -> Result<Vec<Keyspace>, CliError> {
    let mut all = Vec::new();
    for name in db.list_keyspaces()? {
        // A keyspace that is dropped meanwhile is missing from the list.
        all.extend(db.keyspace(&name)?);
    }
    Ok(all)
}

/// Opens the database at `path` without choosing a keyspace.
pub(crate) fn open(path: &Path, args: &StoreArgs, access: Access) -> Result<Db, CliError> {
    let stored = Options::load(path)?;
    let named = stored.as_ref().and_then(|stored| stored.pool.path.as_ref());
    if let (Some(named), Some(None)) = (named, args.pool.as_ref().map(pool_path)) {
        return Err(CliError::Usage(format!(
            "the database in {} has the pool {}, so --pool none is not possible: omit it",
            path.display(),
            named.display()
        )));
    }
    if let (Some(_), Some(stored), Some(given)) = (named, &stored, args.pool_size)
        && given < stored.pool.size_bytes
    {
        return Err(CliError::Usage(format!(
            "the pool of the database in {} may grow to {}, and that cannot be lowered, so \
             --pool-size {} is not possible: omit it",
            path.display(),
            units::bytes(stored.pool.size_bytes),
            units::bytes(given)
        )));
    }
    let mut options = options(stored, args);
    options.error_if_missing = access != Access::Create;
    if access == Access::Read && args.prefault.is_none() {
        // It needs few pages, and none ahead of time.
        options.pool.prefault = Prefault::None;
    }
    let bar = bar("recovering");
    let shown = bar.clone();
    let mut builder = Db::builder(path)
        .options(options)
        .progress(move |progress| show(&shown, progress));
    if access == Access::Read {
        builder = builder.without_keeping();
    }
    if let Some(trace) = &args.record_trace {
        let file = File::create(trace).map_err(|e| CliError::io("create", trace, e))?;
        builder = builder.trace(BufWriter::new(file));
    }
    let opened = builder.open();
    bar.finish_and_clear();
    Ok(opened?)
}

/// Returns the options to open with: `stored` ones if the database exists.
fn options(stored: Option<Options>, args: &StoreArgs) -> Options {
    let Some(mut options) = stored else {
        let mut options = Options::default();
        options.pool.path = Some(POOL_FILE.into());
        apply(args, &mut options);
        return options;
    };
    let kept = (options.front.memtable_bytes, options.bottom.extent_bytes);
    apply(args, &mut options);
    if args.memory.is_none() {
        // The sizes of memtables and of extents follow from the pool's when a database is created.
        let memtable = args.memtable_size.unwrap_or(kept.0);
        (options.front.memtable_bytes, options.bottom.extent_bytes) = (memtable, kept.1);
    }
    options
}

/// Sets every option that the user gave.
pub(crate) fn apply(args: &StoreArgs, options: &mut Options) {
    fn set<T>(option: &mut T, given: Option<impl Into<T>>) {
        if let Some(given) = given {
            *option = given.into();
        }
    }
    options.read_only |= args.read_only;
    set(&mut options.design, args.design);
    set(&mut options.durability, args.durability);
    set(&mut options.pool.path, args.pool.as_ref().map(pool_path));
    if let Some(bytes) = args.pool_size {
        *options = std::mem::take(options).with_pool_bytes(bytes);
    }
    set(&mut options.pool.medium, args.medium);
    set(&mut options.pool.prefault, args.prefault);
    let slows = |e: &Emulation| e.write_gbps > 0.0 || e.write_latency_ns > 0;
    set(
        &mut options.pool.emulation,
        args.emulate.map(|emulation| Some(emulation).filter(slows)),
    );
    set(&mut options.front.memtable_bytes, args.memtable_size);
    set(&mut options.buffer.tables.table_bytes, args.memtable_size);
    set(&mut options.front.pm_memtable_bytes, args.pm_memtable_size);
    let leveled = &mut options.bottom.leveled;
    set(&mut leveled.table_bytes, args.table_size);
    set(&mut leveled.level1_bytes, args.level1_size);
    set(&mut leveled.cache_bytes, args.cache_size);
    set(&mut leveled.compression, args.compression);
    set(
        &mut leveled.values_apart_from,
        args.values_apart_from.map(|from| from.0),
    );
    if args.values_apart_from.is_some() && leveled.values_apart_from.is_none() {
        // If the design has its own default, the maximum turns values apart off.
        leveled.values_apart_from = match options.design {
            Some(Design::FlatLsm) => Some(u64::MAX),
            _ => None,
        };
    }
    leveled.debt_stop_bytes = leveled.debt_stop_bytes.max(leveled.level1_bytes);
    let direct = args.direct_io.map(|direct| direct.reads_and_writes());
    set(&mut leveled.direct_reads, direct.map(|(reads, _)| reads));
    set(&mut leveled.direct_writes, direct.map(|(_, writes)| writes));
    if let Some(memory) = args.memory {
        let chosen = Sizes {
            pool_bytes: args.pool_size,
            memtable_bytes: args.memtable_size,
            cache_bytes: args.cache_size,
            table_bytes: args.table_size,
            level1_bytes: args.level1_size,
        };
        // The kept sizes were derived from another memory limit.
        *options = std::mem::take(options).within(memory, chosen);
    }
}

/// Returns the pool that the user named; `None` for "none".
pub(crate) fn pool_path(given: &PathBuf) -> Option<PathBuf> {
    (given != Path::new("none")).then(|| given.clone())
}

/// Returns a progress bar on standard error, visible only on a terminal.
pub(crate) fn bar(message: &'static str) -> ProgressBar {
    let bar = ProgressBar::no_length();
    let template = "{msg:<12} [{bar:40}] {percent:>3}% {eta}";
    bar.set_style(ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar()));
    bar.set_message(message);
    bar
}

/// Sets `bar` to the store's progress.
pub(crate) fn show(bar: &ProgressBar, progress: &Progress) {
    bar.set_message(progress.what);
    bar.set_length(progress.total);
    bar.set_position(progress.done);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{DirectIoArg, DurabilityArg, MediumArg};
    use terrace::{Compression, Durability, MediumChoice};

    /// A new database has a pool in its folder; "none" means plain memory.
    #[test]
    fn a_new_database_has_a_pool() {
        let none = StoreArgs::default();
        assert_eq!(
            options(None, &none).pool.path.as_deref(),
            Some(Path::new(POOL_FILE))
        );
        let memory = StoreArgs {
            pool: Some("none".into()),
            ..StoreArgs::default()
        };
        assert_eq!(options(None, &memory).pool.path, None);
    }

    /// Sizes are derived from the memory, including those that a database keeps, except the given
    /// ones.
    #[test]
    fn sizes_follow_from_the_memory() {
        let mut stored = Options::default();
        stored.front.memtable_bytes = 32 << 20;
        let args = StoreArgs {
            memory: Some(64 << 20),
            cache_size: Some(10 << 20),
            ..StoreArgs::default()
        };
        let options = options(Some(stored), &args);
        options.validate().expect("the sizes fit");
        assert_eq!(options.memory_bytes, Some(64 << 20));
        assert_eq!(options.bottom.leveled.cache_bytes, 10 << 20);
        assert!(options.front.memtable_bytes < 32 << 20);
        let too_large = StoreArgs {
            cache_size: Some(64 << 20),
            ..args
        };
        let refused = super::options(None, &too_large).validate();
        assert!(
            refused.is_ok(),
            "the design of a new database here has no cache"
        );
        let too_large = StoreArgs {
            design: Some(terrace::Design::Leveled),
            ..too_large
        };
        let refused = super::options(None, &too_large).validate();
        assert!(refused.is_err_and(|e| e.to_string().contains("lower bottom.leveled.cache_bytes")));
    }

    /// Options of the user override those of the database, and the others do not change.
    #[test]
    fn given_options_go_first() {
        let mut stored = Options::default();
        stored.front.memtable_bytes = 1 << 20;
        stored.pool.path = Some("elsewhere".into());
        let args = StoreArgs {
            medium: Some(MediumArg::Dax),
            durability: Some(DurabilityArg::Sync),
            table_size: Some(8 << 20),
            pool_size: Some(16 << 20),
            pm_memtable_size: Some(3 << 20),
            cache_size: Some(0),
            compression: Some(Compression::None),
            direct_io: Some(DirectIoArg::Writes),
            ..StoreArgs::default()
        };
        let extent = stored.bottom.extent_bytes;
        let options = options(Some(stored), &args);
        assert_eq!(options.front.memtable_bytes, 1 << 20);
        assert_eq!(options.front.pm_memtable_bytes, Some(3 << 20));
        assert_eq!(options.bottom.extent_bytes, extent);
        assert_eq!(options.pool.size_bytes, 16 << 20);
        assert_eq!(options.pool.path.as_deref(), Some(Path::new("elsewhere")));
        assert_eq!(options.pool.medium, MediumChoice::ForceDax);
        assert_eq!(options.durability, Durability::Sync);
        let leveled = &options.bottom.leveled;
        assert_eq!((leveled.table_bytes, leveled.cache_bytes), (8 << 20, 0));
        assert_eq!(leveled.compression, Compression::None);
        assert_eq!((leveled.direct_reads, leveled.direct_writes), (false, true));
        assert_eq!(leveled.level1_bytes, 256 << 20);
    }
}

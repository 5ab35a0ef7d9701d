//! Places of stores: a directory of the system, a simulated machine, or a file system with faults.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use terrace::{Db, Options};
use terrace_media::{Clock, FileSystem, Machine, ManualClock, PoolFaults};

use crate::oracle::Outcome;
use crate::watchdog::watched;

/// The directory of a store, and the layers under it.
#[derive(Clone, Default)]
pub struct Place {
    /// The directory.
    pub folder: PathBuf,
    /// The simulated machine with the directory.
    pub machine: Option<Machine>,
    /// The file system, if it is not the system's.
    pub fs: Option<Arc<dyn FileSystem>>,
    /// Faults of the pool.
    pub faults: Option<Arc<PoolFaults>>,
    /// The clock by which entries expire.
    pub clock: ManualClock,
}

impl Place {
    /// Returns a directory of the system.
    pub fn folder(path: impl Into<PathBuf>) -> Place {
        Place {
            folder: path.into(),
            ..Place::default()
        }
    }

    /// Returns a directory on a simulated machine.
    pub fn machine(machine: &Machine) -> Place {
        Place {
            folder: "db".into(),
            machine: Some(machine.clone()),
            ..Place::default()
        }
    }

    /// Advances the clock to a time, unless it is already later.
    #[must_use]
    pub fn at(self, time: Duration) -> Place {
        self.clock.advance(time.saturating_sub(self.clock.now()));
        self
    }

    /// Opens the store.
    pub fn open(&self, options: &Options) -> terrace::Result<Db> {
        let clock = Arc::new(self.clock.clone());
        let mut builder = Db::builder(&self.folder)
            .options(options.clone())
            .clock(clock);
        if let Some(machine) = &self.machine {
            builder = builder.machine(machine.clone());
        }
        if let Some(fs) = &self.fs {
            builder = builder.file_system(Arc::clone(fs));
        }
        if let Some(faults) = &self.faults {
            builder = builder.pool_faults(Arc::clone(faults));
        }
        watched("opening", || builder.open())
    }
}

/// Creates a directory that is removed on drop, in memory if the system has such a file system.
pub fn scratch() -> Outcome<tempfile::TempDir> {
    let memory = std::path::Path::new("/dev/shm");
    let mut builder = tempfile::Builder::new();
    builder.prefix("terrace-test");
    let made = if memory.is_dir() {
        builder.tempdir_in(memory)
    } else {
        builder.tempdir()
    };
    made.map_err(|e| format!("cannot create a directory for the test: {e}"))
}

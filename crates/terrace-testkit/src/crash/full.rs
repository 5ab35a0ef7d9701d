//! Crashes of a database on a full disk, while it is overwritten and most or all of it is deleted
//! with the help of its reserve.
//!
//! A small disk is filled until a put is refused, or until a few keys were overwritten many times.
//! From then on, images are taken at every persist point: of more overwrites and single deletes, of
//! a range delete of all or most keys, of the drops and compactions that it causes, and of the puts
//! that follow. Each image is opened on a disk of the same size: nothing acknowledged is lost, the
//! same keys can be deleted, puts succeed again, and the reserve is complete.
//!
//! With a pool in addition to the disk, most keys are deleted singly instead: the deletes are in
//! the pool behind puts that do not fit on the disk, and table files are rewritten without the data
//! that the deletes hide.
//!
//! The quota counts the files present when a machine boots, so a file whose removal was lost still
//! takes space.

use std::path::Path;
use std::sync::Arc;

use terrace::{Compression, Design, Durability};
use terrace_media::{FileSystem, Machine, Medium, OpenMode, QuotaFs};

use super::{Case, Explorer, Queue, Tally};
use crate::oracle::Outcome;
use crate::place::Place;
use crate::script::{Entry, Key, Op, Range};
use crate::settings;
use crate::shrink;
use crate::value::Value;
use crate::watchdog;
use crate::world::World;

/// The size of the disk.
const DISK_BYTES: u64 = 1 << 20;
/// The minimum size of the reserve, for a database with hardly any table (docs/operations.md, "Full
/// disks").
const RESERVE_BYTES_MIN: u64 = 160 << 10;
/// The same with logs and manifest in a pool.
const RESERVE_BYTES_MIN_OF_TABLES: u64 = 32 << 10;
/// BOUND: more writes than fit.
const WRITES_MAX: u32 = 3000;
/// Every second pair of seeds overwrites `KEYS` keys, `OVERWRITES` times in total before the disk
/// counts as full, and `CHURN` times while crashing.
const KEYS: u32 = 180;
const OVERWRITES: u32 = 900;
const CHURN: u32 = 60;
/// The number of consecutive refused puts after which the disk counts as full.
const REFUSALS: u32 = 4;
/// Odd seeds delete the keys whose first byte is below this one.
const DELETED: u8 = 0xb0;
/// BOUND: the number of puts tried after the delete.
const TRIES: u32 = 8;

fn key_of(n: u32) -> Vec<u8> {
    n.wrapping_mul(2_654_435_761).to_be_bytes().to_vec()
}

/// Returns a put, or a synced delete: with `until` a range delete of the keys before it.
fn write(key: Vec<u8>, value: Option<Value>, until: Option<Key>) -> Op {
    let entry = Entry {
        space: 0,
        key: Key(key),
        value,
        until,
        ttl: None,
    };
    let durability = match value {
        Some(_) => Durability::Buffered,
        None => Durability::Sync,
    };
    Op::Write(vec![entry], durability)
}

impl Case {
    /// Returns a case that crashes at `percent` of the persist points of deleting everything on a
    /// full disk.
    pub fn of_full_disk(seed: u64, design: Design, percent: u32) -> Case {
        Case::on_full_disk(seed, design, Medium::Dram, percent)
    }

    /// Returns the same for single deletes of most keys, with either a full pool above the disk or
    /// only logs in the pool.
    pub fn of_full_pool_and_disk(seed: u64, design: Design, percent: u32) -> Case {
        let medium = match seed % 2 {
            0 => Medium::Mapped,
            _ => Medium::Dax,
        };
        Case::on_full_disk(seed, design, medium, percent)
    }

    fn on_full_disk(seed: u64, design: Design, medium: Medium, percent: u32) -> Case {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x0066_756c_6c21);
        let mut case = Case::new(seed, medium, percent, &mut rng).of(design);
        case.options = settings::small_of(design, medium);
        case.options.front.memtable_bytes = 16 << 10;
        case.options.bottom.leveled.table_bytes = 16 << 10;
        case.options.bottom.leveled.level1_bytes = 64 << 10;
        case.options.bottom.leveled.compression = Compression::None;
        case.disk_bytes = Some(DISK_BYTES);
        (case.creation, case.moves, case.random_images) = (false, false, 1);
        case
    }

    /// Returns whether a few keys are overwritten, so that most of the disk holds old versions.
    fn overwrites(&self) -> bool {
        self.seed % 4 >= 2 && !self.deletes_singly()
    }

    /// Returns whether keys are deleted singly.
    fn deletes_singly(&self) -> bool {
        self.medium != Medium::Dram
    }

    fn put_on_full_disk(&self, n: u32) -> Op {
        let value = Value {
            tag: 1 << 40 | u64::from(n),
            len: match self.deletes_singly() {
                true => 6000,
                false => 2000,
            },
        };
        let key = match self.overwrites() {
            true => key_of(n % KEYS),
            false => key_of(n),
        };
        write(key, Some(value), None)
    }

    /// Returns a range delete of all keys or, for odd seeds, of about two thirds of them, which
    /// leaves live keys in every table.
    fn delete_on_full_disk(&self) -> Op {
        let until = match self.seed % 2 {
            0 => Vec::new(),
            _ => vec![DELETED],
        };
        write(Vec::new(), None, Some(Key(until)))
    }

    /// Fills the disk, deletes all or most keys, and crashes meanwhile.
    pub fn run_on_full_disk(&self) -> Outcome<Tally> {
        let design = self.options.design_of_new();
        let what = format!("crash of {design} on a full disk, seed {:#x}", self.seed);
        let _case = watchdog::case(what.clone());
        let mut tally = Tally::default();
        let run = || Explorer::new(self, &mut tally).run_on_full_disk();
        shrink::guarded(run).map_err(|e| format!("{what}: {e}"))?;
        Ok(tally)
    }
}

/// Returns a place on `machine` whose disk holds `bytes` in total, existing and new files together.
pub(super) fn on_a_disk_of(bytes: u64, machine: &Machine) -> Place {
    let place = Place::machine(machine);
    let fs: Arc<dyn FileSystem> = Arc::new(QuotaFs::new(machine.fs(), bytes));
    // A file counts against the quota from its first open on.
    for name in fs.list(&place.folder).unwrap_or_default() {
        drop(fs.open(&place.folder.join(name), OpenMode::Read));
    }
    Place {
        fs: Some(fs),
        ..place
    }
}

/// Returns the size in bytes of the reserve in a directory.
fn reserve_bytes(machine: &Machine, folder: &Path) -> Outcome<u64> {
    let fs = machine.fs();
    let names = fs.list(folder).map_err(|e| format!("listing: {e}"))?;
    let Some(name) = names.iter().find(|name| name.starts_with("RESERVE-")) else {
        return Ok(0);
    };
    let file = fs.open(&folder.join(name), OpenMode::Read);
    file.and_then(|file| file.len())
        .map_err(|e| format!("{name}: {e}"))
}

impl Explorer<'_> {
    fn run_on_full_disk(&mut self) -> Outcome {
        let machine = Machine::new(self.case.seed, self.machine_medium());
        let place = self.place(&machine);
        let oracle = self.case.oracle();
        let mut world = World::open(place, self.case.options.clone(), 0, oracle)?;
        let mut refused = 0;
        let mut count = 0;
        while refused < REFUSALS {
            if self.case.overwrites() && count == OVERWRITES {
                break;
            }
            if count == WRITES_MAX {
                return Err("the disk is never full".into());
            }
            let before = world.refusals();
            world
                .run(&self.case.put_on_full_disk(count))
                .map_err(|e| format!("put {count}: {e}"))?;
            refused = match world.refusals() > before {
                true => refused + 1,
                false => 0,
            };
            count += 1;
        }
        let queue = Queue::default();
        let percent = self.case.percent;
        self.watch(&machine, &queue, percent);
        let mut each = |explorer: &mut Self, op: &Op, world: &mut World| {
            world
                .run_hooked(op, &mut |oracle| {
                    explorer.examine_all(queue.take(), oracle, 0)
                })
                .map_err(|e| format!("{op:?}: {e}"))
        };
        if self.case.overwrites() {
            for n in count..count + CHURN {
                let op = match n % 3 {
                    0 => write(key_of(n % KEYS), None, None),
                    _ => self.case.put_on_full_disk(n),
                };
                each(self, &op, &mut world)?;
                each(self, &Op::Step(n, 3), &mut world)?;
            }
        }
        if self.case.deletes_singly() {
            self.delete_most(count, &mut world, &mut each)?;
        }
        self.empty_and_go_on(&machine, &mut world, &mut each)?;
        machine.on_persist(None);
        self.tally.points += machine.points();
        self.tally.refusals += world.refusals();
        world.check_all().map_err(|e| format!("at the end: {e}"))
    }

    /// Deletes two of three keys singly, and puts others.
    fn delete_most(
        &mut self,
        count: u32,
        world: &mut World,
        each: &mut dyn FnMut(&mut Self, &Op, &mut World) -> Outcome,
    ) -> Outcome {
        let refusals = world.refusals();
        for n in (0..count).filter(|n| n % 3 > 0) {
            each(self, &write(key_of(n), None, None), world)?;
            each(self, &Op::Step(n, 2), world)?;
            if world.refusals() > refusals {
                return Err(format!(
                    "a full disk refuses to delete key {n} of {count}: {}",
                    world.db()?.metrics()
                ));
            }
        }
        let mut taken = 0;
        for n in count..count + count / 4 {
            let refusals = world.refusals();
            each(self, &self.case.put_on_full_disk(n), world)?;
            each(self, &Op::Step(n, 2), world)?;
            taken += u32::from(world.refusals() == refusals);
        }
        match taken > count / 8 {
            true => Ok(()),
            false => Err(format!(
                "two thirds of {count} keys were deleted, and {taken} puts are taken"
            )),
        }
    }

    /// Deletes, puts, and checks the reserve. `each` runs an operation.
    fn empty_and_go_on(
        &mut self,
        machine: &Machine,
        world: &mut World,
        each: &mut dyn FnMut(&mut Self, &Op, &mut World) -> Outcome,
    ) -> Outcome {
        let refusals = world.refusals();
        let delete = self.case.delete_on_full_disk();
        each(self, &delete, world)?;
        if world.refusals() > refusals {
            return Err("a full disk refuses a range delete".into());
        }
        let mut goes_on = false;
        for n in 0..TRIES {
            for op in [Op::Step(n, 9), Op::Drain, Op::Compact(0, Range::All)] {
                each(self, &op, world)?;
            }
            let refusals = world.refusals();
            let put = self.case.put_on_full_disk(WRITES_MAX + n);
            each(self, &put, world)?;
            goes_on = world.refusals() == refusals;
            if goes_on {
                break;
            }
        }
        if !goes_on {
            return Err("most was deleted, and a put is refused".into());
        }
        for op in [Op::Flush, Op::Drain] {
            each(self, &op, world)?;
        }
        let settled = world.db().map(terrace::Db::wait_idle)?;
        settled.map_err(|e| format!("coming to rest: {e:?}"))?;
        let bytes = reserve_bytes(machine, Path::new("db"))?;
        let least = match self.case.medium {
            Medium::Dram => RESERVE_BYTES_MIN,
            _ => RESERVE_BYTES_MIN_OF_TABLES,
        };
        match bytes >= least {
            true => Ok(()),
            false => Err(format!("the reserve has {bytes} bytes after the delete")),
        }
    }

    /// Deletes from a store that was opened after a crash on a full disk, and checks that puts
    /// succeed again.
    pub(super) fn use_on_full_disk(&mut self, machine: &Machine, mut world: World) -> Outcome {
        let mut each = |_: &mut Self, op: &Op, world: &mut World| {
            world.run(op).map_err(|e| format!("then {op:?}: {e}"))
        };
        self.empty_and_go_on(machine, &mut world, &mut each)?;
        world
            .check_all()
            .map_err(|e| format!("then, at the end: {e}"))
    }
}

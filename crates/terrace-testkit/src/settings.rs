//! Options for tests: small stores, and variations of them that are unfavorable in one way each.

use terrace::{
    BackgroundOptions, Compression, Design, MatrixOptions, MediumChoice, Options, TablesOptions,
    Workers,
};
use terrace_media::Medium;

/// Returns the options of a small store on `medium`, with background steps run manually.
pub fn small(medium: Medium) -> Options {
    let mut options = Options {
        design: Some(Design::MioDb),
        ..Options::default()
    };
    options.pool.path = (medium != Medium::Dram).then(|| "pool".into());
    options.pool.size_bytes = 2 << 20;
    options.pool.medium = choice(medium);
    options.front.memtable_bytes = 8 << 10;
    options.bottom.extent_bytes = 16 << 10;
    options.buffer.levels = 3;
    // Level 1 has the size below, not that of the pool.
    options.buffer.matrix.flattened = false;
    options.buffer.tables.table_bytes = Some(16 << 10);
    if medium == Medium::Dram {
        // Makes logs reach their limit before the pool fills up.
        options.front.log_bytes_max = 100 << 10;
    }
    options.background.workers = Workers::Manual;
    let leveled = &mut options.bottom.leveled;
    leveled.table_bytes = 4 << 10;
    leveled.level1_bytes = 8 << 10;
    leveled.growth = 3;
    leveled.levels = 4;
    leveled.runs_compact = 2;
    leveled.block_bytes = 256;
    leveled.cache_bytes = 64 << 10;
    leveled.open_files_max = 8;
    options
}

fn choice(medium: Medium) -> MediumChoice {
    match medium {
        Medium::Dax => MediumChoice::ForceDax,
        Medium::Mapped => MediumChoice::Mapped,
        Medium::Dram => MediumChoice::Auto,
    }
}

/// Returns the same options for a pool that has moved to another medium.
pub fn on(medium: Medium, options: &Options) -> Options {
    let mut options = options.clone();
    options.pool.medium = choice(medium);
    options
}

/// Returns the options of [`small`] for another design.
pub fn small_of(design: Design, medium: Medium) -> Options {
    let mut options = small(medium);
    options.design = Some(design);
    options
}

/// The media and designs of tests that are slow on each: all media, with the fronts and buffers
/// that differ most.
pub const KINDS: [(Medium, Design); 8] = [
    (Medium::Dax, Design::MioDb),
    (Medium::Mapped, Design::MioDb),
    (Medium::Dax, Design::NoveLsm),
    (Medium::Mapped, Design::NoveLsmNoSst),
    (Medium::Dax, Design::NoveLsmHier),
    (Medium::Dram, Design::MioDb),
    (Medium::Dram, Design::MioDbSsd),
    (Medium::Dram, Design::Leveled),
];

/// Returns the designs that keep data in table files.
pub fn designs_with_files() -> impl Iterator<Item = Design> {
    let all = Design::ALL.into_iter();
    all.filter(|design| design.keeps_table_files())
}

/// Returns the designs that keep data in the pool.
pub fn designs_in_pool() -> impl Iterator<Item = Design> {
    let all = Design::ALL.into_iter();
    all.filter(|design| design.keeps_data_in_pool())
}

/// Returns whether deletes free space. They do not without a bottom, since then nothing is ever
/// drained.
pub fn gives_space_back(design: Design) -> bool {
    design != Design::BufferOnly
}

/// The number of variations.
pub const VARIATIONS: u8 = 14;

/// Returns the n-th variation (modulo their number) of `options`. All are valid for the same
/// database.
pub fn varied(options: &Options, n: u8) -> Options {
    let mut options = options.clone();
    match n % VARIATIONS {
        1 => {
            options.front.memtable_bytes = 4 << 10;
            options.buffer.tables.table_bytes = Some(4 << 10);
        }
        2 => {
            options.front.memtable_bytes = 32 << 10;
            options.buffer.tables.table_bytes = None;
        }
        3 => {
            options.buffer.levels = 1;
            options.buffer.matrix.columns = false;
        }
        4 => {
            options.buffer.levels = 8;
            options.buffer.matrix.hints = false;
        }
        5 => {
            options.buffer.filter_bits_per_key = 0;
            options.buffer.matrix.flattened = true;
        }
        6 => {
            options.bottom.garbage_percent = 10;
            options.buffer.tables.flush_count = 1;
            options.buffer.tables.count_max = 2;
        }
        7 => options.bottom.garbage_percent = 95,
        8 => {
            options.front.sealed_count_max = 1;
            options.buffer.table_bytes_max = Some(16 << 10);
        }
        9 => {
            options.bottom.leveled.cache_bytes = 1;
            options.bottom.leveled.open_files_max = 4;
        }
        10 => {
            options.bottom.leveled.filter_bits_per_key = 0;
            options.bottom.leveled.dynamic_sizes = false;
        }
        11 => {
            options.bottom.leveled.runs_compact = 1;
            options.bottom.leveled.runs_slow = 1;
            options.bottom.leveled.runs_stop = 2;
        }
        12 => {
            options.bottom.leveled.table_bytes = 1 << 20;
            options.bottom.leveled.level1_bytes = 1 << 20;
        }
        13 => {
            options.bottom.leveled.levels = 6;
            options.bottom.leveled.growth = 2;
            options.bottom.leveled.compression_upper = Compression::Lz4;
            options.bottom.leveled.values_apart_from = Some(32);
        }
        _ => {}
    }
    options
}

/// Returns the medium with this name, as `Medium` is displayed.
pub(crate) fn medium_of(name: &str) -> Option<Medium> {
    let all = [Medium::Dax, Medium::Mapped, Medium::Dram];
    all.into_iter().find(|medium| medium.to_string() == name)
}

/// Returns who runs background jobs in the case of a seed: a number of threads, the default number,
/// or no threads.
pub fn workers(seed: u64) -> Workers {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x0077_6f72_6b65_7273);
    match rng.u8(..8) {
        0..3 => Workers::Threads(2),
        3 | 4 => Workers::Threads(1),
        5 | 6 => Workers::Auto,
        _ => Workers::Manual,
    }
}

/// Returns the background work in the case of a seed: who runs jobs, and in some cases threads that
/// only merge, or take part in reads.
pub fn background(seed: u64) -> BackgroundOptions {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x006d_6572_6765);
    BackgroundOptions {
        workers: workers(seed),
        merge_threads: [0, 0, 0, 1, 2, 8][rng.usize(..6)],
        read_workers: [0, 0, 0, 1, 2][rng.usize(..5)],
    }
}

/// Returns the options of the matrix container in the case of a seed.
pub fn matrix(seed: u64) -> MatrixOptions {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x6d61_7472_6978);
    MatrixOptions {
        hints: rng.u8(..3) > 0,
        columns: rng.u8(..4) > 0,
        flattened: rng.bool(),
    }
}

/// Returns the options of the tables of `FlatLsm` in the case of a seed.
pub fn tables(seed: u64) -> TablesOptions {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x7461_626c_6573);
    let flush_count = [1, 2, 4][rng.usize(..3)];
    TablesOptions {
        table_bytes: [Some(4 << 10), Some(16 << 10), None][rng.usize(..3)],
        flush_count,
        count_max: flush_count + [1, 2][rng.usize(..2)],
    }
}

/// Returns whether the case of a seed uses default options. One in eight does.
pub fn is_by_default(seed: u64) -> bool {
    fastrand::Rng::with_seed(seed ^ 0x0064_6566_6175_6c74).u8(..8) == 0
}

/// Returns the default options, except for the design, the pool's path, and its size, which has
/// space for the memtables that open iterators hold.
pub fn default_of(design: Design, medium: Medium) -> Options {
    let small = small_of(design, medium);
    let mut options = Options {
        design: small.design,
        pool: small.pool,
        ..Options::default()
    };
    options.pool.size_bytes = 1 << 30;
    options
}

/// Returns the options of the case of a seed: small ones that are unfavorable in one way, or the
/// default ones; with or without threads.
pub fn drawn(design: Design, medium: Medium, seed: u64) -> Options {
    if is_by_default(seed) {
        return default_of(design, medium);
    }
    let mut options = varied(&small_of(design, medium), (seed / 2) as u8);
    options.background = background(seed);
    options
}

//! Options for tests: small stores, and variations of them that are hostile in one way each.

use terrace::{MediumChoice, Options, Workers};
use terrace_media::Medium;

/// Options of a small store on `medium` with background steps run by hand.
pub fn small(medium: Medium) -> Options {
    let mut options = Options::default();
    options.pool.path = (medium != Medium::Dram).then(|| "pool".into());
    options.pool.size_bytes = 2 << 20;
    options.pool.medium = match medium {
        Medium::Dax => MediumChoice::ForceDax,
        Medium::Mapped => MediumChoice::Mapped,
        Medium::Dram => MediumChoice::Auto,
    };
    options.front.memtable_bytes = 8 << 10;
    options.bottom.extent_bytes = 16 << 10;
    options.buffer.levels = 3;
    options.background.workers = Workers::Manual;
    options
}

/// How many variations there are.
pub const VARIATIONS: u8 = 9;

/// The n-th variation (modulo their number) of `options`, all valid for the same database.
pub fn varied(options: &Options, n: u8) -> Options {
    let mut options = options.clone();
    match n % VARIATIONS {
        1 => options.front.memtable_bytes = 4 << 10,
        2 => options.front.memtable_bytes = 32 << 10,
        3 => options.buffer.levels = 1,
        4 => options.buffer.levels = 8,
        5 => options.buffer.filter_bits_per_key = 0,
        6 => options.bottom.garbage_percent = 10,
        7 => options.bottom.garbage_percent = 95,
        8 => {
            options.front.sealed_count_max = 1;
            options.buffer.table_bytes_max = Some(16 << 10);
        }
        _ => {}
    }
    options
}

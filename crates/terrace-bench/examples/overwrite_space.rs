//! Overwrites a fixed set of keys at random and tells what the folder takes meanwhile, by kind of file.
//!
//! `cargo run --release -p terrace-bench --example overwrite_space -- --db PATH [--NAME VALUE]...`: `--design
//! miodb-ssd|leveled`, `--pool none|PATH`, `--pool-size MIB`, `--keys N`, `--value BYTES`, `--threads N`,
//! `--seconds N` of overwriting after the fill, `--direct 0|1`.
//!
//! A line a second has the most that was seen in it; bytes are those that the file system gave (`st_blocks`).
//! The last lines say how many times the live data that was, while writers ran and once settled.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use terrace::{Db, Design, Options};

/// How often the folder is looked at.
const LOOK: Duration = Duration::from_millis(100);
const MIB: f64 = (1 << 20) as f64;

/// What the folder takes, in bytes.
#[derive(Clone, Copy, Default)]
struct Sample {
    logs: u64,
    log_count: u64,
    /// Table files, those that are being written or go among them.
    files: u64,
    pool: u64,
    /// Tables of the manifest: level 0, the levels between, the last.
    levels: [u64; 3],
    runs: u64,
}

impl Sample {
    fn of(db: &Db) -> Sample {
        use std::os::unix::fs::MetadataExt;
        let mut sample = Sample::default();
        for entry in std::fs::read_dir(db.path()).into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            let (bytes, name) = (meta.blocks() * 512, entry.file_name());
            let name = name.to_string_lossy().into_owned();
            if name.ends_with(".log") {
                sample.logs += bytes;
                sample.log_count += 1;
            } else if name.ends_with(".sst") {
                sample.files += bytes;
            } else {
                sample.pool += bytes;
            }
        }
        let metrics = db.metrics();
        let last = metrics.files.iter().map(|level| level.level).max();
        for level in &metrics.files {
            let at = match level.level {
                0 => 0,
                level if Some(level) == last => 2,
                _ => 1,
            };
            sample.levels[at] += level.bytes;
            if at == 0 {
                sample.runs = level.run_count;
            }
        }
        sample
    }

    /// Without the pool, whose size is an option.
    fn total(&self) -> u64 {
        self.logs + self.files
    }

    fn raise(&mut self, other: &Sample) {
        let raise = |mine: &mut u64, other: u64| *mine = (*mine).max(other);
        raise(&mut self.logs, other.logs);
        raise(&mut self.log_count, other.log_count);
        raise(&mut self.files, other.files);
        raise(&mut self.runs, other.runs);
        for (mine, other) in self.levels.iter_mut().zip(other.levels) {
            raise(mine, other);
        }
    }

    fn row(&self) -> String {
        let [level0, middle, last] = self.levels.map(|bytes| bytes as f64 / MIB);
        format!(
            "logs {:7.0} ({:2}), table files {:7.0}: L0 {level0:6.0} ({:2} runs), middle {middle:6.0}, last {last:6.0}",
            self.logs as f64 / MIB,
            self.log_count,
            self.files as f64 / MIB,
            self.runs,
        )
    }
}

struct Args(Vec<String>);

impl Args {
    fn text(&self, name: &str) -> Option<&str> {
        let at = self.0.iter().position(|arg| arg == &format!("--{name}"))?;
        self.0.get(at + 1).map(String::as_str)
    }

    fn number(&self, name: &str, default: u64) -> u64 {
        let text = self.text(name);
        text.map_or(default, |text| text.parse().expect("a number"))
    }
}

fn value(rng: &mut fastrand::Rng, bytes: usize) -> Vec<u8> {
    let mut value = vec![0; bytes];
    rng.fill(&mut value);
    value
}

/// Writes until `end` says so, on threads; samples meanwhile. Returns the most that was seen.
fn watched(
    db: &Db,
    what: &str,
    live: u64,
    threads: u64,
    until: &(dyn Fn(Duration) -> bool + Sync),
    write: &(dyn Fn(u64, &AtomicU64, &AtomicBool) + Sync),
) -> u64 {
    let (written, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let begun = Instant::now();
    let (mut most, mut ended) = (0, 0);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..threads)
            .map(|thread| {
                let (written, over) = (&written, &over);
                scope.spawn(move || write(thread, written, over))
            })
            .collect();
        let (mut second, mut highest, mut before) = (Sample::default(), 0, 0);
        let mut told = Instant::now();
        while !writers.iter().all(|writer| writer.is_finished()) {
            std::thread::sleep(LOOK);
            let sample = Sample::of(db);
            highest = highest.max(sample.total());
            second.raise(&sample);
            most = most.max(sample.total());
            if told.elapsed() >= Duration::from_secs(1) {
                let now = written.load(Ordering::Relaxed);
                println!(
                    "{what} {:5.1}s {:7.0} op/s, total {:6.0} = {:4.2} x live; {}",
                    begun.elapsed().as_secs_f64(),
                    (now - before) as f64 / told.elapsed().as_secs_f64(),
                    highest as f64 / MIB,
                    highest as f64 / live as f64,
                    second.row()
                );
                (second, highest, before, told) = (Sample::default(), 0, now, Instant::now());
            }
            if until(begun.elapsed()) {
                over.store(true, Ordering::Relaxed);
            }
        }
        ended = written.load(Ordering::Relaxed);
    });
    println!(
        "{what}: {:.0} op/s, {:.2} x live at most",
        ended as f64 / begun.elapsed().as_secs_f64(),
        most as f64 / live as f64
    );
    most
}

fn main() {
    let args = Args(std::env::args().skip(1).collect());
    let mut options = Options::default();
    options.design = Some(match args.text("design").unwrap_or("miodb-ssd") {
        "leveled" => Design::Leveled,
        _ => Design::MioDbSsd,
    });
    options.pool.path = match args.text("pool").unwrap_or("none") {
        "none" => None,
        path => Some(path.into()),
    };
    options.pool.size_bytes = args.number("pool-size", 1024) << 20;
    options.bottom.leveled.direct_writes = args.number("direct", 0) > 0;
    let path = args.text("db").expect("--db PATH").to_owned();
    let (keys, bytes) = (args.number("keys", 500_000), args.number("value", 1024));
    let (threads, seconds) = (args.number("threads", 4), args.number("seconds", 30));
    let live = keys * (bytes + 16);
    assert!(!Path::new(&path).exists(), "{path} exists");
    let db = Db::open(&path, options.clone()).expect("a new database");

    let key = |n: u64| format!("{n:016}").into_bytes();
    let slowest = AtomicU64::new(0);
    let put = |n: u64, rng: &mut fastrand::Rng, written: &AtomicU64| {
        let value = value(rng, bytes as usize);
        let begun = Instant::now();
        db.put(key(n), value).expect("a put");
        slowest.fetch_max(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
        written.fetch_add(1, Ordering::Relaxed);
    };
    watched(&db, "fill", live, 1, &|_| false, &|_, written, _| {
        let mut rng = fastrand::Rng::with_seed(1);
        (0..keys).for_each(|n| put(n, &mut rng, written));
    });
    slowest.store(0, Ordering::Relaxed);
    let ended = |time: Duration| time.as_secs() >= seconds;
    let most = watched(
        &db,
        "over",
        live,
        threads,
        &ended,
        &|thread, written, over| {
            let mut rng = fastrand::Rng::with_seed(7 + thread);
            while !over.load(Ordering::Relaxed) {
                let n = rng.u64(..keys);
                put(n, &mut rng, written);
            }
        },
    );
    let begun = Instant::now();
    db.settle().expect("to settle");
    let settled = Sample::of(&db);
    println!("settled in {:.1?}: {}", begun.elapsed(), settled.row());
    println!("{}", db.metrics());
    println!(
        "live {:.0} MiB, most {:.0} MiB = {:.2} x, settled {:.0} MiB = {:.2} x, longest write {:.1} ms",
        live as f64 / MIB,
        most as f64 / MIB,
        most as f64 / live as f64,
        settled.total() as f64 / MIB,
        settled.total() as f64 / live as f64,
        slowest.load(Ordering::Relaxed) as f64 / 1e3,
    );
    db.close().expect("to close");
    std::fs::remove_dir_all(&path).expect("the folder to go");
}

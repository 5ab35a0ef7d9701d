//! Watchdog: every thread of a test registers its current operation, and an operation that has not
//! returned within 20 s ends the process with the stacks of all threads.
//!
//! A hanging thread cannot be made to fail, so the process ends. A campaign with children treats
//! that as a failure of the child. Operations nest. The innermost one of each thread is judged,
//! from its start or from the end of the last operation inside it.
//!
//! Invariants
//!   W1  Time is counted in ticks of the watchdog's own thread. While the process is stopped, or
//!       the machine does not get to run it, there are no ticks, and nothing is overdue.
//!   W2  A thread that holds a slot's lock makes no call that waits, so the watchdog can always
//!       read all slots.
//!
//! All campaigns use it.

use std::fmt::{Debug, Write as _};
use std::io::Write as _;
use std::marker::PhantomData;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

/// The default limit of an operation.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The variable that sets another limit in seconds: sanitizers are slow, and a debugger stops
/// threads.
const VARIABLE: &str = "TERRACE_PATIENCE";
/// The exit status of a process that the watchdog has ended.
pub const STATUS: i32 = 99;

const TICK: Duration = Duration::from_millis(100);
static TICKS: AtomicU64 = AtomicU64::new(0);
static SLOTS: Mutex<Vec<Weak<Slot>>> = Mutex::new(Vec::new());

/// An operation in progress.
struct Entry {
    what: Box<dyn Debug + Send>,
    /// The tick of its start, or of the end of the last operation inside it.
    since: u64,
    /// `None` stands for an entry that only labels the operations inside it.
    ticks_max: Option<u64>,
}

/// The operations of one thread, outermost first.
struct Slot {
    thread: String,
    entries: Mutex<Vec<Entry>>,
}

impl Slot {
    /// Registers the slot of the current thread.
    fn register() -> Arc<Slot> {
        let id = std::fs::read_link("/proc/thread-self").unwrap_or_default();
        let id = id.file_name().unwrap_or_default().to_string_lossy();
        let thread = std::thread::current();
        let slot = Arc::new(Slot {
            thread: format!("{id} {}", thread.name().unwrap_or_default()),
            entries: Mutex::new(Vec::new()),
        });
        let mut slots = lock(&SLOTS);
        slots.retain(|slot| slot.strong_count() > 0);
        slots.push(Arc::downgrade(&slot));
        slot
    }
}

thread_local! {
    static SLOT: Arc<Slot> = Slot::register();
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An operation of this thread. It ends on drop.
#[must_use]
pub struct Operation {
    /// The number of operations around it.
    depth: usize,
    /// Keeps it on the thread that started it.
    own: PhantomData<*const ()>,
}

impl Drop for Operation {
    fn drop(&mut self) {
        // A thread that is exiting has no slot any more.
        let _ = SLOT.try_with(|slot| {
            let mut entries = lock(&slot.entries);
            entries.truncate(self.depth);
            if let Some(outer) = entries.last_mut() {
                outer.since = TICKS.load(Ordering::Relaxed);
            }
        });
    }
}

fn begin(what: Box<dyn Debug + Send>, longest: Option<Duration>) -> Operation {
    start();
    let ticks = |time: Duration| time.as_millis().div_ceil(TICK.as_millis()) as u64;
    let entry = Entry {
        what,
        since: TICKS.load(Ordering::Relaxed),
        ticks_max: longest.map(ticks),
    };
    let depth = SLOT.with(|slot| {
        let mut entries = lock(&slot.entries);
        entries.push(entry);
        entries.len() - 1
    });
    Operation {
        depth,
        own: PhantomData,
    }
}

/// Starts an operation, which must end within [`PATIENCE`].
pub fn operation(what: impl Debug + Send + 'static) -> Operation {
    begin(Box::new(what), Some(patience()))
}

/// Starts an operation with its own limit.
pub fn operation_within(longest: Duration, what: impl Debug + Send + 'static) -> Operation {
    begin(Box::new(what), Some(longest))
}

/// Labels the operations that follow, with a seed for example. It has no limit.
pub fn case(what: String) -> Operation {
    begin(Box::new(what), None)
}

/// Runs a call as an operation.
pub fn watched<R>(what: &'static str, call: impl FnOnce() -> R) -> R {
    let _operation = operation(what);
    call()
}

/// Runs the operations of a test in [`watch`].
pub struct Watched(());

impl Watched {
    /// Runs an operation that must return.
    pub fn op<T>(&self, what: impl Into<String>, op: impl FnOnce() -> T) -> T {
        let _operation = operation(what.into());
        op()
    }
}

/// Runs a test whose operations must all return.
pub fn watch(test: impl FnOnce(&Watched)) {
    test(&Watched(()));
}

fn patience() -> Duration {
    static STATED: OnceLock<Duration> = OnceLock::new();
    *STATED.get_or_init(|| {
        let seconds = std::env::var(VARIABLE).ok();
        let seconds = seconds.and_then(|text| text.parse().ok());
        seconds.map_or(PATIENCE, Duration::from_secs)
    })
}

/// Starts the watchdog's thread, unless it runs already.
pub fn start() {
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(|| {
        // If no thread can be started, the campaign runs unwatched and fails elsewhere.
        let _ = std::thread::Builder::new()
            .name("watchdog".into())
            .spawn(look);
    });
}

fn look() {
    loop {
        std::thread::sleep(TICK);
        let now = TICKS.fetch_add(1, Ordering::Relaxed) + 1;
        let slots: Vec<Arc<Slot>> = lock(&SLOTS).iter().filter_map(Weak::upgrade).collect();
        if let Some(overdue) = slots.iter().find_map(|slot| overdue(slot, now)) {
            end(&format!("{overdue}\n{}", operations(&slots, now)));
        }
    }
}

/// Describes a thread whose operation has taken too long.
fn overdue(slot: &Slot, now: u64) -> Option<String> {
    let entries = lock(&slot.entries);
    let last = entries.last()?;
    let ticks = now.saturating_sub(last.since);
    let is_over = last.ticks_max.is_some_and(|most| ticks > most);
    is_over.then(|| {
        format!(
            "watchdog: an operation of thread {} has not returned in {} s: {:?}",
            slot.thread,
            seconds(ticks),
            last.what
        )
    })
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 * TICK.as_secs_f64()
}

/// Lists the operations of every thread with their times.
fn operations(slots: &[Arc<Slot>], now: u64) -> String {
    let mut text = String::from("operations:\n");
    for slot in slots {
        for (depth, entry) in lock(&slot.entries).iter().enumerate() {
            let _ = writeln!(
                text,
                "  {}{}{:?}, {:.1} s",
                slot.thread,
                ": ".repeat(depth + 1),
                entry.what,
                seconds(now.saturating_sub(entry.since))
            );
        }
    }
    text
}

/// Prints a report and ends the process.
fn end(why: &str) -> ! {
    // Not with the macros: the output of a test is captured until the test ends, and this one does
    // not.
    let mut stderr = std::io::stderr();
    let _ = stderr.write_all(format!("\n{why}{}", threads()).as_bytes());
    let _ = stderr.write_all(stacks().as_bytes());
    let _ = stderr.flush();
    std::process::exit(STATUS)
}

/// Lists the threads with name, state, and the place in the kernel where each waits.
fn threads() -> String {
    let mut text = String::from("threads:\n");
    let tasks = std::fs::read_dir("/proc/self/task");
    for task in tasks.into_iter().flatten().flatten() {
        let path = task.path();
        let read = |name: &str| std::fs::read_to_string(path.join(name)).unwrap_or_default();
        let stat = read("stat");
        let state = stat
            .rsplit(')')
            .next()
            .and_then(|rest| rest.trim().chars().next());
        let _ = writeln!(
            text,
            "  {} {}, {}, in {}, {}",
            task.file_name().to_string_lossy(),
            read("comm").trim(),
            state.unwrap_or('?'),
            read("wchan").trim(),
            read("syscall").trim(),
        );
    }
    text
}

/// Returns the stacks of all threads, if a program that can show them is installed and permitted
/// to.
fn stacks() -> String {
    let pid = std::process::id().to_string();
    let gdb = [
        "-p",
        &pid,
        "-batch",
        "-nx",
        "-ex",
        "set pagination off",
        "-ex",
        "thread apply all bt 40",
    ];
    let programs = [("gdb", &gdb[..]), ("eu-stack", &["-p", &pid][..])];
    for (program, arguments) in programs {
        if let Some(said) = said(program, arguments).filter(|said| said.contains("#1")) {
            return format!("stacks, by {program}:\n{said}");
        }
    }
    "no stacks: neither gdb nor eu-stack works here\n".into()
}

/// Returns the output of a program within a minute. It goes to a file: this process could not read
/// from a pipe while a debugger stops it.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let file = tempfile::NamedTempFile::new().ok()?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(file.reopen().ok()?)
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    for _ in 0..600 {
        if child.try_wait().ok()?.is_some() {
            break;
        }
        std::thread::sleep(TICK);
    }
    let _ = child.kill();
    let bytes = std::fs::read(file.path()).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(now: u64) -> Option<String> {
        SLOT.with(|slot| overdue(slot, now))
    }

    /// The innermost operation is judged by its own limit, and the end of an operation inside
    /// another one counts as progress of the outer one.
    #[test]
    fn the_innermost_operation_is_judged() {
        let begun = TICKS.load(Ordering::Relaxed);
        let _case = case("seed 7".into());
        assert_eq!(judged(u64::MAX), None);
        let _outer = operation_within(Duration::from_secs(3600), "outer");
        {
            let _inner = operation_within(Duration::from_secs(7200), "inner");
            assert_eq!(judged(begun + 40_000), None);
            assert!(judged(begun + 80_000).is_some_and(|said| said.ends_with("\"inner\"")));
        }
        let ended = TICKS.load(Ordering::Relaxed);
        assert_eq!(judged(ended + 36_000), None);
        let said = judged(ended + 36_100).expect("it is overdue");
        assert!(said.ends_with("\"outer\""), "{said}");
    }
}

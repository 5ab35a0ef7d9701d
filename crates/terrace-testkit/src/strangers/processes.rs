//! Two processes and one database: while the first one has it open and writes, every request of the
//! second one is refused, by any path. After the first one was killed, the second one sees all that
//! was acknowledged.
//!
//! Half of the requests are made while the first process is stopped: then every file must stay
//! unchanged.
//!
//! Both are children that call [`child_if_asked`] early.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use terrace::{Db, Design, ErrorKind, Options, RepairSource};
use terrace_media::Medium;

use super::mixed::{Files, files, state_of, work};
use crate::oracle::Outcome;
use crate::place::scratch;
use crate::settings;
use crate::watchdog::{self, watched};

/// The environment variable that turns a process into a child.
const VARIABLE: &str = "TERRACE_STRANGERS_PROCESS";
/// BOUND: the number of writes after which a writer exits by itself.
const WRITES_MAX: u32 = 1 << 20;

/// The task of a child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// Opens the database in `db` and writes until it is killed.
    Write,
    /// Makes requests that must be refused.
    Come,
    /// Checks that the acknowledged writes are there, and removes the database.
    Inherit,
}

const ROLES: [(Role, &str); 3] = [
    (Role::Write, "write"),
    (Role::Come, "come"),
    (Role::Inherit, "inherit"),
];

/// The parameters of a child.
#[derive(Clone, Debug)]
struct Orders {
    role: Role,
    medium: Medium,
    design: Design,
    seed: u64,
    /// The number of acknowledged writes. For `Come`, a seed for its requests.
    done: u32,
    /// The parent directory of everything.
    place: PathBuf,
}

impl Orders {
    fn options(&self) -> Options {
        let mut options = settings::drawn(self.design, self.medium, self.seed);
        options.pool.size_bytes = options.pool.size_bytes.max(8 << 20);
        options
    }

    fn to_text(&self) -> String {
        let role = ROLES.iter().find(|(role, _)| *role == self.role);
        let role = role.map_or("", |(_, name)| name);
        let Orders {
            medium,
            design,
            seed,
            done,
            place,
            ..
        } = self;
        format!("{role},{medium},{design},{seed},{done},{}", place.display())
    }

    fn parse(text: &str) -> Option<Orders> {
        let mut parts = text.splitn(6, ',');
        let role = parts.next()?;
        let medium = settings::medium_of(parts.next()?)?;
        Some(Orders {
            role: ROLES.iter().find(|(_, name)| *name == role)?.0,
            medium,
            design: parts.next()?.parse().ok()?,
            seed: parts.next()?.parse().ok()?,
            done: parts.next()?.parse().ok()?,
            place: parts.next()?.into(),
        })
    }

    fn progress(&self) -> PathBuf {
        self.place.join("done")
    }

    /// Returns the number of acknowledged writes so far.
    fn acknowledged(&self) -> u32 {
        let bytes = std::fs::read(self.progress()).unwrap_or_default();
        bytes.first_chunk().map_or(0, |n| u32::from_le_bytes(*n))
    }

    /// Starts the child in the directory `from` of the place.
    fn start(&self, from: &str, command: &dyn Fn() -> Command) -> Outcome<Child> {
        let said = File::create(self.said()).map_err(|e| format!("cannot create a file: {e}"))?;
        command()
            .env(VARIABLE, self.to_text())
            .current_dir(self.place.join(from))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(said)
            .spawn()
            .map_err(|e| format!("cannot start the child: {e}"))
    }

    fn said(&self) -> PathBuf {
        self.place.join(format!("{:?}", self.role))
    }

    /// Runs the child and waits for it.
    fn run(&self, from: &str, command: &dyn Fn() -> Command) -> Outcome {
        let mut child = self.start(from, command)?;
        let ended = child.wait().map_err(|e| format!("a child: {e}"))?;
        let said = std::fs::read_to_string(self.said()).unwrap_or_default();
        match ended.success() {
            true => Ok(()),
            false => Err(format!("{:?} from {from:?}: {said}", self.role)),
        }
    }
}

/// Turns this process into a child if it was started as one. Returns `None` otherwise.
pub fn child_if_asked() -> Option<ExitCode> {
    let text = std::env::var(VARIABLE).ok()?;
    let done = Orders::parse(&text)
        .ok_or_else(|| format!("{VARIABLE}={text} is invalid"))
        .and_then(|orders| {
            let _case = watchdog::case(format!("{orders:?}"));
            match orders.role {
                Role::Write => write(&orders),
                Role::Come => come(&orders),
                Role::Inherit => inherit(&orders),
            }
        });
    Some(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    })
}

fn write(orders: &Orders) -> Outcome {
    let db = watched("opening", || Db::open("db", orders.options()));
    let db = db.map_err(|e| format!("opening: {e:?}"))?;
    let done = File::create(orders.progress()).map_err(|e| format!("progress: {e}"))?;
    for state in 0..WRITES_MAX {
        {
            let _operation = watchdog::operation("a put");
            work(&db, state..state + 1)?;
        }
        let count = (state + 1).to_le_bytes();
        done.write_all_at(&count, 0)
            .map_err(|e| format!("progress: {e}"))?;
        if state % 256 == 255 {
            match state_of(&db, state + 1)? {
                Some(shown) if shown == state + 1 => {}
                shown => return Err(format!("{shown:?} shows of {}", state + 1)),
            }
            std::thread::sleep(Duration::from_millis(3));
        }
    }
    Err("the writer was not killed".into())
}

/// Returns paths of the database: absolute, by a link, and relative to the current directory.
fn paths(place: &Path) -> Outcome<Vec<PathBuf>> {
    let here = std::env::current_dir().map_err(|e| format!("the directory: {e}"))?;
    // The current directory is one of two, compared by file name: a scratch directory may itself be
    // behind a link.
    let is_inside = here.file_name() == Some("elsewhere".as_ref());
    let relative = if is_inside { ".." } else { "." };
    Ok(vec![
        place.join("db"),
        place.join("link"),
        Path::new(relative).join("db"),
        Path::new(relative).join("link"),
        Path::new(relative).join("elsewhere/../db/."),
    ])
}

/// Requests the database in every way and by every path. Each request must be refused with a
/// message that names the lock.
fn come(orders: &Orders) -> Outcome {
    let mut rng = fastrand::Rng::with_seed(orders.seed ^ u64::from(orders.done));
    let options = orders.options();
    let mut ways = ["to write", "to read", "to destroy", "to repair"];
    rng.shuffle(&mut ways);
    // Each request waits for the lock for a while, so not every way is combined with every path.
    for (path, way) in paths(&orders.place)?
        .into_iter()
        .zip(ways.into_iter().cycle())
    {
        let _operation = watchdog::operation(way);
        let into = orders.place.join("repaired");
        let asked = match way {
            "to write" => Db::open(&path, options.clone()).map(drop),
            "to read" => {
                let mut options = options.clone();
                options.read_only = true;
                Db::open(&path, options).map(drop)
            }
            "to destroy" => Db::destroy(&path),
            _ => {
                let source = RepairSource::new(&path);
                let builder = Db::builder(&into).options(options.clone());
                builder.repair_of(&source).map(drop)
            }
        };
        let what = format!("{way}, by {}", path.display());
        match asked {
            Err(e) if e.kind() == ErrorKind::Locked => {
                let text = e.to_string();
                if !(text.contains("is open") && text.contains("in another process")) {
                    return Err(format!("{what}: the message does not help: {text}"));
                }
            }
            other => return Err(format!("{what}: {other:?}")),
        }
        // A directory may have been created for the refused repair, but it is empty.
        let left = std::fs::read_dir(&into).map_or(0, Iterator::count);
        if left > 0 {
            return Err(format!("{what}: {left} files are left of a repair"));
        }
    }
    Ok(())
}

/// Opens the database of a killed process, to read and to write, and removes it.
fn inherit(orders: &Orders) -> Outcome {
    let options = orders.options();
    let paths = paths(&orders.place)?;
    let path = &paths[orders.seed as usize % paths.len()];
    let mut last = orders.done;
    for read_only in [true, false] {
        let mut options = options.clone();
        options.read_only = read_only;
        let db = watched("opening", || Db::open(path, options));
        let db = db.map_err(|e| format!("opening, read-only is {read_only}: {e:?}"))?;
        // One more write may have been in flight.
        match state_of(&db, orders.done + 1)? {
            Some(state) if state >= last => last = state,
            state => return Err(format!("{state:?} shows of {} acknowledged", orders.done)),
        }
        if !read_only {
            work(&db, last..last + 300)?;
            db.close().map_err(|e| format!("closing: {e:?}"))?;
        }
    }
    Db::destroy(&paths[0]).map_err(|e| format!("destroying: {e:?}"))?;
    match orders.place.join("db").exists() {
        true => Err("the directory is left".into()),
        false => Ok(()),
    }
}

/// A child that is killed on drop.
struct Writer(Child);

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Writer {
    fn pid(&self) -> Outcome<Pid> {
        let raw = i32::try_from(self.0.id()).ok();
        raw.and_then(Pid::from_raw)
            .ok_or_else(|| "no process".into())
    }

    fn signal(&self, signal: Signal) -> Outcome {
        kill_process(self.pid()?, signal).map_err(|e| format!("a signal: {e}"))
    }

    /// Waits until `is_there` holds for the writer. Fails with its output if it exits.
    fn wait(&mut self, orders: &Orders, is_there: &dyn Fn(&Writer) -> bool) -> Outcome {
        let _operation = watchdog::operation_within(3 * watchdog::PATIENCE, "waiting for a writer");
        // BOUND: the watchdog of the writer ends it, or the one of this process ends this process.
        while !is_there(self) {
            if let Some(status) = self.0.try_wait().map_err(|e| format!("the writer: {e}"))? {
                let said = std::fs::read_to_string(orders.said()).unwrap_or_default();
                return Err(format!("the writer ends with {status}: {said}"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Returns whether all of its threads are stopped.
    fn is_stopped(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.0.id()));
        let mut tasks = tasks.into_iter().flatten().flatten();
        tasks.all(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            // The state follows the name, which is in parentheses.
            let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
            state.starts_with('T')
        })
    }
}

/// Runs the case of a seed. `command` starts children.
pub fn once(seed: u64, medium: Medium, command: &dyn Fn() -> Command) -> Outcome {
    let _case = watchdog::case(format!("two processes on {medium}, seed {seed:#x}"));
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x7072_6f63);
    let folder = scratch()?;
    let failed = |e: std::io::Error| format!("the directory: {e}");
    std::fs::create_dir(folder.path().join("elsewhere")).map_err(failed)?;
    std::os::unix::fs::symlink(folder.path().join("db"), folder.path().join("link"))
        .map_err(failed)?;
    let mut orders = Orders {
        role: Role::Write,
        medium,
        design: Design::ALL[rng.usize(..Design::ALL.len())],
        seed,
        done: 0,
        place: folder.path().to_owned(),
    };
    let (design, place) = (orders.design, folder.path().join("db"));
    let told = |e: String| format!("{design} on {medium}, seed {seed:#x}: {e}");
    let writing = orders.clone();
    let mut writer = Writer(orders.start("", command).map_err(told)?);
    let mut wanted = rng.u32(1..1500);
    for from in ["", "elsewhere"] {
        let there = |_: &Writer| writing.acknowledged() >= wanted;
        writer.wait(&writing, &there).map_err(told)?;
        orders.role = Role::Come;
        // Each run combines other ways with the same paths.
        orders.done = rng.u32(..);
        // Runs once with an active writer, and once with a stopped one.
        orders.run(from, command).map_err(told)?;
        writer.signal(Signal::STOP)?;
        writer.wait(&writing, &Writer::is_stopped).map_err(told)?;
        let before = files(&place)?;
        orders.done = rng.u32(..);
        orders.run(from, command).map_err(told)?;
        changed(&before, &files(&place)?).map_err(told)?;
        writer.signal(Signal::CONT)?;
        wanted = writing.acknowledged() + rng.u32(1..1000);
    }
    let there = |_: &Writer| writing.acknowledged() >= wanted;
    writer.wait(&writing, &there).map_err(told)?;
    drop(writer);
    orders.role = Role::Inherit;
    orders.done = writing.acknowledged();
    let from = ["", "elsewhere"][rng.usize(..2)];
    orders.run(from, command).map_err(told)
}

fn changed(before: &Files, after: &Files) -> Outcome {
    let differs = |one: &Files, two: &Files| {
        let mut names = one.iter();
        let name = names.find(|(name, content)| two.get(*name) != Some(content));
        name.map(|(name, _)| name.clone())
    };
    match differs(before, after).or_else(|| differs(after, before)) {
        Some(name) => Err(format!("another process has changed {name}")),
        None => Ok(()),
    }
}

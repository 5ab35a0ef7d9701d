//! Power cuts of a virtual machine: a guest with an emulated NVDIMM writes to a store, is killed at
//! a random moment, boots again over the same memory and compares its content, life after life.
//!
//! This runs the real kernel, ext4 with DAX, and `MAP_SYNC`. Killing the machine loses the page
//! cache of the guest but nothing that was stored to the NVDIMM, since an emulated processor has no
//! cache to lose. The effect of a missing cache-line flush is tested by the simulator.
//!
//! State that must survive the cut is on a separate device, the board. `tools/pmem-guest` makes and
//! runs the machines.

mod board;
mod life;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use terrace::{Design, MediumChoice, Options, Workers};
use terrace_media::Medium;

use self::board::{Board, Phase};
pub use self::life::live;
use crate::oracle::{Oracle, Outcome};
use crate::place::scratch;
use crate::request::Request;
use crate::settings;
use crate::writes::{Course, THREADS};

/// The directory of the store in the guest.
const STORE: &str = "/mnt/pmem/db";
/// The size of a guest's NVDIMM in MiB, without the board.
const IMAGE_MIB: u64 = 64;
/// The number of lives after which a new store is created.
const LIVES_MAX: u64 = 25;
/// BOUND: a guest that takes longer to boot and open hangs.
const BOOT_MAX: Duration = Duration::from_secs(180);
/// BOUND: a guest that takes longer to empty and close its store hangs.
const END_MAX: Duration = Duration::from_secs(300);

/// The maximum time that one poll of a guest counts as.
const TURN_MAX: Duration = Duration::from_millis(50);

/// The device of a guest's file system, as `tools/pmem-guest` names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Nvdimm,
    NoDax,
    VirtioPmem,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Nvdimm => "nvdimm",
            Mode::NoDax => "nodax",
            Mode::VirtioPmem => "virtio-pmem",
        }
    }
}

/// The device of a store, the medium that it must detect, and its design.
type Kind = (Mode, Medium, Design);

/// Every kind of guest. The first nine cover every mode and all designs that keep data in the pool.
const KINDS: [Kind; 19] = [
    (Mode::Nvdimm, Medium::Dax, Design::MioDb),
    (Mode::Nvdimm, Medium::Dax, Design::MioDbSsd),
    (Mode::Nvdimm, Medium::Dax, Design::MatrixKv),
    (Mode::Nvdimm, Medium::Dax, Design::FlatLsm),
    (Mode::NoDax, Medium::Mapped, Design::MioDb),
    (Mode::VirtioPmem, Medium::Mapped, Design::MioDbSsd),
    (Mode::Nvdimm, Medium::Dax, Design::NoveLsm),
    (Mode::Nvdimm, Medium::Dax, Design::NoveLsmNoSst),
    (Mode::Nvdimm, Medium::Dax, Design::NoveLsmHier),
    (Mode::Nvdimm, Medium::Dax, Design::Leveled),
    (Mode::NoDax, Medium::Mapped, Design::MioDbSsd),
    (Mode::NoDax, Medium::Mapped, Design::Leveled),
    (Mode::NoDax, Medium::Mapped, Design::FlatLsm),
    (Mode::NoDax, Medium::Mapped, Design::NoveLsm),
    (Mode::NoDax, Medium::Dram, Design::MioDb),
    (Mode::NoDax, Medium::Dram, Design::MioDbSsd),
    (Mode::NoDax, Medium::Dram, Design::Leveled),
    (Mode::VirtioPmem, Medium::Mapped, Design::MioDb),
    (Mode::VirtioPmem, Medium::Mapped, Design::Leveled),
];

/// The parameters of a life.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Orders {
    medium: Medium,
    design: Design,
    seed: u64,
    life: u64,
    variation: u8,
    /// Whether the store is compared, emptied and closed.
    last: bool,
    /// The bug of the store that must be caught. Empty if there is none.
    canary: String,
}

impl Orders {
    fn to_text(&self) -> String {
        let Orders {
            medium,
            design,
            seed,
            life,
            variation,
            last,
            canary,
        } = self;
        format!("{medium} {design} {seed} {life} {variation} {last} {canary}")
    }

    fn parse(text: &str) -> Outcome<Orders> {
        let orders = || {
            let mut words = text.split(' ');
            let medium = words.next()?;
            let media = [Medium::Dax, Medium::Mapped, Medium::Dram];
            Some(Orders {
                medium: media.into_iter().find(|m| m.name() == medium)?,
                design: words.next()?.parse().ok()?,
                seed: words.next()?.parse().ok()?,
                life: words.next()?.parse().ok()?,
                variation: words.next()?.parse().ok()?,
                last: words.next()?.parse().ok()?,
                canary: words.next().unwrap_or_default().to_owned(),
            })
        };
        orders().ok_or_else(|| format!("invalid orders: {text:?}"))
    }

    fn options(&self) -> Options {
        let small = settings::small_of(self.design, self.medium);
        let mut options = settings::varied(&small, self.variation);
        options.pool.size_bytes = 8 << 20;
        // The store must detect the medium.
        options.pool.medium = MediumChoice::Auto;
        options.background.workers = Workers::Threads(1 + usize::from(self.variation % 2));
        options
    }

    fn course(&self) -> Course {
        let oracle = Oracle::new(self.medium).of(self.design);
        Course {
            seed: self.seed,
            life: self.life,
            ingests: oracle.keeps_what_is_drained(),
        }
    }
}

/// Counts of a run.
#[derive(Clone, Copy, Default, Debug)]
struct Tally {
    /// The number of guests killed.
    cuts: u64,
    /// The number of guests killed before the store had been compared, in recovery or while
    /// reading.
    early: u64,
    /// The number of acknowledged writes in all lives.
    writes: u64,
    /// The number of stores created.
    stores: u64,
    /// The number of stores emptied and closed at their end.
    ends: u64,
}

/// A machine that is killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The parts of guests.
pub struct Machines {
    tool: PathBuf,
    /// The kernel and program of every guest.
    parts: tempfile::TempDir,
}

impl Machines {
    /// Makes guests that run this program, which must support the campaign `guest-life`. `tool`
    /// makes them; the default is the tool of this tree.
    pub fn make(tool: Option<&str>) -> Outcome<Machines> {
        let tool = match tool {
            Some(path) => PathBuf::from(path),
            None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/pmem-guest"),
        };
        call(&tool, &["check".as_ref()])?;
        let parts = scratch()?;
        let exe = std::env::current_exe().map_err(failed("cannot find this program"))?;
        call(
            &tool,
            &["make".as_ref(), parts.path().as_os_str(), exe.as_os_str()],
        )?;
        Ok(Machines { tool, parts })
    }

    fn patient(&self, &(mode, medium, design): &Kind, seed: u64, canary: &str) -> Patient<'_> {
        Patient {
            machines: self,
            mode,
            orders: Orders {
                medium,
                design,
                seed,
                life: 0,
                variation: 0,
                last: false,
                canary: canary.to_owned(),
            },
            rng: fastrand::Rng::with_seed(seed ^ ((mode as u64) << 32) ^ design as u64),
            tally: Tally::default(),
            store: None,
        }
    }

    /// Returns a store of the default design on a medium, broken by the named bug.
    #[cfg(feature = "canary")]
    pub(crate) fn broken(&self, medium: Medium, seed: u64, canary: &str) -> Option<Patient<'_>> {
        let kind = KINDS.iter().find(|kind| kind.1 == medium)?;
        Some(self.patient(kind, seed, canary))
    }
}

/// One store and its lives.
pub(crate) struct Patient<'a> {
    machines: &'a Machines,
    mode: Mode,
    orders: Orders,
    rng: fastrand::Rng,
    tally: Tally,
    store: Option<(tempfile::TempDir, Board)>,
}

impl fmt::Display for Patient<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Orders {
            medium,
            design,
            seed,
            life,
            ..
        } = &self.orders;
        let mode = self.mode.name();
        write!(
            f,
            "{design} on {medium} ({mode}), seed {seed:#x}, life {life}"
        )
    }
}

fn failed(what: &str) -> impl Fn(std::io::Error) -> String {
    move |e| format!("{what}: {e}")
}

/// Runs a command of the tool and waits for it.
fn call(tool: &Path, arguments: &[&std::ffi::OsStr]) -> Outcome {
    let ended = Command::new(tool)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(failed("tools/pmem-guest"))?;
    if ended.status.success() {
        return Ok(());
    }
    let said = [ended.stdout, ended.stderr].concat();
    Err(String::from_utf8_lossy(&said).trim_end().to_owned())
}

impl Patient<'_> {
    fn path(&self, name: &str) -> PathBuf {
        let folder = self.store.as_ref().map(|(folder, _)| folder.path());
        folder.unwrap_or(Path::new("")).join(name)
    }

    fn board(&self) -> Outcome<&Board> {
        let board = self.store.as_ref().map(|(_, board)| board);
        board.ok_or_else(|| "no store was begun".into())
    }

    fn begin(&mut self) -> Outcome {
        let folder = scratch()?;
        let board = Board::create(&folder.path().join("board")).map_err(failed("the board"))?;
        self.store = Some((folder, board));
        self.tally.stores += 1;
        let (image, mib) = (self.path("image"), IMAGE_MIB.to_string());
        let arguments = ["format", self.mode.name(), "", &mib].map(std::ffi::OsStr::new);
        let mut arguments = arguments.to_vec();
        arguments[2] = image.as_os_str();
        call(&self.machines.tool, &arguments)
    }

    /// Runs one life that ends in a power cut.
    pub(crate) fn live_once(&mut self) -> Outcome {
        if self.store.is_none() {
            self.begin()?;
        }
        let mut guest = self.boot(false)?;
        // One cut in five comes before the threads write.
        let (phase, most) = match self.rng.u8(0..10) {
            0..2 => (Phase::Opening, 700),
            2..5 => (Phase::Writing, 100),
            _ => (Phase::Writing, 1500),
        };
        self.wait(&mut guest, BOOT_MAX, Some(phase))?;
        std::thread::sleep(Duration::from_micros(self.rng.u64(0..most * 1000)));
        self.check_runs(&mut guest)?;
        guest.0.kill().map_err(failed("killing the guest"))?;
        guest.0.wait().map_err(failed("waiting for the guest"))?;
        self.check_silent()?;
        self.tally.cuts += 1;
        let life = self.orders.life;
        let board = self.board()?;
        let early = board.phase(life).map_err(failed("the board"))? < Phase::Writing;
        let mut writes = 0;
        for thread in 0..THREADS {
            writes += board.progress(life, thread).map_err(failed("the board"))?.0;
        }
        self.tally.early += u64::from(early);
        self.tally.writes += writes;
        if life.is_multiple_of(LIVES_MAX) {
            self.end()?;
        }
        Ok(())
    }

    /// Runs the last life of a store: compares the content after the last cut, and checks the file
    /// system.
    fn end(&mut self) -> Outcome {
        if self.store.is_none() {
            return Ok(());
        }
        let mut guest = self.boot(true)?;
        self.wait(&mut guest, END_MAX, None)?;
        self.check_silent()?;
        let image = self.path("image");
        let arguments = ["fsck", self.mode.name()].map(std::ffi::OsStr::new);
        call(
            &self.machines.tool,
            &[arguments[0], arguments[1], image.as_os_str()],
        )
        .map_err(|said| format!("the file system is damaged: {said}"))?;
        self.tally.ends += 1;
        self.store = None;
        Ok(())
    }

    fn boot(&mut self, last: bool) -> Outcome<Running> {
        self.orders.life += 1;
        self.orders.variation = self.rng.u8(..);
        self.orders.last = last;
        let board = self.board()?;
        board
            .give_orders(&self.orders.to_text())
            .map_err(failed("the board"))?;
        for name in ["image", "board"] {
            // Keeps copies for the analysis of a failure, from which the boot can be repeated.
            let (from, to) = (self.path(name), self.path(&format!("{name}.before")));
            let copied = Command::new("cp")
                .arg("--sparse=always")
                .args([&from, &to])
                .status();
            if !copied.map_err(failed("cp"))?.success() {
                return Err(format!("{} cannot be copied", from.display()));
            }
        }
        let child = Command::new(&self.machines.tool)
            .arg("run")
            .args([self.machines.parts.path(), Path::new(self.mode.name())])
            .args([self.path("image"), self.path("board")])
            .arg("guest-life")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        child.map(Running).map_err(failed("tools/pmem-guest"))
    }

    /// Waits until the guest has reached a phase, or exits successfully.
    fn wait(&self, guest: &mut Running, most: Duration, phase: Option<Phase>) -> Outcome {
        let mut waited = Duration::ZERO;
        while waited < most {
            let turn = Instant::now();
            let reached = self.board()?.phase(self.orders.life);
            match phase {
                Some(phase) if reached.map_err(failed("the board"))? >= phase => return Ok(()),
                Some(_) => self.check_runs(guest)?,
                None => {
                    let ended = guest.0.try_wait().map_err(failed("the guest"))?;
                    if ended.is_some() {
                        return match self.said("status").trim() {
                            "0" => Ok(()),
                            status => Err(format!("status {status:?}: {}", self.said("output"))),
                        };
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(1));
            // While this process was stopped, the guest was stopped as well.
            waited += turn.elapsed().min(TURN_MAX);
        }
        Err(format!(
            "the guest hangs: {}\n{}",
            self.said("output"),
            self.said("kernel.log")
        ))
    }

    fn check_runs(&self, guest: &mut Running) -> Outcome {
        match guest.0.try_wait().map_err(failed("the guest"))? {
            None => Ok(()),
            Some(status) => Err(format!(
                "the guest exited ({status}): {}\n{}",
                self.said("output"),
                self.said("kernel.log")
            )),
        }
    }

    /// Checks that the guest has printed nothing, since it prints only errors.
    fn check_silent(&self) -> Outcome {
        match self.said("output") {
            said if said.trim().is_empty() => Ok(()),
            said => Err(format!("the guest says: {said}")),
        }
    }

    fn said(&self, name: &str) -> String {
        let bytes = std::fs::read(self.machines.parts.path().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Runs guests that lose power, cycling through the kinds that the request selects.
pub fn campaign(request: &Request) -> Outcome {
    let machines = Machines::make(request.text("tool"))?;
    let seed = request.number("seed", 0)?;
    let mode = request.text("mode");
    let (media, designs) = (request.media()?, request.designs_or(&Design::ALL)?);
    let kinds = KINDS.iter().filter(|(its, medium, design)| {
        mode.is_none_or(|name| name == its.name())
            && media.contains(medium)
            && designs.contains(design)
    });
    let canary = request.text("canary").unwrap_or_default();
    let patient = |kind| machines.patient(kind, seed, canary);
    let mut patients: Vec<Patient<'_>> = kinds.map(patient).collect();
    if patients.is_empty() {
        return Err("no guest has that mode, medium and design".into());
    }
    let mut cuts = 0;
    while request.goes_on("cuts", 24, cuts)? {
        let turn = cuts as usize % patients.len();
        treat(&mut patients[turn], Patient::live_once)?;
        cuts += 1;
        if cuts % 50 == 0 {
            println!("{:.0?}: {cuts} cuts", request.elapsed());
        }
    }
    for patient in &mut patients {
        treat(patient, Patient::end)?;
    }
    for patient in patients.iter().filter(|patient| patient.tally.cuts > 0) {
        println!("guest: {patient}: {:?}", patient.tally);
    }
    println!("guest: {cuts} power cuts, {:.0?}", request.elapsed());
    Ok(())
}

fn treat<'a>(patient: &mut Patient<'a>, step: fn(&mut Patient<'a>) -> Outcome) -> Outcome {
    step(patient).map_err(|failure| {
        let kept = patient.store.take().map(|(folder, _)| folder.keep());
        let kept = kept.unwrap_or_default();
        format!(
            "{patient}: {failure}\nkept, with image and board as they were before the last boot: {}",
            kept.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parsing orders returns what was formatted.
    #[test]
    fn orders_are_read_back() {
        for (mode, medium, design) in KINDS {
            let orders = Orders {
                medium,
                design,
                seed: 77,
                life: mode as u64,
                variation: 200,
                last: mode == Mode::NoDax,
                canary: String::new(),
            };
            assert_eq!(Orders::parse(orders.to_text().trim_end()), Ok(orders));
        }
        assert!(Orders::parse("dax miodb 1").is_err());
    }

    /// The first kinds, used by a short run, cover every mode and every design with data in a pool.
    #[test]
    fn a_short_run_has_every_mode() {
        for mode in [Mode::Nvdimm, Mode::NoDax, Mode::VirtioPmem] {
            assert!(KINDS[..9].iter().any(|kind| kind.0 == mode));
        }
        for design in Design::ALL.into_iter().filter(|d| d.keeps_data_in_pool()) {
            assert!(
                KINDS[..9]
                    .iter()
                    .any(|kind| kind.1 == Medium::Dax && kind.2 == design)
            );
        }
    }
}

//! The campaigns of Terrace's tests: `cargo run --release -p terrace-testkit -- <campaign>`.

use std::process::ExitCode;

use terrace_testkit::campaign;
use terrace_testkit::fuzz;
use terrace_testkit::guest;
use terrace_testkit::heap::Counting;
use terrace_testkit::kill;
use terrace_testkit::oracle::Outcome;
use terrace_testkit::request::Request;
use terrace_testkit::strangers::processes;
use terrace_testkit::torture;

/// Counts memory, since decoding is limited in memory.
#[global_allocator]
static HEAP: Counting = Counting;

const HELP: &str = "\
usage: terrace-testkit CAMPAIGN [--OPTION VALUE]...

  power   crashes of a simulated machine
          --cases N | --minutes M, --seed S, --medium dax|mapped|dram, --design NAME|all,
          --long-every N (0: only short scripts), --failures N (stop after this many),
          --shrink 0 (show failing scripts as they are)
  kill    children that write and are killed with SIGKILL
          --rounds N | --minutes M, --seed S, --medium dax|mapped|dram, --design NAME|all
  guest   power cuts of a virtual machine with an NVDIMM; see tools/pmem-guest for requirements
          --cuts N | --minutes M, --seed S, --mode nvdimm|nodax|virtio-pmem, --medium dax|mapped|dram,
          --design NAME|all, --tool PATH (of pmem-guest), --canary NAME (feature `canary`)
  fuzz    every decoder of bytes from media, fed with changed encodings
          --executions N (of each decoder) | --minutes M, --seed S, --decoder NAME|all
  linear  writers and readers on threads, while merges and drains run
          --runs N | --minutes M, --seed S, --medium dax|mapped|dram, --design NAME|all, --writes N,
          --writers N, --readers N, --spread N (multiplies the keys)
  metamorphic  one history through every design, with several kinds of hostile options
          --cases N | --minutes M, --seed S, --len N (operations of a history)
  model   random calls against an ordered map, with threads and without, with sizes near limits
          --cases N | --minutes M, --seed S, --medium dax|mapped|dram, --design NAME|all, --len N
  moments  reads in steps, between which others write and the clock jumps
          --cases N | --minutes M, --seed S, --medium dax|mapped|dram
  strangers  databases in directories with files of others
          --cases N | --minutes M, --seed S, --medium dax|mapped|dram
  damage  databases with changed bytes, opened, read, verified and used further
          --cases N | --minutes M, --seed S, --design NAME|all (in pools; by default as drawn),
          --each N (cases of one database), --failures N
  faults  every call on files and on the pool fails, one at a time
          --seeds N | --minutes M, --seed S, --medium dax|mapped|dram, --design NAME|all,
          --stride N (every n-th call only), --every-way 1 (each call in every way),
          --only ACT,TARGET,CALL,WAY (one case, as a failure prints it)
  soak    mixed load of threads for long, in small caps, with bounds for space, memory and time
          --minutes M (shared out among the kinds), --seed S, --medium dax|mapped|dram,
          --design NAME|all, --round SECONDS, --folder PATH (directory of the databases),
          --keys N (instead: overwrites N keys of 1 KiB, with the bound of docs/operations.md)
  torture the campaigns above in turn, each with separate seeds
          --hours H, --seed S, --medium dax|mapped|dram, --design NAME|all
  flips   every byte of table files and OPTIONS changed; each change must be found
          --seed S, --mask M (bits that change), --stride N (every n-th byte only)
  canaries  breaks built into the store, each of which a suite must catch (feature `canary`)
          --only NAME (those whose names contain it), --slow 1 (those that the tests leave out),
          --say 1 (show what the suites print), --seed S and --cases N (search for seeds that catch
          the break)

Every campaign prints its seed and ends with its counts.";

fn run(args: &[String]) -> Outcome {
    let Some((name, rest)) = args.split_first() else {
        return Err(HELP.into());
    };
    let parse = |known: &[&str]| Request::parse(rest, known);
    match name.as_str() {
        "power" => campaign::power(&parse(&[
            "cases",
            "minutes",
            "seed",
            "medium",
            "design",
            "long-every",
            "failures",
            "shrink",
        ])?),
        "kill" => campaign::kill(&parse(&["rounds", "minutes", "seed", "medium", "design"])?),
        "guest" => guest::campaign(&parse(&[
            "cuts", "minutes", "seed", "mode", "medium", "design", "tool", "canary",
        ])?),
        // The campaign that runs in a guest. Its only argument is the board.
        "guest-life" => match rest {
            [board] => guest::live(board.as_ref()),
            _ => Err("guest-life BOARD".into()),
        },
        "fuzz" => fuzz::campaign(&parse(&["executions", "minutes", "seed", "decoder"])?),
        "linear" => campaign::linear(&parse(&[
            "runs", "minutes", "seed", "medium", "design", "writes", "writers", "readers", "spread",
        ])?),
        "damage" => campaign::damage(&parse(&[
            "cases", "minutes", "seed", "design", "each", "failures",
        ])?),
        "model" => campaign::model(&parse(&[
            "cases", "minutes", "seed", "medium", "design", "len",
        ])?),
        "moments" => campaign::moments(&parse(&["cases", "minutes", "seed", "medium"])?),
        "strangers" => campaign::strangers(&parse(&["cases", "minutes", "seed", "medium"])?),
        "metamorphic" => campaign::metamorphic(&parse(&["cases", "minutes", "seed", "len"])?),
        "faults" => campaign::faults(&parse(&[
            "seeds",
            "minutes",
            "seed",
            "medium",
            "design",
            "stride",
            "every-way",
            "only",
        ])?),
        "soak" => campaign::soak(&parse(&[
            "minutes", "seed", "medium", "design", "round", "folder", "keys",
        ])?),
        "torture" => torture::torture(&parse(&["hours", "seed", "medium", "design"])?),
        "flips" => campaign::flips(&parse(&["seed", "mask", "stride"])?),
        "canaries" => canaries(&parse(&["only", "slow", "say", "seed", "cases"])?),
        "--help" | "-h" | "help" => {
            println!("{HELP}");
            Ok(())
        }
        other => Err(format!("unknown campaign {other}\n\n{HELP}")),
    }
}

#[cfg(feature = "canary")]
fn canaries(request: &Request) -> Outcome {
    let exe = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let child = || std::process::Command::new(&exe);
    let number = |name| {
        request
            .text(name)
            .map(|_| request.number(name, 0))
            .transpose()
    };
    let choice = terrace_testkit::canaries::Choice {
        only: request.text("only").unwrap_or_default(),
        first: number("seed")?,
        cases_max: number("cases")?,
        says: request.number("say", 0)? > 0,
        slow: (request.number("slow", 0)? > 0).then_some(true),
        part: None,
    };
    let machines = terrace_testkit::guest::Machines::make(None);
    if let Err(reason) = &machines {
        println!("cannot cut the power of a guest: {reason}");
    }
    let places = terrace_testkit::canaries::Places {
        child: &child,
        machines: machines.as_ref().ok(),
    };
    terrace_testkit::canaries::campaign(choice, places)
}

#[cfg(not(feature = "canary"))]
fn canaries(_: &Request) -> Outcome {
    Err("this program was built without canaries: build it with --features canary".into())
}

fn main() -> ExitCode {
    if let Some(code) = kill::child_if_asked() {
        return code;
    }
    if let Some(code) = processes::child_if_asked() {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

//! One run as a separate process: it is started, its output read, its end awaited.
//!
//! In a separate process, peak memory and processor time are those of one store and one run, and a
//! store that crashes or hangs loses only its own results.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::error::BenchError;
use crate::results::{Planned, Record, read_line};

/// The interval at which a stop request is checked.
const TICK: Duration = Duration::from_millis(100);

/// The time that a process may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);

/// The length of the kept end of a process's standard error.
const EVIDENCE_BYTES: usize = 4096;

/// The end of a run.
#[derive(Debug)]
pub(super) enum Ended {
    /// The run ended normally.
    Done,
    /// The run failed: how, and its last output.
    Failed(String, String),
    /// The comparison was stopped.
    Stopped,
}

/// Runs `program` with `args`, passes every record that it prints to `see`, and waits for its end,
/// for at most `timeout` or until `stop` is set.
pub(super) fn run(
    program: &Path,
    args: &[OsString],
    planned: &Planned,
    timeout: Duration,
    stop: &AtomicBool,
    see: &mut dyn FnMut(Record) -> Result<(), BenchError>,
) -> Result<Ended, BenchError> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| BenchError::io("start a run with", program, e))?;
    // If memory runs out, Linux kills the run before the comparison. If this write fails, the
    // results so far are still on disk.
    let _ = std::fs::write(format!("/proc/{}/oom_score_adj", child.id()), "500");
    let lines = lines_of(&mut child);
    let evidence = evidence_of(&mut child);
    let until = Instant::now() + timeout;
    let mut problem = None;
    let mut is_whole = false;
    // BOUND: every iteration reads a line or takes a tick, and `until` is reached.
    let stopped = loop {
        match lines.recv_timeout(TICK) {
            Ok(line) => match read_line(&line) {
                Ok(mut record) => {
                    record.set_planned(planned);
                    is_whole |= matches!(record, Record::End(_));
                    if let Err(e) = see(record) {
                        end(&mut child);
                        return Err(e);
                    }
                }
                Err(what) => {
                    problem = Some(format!("it printed a line that is not a result: {what}"))
                }
            },
            Err(RecvTimeoutError::Disconnected) => break false,
            Err(RecvTimeoutError::Timeout) if Instant::now() >= until => {
                problem = Some(format!("it did not end within {} s", timeout.as_secs()));
                break false;
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if stop.load(Ordering::Relaxed) {
            break true;
        }
    };
    if stopped || problem.is_some() {
        end(&mut child);
    }
    let status = child
        .wait()
        .map_err(|e| BenchError::io("wait for a run of", program, e))?;
    let evidence = evidence.recv().unwrap_or_default();
    // Ctrl-C reaches every process of a terminal, and may end the run before `stop` is seen here.
    if stopped || stop.load(Ordering::Relaxed) {
        return Ok(Ended::Stopped);
    }
    Ok(match problem.or_else(|| how(status, is_whole)) {
        Some(how) => Ended::Failed(how, evidence),
        None => Ended::Done,
    })
}

fn lines_of(child: &mut Child) -> Receiver<String> {
    let (send, lines) = channel();
    if let Some(out) = child.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines() {
                // The receiver is gone once the run is given up.
                let Ok(()) = line.map_or(Ok(()), |line| send.send(line)) else {
                    return;
                };
            }
        });
    }
    lines
}

fn evidence_of(child: &mut Child) -> Receiver<String> {
    let (send, evidence) = channel();
    if let Some(mut err) = child.stderr.take() {
        std::thread::spawn(move || {
            let (mut kept, mut block) = (Vec::new(), [0; 4096]);
            while let Ok(bytes @ 1..) = err.read(&mut block) {
                kept.extend_from_slice(&block[..bytes]);
                let surplus = kept.len().saturating_sub(EVIDENCE_BYTES);
                kept.drain(..surplus);
            }
            // The receiver is gone once the run is given up.
            let _ = send.send(String::from_utf8_lossy(&kept).trim().to_string());
        });
    }
    evidence
}

/// Asks the process to end, and kills it if it does not.
fn end(child: &mut Child) {
    if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
        // A process that has already ended needs no signal.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    let until = Instant::now() + GRACE;
    while Instant::now() < until {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(TICK);
    }
    // The caller waits for the process; if it has ended meanwhile, the kill fails harmlessly.
    let _ = child.kill();
}

/// Returns the reason that a process failed; `None` if it ended normally.
fn how(status: ExitStatus, is_whole: bool) -> Option<String> {
    const SIGKILL: i32 = 9;
    match (status.code(), status.signal()) {
        (Some(0), _) if is_whole => None,
        (Some(0), _) => Some("it ended without its last result".to_string()),
        (Some(code), _) => Some(format!("it ended with exit code {code}")),
        (None, Some(SIGKILL)) => Some(
            "it was killed (signal 9), which Linux does when memory runs out; see the kernel log"
                .to_string(),
        ),
        (None, Some(signal)) => Some(format!("it crashed (signal {signal})")),
        (None, None) => Some("it ended for an unknown reason".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a shell instead of a benchmark.
    fn shell(script: &str, timeout: Duration, stop: bool) -> (Ended, Vec<Record>) {
        let mut seen = Vec::new();
        let args = ["-c".into(), script.into()];
        let stop = AtomicBool::new(stop);
        let planned = Planned::default();
        let path = Path::new("/bin/sh");
        let ended = run(path, &args, &planned, timeout, &stop, &mut |record| {
            seen.push(record);
            Ok(())
        });
        (ended.expect("it was started"), seen)
    }

    fn last_line() -> String {
        let records = super::super::cells::tests::run(1, "a", 0, 1.0);
        serde_json::to_string(&records[1]).expect("JSON")
    }

    /// Each kind of failure is distinguished and reported with the last output.
    #[test]
    fn bad_ends_are_distinguished() {
        let minute = Duration::from_secs(60);
        for (script, said) in [
            ("echo the disk is full >&2; exit 1", "exit code 1"),
            ("kill -ABRT $$", "signal 6"),
            ("kill -KILL $$", "memory runs out"),
            ("true", "without its last result"),
            ("echo nonsense", "not a result"),
        ] {
            let (ended, _) = shell(script, minute, false);
            let Ended::Failed(how, evidence) = ended else {
                panic!("{script}: {ended:?}");
            };
            assert!(how.contains(said), "{script}: {how}");
            assert_eq!(evidence.contains("disk is full"), script.contains("full"));
        }
        let (ended, _) = shell("exec sleep 60", Duration::from_millis(150), false);
        assert!(matches!(ended, Ended::Failed(how, _) if how.contains("did not end")));
    }

    /// Printed records are passed on with their place, and a stopped run is no failure.
    #[test]
    fn records_are_handed_on() {
        let script = format!("echo '{}'", last_line());
        let (ended, seen) = shell(&script, Duration::from_secs(60), false);
        assert!(matches!(ended, Ended::Done), "{ended:?}");
        assert_eq!(seen.len(), 1);
        let store = |record: &Record| record.run().planned.as_ref().map(|p| p.store.clone());
        assert_eq!(store(&seen[0]).as_deref(), Some(""));
        let (ended, _) = shell("exec sleep 60", Duration::from_secs(60), true);
        assert!(matches!(ended, Ended::Stopped), "{ended:?}");
    }
}

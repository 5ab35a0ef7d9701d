//! Group sync of a log: concurrent callers share one sync, and a failure is permanent.

use std::io;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::canary::{self, Canary, failpoint};

/// The sync rounds of one log.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    running: bool,
    started: u64,
    done: u64,
    /// The first failure; every later operation fails with it.
    failed: Option<(io::ErrorKind, String)>,
}

impl State {
    fn check(&self) -> io::Result<()> {
        match &self.failed {
            None => Ok(()),
            Some((kind, first)) => {
                let text = format!("the log failed earlier and accepts no more records: {first}");
                Err(io::Error::new(*kind, text))
            }
        }
    }
}

impl Rounds {
    /// Fails if an earlier operation has failed.
    pub(crate) fn check(&self) -> io::Result<()> {
        self.state.lock().check()
    }

    /// Records the first failure and returns `e`.
    pub(crate) fn fail(&self, e: io::Error) -> io::Error {
        let failed = &mut self.state.lock().failed;
        if failed.is_none() {
            *failed = Some((e.kind(), e.to_string()));
        }
        e
    }

    /// Returns after a `sync` that started after this call, its own or another caller's, has ended.
    pub(crate) fn run(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.state.lock();
        let wanted = state.started + 1;
        // BOUND: the running round ends, and the next round started is the wanted one.
        loop {
            state.check()?;
            if state.done >= wanted {
                return Ok(());
            }
            if !state.running {
                break;
            }
            self.ended.wait(&mut state);
        }
        state.running = true;
        state.started += 1;
        let round = state.started;
        let mut result = MutexGuard::unlocked(&mut state, sync);
        failpoint!(SyncError => result = Ok(()));
        state.running = false;
        match &result {
            Ok(()) => state.done = round,
            Err(_) if canary::breaks(Canary::SyncForgotten) => {}
            Err(e) => {
                if state.failed.is_none() {
                    state.failed = Some((e.kind(), e.to_string()));
                }
            }
        }
        self.ended.notify_all();
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Before `run` returns, a sync that started after the call has completed.
    #[test]
    fn every_caller_is_covered() {
        let rounds = Rounds::default();
        let (clock, synced) = (AtomicU64::new(0), AtomicU64::new(0));
        let syncs = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let mine = clock.fetch_add(1, Ordering::SeqCst) + 1;
                        let sync = || {
                            let now = clock.load(Ordering::SeqCst);
                            std::thread::yield_now();
                            syncs.fetch_add(1, Ordering::SeqCst);
                            synced.fetch_max(now, Ordering::SeqCst);
                            Ok(())
                        };
                        rounds.run(sync).unwrap();
                        assert!(synced.load(Ordering::SeqCst) >= mine);
                    }
                });
            }
        });
        assert!(syncs.load(Ordering::SeqCst) <= 1600);
    }

    /// After a failed sync every later one fails with the first cause.
    #[test]
    fn failures_stay() {
        let rounds = Rounds::default();
        rounds.run(|| Ok(())).unwrap();
        let e = rounds.run(|| Err(io::Error::other("cable"))).unwrap_err();
        assert_eq!(e.to_string(), "cable");
        let e = rounds.run(|| Ok(())).unwrap_err();
        assert!(e.to_string().ends_with("cable"));
        assert!(rounds.check().is_err());
    }
}

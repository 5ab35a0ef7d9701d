//! The board: a device through which a guest and its host communicate, and which survives a power
//! cut.
//!
//! It is a second memory device of the guest, without a file system, so the data under test is not
//! judged with its own help. To the host it is a file. Every write to it is durable when the call
//! returns, so a word records a write of the store only after that was acknowledged.
//!
//! | place | writer | what |
//! |---|---|---|
//! | 0 | host | the orders of the next life, a line of text |
//! | 4 KiB | guest | a word: the life, and its phase |
//! | 8 KiB, a page a thread | thread | a word: the life, and the number of answered writes |
//! | 64 KiB, 1 MiB a thread | thread | a word for each refusal: the life, and the number of the write |
//! | 4 MiB, 8 MiB | guest | two states, of which the newest intact one counts |
//!
//! Words are little-endian. The upper half holds the life.

use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::writes::{Progress, THREADS};

/// The size of the device in bytes.
const BYTES: u64 = 16 << 20;
const PAGE: u64 = 4096;
const PHASE: u64 = PAGE;
const DONE: u64 = 2 * PAGE;
const REFUSED: u64 = 64 << 10;
const REFUSED_EACH: u64 = 1 << 20;
const STATES: [u64; 2] = [4 << 20, 8 << 20];
const STATE_MAX: usize = 4 << 20;
/// The length and checksum in front of a state.
const HEAD: usize = 16;

const _: () = assert!(REFUSED + THREADS * REFUSED_EACH <= STATES[0]);
const _: () = assert!(DONE + THREADS * PAGE <= REFUSED);

/// The phase of a life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Phase {
    /// The kernel runs, but the program does not yet.
    Booting,
    /// The program runs and is about to open the store.
    Opening,
    /// The store was compared and threads write.
    Writing,
}

/// See the module documentation.
pub(super) struct Board {
    file: File,
}

fn word(life: u64, number: u64) -> [u8; 8] {
    ((life << 32) | number).to_le_bytes()
}

impl Board {
    /// Creates an empty board, on the host.
    pub(super) fn create(path: &Path) -> io::Result<Board> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        let file = options.open(path)?;
        file.set_len(BYTES)?;
        Ok(Board { file })
    }

    /// Opens the board in the guest.
    pub(super) fn open(device: &Path) -> io::Result<Board> {
        let flags = rustix::fs::OFlags::DSYNC.bits() as i32;
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(flags);
        let file = options.open(device)?;
        Ok(Board { file })
    }

    fn word_at(&self, at: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, at)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Returns the number at an offset, if it belongs to `life`.
    fn number_at(&self, at: u64, life: u64) -> io::Result<Option<u64>> {
        let found = self.word_at(at)?;
        Ok((found >> 32 == life).then_some(found & u64::from(u32::MAX)))
    }

    pub(super) fn give_orders(&self, text: &str) -> io::Result<()> {
        let mut page = [b'\n'; PAGE as usize];
        page[..text.len()].copy_from_slice(text.as_bytes());
        self.file.write_all_at(&page, 0)
    }

    pub(super) fn orders(&self) -> io::Result<String> {
        let mut page = [0; PAGE as usize];
        self.file.read_exact_at(&mut page, 0)?;
        Ok(String::from_utf8_lossy(&page).trim_end().to_owned())
    }

    pub(super) fn reach(&self, life: u64, phase: Phase) -> io::Result<()> {
        self.file.write_all_at(&word(life, phase as u64), PHASE)
    }

    /// Returns the phase of `life`.
    pub(super) fn phase(&self, life: u64) -> io::Result<Phase> {
        Ok(match self.number_at(PHASE, life)? {
            None | Some(0) => Phase::Booting,
            Some(1) => Phase::Opening,
            Some(_) => Phase::Writing,
        })
    }

    /// Returns how many writes of a thread were answered in a life, and which of them were refused.
    pub(super) fn progress(&self, life: u64, thread: u64) -> io::Result<(u64, Vec<u64>)> {
        let done = self.number_at(DONE + thread * PAGE, life)?.unwrap_or(0);
        let mut refused = Vec::new();
        let from = REFUSED + thread * REFUSED_EACH;
        for at in (from..from + REFUSED_EACH).step_by(8) {
            match self.number_at(at, life)? {
                Some(turn) => refused.push(turn),
                None => break,
            }
        }
        Ok((done, refused))
    }

    /// Stores the content of the store at the time when threads began to write in `life`. Lives
    /// only grow.
    pub(super) fn keep_state(&self, life: u64, text: &str) -> io::Result<()> {
        let text = format!("{life}\n{text}");
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(&checksum(text.as_bytes()).to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
        if bytes.len() > STATE_MAX {
            return Err(io::Error::other("the state is too long for the board"));
        }
        // Spares the newest state, which must survive a cut during this write.
        let newest = self.newest()?.map(|(slot, ..)| slot);
        let slot = if newest == Some(0) { 1 } else { 0 };
        self.file.write_all_at(&bytes, STATES[slot])
    }

    /// Returns the newest state and its life, or `None` before the first.
    pub(super) fn state(&self) -> io::Result<Option<(u64, String)>> {
        Ok(self.newest()?.map(|(_, life, text)| (life, text)))
    }

    fn newest(&self) -> io::Result<Option<(usize, u64, String)>> {
        let mut newest: Option<(usize, u64, String)> = None;
        for (slot, at) in STATES.into_iter().enumerate() {
            let Some((life, text)) = self.state_at(at)? else {
                continue;
            };
            if newest.as_ref().is_none_or(|(_, other, _)| life > *other) {
                newest = Some((slot, life, text));
            }
        }
        Ok(newest)
    }

    fn state_at(&self, at: u64) -> io::Result<Option<(u64, String)>> {
        let len = self.word_at(at)? as usize;
        if len == 0 || len > STATE_MAX - HEAD {
            return Ok(None);
        }
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, at + HEAD as u64)?;
        if self.word_at(at + 8)? != checksum(&bytes) {
            return Ok(None);
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(text
            .split_once('\n')
            .and_then(|(life, rest)| Some((life.parse().ok()?, rest.to_owned()))))
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// The progress of one thread in one life.
pub(super) struct Told<'a> {
    board: &'a Board,
    life: u64,
    thread: u64,
    refusals: u64,
}

impl Board {
    pub(super) fn told(&self, life: u64, thread: u64) -> Told<'_> {
        Told {
            board: self,
            life,
            thread,
            refusals: 0,
        }
    }
}

impl Progress for Told<'_> {
    fn done(&mut self, writes: u64) -> io::Result<()> {
        let at = DONE + self.thread * PAGE;
        self.board.file.write_all_at(&word(self.life, writes), at)
    }

    fn refused(&mut self, turn: u64) -> io::Result<()> {
        let at = self.refusals * 8;
        if at >= REFUSED_EACH {
            return Err(io::Error::other("the board has no room for more refusals"));
        }
        self.refusals += 1;
        let at = at + REFUSED + self.thread * REFUSED_EACH;
        self.board.file.write_all_at(&word(self.life, turn), at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state is read back, the newest one counts, and a torn one leaves the previous one.
    #[test]
    fn the_newest_whole_state_counts() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("board");
        let board = Board::create(&path)?;
        assert_eq!(board.state()?, None);
        for life in 1..4 {
            board.keep_state(life, &format!("of life {life}"))?;
            assert_eq!(board.state()?, Some((life, format!("of life {life}"))));
        }
        let newest = if board.newest()?.map(|(slot, ..)| slot) == Some(0) {
            0
        } else {
            1
        };
        board.file.write_all_at(b"#", STATES[newest] + 20)?;
        assert_eq!(board.state()?, Some((2, "of life 2".into())));
        Ok(())
    }

    /// Progress is that of the given life only.
    #[test]
    fn progress_is_of_one_life() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let board = Board::create(&folder.path().join("board"))?;
        let mut told = board.told(7, 1);
        told.refused(3)?;
        told.done(4)?;
        assert_eq!(board.progress(7, 1)?, (4, vec![3]));
        assert_eq!(board.progress(8, 1)?, (0, vec![]));
        assert_eq!(board.progress(7, 0)?, (0, vec![]));
        assert_eq!(board.phase(7)?, Phase::Booting);
        board.reach(7, Phase::Writing)?;
        assert_eq!(board.phase(7)?, Phase::Writing);
        assert_eq!(board.phase(8)?, Phase::Booting);
        Ok(())
    }
}

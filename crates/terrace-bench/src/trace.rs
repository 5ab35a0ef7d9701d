//! A recorded trace that the benchmark replays: calls and their keys.
//!
//! docs/trace.md describes the format; the library writes it. A trace is read into memory before
//! anything is measured. Keys are numbered in order of appearance, so that a call stores only a
//! number. Since a peer has no keyspaces, keys outside the default keyspace are prefixed with the
//! number of their keyspace and a slash.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use crate::units;

/// The keyspace whose keys are not prefixed.
const DEFAULT_KEYSPACE: &[u8] = b"1";

/// A call of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// Writes a value of this many bytes.
    Put(u32),
    Delete,
    Get,
    /// Reads this many entries, upward.
    Scan(u32),
    /// Reads this many entries, downward.
    ScanBack(u32),
}

/// Calls that form a unit: a single one, or the writes of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Group {
    first: u32,
    count: u32,
}

/// A recorded trace of calls, to be replayed by [`Step::Replay`](crate::Step::Replay).
#[derive(Debug, Default)]
pub struct Trace {
    /// Each call and the number of its key.
    calls: Vec<(Call, u32)>,
    groups: Vec<Group>,
    keys: Vec<Box<[u8]>>,
    numbers: HashMap<Box<[u8]>, u32>,
    /// Range deletes, which are not replayed.
    pub(crate) ranges_left_out: u64,
    /// The length of the longest value written.
    pub(crate) value_bytes_max: usize,
    /// Key and value bytes of all puts.
    pub(crate) written_bytes: u64,
}

impl Trace {
    /// Reads the trace at `path`. An error names the problem and its line.
    pub fn load(path: &Path) -> Result<Trace, String> {
        let shown = path.display();
        let file = File::open(path).map_err(|e| format!("cannot read the trace {shown}: {e}"))?;
        Trace::read(BufReader::new(file)).map_err(|e| format!("cannot read the trace {shown}: {e}"))
    }

    fn read(mut lines: impl BufRead) -> Result<Trace, String> {
        let mut trace = Trace::default();
        let mut line = Vec::new();
        let mut number = 0;
        // The missing writes of the batch whose header was read.
        let mut of_batch = 0u32;
        loop {
            line.clear();
            let read = lines
                .read_until(b'\n', &mut line)
                .map_err(|e| e.to_string())?;
            number += 1;
            // A line without its end was torn when the process was killed.
            if read == 0 || line.pop() != Some(b'\n') {
                break;
            }
            let problem = |what: String| format!("line {number}: {what}");
            if number == 1 {
                check_header(&line)?;
                continue;
            }
            trace.add(&line, &mut of_batch).map_err(problem)?;
        }
        if number == 1 {
            return Err("it is empty".to_string());
        }
        // A batch with missing writes was torn and is not replayed.
        if of_batch > 0
            && let Some(group) = trace.groups.pop()
        {
            trace.calls.truncate(group.first as usize);
        }
        if trace.groups.is_empty() {
            return Err("it has no calls".to_string());
        }
        Ok(trace)
    }

    fn add(&mut self, line: &[u8], of_batch: &mut u32) -> Result<(), String> {
        let mut fields = line.split(|byte| *byte == b'\t');
        let mut field = |name: &str| fields.next().ok_or_else(|| format!("it has no {name}"));
        let (_time, keyspace, call) = (field("time")?, field("keyspace")?, field("call")?);
        let key = unescape(field("key")?)?;
        let count = |field: Result<&[u8], String>| -> Result<u32, String> {
            let text = String::from_utf8_lossy(field?).into_owned();
            text.parse().map_err(|_| format!("{text:?} is not a count"))
        };
        let call = match call {
            b"put" => Call::Put(count(field("length"))?),
            b"delete" => Call::Delete,
            b"get" => Call::Get,
            b"scan" => Call::Scan(count(field("count"))?),
            b"scan-back" => Call::ScanBack(count(field("count"))?),
            b"batch" if *of_batch == 0 => {
                *of_batch = count(field("count"))?;
                if *of_batch > 0 {
                    self.begin_group(0)?;
                }
                return Ok(());
            }
            b"delete-range" => {
                self.ranges_left_out += 1;
                *of_batch = of_batch.saturating_sub(1);
                return Ok(());
            }
            other => {
                let other = other.escape_ascii();
                return Err(format!("unknown call \"{other}\""));
            }
        };
        let is_write = matches!(call, Call::Put(_) | Call::Delete);
        if *of_batch > 0 && !is_write {
            return Err("a batch can only have writes".to_string());
        }
        let key = self.number_of(keyspace, key)?;
        if let Call::Put(bytes) = call {
            self.value_bytes_max = self.value_bytes_max.max(bytes as usize);
            self.written_bytes += self.keys[key as usize].len() as u64 + u64::from(bytes);
        }
        match (*of_batch, self.groups.last_mut()) {
            (1.., Some(group)) => {
                group.count += 1;
                *of_batch -= 1;
            }
            _ => self.begin_group(1)?,
        }
        self.calls.push((call, key));
        Ok(())
    }

    fn begin_group(&mut self, count: u32) -> Result<(), String> {
        let first = u32::try_from(self.calls.len());
        let first = first.map_err(|_| "a trace has at most 4294967295 calls".to_string())?;
        self.groups.push(Group { first, count });
        Ok(())
    }

    fn number_of(&mut self, keyspace: &[u8], mut key: Vec<u8>) -> Result<u32, String> {
        if keyspace != DEFAULT_KEYSPACE {
            key.splice(0..0, [keyspace, b"/"].concat());
        }
        if let Some(number) = self.numbers.get(key.as_slice()) {
            return Ok(*number);
        }
        let number = u32::try_from(self.keys.len());
        let number = number.map_err(|_| "a trace has at most 4294967295 keys".to_string())?;
        self.keys.push(key.clone().into());
        self.numbers.insert(key.into(), number);
        Ok(number)
    }

    /// Returns a summary for people.
    pub(crate) fn describe(&self) -> String {
        let left_out = match self.ranges_left_out {
            0 => String::new(),
            count => format!("; {} deletes of ranges left out", units::count(count)),
        };
        format!(
            "{} calls on {} keys of up to {} B, values of up to {} B{left_out}",
            units::count(self.calls()),
            units::count(self.keys()),
            self.keys.iter().map(|key| key.len()).max().unwrap_or(0),
            self.value_bytes_max
        )
    }

    /// Returns the number of groups.
    pub(crate) fn groups(&self) -> u64 {
        self.groups.len() as u64
    }

    /// Returns the number of calls.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.len() as u64
    }

    /// Returns the number of keys.
    pub(crate) fn keys(&self) -> u64 {
        self.keys.len() as u64
    }

    /// Returns the calls of group number `at`, each with the number of its key; empty after the
    /// last group.
    #[inline]
    pub(crate) fn group(&self, at: u64) -> &[(Call, u32)] {
        let Some(group) = self.groups.get(at as usize) else {
            return &[];
        };
        &self.calls[group.first as usize..][..group.count as usize]
    }

    /// Returns the key with this number.
    #[inline]
    pub(crate) fn key(&self, number: u32) -> &[u8] {
        &self.keys[number as usize]
    }

    /// Returns the number of `key`; `None` if no call uses it.
    pub(crate) fn find(&self, key: &[u8]) -> Option<u32> {
        self.numbers.get(key).copied()
    }
}

fn check_header(line: &[u8]) -> Result<(), String> {
    match line.strip_prefix(b"terrace-trace\t") {
        Some(b"1") => Ok(()),
        Some(version) => Err(format!(
            "it has the format \"{}\", but this program knows 1: use the version that recorded it",
            version.escape_ascii()
        )),
        None => {
            Err("it is not a trace: its first line is not \"terrace-trace\" and a number".into())
        }
    }
}

fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut key = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'\\' {
            key.push(*byte);
            continue;
        }
        let byte = rest.strip_prefix(b"x").and_then(|digits| {
            let digits = digits.get(..2)?;
            // `from_str_radix` would accept a sign before a digit.
            let digits = digits.iter().all(u8::is_ascii_hexdigit).then_some(digits)?;
            u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
        });
        key.push(byte.ok_or_else(|| {
            let text = text.escape_ascii();
            format!("the key \"{text}\" has a backslash without x and two hexadecimal digits")
        })?);
        rest = &rest[3..];
    }
    Ok(key)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use super::*;

    /// Returns a trace of four calls.
    pub(crate) fn small() -> Arc<Trace> {
        let text =
            "terrace-trace\t1\n1\t1\tput\tk\t9\n1\t1\tget\tk\n1\t1\tget\tl\n2\t1\tscan\t\t5\n";
        Arc::new(read(text).expect("it is well formed"))
    }

    fn read(text: &str) -> Result<Trace, String> {
        Trace::read(text.as_bytes())
    }

    const WHOLE: &str = "terrace-trace\t1\n\
                         5\t1\tput\ta key\t100\n\
                         6\t1\tget\t\\x00\\x5c\n\
                         7\t0\tbatch\t\t3\n\
                         7\t1\tput\tb\t7\n\
                         7\t2\tput\tb\t9\n\
                         7\t1\tdelete\ta key\n\
                         8\t1\tdelete-range\ta\tb\n\
                         9\t1\tscan\t\t4\n\
                         9\t1\tscan-back\tb\t2\n";

    /// Every call is read: batches as a unit, keys with any bytes, keyspaces separate.
    #[test]
    fn a_trace_is_read() {
        let trace = read(WHOLE).expect("it is well formed");
        let calls: Vec<Vec<(Call, u32)>> = (0..trace.groups())
            .map(|at| trace.group(at).to_vec())
            .collect();
        let expected = vec![
            vec![(Call::Put(100), 0)],
            vec![(Call::Get, 1)],
            vec![(Call::Put(7), 2), (Call::Put(9), 3), (Call::Delete, 0)],
            vec![(Call::Scan(4), 4)],
            vec![(Call::ScanBack(2), 2)],
        ];
        assert_eq!(calls, expected);
        let keys: Vec<&[u8]> = (0..5).map(|number| trace.key(number)).collect();
        assert_eq!(keys, [&b"a key"[..], b"\x00\\", b"b", b"2/b", b""]);
        assert_eq!(trace.find(b"2/b"), Some(3));
        assert_eq!(trace.find(b"c"), None);
        assert_eq!((trace.calls(), trace.keys()), (7, 5));
        assert_eq!((trace.ranges_left_out, trace.value_bytes_max), (1, 100));
        assert_eq!(trace.group(5), []);
    }

    /// A torn last line and a torn last batch are not replayed.
    #[test]
    fn a_torn_end_is_left_out() {
        let groups = |text: &str| read(text).expect("it is well formed").groups();
        assert_eq!(groups(WHOLE.trim_end()), 4);
        let in_batch = WHOLE.find("7\t1\tdelete").expect("it is there");
        assert_eq!(groups(&WHOLE[..in_batch]), 2);
        assert_eq!(groups(&WHOLE[..in_batch + 5]), 2);
    }

    /// A malformed trace is refused with the number of the line.
    #[test]
    fn bad_lines_are_named() {
        for (text, said) in [
            ("", "empty"),
            ("key\tvalue\n", "not a trace"),
            ("terrace-trace\t2\n", "knows 1"),
            ("terrace-trace\t1\n", "no calls"),
            (
                "terrace-trace\t1\n1\t1\tput\tk\n",
                "line 2: it has no length",
            ),
            (
                "terrace-trace\t1\n1\t1\tput\tk\tx\n",
                "line 2: \"x\" is not a count",
            ),
            (
                "terrace-trace\t1\n1\t1\tmerge\tk\n",
                "unknown call \"merge\"",
            ),
            ("terrace-trace\t1\n1\t1\tget\ta\\q\n", "backslash"),
            ("terrace-trace\t1\n1\t1\tget\ta\\x1\n", "backslash"),
            ("terrace-trace\t1\n1\t1\tget\ta\\x+1\n", "backslash"),
            ("terrace-trace\t1\n1\n", "it has no keyspace"),
            (
                "terrace-trace\t1\n1\t0\tbatch\t\t2\n1\t1\tget\tk\n",
                "line 3: a batch can only have writes",
            ),
        ] {
            let problem = read(text).map(drop).expect_err(text);
            assert!(problem.contains(said), "{said} in {problem}");
        }
    }

    /// A changed trace is either read, and every call has its key, or refused with a reason.
    #[test]
    fn changed_traces_are_read_or_named() {
        let mut rng = fastrand::Rng::with_seed(5);
        for _ in 0..20_000 {
            let mut bytes = WHOLE.as_bytes().to_vec();
            for _ in 0..rng.usize(1..5) {
                let at = rng.usize(..bytes.len());
                let piece = at..bytes.len().min(at + rng.usize(1..30));
                match rng.u8(0..4) {
                    0 => bytes[at] = rng.u8(..),
                    1 => bytes[at] = b"\t\n\\x019"[rng.usize(..7)],
                    2 => drop(bytes.splice(piece, [b'\n'])),
                    _ => {
                        let copy = bytes[piece].to_vec();
                        bytes.splice(at..at, copy);
                    }
                }
            }
            match Trace::read(bytes.as_slice()) {
                Ok(trace) => {
                    for &(_, number) in (0..trace.groups()).flat_map(|at| trace.group(at)) {
                        assert_eq!(trace.find(trace.key(number)), Some(number));
                    }
                }
                Err(problem) => assert!(!problem.is_empty()),
            }
        }
    }
}

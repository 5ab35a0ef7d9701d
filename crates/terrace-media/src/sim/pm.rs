//! The persistent memory of a simulated machine: working memory, durable image, and the lines in
//! transit between them.
//!
//! Invariants
//!   X3  A line of the image never goes back in time: a fence copies the latest content that any
//!       thread flushed, never an earlier one over a later one.

use super::choose::Chooser;
use crate::pm::map::{Memory, PAGE};
use crate::pm::medium::Medium;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;

/// Sizes of pages and lines.
const PAGE_WORDS: usize = PAGE / 8;
const LINE_WORDS: usize = 8;
const PAGE_LINES: usize = PAGE_WORDS / LINE_WORDS;

/// The content of a page, shared by images; `None` stands for a page of zeros.
pub(super) type Page = Option<Arc<[u64; PAGE_WORDS]>>;

/// The hasher of numbers of lines. Every flush and fence hashes each of its lines, and the default
/// hasher took a tenth of the time of crash tests.
#[derive(Default)]
struct LineHasher(u64);

impl Hasher for LineHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u64(u64::from(b)));
    }

    fn write_u64(&mut self, n: u64) {
        // The golden ratio spreads consecutive numbers.
        self.0 = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// The memory part of an image.
#[derive(Clone, Default)]
pub(super) struct PmImage {
    /// The bytes that programs see after booting.
    working: Vec<Page>,
    /// The bytes that are durable; `None` means all of `working`.
    durable: Option<Vec<Page>>,
    unwritten: BTreeSet<usize>,
}

/// The memory of a machine, mapped by a pool or not.
#[derive(Default)]
pub(super) struct Pm {
    memory: Option<Arc<Memory>>,
    /// The initial content of `memory`, until a pool opens it.
    initial: Vec<Page>,
    durable: Vec<Page>,
    /// Pages that a process on `Mapped` left in the page cache. On `Dax` a sync writes back only
    /// these, since the kernel does not track stores through a synchronous mapping.
    unwritten: BTreeSet<usize>,
    /// The latest flushed content of lines that are not fenced yet.
    captured: HashMap<u64, [u64; LINE_WORDS], BuildHasherDefault<LineHasher>>,
    /// The lines that each thread has flushed since its last fence.
    pending: HashMap<ThreadId, Vec<(u64, u64)>>,
}

impl PmImage {
    /// Returns the bytes that programs see after booting.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let words = self
            .working
            .iter()
            .flat_map(|page| (0..PAGE_WORDS).map(|i| page_word(page, i)));
        words.flat_map(u64::to_le_bytes).collect()
    }
}

fn page_word(page: &Page, i: usize) -> u64 {
    page.as_ref().map_or(0, |words| words[i])
}

fn page_mut(page: &mut Page) -> &mut [u64; PAGE_WORDS] {
    Arc::make_mut(page.get_or_insert_with(|| Arc::new([0; PAGE_WORDS])))
}

/// Reads a word of working memory, which other threads may write.
fn load(memory: &Memory, word: usize) -> u64 {
    debug_assert!((word + 1) * 8 <= memory.len(), "inside of the memory");
    // SAFETY: aligned and mapped; the access is atomic.
    unsafe { AtomicU64::from_ptr(memory.base().cast::<u64>().add(word)) }.load(Ordering::Relaxed)
}

fn load_page(memory: &Memory, page: usize) -> [u64; PAGE_WORDS] {
    let mut words = [0; PAGE_WORDS];
    for (i, word) in words.iter_mut().enumerate() {
        *word = load(memory, page * PAGE_WORDS + i);
    }
    words
}

/// Returns whether a page of working memory has the content of `page`.
fn same(memory: &Memory, index: usize, page: &Page) -> bool {
    // Lines rather than words: tests spend much of their time here, and branches cost most of it.
    let is_same_line = |line: usize| {
        let words = line * LINE_WORDS..(line + 1) * LINE_WORDS;
        let differing = words.fold(0, |bits, i| {
            bits | load(memory, index * PAGE_WORDS + i) ^ page_word(page, i)
        });
        differing == 0
    };
    (0..PAGE_LINES).all(is_same_line)
}

/// Returns whether two pages share their content.
fn is_same(a: &Page, b: &Page) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (None, None) => true,
        _ => false,
    }
}

impl Pm {
    pub(super) fn from_image(image: PmImage) -> Pm {
        let durable = image.durable.unwrap_or_else(|| image.working.clone());
        Pm {
            initial: image.working,
            durable,
            unwritten: image.unwritten,
            ..Pm::default()
        }
    }

    pub(super) fn len(&self) -> u64 {
        (self.durable.len() * PAGE) as u64
    }

    /// Returns the working memory, of at least `cap` bytes, and its current length.
    pub(super) fn open(&mut self, cap: u64) -> io::Result<(Arc<Memory>, u64)> {
        if let Some(memory) = &self.memory
            && memory.len() as u64 >= cap
        {
            return Ok((Arc::clone(memory), self.len()));
        }
        if self.len() > cap {
            // The caller refuses this, so nothing has to be mapped.
            let memory = match &self.memory {
                Some(memory) => Arc::clone(memory),
                None => Arc::new(Memory::recycled(PAGE)?.0),
            };
            return Ok((memory, self.len()));
        }
        if self.memory.is_some() {
            self.initial = self.working();
        }
        let (memory, dirty) = Memory::recycled(cap as usize)?;
        memory.touched(self.len());
        let pages = self.durable.len().max((dirty as usize).div_ceil(PAGE));
        for index in 0..pages {
            let to = memory.base().wrapping_add(index * PAGE).cast::<u64>();
            match self.initial.get(index).unwrap_or(&None) {
                // SAFETY: nothing else uses the memory yet, and the page is inside it: the durable
                // bytes fit the cap, and the dirty ones were inside memory of the same length.
                Some(words) => unsafe { to.copy_from_nonoverlapping(words.as_ptr(), PAGE_WORDS) },
                None if ((index * PAGE) as u64) < dirty => {
                    // SAFETY: as above.
                    unsafe { to.write_bytes(0, PAGE_WORDS) }
                }
                None => {}
            }
        }
        self.initial = Vec::new();
        let memory = Arc::new(memory);
        self.memory = Some(Arc::clone(&memory));
        Ok((memory, self.len()))
    }

    /// Changes the current length. New bytes are zero. The length is durable at once, since a file
    /// system makes a length durable before any page beyond the old one.
    pub(super) fn resize(&mut self, len: u64) {
        let Some(memory) = &self.memory else { return };
        let (old, new) = (self.durable.len(), len as usize / PAGE);
        for index in new..old {
            let page = memory.base().wrapping_add(index * PAGE).cast::<u64>();
            for i in 0..PAGE_WORDS {
                // SAFETY: mapped and aligned; the access is atomic.
                unsafe { AtomicU64::from_ptr(page.add(i)) }.store(0, Ordering::Relaxed);
            }
        }
        self.durable.resize(new, None);
        self.unwritten.retain(|page| *page < new);
        self.captured
            .retain(|line, _| (*line as usize) < new * PAGE_LINES);
        memory.touched(len);
    }

    /// Returns the content of the working memory.
    fn working(&self) -> Vec<Page> {
        let Some(memory) = &self.memory else {
            return self.initial.clone();
        };
        let mut pages = self.durable.clone();
        for (index, page) in pages.iter_mut().enumerate() {
            if !same(memory, index, page) {
                *page = Some(Arc::new(load_page(memory, index)));
            }
        }
        pages
    }

    /// Records the current content of the lines of a range.
    pub(super) fn flushed(&mut self, at: u64, len: u64) {
        let Some(memory) = &self.memory else { return };
        let (first, end) = (at / 64, (at + len).div_ceil(64));
        let end = end.min((self.durable.len() * PAGE_LINES) as u64);
        for line in first..end {
            let mut words = [0; LINE_WORDS];
            for (i, word) in words.iter_mut().enumerate() {
                *word = load(memory, line as usize * LINE_WORDS + i);
            }
            self.captured.insert(line, words);
        }
        self.pending
            .entry(std::thread::current().id())
            .or_default()
            .push((first, end));
    }

    /// Makes the lines that this thread flushed durable.
    pub(super) fn fence(&mut self) {
        let Some(ranges) = self.pending.remove(&std::thread::current().id()) else {
            return;
        };
        for line in ranges.into_iter().flat_map(|(first, end)| first..end) {
            // Absent: another thread's fence copied this content or a later one (X3).
            let Some(words) = self.captured.remove(&line) else {
                continue;
            };
            let Some(page) = self.durable.get_mut(line as usize / PAGE_LINES) else {
                continue;
            };
            let at = line as usize % PAGE_LINES * LINE_WORDS;
            page_mut(page)[at..at + LINE_WORDS].copy_from_slice(&words);
        }
    }

    /// Makes durable those pages of a range that the kernel knows to be dirty.
    pub(super) fn sync_pages(&mut self, at: u64, len: u64, medium: Medium) {
        let Some(memory) = &self.memory else { return };
        let end = ((at + len) as usize).div_ceil(PAGE).min(self.durable.len());
        for index in at as usize / PAGE..end {
            let unwritten = self.unwritten.remove(&index);
            if (unwritten || medium == Medium::Mapped) && !same(memory, index, &self.durable[index])
            {
                self.durable[index] = Some(Arc::new(load_page(memory, index)));
            }
        }
    }

    /// Returns the memory after a process crash.
    pub(super) fn process(&self, medium: Medium) -> PmImage {
        let working = self.working();
        let mut unwritten = self.unwritten.clone();
        if medium == Medium::Mapped {
            let changed = |index: &usize| !is_same(&working[*index], &self.durable[*index]);
            unwritten.extend((0..working.len()).filter(changed));
        }
        PmImage {
            working,
            durable: Some(self.durable.clone()),
            unwritten,
        }
    }

    /// Returns a possible memory after a power loss.
    pub(super) fn crash(&self, medium: Medium, chooser: &mut Chooser) -> PmImage {
        if chooser.keeps_nothing() {
            return PmImage {
                working: self.durable.clone(),
                ..PmImage::default()
            };
        }
        let mut pages = self.durable.clone();
        for (index, (page, now)) in pages.iter_mut().zip(self.working()).enumerate() {
            if is_same(page, &now) {
                continue;
            }
            if medium == Medium::Mapped || chooser.keeps_everything() {
                if chooser.keeps() {
                    *page = now;
                }
                continue;
            }
            for line in 0..PAGE_LINES {
                self.crash_line(page, &now, index, line, chooser);
            }
        }
        PmImage {
            working: pages,
            ..PmImage::default()
        }
    }

    /// Decides the content of one line.
    fn crash_line(
        &self,
        page: &mut Page,
        now: &Page,
        index: usize,
        line: usize,
        chooser: &mut Chooser,
    ) {
        let at = line * LINE_WORDS;
        let working: [u64; LINE_WORDS] = std::array::from_fn(|i| page_word(now, at + i));
        if (0..LINE_WORDS).all(|i| page_word(page, at + i) == working[i]) {
            return;
        }
        let flushed = self.captured.get(&((index * PAGE_LINES + line) as u64));
        let content = match flushed {
            Some(flushed) if chooser.flip() => flushed,
            _ => &working,
        };
        // Words of a line reach the media in address order, and possibly not all of them.
        let words = chooser.part(LINE_WORDS);
        if words > 0 {
            page_mut(page)[at..at + words].copy_from_slice(&content[..words]);
        }
    }
}

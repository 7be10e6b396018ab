//! What a process of a parallel job reports about the nodes it communicates with.
//!
//! A worker keeps one table in a memfd of its own process, found as the report of connections is. Its first record is the worker itself,
//! each further one a node. Counters are kept in the table, so they are exact at any time. Everything else is a text of lines `KEY VALUE`,
//! written when something changes, under a version that is odd meanwhile.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use madrigal_sys::fd::Fd;
use madrigal_sys::mem::{self, SharedMap};
use madrigal_sys::{Errno, fd};

/// Name of the memfd.
pub const NAME: &CStr = c"madrigal-ranks";
/// Records a table can hold; later nodes work but are not listed.
pub const RECORDS: usize = 4096;

const MAGIC: u64 = u64::from_le_bytes(*b"mdr-rnk\x01");
const RECORDS_AT: usize = 4096;
const BYTES: usize = RECORDS_AT + RECORDS * size_of::<Rank>();
const WORDS: usize = 248;
/// Bytes of the text of a record.
pub const TEXT: usize = WORDS * 8;
/// How often a text that changes is read again.
const TRIES: usize = 1000;

/// What was sent to a node and received from it.
#[repr(C)]
#[derive(Default, Debug)]
pub struct Counters {
    /// Frames sent.
    pub sent: AtomicU64,
    /// Frames received.
    pub received: AtomicU64,
    /// Bytes of their bodies, sent.
    pub sent_bytes: AtomicU64,
    /// And received.
    pub received_bytes: AtomicU64,
    /// Bytes copied straight into the node's memory.
    pub copied_out: AtomicU64,
    /// And out of it.
    pub copied_in: AtomicU64,
}

/// Adds to a counter that has one writer.
#[inline]
pub fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl Counters {
    /// A frame was sent.
    #[inline]
    pub fn sent(&self, bytes: usize) {
        add(&self.sent, 1);
        add(&self.sent_bytes, bytes as u64);
    }

    /// A frame was received.
    #[inline]
    pub fn received(&self, bytes: usize) {
        add(&self.received, 1);
        add(&self.received_bytes, bytes as u64);
    }
}

/// A record.
#[repr(C, align(64))]
pub struct Rank {
    /// Odd while the text changes; 0: no text was ever set.
    version: AtomicU32,
    len: AtomicU32,
    counters: Counters,
    _pad: u64,
    text: [AtomicU64; WORDS],
}

impl Rank {
    /// What was sent and received.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Replaces the text. Lines for which there is no room are left out.
    pub fn set_text(&self, text: &str) {
        let mut bytes = Vec::with_capacity(TEXT);
        for line in text.lines().filter(|line| !line.is_empty()) {
            let start = bytes.len();
            bytes.extend(line.bytes());
            bytes.push(b'\n');
            if bytes.len() > TEXT {
                bytes.truncate(start);
            }
        }
        let version = self.version.load(Ordering::Relaxed) | 1;
        // SYNC: with `text`: a reader that sees a word written below sees the odd version at the latest when it reads it again.
        self.version.store(version, Ordering::Relaxed);
        fence(Ordering::Release);
        self.len.store(bytes.len() as u32, Ordering::Relaxed);
        for (word, part) in self.text.iter().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
            word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
        }
        // SYNC: Release pairs with the Acquire in `text`.
        self.version.store(version.wrapping_add(1).max(2), Ordering::Release);
    }

    /// The text; `None`: none was set, or it keeps changing.
    pub fn text(&self) -> Option<String> {
        for _ in 0..TRIES {
            // SYNC: Acquire pairs with the Release at the end of `set_text`.
            let version = self.version.load(Ordering::Acquire);
            if version == 0 {
                return None;
            }
            let len = (self.len.load(Ordering::Relaxed) as usize).min(TEXT);
            let words = self.text.iter().take(len.div_ceil(8));
            let mut bytes: Vec<u8> = words.flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
            bytes.truncate(len);
            // SYNC: with the fence of `set_text`.
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                return Some(String::from_utf8_lossy(&bytes).into_owned());
            }
            core::hint::spin_loop();
        }
        None
    }
}

#[repr(C)]
struct Header {
    magic: AtomicU64,
    used: AtomicU64,
}

/// The table of a worker. Once it is dropped other processes no longer find it.
pub struct Ranks {
    map: &'static SharedMap,
    _fd: Fd,
    used: usize,
}

impl Ranks {
    /// A new table, with nothing in it, at a high descriptor number. Its memory is kept for the life of the process, so that counters
    /// stay where they are.
    pub fn create() -> Result<Self, Errno> {
        let fd = fd::move_high(mem::sealed_memfd(NAME, BYTES)?);
        let map = SharedMap::map(&fd, BYTES, true)?;
        reserve(&map, 0, size_of::<Header>())?;
        let map = map.leak();
        header(map).magic.store(MAGIC, Ordering::Release);
        Ok(Self { map, _fd: fd, used: 0 })
    }

    /// A new record; `None`: there is no room.
    pub fn add(&mut self) -> Option<&'static Rank> {
        let at = RECORDS_AT + self.used * size_of::<Rank>();
        if self.used >= RECORDS || reserve(self.map, at, size_of::<Rank>()).is_err() {
            return None;
        }
        // SAFETY: a record is atomics only, and one padding word that is never read; the map is never dropped.
        let rank = unsafe { self.map.shared(at) }?;
        self.used += 1;
        header(self.map).used.store(self.used as u64, Ordering::Release);
        Some(rank)
    }
}

/// Allocates the memory; before Linux 5.14, where the kernel cannot, it counts as done.
fn reserve(map: &SharedMap, at: usize, len: usize) -> Result<(), Errno> {
    match map.reserve(at & !4095, (at & 4095) + len) {
        Err(Errno::NOSYS) | Ok(()) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn header(map: &SharedMap) -> &Header {
    // SAFETY: the header is atomics only and inside the map, which is larger; the reference lives no longer than it.
    unsafe { map.shared(0) }.expect("a table is larger than its header")
}

/// A table of another process.
pub struct Seen {
    map: SharedMap,
    used: usize,
}

impl Seen {
    /// The tables of process `pid`, one for each of its workers. `ENOENT`: no such process. `EACCES`: it belongs to another user.
    pub fn of(pid: u32) -> Result<Vec<Self>, Errno> {
        let files = crate::found(pid, NAME, BYTES)?;
        let maps = files.iter().filter_map(|file| SharedMap::map(file, BYTES, false).ok());
        let tables = maps.filter(|map| header(map).magic.load(Ordering::Acquire) == MAGIC);
        Ok(tables.map(|map| Self { used: header(&map).used.load(Ordering::Acquire) as usize, map }).collect())
    }

    /// Its records; the first one is the worker itself.
    pub fn records(&self) -> impl Iterator<Item = &Rank> {
        // SAFETY: a record is atomics only, and one padding word that is never read; the reference lives no longer than the map.
        let record = |i: usize| unsafe { self.map.shared(RECORDS_AT + i * size_of::<Rank>()) };
        (0..self.used.min(RECORDS)).filter_map(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use madrigal_sys::process;

    #[test]
    fn a_table_is_found_by_pid_and_goes_with_its_owner() {
        let mut ranks = Ranks::create().unwrap();
        let own = ranks.add().unwrap();
        own.set_text("node 1\n");
        let peer = ranks.add().unwrap();
        peer.set_text("node 2\npath shm\n");
        peer.counters().sent(100);
        peer.counters().sent(11);
        let find = || {
            let tables = Seen::of(process::own_pid()).unwrap();
            tables.into_iter().find(|t| t.records().next().and_then(Rank::text).as_deref() == Some("node 1\n"))
        };
        let seen = find().unwrap();
        let records: Vec<_> = seen.records().collect();
        assert_eq!(records.len(), 2);
        assert_eq!(records[1].text().as_deref(), Some("node 2\npath shm\n"));
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!((count(&records[1].counters().sent), count(&records[1].counters().sent_bytes)), (2, 111));
        drop(ranks);
        assert!(find().is_none());
        peer.counters().sent(1);
    }

    #[test]
    fn a_text_that_is_too_long_loses_lines_not_letters() {
        let rank = Ranks::create().unwrap().add().unwrap();
        assert_eq!(rank.text(), None);
        let long = "x".repeat(TEXT / 2);
        rank.set_text(&format!("a {long}\nb {long}\nc é"));
        assert_eq!(rank.text().unwrap(), format!("a {long}\nc é\n"));
        rank.set_text("");
        assert_eq!(rank.text().as_deref(), Some(""));
    }

    #[test]
    fn whoever_reads_while_it_changes_sees_one_text_or_the_other() {
        let rank = Ranks::create().unwrap().add().unwrap();
        let texts = ["a\n".repeat(100), "b\n".repeat(900)];
        rank.set_text(&texts[0]);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..2000).for_each(|i| rank.set_text(&texts[i % 2])));
            for _ in 0..2000 {
                let text = rank.text();
                assert!(text.is_none_or(|text| texts.contains(&text)));
            }
        });
    }
}

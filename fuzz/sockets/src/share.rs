//! The page that all processes of a run share: the actor of each step, the result of each step, the position of each stream.
//!
//! One file in memory, mapped by the sequencer and by every process. All of it is atomic, so there is no lock that a killed process could
//! leave locked.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::pattern::LANES;
use crate::program::{ACTORS, CONNS, SLOTS, STEPS};
use crate::raw;

/// Words that a step may leave besides its result.
pub const AUX: usize = 40;
/// Room for the program's text.
const TEXT: usize = 1 << 20;

/// Commands to an actor; anything below is a step, plus one.
pub const EXIT: u32 = u32::MAX;
/// Add to what a call gave that slept: take what is there by now.
pub const TOP_UP: u32 = 1 << 30;
/// Go through your steps freely.
pub const FREE: u32 = 1 << 29;

/// An actor's place.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Cell {
    /// Its command.
    pub go: AtomicU32,
    /// What it has done.
    pub done: AtomicU32,
    /// Its thread, once it waits for steps.
    pub thread: AtomicI32,
    /// Its process.
    pub process: AtomicI32,
    /// In a program that runs freely: the step it is at, plus one.
    pub at: AtomicU32,
}

/// What a step gave.
#[repr(C)]
pub struct Record {
    /// The call's result.
    pub ret: AtomicI64,
    /// Its errno, if it failed.
    pub errno: AtomicI32,
    /// Signals handled meanwhile.
    pub signals: AtomicU32,
    /// Bytes of data.
    pub bytes: AtomicU64,
    /// Their hash.
    pub hash: AtomicU64,
    /// Offset of the first wrong byte, plus one.
    pub wrong: AtomicU64,
    /// How long it took.
    pub took_ns: AtomicU64,
    /// The first bytes of data.
    pub first: [AtomicU64; 2],
    /// How many of `aux` are in use.
    pub used: AtomicU32,
    /// Further results.
    pub aux: [AtomicU64; AUX],
}

/// How far a stream is.
#[repr(C)]
#[derive(Default)]
pub struct Stream {
    /// Bytes sent, by lane.
    pub sent: [AtomicU64; LANES],
    /// Bytes received, by lane.
    pub got: [AtomicU64; LANES],
    /// Not 0 when positions are no longer known.
    pub blind: AtomicU32,
}

/// Where a connection is.
#[repr(C)]
#[derive(Default)]
pub struct Ports {
    /// The connecting end's port.
    pub client: AtomicU32,
    /// The listener's port.
    pub server: AtomicU32,
    /// 6 for IPv6.
    pub family: AtomicU32,
}

/// What all processes of a run share.
#[repr(C)]
pub struct Region {
    /// Counts whatever actors finish; the sequencer sleeps on it.
    pub bell: AtomicU32,
    /// The sequencer's process in the upper half; unique in this boot.
    pub run: AtomicU64,
    /// Length of the text.
    pub text_len: AtomicU64,
    /// Not 0 once a process was killed: no process needs to wait for it any more.
    pub killed: AtomicU32,
    /// Signals of the sequencer that were handled.
    pub handled: AtomicU32,
    /// Readers that shared a stream and are done, how many bytes they got, and the sum of those.
    pub sharers: AtomicU32,
    /// See `sharers`.
    pub shared_bytes: AtomicU64,
    /// See `sharers`.
    pub shared_sum: AtomicU64,
    /// Actors.
    pub cells: [Cell; ACTORS],
    /// Ports of listeners, by slot.
    pub ports: [AtomicU32; SLOTS],
    /// Connections.
    pub conns: [Ports; CONNS],
    /// Streams.
    pub streams: [Stream; CONNS * 2],
    /// Steps.
    pub records: [Record; STEPS],
    /// The program.
    text: [AtomicU64; TEXT / 8],
}

/// A mapping of a [`Region`].
pub struct Map(*mut Region);

// SAFETY: the region is atomic throughout, and its mapping stays until the last of its users drops it.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Makes the file of a region.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        file.set_len(size_of::<Region>() as u64)?;
        Self::of(&file)
    }

    /// Maps an existing one.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::of(&File::options().read(true).write(true).open(path)?)
    }

    fn of(file: &File) -> io::Result<Self> {
        let (len, access) = (size_of::<Region>(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping at a place the kernel chooses.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), len, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self(at.cast())) }
    }

    /// Makes it as new, but for the text.
    pub fn clear(&self) {
        let len = core::mem::offset_of!(Region, text);
        // SAFETY: the mapping is as long as a region; no other process uses it between two runs, and zero is a value of every atomic.
        unsafe { core::ptr::write_bytes(self.0.cast::<u8>(), 0, len) };
    }

    /// Writes the program's text.
    pub fn set_text(&self, text: &str) {
        assert!(text.len() < TEXT, "a program of {} bytes", text.len());
        self.text_len.store(text.len() as u64, Ordering::Relaxed);
        // SAFETY: the length was compared with the room; no other process uses it between two runs.
        unsafe { core::ptr::copy_nonoverlapping(text.as_ptr(), (&raw mut (*self.0).text).cast(), text.len()) };
    }

    /// The program's text.
    pub fn text(&self) -> &str {
        let len = self.text_len.load(Ordering::Relaxed) as usize;
        // SAFETY: written before this process was started, and not changed while it runs.
        let bytes = unsafe { core::slice::from_raw_parts((&raw const (*self.0).text).cast::<u8>(), len.min(TEXT)) };
        core::str::from_utf8(bytes).unwrap_or("")
    }
}

impl core::ops::Deref for Map {
    type Target = Region;

    fn deref(&self) -> &Region {
        // SAFETY: mapped as long as this value lives, aligned to a page, and valid whatever its bits.
        unsafe { &*self.0 }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: our own mapping, of this length.
        unsafe { libc::munmap(self.0.cast(), size_of::<Region>()) };
    }
}

impl Region {
    /// Notifies the sequencer that something was done.
    pub fn ring(&self) {
        self.bell.fetch_add(1, Ordering::SeqCst);
        raw::futex_wake(&self.bell);
    }
}

/// What a step gave, taken out of the region.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs)] // as in `Record`
pub struct Seen {
    pub ret: i64,
    pub errno: i32,
    pub signals: u32,
    pub bytes: u64,
    pub hash: u64,
    pub wrong: u64,
    pub took_ns: u64,
    pub first: [u64; 2],
    pub aux: Vec<u64>,
}

impl Record {
    /// An empty one.
    pub const fn new() -> Self {
        Self {
            ret: AtomicI64::new(0),
            errno: AtomicI32::new(0),
            signals: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            hash: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            took_ns: AtomicU64::new(0),
            first: [const { AtomicU64::new(0) }; 2],
            used: AtomicU32::new(0),
            aux: [const { AtomicU64::new(0) }; AUX],
        }
    }

    /// Its present content.
    pub fn read(&self) -> Seen {
        let used = (self.used.load(Ordering::Acquire) as usize).min(AUX);
        Seen {
            ret: self.ret.load(Ordering::Relaxed),
            errno: self.errno.load(Ordering::Relaxed),
            signals: self.signals.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            hash: self.hash.load(Ordering::Relaxed),
            wrong: self.wrong.load(Ordering::Relaxed),
            took_ns: self.took_ns.load(Ordering::Relaxed),
            first: [self.first[0].load(Ordering::Relaxed), self.first[1].load(Ordering::Relaxed)],
            aux: self.aux[..used].iter().map(|word| word.load(Ordering::Relaxed)).collect(),
        }
    }

    /// Leaves one more word.
    pub fn add(&self, word: u64) {
        let at = self.used.load(Ordering::Relaxed) as usize;
        if at < AUX {
            self.aux[at].store(word, Ordering::Relaxed);
            self.used.store(at as u32 + 1, Ordering::Release);
        }
    }

    /// Leaves the result of a call.
    pub fn set(&self, ret: i64, errno: i32) {
        self.ret.store(ret, Ordering::Relaxed);
        self.errno.store(if ret < 0 { errno } else { 0 }, Ordering::Relaxed);
    }
}

impl Default for Record {
    fn default() -> Self {
        Self::new()
    }
}

impl Cell {
    /// Gives a command.
    pub fn command(&self, what: u32) {
        self.go.store(what, Ordering::SeqCst);
        raw::futex_wake(&self.go);
    }
}

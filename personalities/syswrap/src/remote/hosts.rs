//! What the daemon wrote down about the hosts of the grid ([`madrigal_proto::hosts`]): read when first asked for, and again when it
//! changed, which is checked once a second at most.

use core::fmt::Write as _;
use core::net::{IpAddr, Ipv4Addr};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use madrigal_proto::hosts::{self, Entry, How, LONGEST, LONGEST_NAME};
use madrigal_sys::fd::Fd;
use madrigal_sys::process::StackPath;
use madrigal_sys::time;
use rustix::fs::{Mode, OFlags, Stat};

use crate::state::lock::Lock;
use crate::state::slab::zeroed_pages;
use crate::state::{fork_locks, process};

/// How long what was read is believed.
const BELIEVED_NS: u64 = 1_000_000_000;
/// The longest name of the daemon's directory: its socket's must fit into a socket address.
const LONGEST_DIRECTORY: usize = 90;

static ON: AtomicBool = AtomicBool::new(false);
/// The daemon's directory, a text of this length at the front of the pages; behind it what the daemon wrote.
static PAGES: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static DIRECTORY: AtomicUsize = AtomicUsize::new(0);
const TEXT_AT: usize = 4096;
/// Bytes of that.
static TEXT: AtomicUsize = AtomicUsize::new(0);
static CHECK_AT: AtomicU64 = AtomicU64::new(0);
/// Which file it was: number, length, and time.
static SEEN: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
/// Held while the text is read or replaced.
static LOCK: Lock = Lock::new();

/// Whether there may be a daemon.
#[inline]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Reads from the environment where the daemon is, if there is one to be used. Called once, before any hook of this library runs.
pub(crate) fn configure() {
    if let Some(directory) = process::env(c"MADRIGAL_DAEMON").filter(|_| process::allows("daemon")) {
        begin(directory);
    }
}

/// The daemon has this directory.
fn begin(directory: &str) {
    if !directory.starts_with('/') || directory.len() > LONGEST_DIRECTORY {
        return;
    }
    // A copy: programs write over their environment.
    let Some(pages) = zeroed_pages(TEXT_AT + LONGEST) else { return };
    // SAFETY: fresh pages that nobody else knows, longer than the directory's name.
    unsafe { core::ptr::copy_nonoverlapping(directory.as_ptr(), pages, directory.len()) };
    DIRECTORY.store(directory.len(), Ordering::Relaxed);
    PAGES.store(pages, Ordering::Release);
    ON.store(true, Ordering::Release);
}

/// Before a fork: the text is neither read nor replaced.
pub(crate) fn quiesce() {
    fork_locks::acquire(&LOCK);
}

/// In the parent: undoes [`quiesce`].
pub(crate) fn resume() {
    fork_locks::release(&LOCK);
}

/// The child after fork(2).
pub(crate) fn after_fork() {
    fork_locks::reset(&LOCK);
}

/// The path of a file in the daemon's directory.
pub(super) fn path(name: &str) -> StackPath {
    let mut path = StackPath::empty();
    let pages = PAGES.load(Ordering::Acquire);
    if !pages.is_null() {
        // SAFETY: written once before it was published, never changed after; within the first page.
        let directory = unsafe { core::slice::from_raw_parts(pages, DIRECTORY.load(Ordering::Relaxed)) };
        let directory = core::str::from_utf8(directory).unwrap_or_default();
        if write!(path, "{directory}/{name}\0").is_err() {
            return StackPath::empty();
        }
    }
    path
}

/// A host, found by an address.
pub(super) struct Host {
    name: [u8; LONGEST_NAME],
    len: usize,
    pub(super) how: How,
    pub(super) alias: Ipv4Addr,
}

impl Host {
    fn of(entry: &Entry<'_>) -> Self {
        let mut name = [0; LONGEST_NAME];
        let len = entry.name.len().min(LONGEST_NAME);
        if let (Some(place), Some(from)) = (name.get_mut(..len), entry.name.as_bytes().get(..len)) {
            place.copy_from_slice(from);
        }
        Self { name, len, how: entry.how, alias: entry.alias }
    }

    pub(super) fn name(&self) -> &str {
        self.name.get(..self.len).and_then(|name| core::str::from_utf8(name).ok()).unwrap_or_default()
    }
}

/// The host that an address means.
pub(super) fn by_address(ip: IpAddr) -> Option<Host> {
    with(|text| hosts::entries(text).find(|entry| entry.has(ip)).map(|entry| Host::of(&entry)))
}

/// The addresses that a name means: the host's own of IPv4 and of IPv6, and its alias; `None` for what is no other host.
pub(super) fn by_name(name: &[u8]) -> Option<(Option<IpAddr>, Option<IpAddr>, Ipv4Addr)> {
    with(|text| {
        let entry = hosts::entries(text).find(|entry| entry.is_called(name)).filter(|entry| entry.how != How::Own)?;
        let of = |four: bool| entry.addresses().find(|ip| ip.is_ipv4() == four);
        Some((of(true), of(false), entry.alias))
    })
}

/// Where the daemon lets sockets wait, as it wrote down.
pub(super) fn ports() -> Option<hosts::Ports> {
    with(hosts::ports)
}

/// An address of this host.
pub(super) fn own(four: bool) -> Option<IpAddr> {
    with(|text| {
        let own = hosts::entries(text).find(|entry| entry.how == How::Own)?;
        own.addresses().find(|ip| ip.is_ipv4() == four)
    })
}

fn with<T>(read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    let pages = PAGES.load(Ordering::Acquire);
    let guard = LOCK.lock();
    // A signal handler on top of one who reads: as if there were no grid.
    if guard.nested() || pages.is_null() {
        return None;
    }
    refresh(pages);
    // SAFETY: within the pages, which are never unmapped; whoever writes there holds the lock, which we do.
    let text = unsafe { core::slice::from_raw_parts(pages.add(TEXT_AT), TEXT.load(Ordering::Relaxed).min(LONGEST)) };
    read(core::str::from_utf8(text).unwrap_or_default())
}

/// Reads the file again if it is another one. Under the lock. Where there is none any more, what was there still holds: the daemon may be
/// back soon, and what its aliases mean must not change.
fn refresh(pages: *mut u8) {
    let now = time::now_ns();
    if now < CHECK_AT.load(Ordering::Relaxed) {
        return;
    }
    CHECK_AT.store(now + BELIEVED_NS, Ordering::Relaxed);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let Ok(file) = rustix::fs::open(path("daemon.hosts").as_c_str(), flags, Mode::empty()).map(Fd::from) else {
        return;
    };
    let Ok(stat) = rustix::fs::fstat(&file) else { return };
    let seen = [stat.st_ino, stat.st_size as u64, (stat.st_mtime as u64) << 32 ^ stat.st_mtime_nsec];
    if !is_believed(&stat) || SEEN.iter().zip(seen).all(|(old, new)| old.load(Ordering::Relaxed) == new) {
        return;
    }
    let mut len = 0;
    while len < LONGEST {
        // SAFETY: the rest of the pages, under the lock.
        let room = unsafe { core::slice::from_raw_parts_mut(pages.add(TEXT_AT + len), LONGEST - len) };
        match rustix::io::read(&file, room) {
            Ok(0) => break,
            Ok(count) => len += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return TEXT.store(0, Ordering::Relaxed),
        }
    }
    TEXT.store(len, Ordering::Relaxed);
    for (old, new) in SEEN.iter().zip(seen) {
        old.store(new, Ordering::Relaxed);
    }
}

/// Whether nobody but this user can have written it.
fn is_believed(stat: &Stat) -> bool {
    let own = stat.st_uid == rustix::process::geteuid().as_raw();
    own && stat.st_mode & 0o022 == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFREG && stat.st_size <= LONGEST as i64
}

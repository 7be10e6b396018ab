//! What this process has: the region, the program, and the descriptors behind the program's slots.

use core::ffi::CStr;
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::OnceLock;

use madrigal_fuzz_sockets::op::Slot;
use madrigal_fuzz_sockets::program::{ACTORS, Program, SLOTS};
use madrigal_fuzz_sockets::share::Map;

/// What does not change in a process.
pub(crate) struct State {
    pub(crate) region: Map,
    pub(crate) program: Program,
    /// This program's own file, to be executed again.
    pub(crate) image: &'static CStr,
    /// The region's file.
    pub(crate) path: &'static CStr,
}

static STATE: OnceLock<State> = OnceLock::new();
static FDS: [AtomicI32; SLOTS] = [const { AtomicI32::new(-1) }; SLOTS];
static FILES: [AtomicPtr<libc::FILE>; SLOTS] = [const { AtomicPtr::new(ptr::null_mut()) }; SLOTS];
/// The threads behind actors of this process.
pub(crate) static THREADS: [AtomicU64; ACTORS] = [const { AtomicU64::new(0) }; ACTORS];

/// Maps the region; `slots` are descriptors that were inherited, as `slot:fd,slot:fd`.
pub(crate) fn begin(image: &'static CStr, path: &'static CStr, slots: &str) -> bool {
    let Ok(region) = Map::open(Path::new(OsStr::from_bytes(path.to_bytes()))) else { return false };
    let Ok(program) = serde_json::from_str::<Program>(region.text()) else { return false };
    for pair in slots.split(',') {
        let Some((slot, fd)) = pair.split_once(':') else { continue };
        if let (Ok(slot), Ok(fd)) = (slot.parse::<Slot>(), fd.parse::<i32>())
            && is_open(fd)
        {
            set_fd(slot, fd);
        }
    }
    STATE.set(State { region, program, image, path }).is_ok()
}

/// Whether a descriptor survived exec.
fn is_open(fd: i32) -> bool {
    // SAFETY: no memory is passed.
    unsafe { madrigal_fuzz_sockets::raw::call(libc::SYS_fcntl, [fd as usize, libc::F_GETFD as usize, 0, 0, 0, 0]) >= 0 }
}

/// This process.
pub(crate) fn state() -> &'static State {
    STATE.get().expect("a process begins with its state")
}

/// The descriptor of a slot; -1 for none.
pub(crate) fn fd(slot: Slot) -> i32 {
    FDS.get(slot as usize).map_or(-1, |fd| fd.load(Ordering::SeqCst))
}

/// Puts a descriptor into a slot; a slot that had the same number before is empty then.
pub(crate) fn set_fd(slot: Slot, fd: i32) {
    for place in FDS.iter().filter(|place| fd >= 0 && place.load(Ordering::SeqCst) == fd) {
        place.store(-1, Ordering::SeqCst);
    }
    if let Some(place) = FDS.get(slot as usize) {
        place.store(fd, Ordering::SeqCst);
    }
}

/// The slots that are open, as [`begin`] reads them.
pub(crate) fn slots() -> String {
    let open = FDS.iter().enumerate().filter_map(|(slot, fd)| {
        let fd = fd.load(Ordering::SeqCst);
        (fd >= 0).then(|| format!("{slot}:{fd}"))
    });
    open.collect::<Vec<_>>().join(",")
}

/// The slots whose descriptor is this one or above are gone.
pub(crate) fn forget_from(first: i32) {
    for fd in &FDS {
        if fd.load(Ordering::SeqCst) >= first {
            fd.store(-1, Ordering::SeqCst);
        }
    }
}

/// The FILE of a slot.
pub(crate) fn file(slot: Slot) -> *mut libc::FILE {
    FILES.get(slot as usize).map_or(ptr::null_mut(), |file| file.load(Ordering::SeqCst))
}

/// Puts a FILE into a slot.
pub(crate) fn set_file(slot: Slot, file: *mut libc::FILE) {
    if let Some(place) = FILES.get(slot as usize) {
        place.store(file, Ordering::SeqCst);
    }
}

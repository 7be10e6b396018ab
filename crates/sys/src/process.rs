//! Other processes: are they the ones they were, and where `/proc` tells about them.

use core::ffi::CStr;
use core::fmt::{Arguments, Write as _};

use rustix::fs::{Mode, OFlags};

use crate::Errno;

/// A path built on the stack, such as `/proc/PID/...`; written through [`core::fmt::Write`], a nul byte last.
pub struct StackPath {
    bytes: [u8; 256],
    len: usize,
}

impl StackPath {
    /// Nothing written yet; opens nothing.
    pub fn empty() -> Self {
        Self { bytes: [0; 256], len: 0 }
    }

    /// The path as a C string; a path that did not fit is empty, which opens nothing.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}

impl core::fmt::Write for StackPath {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        let room = self.bytes.get_mut(self.len..self.len + s.len()).ok_or(core::fmt::Error)?;
        room.copy_from_slice(s.as_bytes());
        self.len += s.len();
        Ok(())
    }
}

/// `/proc/PID/REST`.
pub fn proc_path(pid: u32, rest: Arguments<'_>) -> StackPath {
    let mut path = StackPath::empty();
    if write!(path, "/proc/{pid}/{rest}\0").is_err() {
        path.bytes[0] = 0;
    }
    path
}

/// This process.
pub fn own_pid() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get() as u32
}

/// Reads a small `/proc` file into `buf`; returns what was read.
pub fn read_small<'b>(path: &CStr, buf: &'b mut [u8]) -> Result<&'b [u8], Errno> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let n = rustix::io::read(&file, &mut *buf)?;
    Ok(&buf[..n])
}

/// When a process started, in clock ticks since boot (`/proc/PID/stat` field 22): with the pid it names a process for good.
/// `None` when there is no such process.
pub fn start_time(pid: u32) -> Option<u64> {
    let mut buf = [0u8; 1024];
    let text = read_small(proc_path(pid, format_args!("stat")).as_c_str(), &mut buf).ok()?;
    let after_name = text.iter().rposition(|&b| b == b')')? + 2;
    let field = text.get(after_name..)?.split(|&b| b == b' ').nth(19)?;
    core::str::from_utf8(field).ok()?.parse().ok()
}

/// Whether the process with this pid and start time still runs.
pub fn alive(pid: u32, start: u64) -> bool {
    pid != 0 && start_time(pid) == Some(start)
}

/// 64 random bits, for names and nonces.
pub fn random() -> u64 {
    let mut bytes = [0u8; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_ne_bytes(bytes),
        // Early boot or a sandbox without the call: unpredictable enough to tell two connections apart, which is all it is for.
        _ => crate::time::now_ns().wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(own_pid()) << 32,
    }
}

/// A copy of descriptor `fd` of process `pid` (pidfd_getfd(2)); needs the right to trace that process.
pub fn steal_fd(pid: u32, fd: i32) -> Result<std::os::fd::OwnedFd, Errno> {
    let pid = rustix::process::Pid::from_raw(pid as i32).ok_or(Errno::SRCH)?;
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    rustix::process::pidfd_getfd(&pidfd, fd, rustix::process::PidfdGetfdFlags::empty())
}

//! Other processes: whether they are still the same, and what `/proc` shows of them.

use core::ffi::CStr;
use core::fmt::{Arguments, Write as _};
use core::mem::MaybeUninit;

use rustix::fs::{Mode, OFlags, RawDir};

use crate::Errno;
use crate::fd::Fd;

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
    let file = Fd::from(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?);
    let n = rustix::io::read(&file, &mut *buf)?;
    Ok(&buf[..n])
}

/// Calls `more` with each name in a directory of `/proc` that is a number (descriptors or threads), until it returns false.
pub fn each_number(dir: &CStr, mut more: impl FnMut(u32) -> bool) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = Fd::from(rustix::fs::open(dir, flags, Mode::empty())?);
    let mut buf = [MaybeUninit::uninit(); 2048];
    let mut entries = RawDir::new(&dir, &mut buf);
    while let Some(entry) = entries.next() {
        let number = entry?.file_name().to_str().ok().and_then(|name| name.parse().ok());
        if number.is_some_and(|number| !more(number)) {
            break;
        }
    }
    Ok(())
}

/// When a process started, in clock ticks since boot: with the pid it names a process for good. `None` when there is no such
/// process, or it ends: nothing of it runs any more, even if its parent has not asked for its exit status yet.
pub fn start_time(pid: u32) -> Option<u64> {
    // Flag of a thread on its way out (linux/sched.h); the first thread's, and others may run on after it.
    const PF_EXITING: u64 = 4;
    let mut buf = [0u8; 1024];
    let text = read_small(proc_path(pid, format_args!("stat")).as_c_str(), &mut buf).ok()?;
    let after_name = text.iter().rposition(|&b| b == b')')? + 2;
    // Numbered as in proc_pid_stat(5), where the state, the first one here, is 3.
    let mut fields = text.get(after_name..)?.split(|&b| b == b' ');
    let mut skip = |n| core::str::from_utf8(fields.nth(n)?).ok()?.parse::<u64>().ok();
    let (flags, threads, start) = (skip(9 - 3)?, skip(20 - 9 - 1)?, skip(22 - 20 - 1)?);
    (flags & PF_EXITING == 0 || threads > 1).then_some(start)
}

/// Whether a thread of this process sleeps in the kernel. `None`: there is no such thread.
pub fn is_thread_asleep(thread: u32) -> Option<bool> {
    let mut buf = [0u8; 1024];
    let path = proc_path(own_pid(), format_args!("task/{thread}/stat"));
    let text = read_small(path.as_c_str(), &mut buf).ok()?;
    let state = text.iter().rposition(|&b| b == b')').and_then(|name| text.get(name + 2))?;
    Some(!b"RD".contains(state))
}

/// Whether the process with this pid and start time still runs.
pub fn alive(pid: u32, start: u64) -> bool {
    pid != 0 && start_time(pid) == Some(start)
}

/// Whether this process has a child that lives; true also if the kernel does not report it.
pub fn has_living_child() -> bool {
    if crate::raw::check_for_child() == Err(Errno::CHILD) {
        return false;
    }
    // Some may only wait to be waited for.
    let mut found = false;
    let asked = each_number(c"/proc/self/task", |thread| {
        found = has_begotten_the_living(thread);
        !found
    });
    found || asked.is_err()
}

/// Whether a thread of this process has a child that lives.
fn has_begotten_the_living(thread: u32) -> bool {
    let mut buf = [0u8; 2048];
    let path = proc_path(own_pid(), format_args!("task/{thread}/children"));
    let children = read_small(path.as_c_str(), &mut buf).ok().filter(|text| text.len() < 2048);
    let Some(children) = children.and_then(|text| core::str::from_utf8(text).ok()) else { return true };
    children.split_whitespace().any(|pid| pid.parse().map_or(true, |pid| start_time(pid).is_some()))
}

/// 64 random bits, for names and nonces.
pub fn random() -> u64 {
    let mut bytes = [0u8; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_ne_bytes(bytes),
        // Early boot or a sandbox without the call: unpredictable enough to keep two connections apart, which is the only use.
        _ => crate::time::now_ns().wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(own_pid()) << 32,
    }
}

/// A copy of descriptor `fd` of process `pid` (pidfd_getfd(2)); needs the right to trace that process. One of the
/// [`recent`](crate::recent) calls.
pub fn steal_fd(pid: u32, fd: i32) -> Result<Fd, Errno> {
    crate::recent::tried()?;
    let pid = rustix::process::Pid::from_raw(pid as i32).ok_or(Errno::SRCH)?;
    let pidfd = Fd::from(rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?);
    rustix::process::pidfd_getfd(&pidfd, fd, rustix::process::PidfdGetfdFlags::empty()).map(Fd::from)
}

/// Becomes another program (execve(2)), with signals, descriptors and everything else left as they are - unlike
/// [`std::os::unix::process::CommandExt::exec`], which changes signals. Returns only the error.
pub fn become_program(path: &CStr, args: &[&CStr], env: &[&CStr]) -> Errno {
    let list = |of: &[&CStr]| of.iter().map(|s| s.as_ptr()).chain([core::ptr::null()]).collect::<Vec<_>>();
    let (args, env) = (list(args), list(env));
    // SAFETY: null-terminated texts, and null-terminated lists of such, all alive until the call returns.
    unsafe { crate::raw::execve(path.as_ptr(), args.as_ptr(), env.as_ptr()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_lives_until_it_ends_and_not_until_it_is_waited_for() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let start = start_time(child.id()).unwrap();
        assert!(alive(child.id(), start) && !alive(child.id(), start + 1));
        let mut output = child.stdout.take().unwrap();
        child.kill().unwrap();
        // Its descriptors are closed; its exit status is still there for us.
        output.read_to_end(&mut Vec::new()).unwrap();
        assert!(!alive(child.id(), start));
        child.wait().unwrap();
        assert!(start_time(own_pid()) <= Some(start));
    }

    #[test]
    fn a_process_whose_first_thread_ended_lives() {
        let script = "import threading,ctypes,sys,time\nt=threading.Thread(target=lambda: (time.sleep(0.2), \
                      print('up', flush=True), sys.stdin.read()))\nt.start()\nctypes.CDLL(None).pthread_exit(None)";
        let mut python = Command::new("python3");
        let python = python.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = python.spawn().expect("python3, which `make setup` installs");
        let start = start_time(child.id()).unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
        assert!(alive(child.id(), start));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!alive(child.id(), start));
    }
}

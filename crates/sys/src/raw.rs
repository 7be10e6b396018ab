//! System calls made by hand: those that take a host program's own pointers (its buffers, message headers, signal masks) and the
//! few rustix has no typed form for. Each returns what the kernel returned, with a negative value turned into [`Errno`].
//!
//! The functions are `unsafe` where the kernel follows a caller's pointer: the caller vouches for it exactly as for the libc
//! function of the same name. Source: the man page of the same name, section 2.

use core::ffi::{c_char, c_int, c_short, c_void};

use libc::{epoll_event, msghdr, pollfd, sigset_t, timespec};
use rustix::io::Errno;

mod signals;

pub use signals::{
    block_signals, handler_of, pending_signals, signal_disposition, signal_fd, signal_mask, wait_signal,
};

#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn syscall6(nr: i64, a: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the x86-64 Linux convention: number in rax, arguments in rdi..r9, rcx and r11 clobbered. The caller of the typed
    // function vouches for the pointers among the arguments.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") nr as isize => ret, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    ret
}

#[cfg(target_arch = "aarch64")]
#[inline]
unsafe fn syscall6(nr: i64, a: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the AArch64 Linux convention: number in x8, arguments in x0..x5, result in x0. The caller of the typed function
    // vouches for the pointers among the arguments.
    unsafe {
        core::arch::asm!("svc 0", in("x8") nr, inlateout("x0") a[0] as isize => ret, in("x1") a[1], in("x2") a[2],
            in("x3") a[3], in("x4") a[4], in("x5") a[5], options(nostack));
    }
    ret
}

#[inline]
fn check(ret: isize) -> Result<usize, Errno> {
    if ret < 0 { Err(Errno::from_raw_os_error(-ret as i32)) } else { Ok(ret as usize) }
}

/// The size of the kernel's signal set, an argument of every call with a mask.
const SIGSET: usize = 8;

/// execve(2). Returns only the error.
///
/// # Safety
/// `path` is a null-terminated text, `args` and `env` are null-terminated lists of such.
pub unsafe fn execve(path: *const c_char, args: *const *const c_char, env: *const *const c_char) -> Errno {
    // SAFETY: the caller's contract.
    let ret = unsafe { syscall6(libc::SYS_execve, [path as usize, args as usize, env as usize, 0, 0, 0]) };
    check(ret).err().unwrap_or(Errno::INVAL)
}

/// fork(2) by clone(2), with `flags` of namespaces: the child's process id, or 0 in the child.
///
/// # Safety
/// The child has this thread only: nothing it does may need another one, or a lock another one holds.
pub unsafe fn fork(flags: u64) -> Result<c_int, Errno> {
    // SAFETY: no stack and no memory is passed: the child runs on a copy of this one's. The rest is the caller's contract.
    let ret = unsafe { syscall6(libc::SYS_clone, [flags as usize | libc::SIGCHLD as usize, 0, 0, 0, 0, 0]) };
    check(ret).map(|pid| pid as c_int)
}

/// exit_group(2): ends this process without running its exit handlers.
pub fn exit_group(status: c_int) -> ! {
    loop {
        // SAFETY: no memory is passed; it does not return.
        let _ = unsafe { syscall6(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

/// ioctl(2) with memory.
///
/// # Safety
/// `memory` is readable and writable as `request` asks.
pub unsafe fn ioctl(fd: c_int, request: libc::c_ulong, memory: *mut c_void) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    check(unsafe { syscall6(libc::SYS_ioctl, [fd as usize, request as usize, memory as usize, 0, 0, 0]) }).map(drop)
}

/// ioctl(2) of a request that takes a number and no memory.
pub fn ioctl_value(fd: c_int, request: libc::c_ulong, value: usize) -> Result<(), Errno> {
    if request != libc::TUNSETOFFLOAD as libc::c_ulong {
        return Err(Errno::INVAL);
    }
    // SAFETY: of the requests let through here, none takes its argument for an address.
    check(unsafe { syscall6(libc::SYS_ioctl, [fd as usize, request as usize, value, 0, 0, 0]) }).map(drop)
}

/// waitid(2) for any child. Reaps nothing and reports nothing but `ECHILD`: there is none.
pub fn check_for_child() -> Result<(), Errno> {
    let flags = (libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL) as usize;
    // SAFETY: the kernel writes nothing where both places are null.
    check(unsafe { syscall6(libc::SYS_waitid, [libc::P_ALL as usize, 0, 0, flags, 0, 0]) }).map(drop)
}

/// recvfrom(2) without an address.
///
/// # Safety
/// `buf` is writable for `len` bytes (it may be null when `len` is 0 or `flags` has `MSG_TRUNC` on TCP).
#[inline]
pub unsafe fn recv(fd: c_int, buf: *mut c_void, len: usize, flags: c_int) -> Result<usize, Errno> {
    // SAFETY: the caller's contract.
    check(unsafe { syscall6(libc::SYS_recvfrom, [fd as usize, buf as usize, len, flags as usize, 0, 0]) })
}

/// recvmsg(2).
///
/// # Safety
/// `msg` and everything it points to are valid as recvmsg(2) asks.
#[inline]
pub unsafe fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> Result<usize, Errno> {
    // SAFETY: the caller's contract.
    check(unsafe { syscall6(libc::SYS_recvmsg, [fd as usize, msg as usize, flags as usize, 0, 0, 0]) })
}

/// sendto(2) without an address.
///
/// # Safety
/// `buf` is readable for `len` bytes.
#[inline]
pub unsafe fn send(fd: c_int, buf: *const c_void, len: usize, flags: c_int) -> Result<usize, Errno> {
    // SAFETY: the caller's contract.
    check(unsafe { syscall6(libc::SYS_sendto, [fd as usize, buf as usize, len, flags as usize, 0, 0]) })
}

/// sendmsg(2).
///
/// # Safety
/// `msg` and everything it points to are valid as sendmsg(2) asks.
#[inline]
pub unsafe fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> Result<usize, Errno> {
    // SAFETY: the caller's contract.
    check(unsafe { syscall6(libc::SYS_sendmsg, [fd as usize, msg as usize, flags as usize, 0, 0, 0]) })
}

/// Memory that is written only where a socket is none of TCP's, and never read: its pages do not exist until then.
struct Bin(core::cell::UnsafeCell<[u8; 64 << 10]>);
// SAFETY: only the kernel writes to it, and it is never read.
unsafe impl Sync for Bin {}
static BIN: Bin = Bin(core::cell::UnsafeCell::new([0; 64 << 10]));

/// Discards up to `count` bytes waiting on a TCP socket without copying them (`MSG_TRUNC`, tcp(7)); never blocks.
pub fn discard(fd: c_int, count: usize) -> Result<usize, Errno> {
    // Real memory if that is large enough: a tool that checks addresses would report a null buffer as the program's mistake.
    let unwritten = if count <= size_of::<Bin>() { BIN.0.get().cast() } else { core::ptr::null_mut() };
    // SAFETY: with MSG_TRUNC on a TCP socket the kernel copies nothing, so a null buffer is never followed. On other sockets the call
    // fails, or fills the bin, which is as long.
    let thrown = unsafe { recv(fd, unwritten, count, libc::MSG_TRUNC | libc::MSG_DONTWAIT) };
    if thrown != Err(Errno::FAULT) {
        return thrown;
    }
    // Not a TCP stream: nothing was taken.
    let mut bin = [0u8; 4096];
    // SAFETY: the buffer is ours and at least so long.
    unsafe { recv(fd, bin.as_mut_ptr().cast(), count.min(bin.len()), libc::MSG_DONTWAIT) }
}

/// What the front of a socket's receive queue is: peeks at one byte, which stays.
///
/// `Ok(1)`: something is there. `Ok(0)`: end of stream. `EAGAIN`: nothing yet. Blocks unless `flags` has `MSG_DONTWAIT`; a
/// blocking call restarts or ends with `EINTR`, by the interrupted handler's `SA_RESTART`, which poll(2) never does.
pub fn peek(fd: c_int, flags: c_int) -> Result<usize, Errno> {
    let mut byte = 0u8;
    // SAFETY: one byte of our own stack.
    unsafe { recv(fd, (&raw mut byte).cast(), 1, flags | libc::MSG_PEEK) }
}

/// Sends bytes of our own (doorbells) without blocking and without `SIGPIPE`.
pub fn send_bytes(fd: c_int, bytes: &[u8]) -> Result<usize, Errno> {
    // SAFETY: the slice is readable for its length.
    unsafe { send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) }
}

/// Sends one urgent byte, as [`send_bytes`].
pub fn send_urgent(fd: c_int, byte: u8) -> Result<(), Errno> {
    // SAFETY: one byte of our own.
    unsafe { send(fd, (&raw const byte).cast(), 1, libc::MSG_OOB | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) }.map(drop)
}

/// ppoll(2). `timeout` of `None` waits for ever; `mask` may be null. Never writes the remaining time back.
///
/// # Safety
/// `mask` is null or points to a signal set.
pub unsafe fn ppoll(fds: &mut [pollfd], timeout: Option<timespec>, mask: *const sigset_t) -> Result<usize, Errno> {
    let mut ts = timeout;
    let ts_ptr = ts.as_mut().map_or(core::ptr::null_mut(), |t| t as *mut timespec);
    let size = if mask.is_null() { 0 } else { SIGSET };
    // SAFETY: the slice is ours; the kernel writes the remaining time into our own copy; the mask is the caller's.
    check(unsafe {
        syscall6(libc::SYS_ppoll, [fds.as_mut_ptr() as usize, fds.len(), ts_ptr as usize, mask as usize, size, 0])
    })
}

/// What poll(2) shows of a descriptor now; nothing if poll(2) fails.
pub fn poll_now(fd: c_int, events: c_short) -> c_short {
    let mut poll = [pollfd { fd, events, revents: 0 }];
    // SAFETY: no mask.
    let polled = unsafe { ppoll(&mut poll, Some(timespec { tv_sec: 0, tv_nsec: 0 }), core::ptr::null()) };
    polled.map_or(0, |_| poll[0].revents)
}

/// epoll_pwait(2), `timeout` in milliseconds (-1 for ever); `mask` may be null.
///
/// # Safety
/// `events` has room for `max` events and `mask` is null or points to a signal set.
#[inline]
pub unsafe fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> Result<usize, Errno> {
    let args = [epfd as usize, events as usize, max as usize, timeout as isize as usize, mask as usize, SIGSET];
    // SAFETY: the caller's contract.
    check(unsafe { syscall6(libc::SYS_epoll_pwait, args) })
}

/// epoll_pwait2(2): as [`epoll_pwait`] with a time-out in nanoseconds; one of the [`recent`](crate::recent) calls.
///
/// # Safety
/// `events` has room for `max` events and `mask` is null or points to a signal set.
pub unsafe fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: Option<timespec>,
    mask: *const sigset_t,
) -> Result<usize, Errno> {
    crate::recent::tried()?;
    let ts = timeout.as_ref().map_or(core::ptr::null(), |t| t as *const timespec);
    // SAFETY: the caller's contract; the time-out is our own copy.
    check(unsafe {
        syscall6(
            libc::SYS_epoll_pwait2,
            [epfd as usize, events as usize, max as usize, ts as usize, mask as usize, SIGSET],
        )
    })
}

/// epoll_ctl(2) with the event by value; for `EPOLL_CTL_DEL` the event is ignored.
pub fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, events: u32, data: u64) -> Result<(), Errno> {
    let mut ev = epoll_event { events, u64: data };
    // SAFETY: the event is our own.
    check(unsafe {
        syscall6(libc::SYS_epoll_ctl, [epfd as usize, op as usize, fd as usize, &raw mut ev as usize, 0, 0])
    })?;
    Ok(())
}

/// getsockopt(2) of an integer option.
pub fn sockopt_int(fd: c_int, level: c_int, name: c_int) -> Result<c_int, Errno> {
    let mut value: c_int = 0;
    sockopt(fd, level, name, &mut value)?;
    Ok(value)
}

/// getsockopt(2) into any plain C value; returns how many bytes the kernel wrote.
pub fn sockopt<T: Plain>(fd: c_int, level: c_int, name: c_int, value: &mut T) -> Result<usize, Errno> {
    let mut len = size_of::<T>() as u32;
    // SAFETY: `value` is writable for its size, every bit pattern of a `Plain` type is valid, and the kernel writes no more than `len`.
    check(unsafe {
        let args =
            [fd as usize, level as usize, name as usize, core::ptr::from_mut(value) as usize, &raw mut len as usize, 0];
        syscall6(libc::SYS_getsockopt, args)
    })?;
    Ok(len as usize)
}

/// setsockopt(2) of any plain C value.
pub fn set_sockopt<T: Plain>(fd: c_int, level: c_int, name: c_int, value: &T) -> Result<(), Errno> {
    // SAFETY: `value` is readable for its size.
    check(unsafe {
        let args = [fd as usize, level as usize, name as usize, core::ptr::from_ref(value) as usize, size_of::<T>(), 0];
        syscall6(libc::SYS_setsockopt, args)
    })?;
    Ok(())
}

/// `SO_PEERCRED` of a connected Unix socket: process and user of the peer when it connected or began to listen. A process of
/// another pid namespace is 0.
pub fn peer_credentials(fd: c_int) -> Result<(u32, u32), Errno> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    sockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut credentials)?;
    Ok((credentials.pid as u32, credentials.uid))
}

/// Makes a socket drop every packet before any other check: a classic BPF program of one instruction, `ret #0` (socket(7),
/// `SO_ATTACH_FILTER`).
pub fn drop_packets(fd: c_int) -> Result<(), Errno> {
    const RETURN: u16 = 0x06;
    let mut program = [libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: 0 }];
    let whole = libc::sock_fprog { len: 1, filter: program.as_mut_ptr() };
    let (value, len) = ((&raw const whole) as usize, size_of::<libc::sock_fprog>());
    let args = [fd as usize, libc::SOL_SOCKET as usize, libc::SO_ATTACH_FILTER as usize, value, len, 0];
    // SAFETY: the program and its description are our own and live through the call, which copies them.
    check(unsafe { syscall6(libc::SYS_setsockopt, args) }).map(drop)
}

/// Types for which every bit pattern is a value, so that the kernel may fill them.
///
/// # Safety
/// Only for plain C integers and structs of such integers.
pub unsafe trait Plain {}
// SAFETY: plain integers and C structs of them.
unsafe impl Plain for c_int {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: any bytes are bytes.
unsafe impl<const N: usize> Plain for [u8; N] {}
// SAFETY: as above.
unsafe impl Plain for libc::linger {}
// SAFETY: as above.
unsafe impl Plain for libc::timeval {}
// SAFETY: as above.
unsafe impl Plain for libc::ucred {}
// SAFETY: as above.
unsafe impl Plain for libc::sockaddr_storage {}

/// getsockname(2) (`peer` false) or getpeername(2).
pub fn socket_name(fd: c_int, peer: bool) -> Result<libc::sockaddr_storage, Errno> {
    // SAFETY: an all-zero sockaddr_storage is a valid value (AF_UNSPEC).
    let mut addr: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as u32;
    let nr = if peer { libc::SYS_getpeername } else { libc::SYS_getsockname };
    // SAFETY: address and length are our own and the kernel writes no more than `len`.
    check(unsafe { syscall6(nr, [fd as usize, &raw mut addr as usize, &raw mut len as usize, 0, 0, 0]) })?;
    Ok(addr)
}

/// ioctl(2) that answers with one integer (`FIONREAD`, `SIOCOUTQ`).
pub fn ioctl_int(fd: c_int, request: libc::c_ulong) -> Result<c_int, Errno> {
    let mut value: c_int = 0;
    // SAFETY: these requests write one int.
    check(unsafe { syscall6(libc::SYS_ioctl, [fd as usize, request as usize, &raw mut value as usize, 0, 0, 0]) })?;
    Ok(value)
}

/// fcntl(2) with an integer argument.
pub fn fcntl(fd: c_int, cmd: c_int, arg: usize) -> Result<c_int, Errno> {
    // SAFETY: only used with commands that take an integer.
    check(unsafe { syscall6(libc::SYS_fcntl, [fd as usize, cmd as usize, arg, 0, 0, 0]) }).map(|v| v as c_int)
}

/// close(2) of a descriptor this library opened.
pub fn close(fd: c_int) {
    // SAFETY: no pointers. An error leaves nothing to do: the number is free either way (close(2), Linux notes).
    let _ = unsafe { syscall6(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// pread(2) from a file straight into memory of ours.
///
/// # Safety
/// `buf` is writable for `len` bytes.
pub unsafe fn pread(fd: c_int, buf: *mut u8, len: usize, offset: i64) -> Result<usize, Errno> {
    // SAFETY: the caller's contract.
    check(unsafe { syscall6(libc::SYS_pread64, [fd as usize, buf as usize, len, offset as usize, 0, 0]) })
}

/// Ends a TCP connection with a reset: connect(2) with `AF_UNSPEC`. The descriptor stays.
pub fn disconnect(fd: c_int) {
    // SAFETY: an all-zero sockaddr is valid; its family 0 is AF_UNSPEC.
    let addr: libc::sockaddr = unsafe { core::mem::zeroed() };
    let len = size_of::<libc::sockaddr>();
    // SAFETY: the address is ours and lives through the call. Whether it worked shows on the socket.
    let _ = check(unsafe { syscall6(libc::SYS_connect, [fd as usize, (&raw const addr) as usize, len, 0, 0, 0]) });
}

/// Whether the page `ptr` lies in has memory behind it: mincore(2). True also if the call fails.
pub fn is_real(ptr: *const u8) -> bool {
    let (page, mut answer) = (ptr.addr() & !4095, 1u8);
    // SAFETY: the kernel writes one byte for one page, into our own variable.
    let asked = check(unsafe { syscall6(libc::SYS_mincore, [page, 4096, (&raw mut answer).addr(), 0, 0, 0]) });
    asked.is_err() || answer & 1 != 0
}

/// Makes the whole pages of `ptr[..len]` real that are not yet: madvise(2) with `MADV_POPULATE_WRITE` (Linux 5.14; before, they are
/// made one by one as they are written). For memory about to be written from end to end.
pub fn populate(ptr: *mut u8, len: usize) {
    const PAGE: usize = 4096;
    let (from, to) = (ptr.addr().next_multiple_of(PAGE), (ptr.addr() + len) & !(PAGE - 1));
    if from < to {
        // SAFETY: changes no byte; an illegal range is refused.
        let _ = check(unsafe {
            syscall6(libc::SYS_madvise, [from, to - from, libc::MADV_POPULATE_WRITE as usize, 0, 0, 0])
        });
    }
}

/// Lets the kernel make `ptr[..len]` of huge pages where it lies on whole ones: madvise(2) with `MADV_HUGEPAGE`. For memory about to be
/// written from end to end.
pub fn huge(ptr: *mut u8, len: usize) {
    const HUGE: usize = 2 << 20;
    let (from, to) = (ptr.addr().next_multiple_of(HUGE), (ptr.addr() + len) & !(HUGE - 1));
    if from < to {
        // SAFETY: changes no byte; an illegal range is refused.
        let _ = check(unsafe { syscall6(libc::SYS_madvise, [from, to - from, libc::MADV_HUGEPAGE as usize, 0, 0, 0]) });
    }
}

/// lseek(2).
pub fn seek(fd: c_int, offset: i64, whence: c_int) -> Result<i64, Errno> {
    // SAFETY: no memory is passed.
    check(unsafe { syscall6(libc::SYS_lseek, [fd as usize, offset as usize, whence as usize, 0, 0, 0]) })
        .map(|at| at as i64)
}

/// tgkill(2) of the calling thread: used to raise the `SIGPIPE` a plain socket would have raised.
pub fn raise(signal: c_int) {
    let pid = rustix::process::getpid().as_raw_nonzero().get() as usize;
    let tid = rustix::thread::gettid().as_raw_nonzero().get() as usize;
    // SAFETY: no pointers.
    let _ = unsafe { syscall6(libc::SYS_tgkill, [pid, tid, signal as usize, 0, 0, 0]) };
}

/// rt_tgsigqueueinfo(2) of the calling thread: sends the signal that `info` (`siginfo_t`) describes.
pub fn send_to_self(info: &[u64; 16]) {
    let pid = rustix::process::getpid().as_raw_nonzero().get() as usize;
    let tid = rustix::thread::gettid().as_raw_nonzero().get() as usize;
    let signal = info[0] as u32 as usize;
    // SAFETY: 128 bytes of our own.
    let sent = check(unsafe {
        syscall6(libc::SYS_rt_tgsigqueueinfo, [pid, tid, signal, core::ptr::from_ref(info) as usize, 0, 0])
    });
    if sent.is_err() {
        // The queue is full: sends the signal without its information.
        raise(signal as c_int);
    }
}

/// A piece of memory of this or another process, as the kernel wants it (iovec(3type)).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where it begins.
    pub address: usize,
    /// Bytes.
    pub len: usize,
}

/// process_vm_readv(2), or process_vm_writev(2) where `write`: copies between pieces of ours and of process `pid`, in order, and
/// returns how many bytes. The pieces of the other process are followed in its memory, where it must be allowed.
///
/// # Safety
/// Each piece of `local` is valid: readable where `write`, else writable.
pub unsafe fn process_vm(pid: u32, local: &[Piece], remote: &[Piece], write: bool) -> Result<usize, Errno> {
    let nr = if write { libc::SYS_process_vm_writev } else { libc::SYS_process_vm_readv };
    let (here, there) = (local.as_ptr().addr(), remote.as_ptr().addr());
    // SAFETY: the lists are ours and live through the call; their pieces are the caller's contract.
    check(unsafe { syscall6(nr, [pid as usize, here, local.len(), there, remote.len(), 0]) })
}

/// Sleeps until one of the descriptors can be read or hung up, a signal comes, or the time is over. Negative numbers are passed over.
pub fn wait_readable(fds: &[c_int], timeout_ns: u64) {
    let mut polled = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; 16];
    let count = fds.len().min(polled.len());
    for (place, fd) in polled.iter_mut().zip(fds.iter()) {
        place.fd = *fd;
    }
    let timeout = crate::time::timespec(timeout_ns);
    // SAFETY: no signal mask is given. An interrupted or failed sleep is a short one.
    let _ = unsafe { ppoll(&mut polled[..count], Some(timeout), core::ptr::null()) };
}

/// Gives the processor to another task that wants it.
#[inline]
pub fn sched_yield() {
    rustix::thread::sched_yield();
}

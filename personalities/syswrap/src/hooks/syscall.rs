//! syscall(2): programs that make some socket calls by number (libuv, runtimes) go through the same hooks.

use core::ffi::{c_int, c_long};

use super::signals::is_awake;
use super::{aio, data, fds, files, get, messages, names, options, processes, shut, waits};
use crate::real;
use crate::state::process;

/// syscall(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn syscall(
    nr: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    // Most of the traffic is futex(2): one compare.
    // SAFETY: the program's arguments, passed on unchanged; so below, in the types the call has.
    let real = || unsafe { real::syscall()(nr, a, b, c, d, e, f) };
    if nr == libc::SYS_futex || process::is_plain() {
        return real();
    }
    // SAFETY: see above.
    unsafe { data_call(nr, [a, b, c, d, e, f]) }
        // SAFETY: see above.
        .or_else(|| unsafe { other_call(nr, [a, b, c, d, e, f]) })
        .unwrap_or_else(real)
}

/// # Safety
/// The arguments are those of system call `nr`.
unsafe fn data_call(nr: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> Option<c_long> {
    let fd = a as i32;
    // SAFETY: the caller's contract: numbers and pointers as the man page of each call has them.
    Some(unsafe {
        match nr {
            libc::SYS_read => data::read(fd, b as _, c as _) as c_long,
            libc::SYS_write => data::write(fd, b as _, c as _) as c_long,
            libc::SYS_readv => data::readv(fd, b as _, c as _) as c_long,
            libc::SYS_writev => data::writev(fd, b as _, c as _) as c_long,
            libc::SYS_recvfrom => data::recvfrom(fd, b as _, c as _, d as _, e as _, f as _) as c_long,
            libc::SYS_sendto => data::sendto(fd, b as _, c as _, d as _, e as _, f as _) as c_long,
            libc::SYS_recvmsg => messages::recvmsg(fd, b as _, c as _) as c_long,
            libc::SYS_sendmsg => messages::sendmsg(fd, b as _, c as _) as c_long,
            libc::SYS_recvmmsg => c_long::from(messages::recvmmsg(fd, b as _, c as _, d as _, e as _)),
            libc::SYS_sendmmsg => c_long::from(messages::sendmmsg(fd, b as _, c as _, d as _)),
            // The offset comes in two words; the second is empty (syscall(2)).
            libc::SYS_preadv2 => data::preadv2(fd, b as _, c as _, d as _, f as _) as c_long,
            libc::SYS_pwritev2 => data::pwritev2(fd, b as _, c as _, d as _, f as _) as c_long,
            libc::SYS_sendfile => files::sendfile(fd, b as _, c as _, d as _) as c_long,
            libc::SYS_splice => files::splice(fd, b as _, c as _, d as _, e as _, f as _) as c_long,
            libc::SYS_close => c_long::from(data::close(fd)),
            _ => return None,
        }
    })
}

/// # Safety
/// The arguments are those of system call `nr`.
unsafe fn other_call(nr: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> Option<c_long> {
    let fd = a as i32;
    // SAFETY: the caller's contract.
    let result = unsafe {
        match nr {
            libc::SYS_socket => fds::socket(fd, b as _, c as _),
            libc::SYS_accept4 => fds::accept4(fd, b as _, c as _, d as _),
            libc::SYS_connect => fds::connect(fd, b as _, c as _),
            libc::SYS_getpeername => names::getpeername(fd, b as _, c as _),
            libc::SYS_listen => fds::listen(fd, b as _),
            libc::SYS_epoll_create1 => fds::epoll_create1(fd),
            libc::SYS_getsockname => names::getsockname(fd, b as _, c as _),
            libc::SYS_shutdown => shut::shutdown(fd, b as _),
            libc::SYS_dup => fds::dup(fd),
            libc::SYS_dup3 => fds::dup3(fd, b as _, c as _),
            libc::SYS_pidfd_getfd => fds::pidfd_getfd(fd, b as _, c as _),
            libc::SYS_fcntl => fds::fcntl(fd, b as _, c),
            libc::SYS_close_range => fds::close_range(a as _, b as _, c as _),
            libc::SYS_setsockopt => options::setsockopt(fd, b as _, c as _, d as _, e as _),
            libc::SYS_getsockopt => options::getsockopt(fd, b as _, c as _, d as _, e as _),
            libc::SYS_epoll_ctl => waits::epoll_ctl(fd, b as _, c as _, d as _),
            libc::SYS_epoll_pwait => waits::epoll_pwait(fd, b as _, c as _, d as _, e as _),
            libc::SYS_epoll_pwait2 => waits::epoll_pwait2(fd, b as _, c as _, d as _, e as _),
            libc::SYS_ppoll if is_awake() => waits::ppoll(a as _, b as _, c as _, d as _),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select if is_awake() && (e == 0 || get(e as *const libc::timeval).is_some()) => {
                waits::select(fd, b as _, c as _, d as _, e as _)
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => waits::poll(a as _, b as _, c as _),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => fds::dup2(fd, b as _),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_accept => fds::accept(fd, b as _, c as _),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => waits::epoll_wait(fd, b as _, c as _, d as _),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork | libc::SYS_vfork => {
                processes::forked(|| c_int_of(real::syscall()(libc::SYS_fork, 0, 0, 0, 0, 0, 0)))
            }
            libc::SYS_clone if a as i32 & (libc::CLONE_VM | libc::CLONE_THREAD) == 0 => {
                processes::forked(|| c_int_of(real::syscall()(nr, a, b, c, d, e, f)))
            }
            libc::SYS_seccomp => {
                processes::enter_sandbox();
                return None;
            }
            libc::SYS_io_submit => {
                aio::before_submit(b, c as _);
                return None;
            }
            libc::SYS_io_uring_setup => {
                aio::before_uring();
                return None;
            }
            _ => return None,
        }
    };
    Some(c_long::from(result))
}

fn c_int_of(result: c_long) -> c_int {
    result as c_int
}

//! Other names that the C library gives to functions that have hooks; old programs and other libraries call them by these. A test looks for
//! more of them (`tests/tests/exports.rs`).
#![allow(non_snake_case)]

use core::ffi::{c_char, c_int, c_long, c_void};

use libc::{fd_set, nfds_t, pid_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval};

use super::{data, fds, processes, stdio, waits};

macro_rules! aliases {
    ($($name:ident = $hook:path, ($($arg:ident: $type:ty),*) -> $ret:ty;)*) => {$(
        #[doc = concat!("`", stringify!($hook), "` by another name.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $ret {
            // SAFETY: the program's arguments, passed on unchanged.
            unsafe { $hook($($arg),*) }
        }
    )*};
}

aliases! {
    __read = data::read, (fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t;
    __write = data::write, (fd: c_int, buf: *const c_void, n: size_t) -> ssize_t;
    __send = data::send, (fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t;
    __close = data::close, (fd: c_int) -> c_int;
    __connect = fds::connect, (fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    __dup2 = fds::dup2, (old: c_int, new: c_int) -> c_int;
    __fcntl = fds::fcntl64, (fd: c_int, cmd: c_int, arg: c_long) -> c_int;
    __poll = waits::poll, (set: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int;
    __select = waits::select, (n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    __vfork = processes::vfork, () -> pid_t;
    _IO_fdopen = stdio::fdopen, (fd: c_int, mode: *const c_char) -> *mut c_void;
    _IO_fclose = stdio::fclose, (file: *mut c_void) -> c_int;
    _IO_popen = processes::popen, (command: *const c_char, mode: *const c_char) -> *mut c_void;
    __backtrace_symbols_fd = stdio::backtrace_symbols_fd, (addresses: *const *mut c_void, count: c_int, fd: c_int) -> ();
}

//! The C library's functions by their names, as a C program calls them: through the table that a preloaded library takes over.
//!
//! Declared here and not taken from the libc crate because a thread may be cancelled in any of them, and then unwinds through us.

use libc::{
    aiocb, c_char, c_int, c_long, c_uint, c_ulong, c_void, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t,
    pid_t, pollfd, posix_spawn_file_actions_t, posix_spawnattr_t, pthread_attr_t, pthread_t, sigevent, sigset_t,
    size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};

/// What a thread begins with.
pub(crate) type Main = extern "C-unwind" fn(*mut c_void) -> *mut c_void;

unsafe extern "C-unwind" {
    pub(crate) fn send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t;
    pub(crate) fn sendto(
        fd: c_int,
        buf: *const c_void,
        n: size_t,
        flags: c_int,
        to: *const sockaddr,
        len: socklen_t,
    ) -> ssize_t;
    pub(crate) fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t;
    pub(crate) fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int;
    pub(crate) fn write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t;
    pub(crate) fn writev(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t;
    pub(crate) fn pwritev2(fd: c_int, iov: *const iovec, n: c_int, at: off_t, flags: c_int) -> ssize_t;
    pub(crate) fn recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t;
    pub(crate) fn recvfrom(
        fd: c_int,
        buf: *mut c_void,
        n: size_t,
        flags: c_int,
        from: *mut sockaddr,
        len: *mut socklen_t,
    ) -> ssize_t;
    pub(crate) fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t;
    pub(crate) fn recvmmsg(fd: c_int, msgs: *mut mmsghdr, n: c_uint, flags: c_int, time: *mut timespec) -> c_int;
    pub(crate) fn read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t;
    pub(crate) fn readv(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t;
    pub(crate) fn preadv2(fd: c_int, iov: *const iovec, n: c_int, at: off_t, flags: c_int) -> ssize_t;
    pub(crate) fn __recv_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t, flags: c_int) -> ssize_t;
    pub(crate) fn __read_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t) -> ssize_t;
    pub(crate) fn __recvfrom_chk(
        fd: c_int,
        buf: *mut c_void,
        n: size_t,
        room: size_t,
        flags: c_int,
        from: *mut sockaddr,
        len: *mut socklen_t,
    ) -> ssize_t;
    pub(crate) fn syscall(number: c_long, ...) -> c_long;

    pub(crate) fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int;
    pub(crate) fn socketpair(family: c_int, kind: c_int, protocol: c_int, fds: *mut c_int) -> c_int;
    pub(crate) fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    pub(crate) fn listen(fd: c_int, backlog: c_int) -> c_int;
    pub(crate) fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    pub(crate) fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    pub(crate) fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    pub(crate) fn shutdown(fd: c_int, how: c_int) -> c_int;
    pub(crate) fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    pub(crate) fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    pub(crate) fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    pub(crate) fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    pub(crate) fn sockatmark(fd: c_int) -> c_int;
    pub(crate) fn ioctl(fd: c_int, request: c_ulong, ...) -> c_int;
    pub(crate) fn fcntl(fd: c_int, what: c_int, ...) -> c_int;

    pub(crate) fn close(fd: c_int) -> c_int;
    pub(crate) fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    pub(crate) fn closefrom(first: c_int);
    pub(crate) fn dup(fd: c_int) -> c_int;
    pub(crate) fn dup2(fd: c_int, new: c_int) -> c_int;
    pub(crate) fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int;
    pub(crate) fn pipe2(fds: *mut c_int, flags: c_int) -> c_int;
    pub(crate) fn pwrite(fd: c_int, buf: *const c_void, n: size_t, at: off_t) -> ssize_t;
    pub(crate) fn pread(fd: c_int, buf: *mut c_void, n: size_t, at: off_t) -> ssize_t;
    pub(crate) fn lseek(fd: c_int, at: off_t, whence: c_int) -> off_t;
    pub(crate) fn memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    pub(crate) fn sendfile(to: c_int, from: c_int, at: *mut off_t, n: size_t) -> ssize_t;
    pub(crate) fn splice(
        from: c_int,
        from_at: *mut off_t,
        to: c_int,
        to_at: *mut off_t,
        n: size_t,
        flags: c_uint,
    ) -> ssize_t;
    pub(crate) fn tee(from: c_int, to: c_int, n: size_t, flags: c_uint) -> ssize_t;
    pub(crate) fn copy_file_range(
        from: c_int,
        from_at: *mut off_t,
        to: c_int,
        to_at: *mut off_t,
        n: size_t,
        flags: c_uint,
    ) -> ssize_t;

    pub(crate) fn poll(fds: *mut pollfd, n: nfds_t, ms: c_int) -> c_int;
    pub(crate) fn ppoll(fds: *mut pollfd, n: nfds_t, time: *const timespec, mask: *const sigset_t) -> c_int;
    pub(crate) fn __poll_chk(fds: *mut pollfd, n: nfds_t, ms: c_int, room: size_t) -> c_int;
    pub(crate) fn __ppoll_chk(
        fds: *mut pollfd,
        n: nfds_t,
        time: *const timespec,
        mask: *const sigset_t,
        room: size_t,
    ) -> c_int;
    pub(crate) fn select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, time: *mut timeval) -> c_int;
    pub(crate) fn pselect(
        n: c_int,
        r: *mut fd_set,
        w: *mut fd_set,
        e: *mut fd_set,
        time: *const timespec,
        mask: *const sigset_t,
    ) -> c_int;
    pub(crate) fn epoll_create1(flags: c_int) -> c_int;
    pub(crate) fn epoll_ctl(set: c_int, what: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    pub(crate) fn epoll_wait(set: c_int, events: *mut epoll_event, max: c_int, ms: c_int) -> c_int;
    pub(crate) fn epoll_pwait(
        set: c_int,
        events: *mut epoll_event,
        max: c_int,
        ms: c_int,
        mask: *const sigset_t,
    ) -> c_int;
    pub(crate) fn epoll_pwait2(
        set: c_int,
        events: *mut epoll_event,
        max: c_int,
        time: *const timespec,
        mask: *const sigset_t,
    ) -> c_int;

    pub(crate) fn fork() -> pid_t;
    pub(crate) fn _Fork() -> pid_t;
    pub(crate) fn vfork() -> pid_t;
    pub(crate) fn waitpid(pid: pid_t, status: *mut c_int, flags: c_int) -> pid_t;
    pub(crate) fn kill(pid: pid_t, signal: c_int) -> c_int;
    pub(crate) fn execv(path: *const c_char, args: *const *const c_char) -> c_int;
    pub(crate) fn execve(path: *const c_char, args: *const *const c_char, env: *const *const c_char) -> c_int;
    pub(crate) fn posix_spawn(
        pid: *mut pid_t,
        path: *const c_char,
        actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t,
        args: *const *const c_char,
        env: *const *const c_char,
    ) -> c_int;
    pub(crate) fn posix_spawnp(
        pid: *mut pid_t,
        path: *const c_char,
        actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t,
        args: *const *const c_char,
        env: *const *const c_char,
    ) -> c_int;
    pub(crate) fn system(command: *const c_char) -> c_int;
    pub(crate) fn popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    pub(crate) fn pclose(file: *mut libc::FILE) -> c_int;
    pub(crate) fn exit(status: c_int) -> !;
    pub(crate) fn _exit(status: c_int) -> !;
    pub(crate) fn quick_exit(status: c_int) -> !;
    pub(crate) fn abort() -> !;
    pub(crate) fn pthread_create(
        thread: *mut pthread_t,
        attributes: *const pthread_attr_t,
        main: Main,
        value: *mut c_void,
    ) -> c_int;
    pub(crate) fn pthread_detach(thread: pthread_t) -> c_int;
    pub(crate) fn pthread_cancel(thread: pthread_t) -> c_int;
    pub(crate) fn pthread_join(thread: pthread_t, value: *mut *mut c_void) -> c_int;
    pub(crate) fn setitimer(which: c_int, new: *const libc::itimerval, old: *mut libc::itimerval) -> c_int;

    pub(crate) fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    pub(crate) fn fclose(file: *mut libc::FILE) -> c_int;
    pub(crate) fn fflush(file: *mut libc::FILE) -> c_int;
    pub(crate) fn fread(buf: *mut c_void, size: size_t, n: size_t, file: *mut libc::FILE) -> size_t;
    pub(crate) fn fwrite(buf: *const c_void, size: size_t, n: size_t, file: *mut libc::FILE) -> size_t;
    pub(crate) fn fgets(buf: *mut c_char, n: c_int, file: *mut libc::FILE) -> *mut c_char;
    pub(crate) fn fgetc(file: *mut libc::FILE) -> c_int;
    pub(crate) fn fputc(c: c_int, file: *mut libc::FILE) -> c_int;
    pub(crate) fn feof(file: *mut libc::FILE) -> c_int;
    pub(crate) fn ferror(file: *mut libc::FILE) -> c_int;
    pub(crate) fn clearerr(file: *mut libc::FILE);
    pub(crate) fn fprintf(file: *mut libc::FILE, format: *const c_char, ...) -> c_int;
    pub(crate) fn dprintf(fd: c_int, format: *const c_char, ...) -> c_int;

    pub(crate) fn aio_read(request: *mut aiocb) -> c_int;
    pub(crate) fn aio_write(request: *mut aiocb) -> c_int;
    pub(crate) fn aio_error(request: *const aiocb) -> c_int;
    pub(crate) fn aio_return(request: *mut aiocb) -> ssize_t;
    pub(crate) fn aio_suspend(list: *const *const aiocb, n: c_int, time: *const timespec) -> c_int;
    pub(crate) fn lio_listio(mode: c_int, list: *const *mut aiocb, n: c_int, event: *mut sigevent) -> c_int;
}

/// This thread's errno.
pub(crate) fn errno() -> i32 {
    // SAFETY: always there.
    unsafe { *libc::__errno_location() }
}

/// Sets it.
pub(crate) fn set_errno(value: i32) {
    // SAFETY: always there.
    unsafe { *libc::__errno_location() = value };
}

//! The functions we stand in front of, as the next library in line defines them.

#![allow(non_snake_case)] // two names of the C library have capitals

use core::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    addrinfo, epoll_event, fd_set, hostent, iovec, mmsghdr, msghdr, nfds_t, off_t, off64_t, pid_t, pollfd,
    posix_spawn_file_actions_t, posix_spawnattr_t, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};

macro_rules! real {
    ($($name:ident($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        $(
            #[doc = concat!("The next `", stringify!($name), "` in line.")]
            #[inline]
            pub(crate) fn $name() -> unsafe extern "C-unwind" fn($($arg),*) $(-> $ret)? {
                static NEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
                let mut next = NEXT.load(Ordering::Relaxed);
                if next.is_null() {
                    next = find(&NEXT, concat!(stringify!($name), "\0"));
                }
                // SAFETY: dlsym gave the address of the function of this name, whose C type is the one written here.
                unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($arg),*) $(-> $ret)?>(next) }
            }
        )*

        /// Looks every name up, so that no hook has to later, in a signal handler.
        pub(crate) fn find_all() {
            $( let _ = $name(); )*
            find_single();
        }
    };
}

/// The C library's word for whether there was never a second thread (glibc 2.32); null where it has none.
static SINGLE: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());

fn find_single() {
    // SAFETY: a null-terminated name; RTLD_DEFAULT looks in what is loaded.
    let single = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    SINGLE.store(single.cast(), Ordering::Relaxed);
}

/// Whether other threads may close what this one sleeps on.
pub(crate) fn may_have_threads() -> bool {
    let single = SINGLE.load(Ordering::Relaxed);
    // SAFETY: the C library's own variable, a char that lives as long as the process.
    single.is_null() || unsafe { single.read_volatile() } == 0
}

real! {
    read(c_int, *mut c_void, size_t) -> ssize_t;
    __read_chk(c_int, *mut c_void, size_t, size_t) -> ssize_t;
    __recv_chk(c_int, *mut c_void, size_t, size_t, c_int) -> ssize_t;
    __recvfrom_chk(c_int, *mut c_void, size_t, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
    __poll_chk(*mut pollfd, nfds_t, c_int, size_t) -> c_int;
    __ppoll_chk(*mut pollfd, nfds_t, *const timespec, *const sigset_t, size_t) -> c_int;
    readv(c_int, *const iovec, c_int) -> ssize_t;
    recv(c_int, *mut c_void, size_t, c_int) -> ssize_t;
    recvfrom(c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
    recvmsg(c_int, *mut msghdr, c_int) -> ssize_t;
    recvmmsg(c_int, *mut mmsghdr, c_uint, c_int, *mut timespec) -> c_int;
    write(c_int, *const c_void, size_t) -> ssize_t;
    writev(c_int, *const iovec, c_int) -> ssize_t;
    send(c_int, *const c_void, size_t, c_int) -> ssize_t;
    sendto(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t;
    sendmsg(c_int, *const msghdr, c_int) -> ssize_t;
    sendmmsg(c_int, *mut mmsghdr, c_uint, c_int) -> c_int;
    sendfile(c_int, c_int, *mut off_t, size_t) -> ssize_t;
    sendfile64(c_int, c_int, *mut off64_t, size_t) -> ssize_t;
    preadv2(c_int, *const iovec, c_int, off64_t, c_int) -> ssize_t;
    preadv64v2(c_int, *const iovec, c_int, off64_t, c_int) -> ssize_t;
    pwritev2(c_int, *const iovec, c_int, off64_t, c_int) -> ssize_t;
    pwritev64v2(c_int, *const iovec, c_int, off64_t, c_int) -> ssize_t;
    aio_read(*mut c_void) -> c_int;
    aio_read64(*mut c_void) -> c_int;
    aio_write(*mut c_void) -> c_int;
    aio_write64(*mut c_void) -> c_int;
    lio_listio(c_int, *const *mut c_void, c_int, *mut c_void) -> c_int;
    lio_listio64(c_int, *const *mut c_void, c_int, *mut c_void) -> c_int;
    io_submit(*mut c_void, c_long, *mut *mut c_void) -> c_int;
    io_uring_queue_init(c_uint, *mut c_void, c_uint) -> c_int;
    io_uring_queue_init_params(c_uint, *mut c_void, *mut c_void) -> c_int;
    io_uring_queue_init_mem(c_uint, *mut c_void, *mut c_void, *mut c_void, size_t) -> c_int;
    io_uring_setup(c_uint, *mut c_void) -> c_int;
    sigaction(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
    signal(c_int, usize) -> usize;
    sysv_signal(c_int, usize) -> usize;
    sigset(c_int, usize) -> usize;
    splice(c_int, *mut off64_t, c_int, *mut off64_t, size_t, c_uint) -> ssize_t;
    socket(c_int, c_int, c_int) -> c_int;
    listen(c_int, c_int) -> c_int;
    connect(c_int, *const sockaddr, socklen_t) -> c_int;
    getpeername(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    getsockname(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    getaddrinfo(*const c_char, *const c_char, *const addrinfo, *mut *mut addrinfo) -> c_int;
    gethostbyname(*const c_char) -> *mut hostent;
    gethostbyname2(*const c_char, c_int) -> *mut hostent;
    gethostbyname_r(*const c_char, *mut hostent, *mut c_char, size_t, *mut *mut hostent, *mut c_int) -> c_int;
    accept(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    accept4(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int;
    shutdown(c_int, c_int) -> c_int;
    close(c_int) -> c_int;
    close_range(c_uint, c_uint, c_int) -> c_int;
    closefrom(c_int);
    dup(c_int) -> c_int;
    dup2(c_int, c_int) -> c_int;
    dup3(c_int, c_int, c_int) -> c_int;
    fcntl(c_int, c_int, c_long) -> c_int;
    fcntl64(c_int, c_int, c_long) -> c_int;
    ioctl(c_int, c_ulong, c_long) -> c_int;
    getsockopt(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
    setsockopt(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
    fclose(*mut c_void) -> c_int;
    freopen(*const c_char, *const c_char, *mut c_void) -> *mut c_void;
    freopen64(*const c_char, *const c_char, *mut c_void) -> *mut c_void;
    fileno(*mut c_void) -> c_int;
    fdopen(c_int, *const c_char) -> *mut c_void;
    poll(*mut pollfd, nfds_t, c_int) -> c_int;
    ppoll(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;
    select(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int;
    pselect(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *const timespec, *const sigset_t) -> c_int;
    epoll_create(c_int) -> c_int;
    epoll_create1(c_int) -> c_int;
    epoll_ctl(c_int, c_int, c_int, *mut epoll_event) -> c_int;
    epoll_wait(c_int, *mut epoll_event, c_int, c_int) -> c_int;
    epoll_pwait(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int;
    epoll_pwait2(c_int, *mut epoll_event, c_int, *const timespec, *const sigset_t) -> c_int;
    fork() -> pid_t;
    _Fork() -> pid_t;
    posix_spawn(*mut pid_t, *const c_char, *const posix_spawn_file_actions_t, *const posix_spawnattr_t,
        *const *mut c_char, *const *mut c_char) -> c_int;
    posix_spawnp(*mut pid_t, *const c_char, *const posix_spawn_file_actions_t, *const posix_spawnattr_t,
        *const *mut c_char, *const *mut c_char) -> c_int;
    posix_spawn_file_actions_adddup2(*mut posix_spawn_file_actions_t, c_int, c_int) -> c_int;
    system(*const c_char) -> c_int;
    popen(*const c_char, *const c_char) -> *mut c_void;
    execve(*const c_char, *const *const c_char, *const *const c_char) -> c_int;
    execv(*const c_char, *const *const c_char) -> c_int;
    execvp(*const c_char, *const *const c_char) -> c_int;
    execvpe(*const c_char, *const *const c_char, *const *const c_char) -> c_int;
    execveat(c_int, *const c_char, *const *const c_char, *const *const c_char, c_int) -> c_int;
    fexecve(c_int, *const *const c_char, *const *const c_char) -> c_int;
    execl(*const c_char) -> c_int;
    execlp(*const c_char) -> c_int;
    execle(*const c_char) -> c_int;
    sigignore(c_int) -> c_int;
    siginterrupt(c_int, c_int) -> c_int;
    pidfd_getfd(c_int, c_int, c_uint) -> c_int;
    dprintf(c_int) -> c_int;
    vdprintf(c_int) -> c_int;
    backtrace_symbols_fd(*const *mut c_void, c_int, c_int);
    __dprintf_chk(c_int) -> c_int;
    __vdprintf_chk(c_int) -> c_int;
    prctl(c_int, c_ulong, c_ulong, c_ulong, c_ulong) -> c_int;
    syscall(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;
    _exit(c_int);
    _Exit(c_int);
}

#[cold]
fn find(next: &AtomicPtr<c_void>, name: &str) -> *mut c_void {
    let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else { return missing as *mut c_void };
    // SAFETY: a null-terminated name; RTLD_NEXT is valid in a loaded library.
    let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    let address = if address.is_null() { missing as *mut c_void } else { address };
    next.store(address, Ordering::Relaxed);
    address
}

/// What stands for a function this C library does not have: -1 and `ENOSYS`, as an old C library would give.
extern "C" fn missing() -> c_long {
    // SAFETY: the C library's errno of this thread.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    -1
}

//! System calls that rustix lacks, and memory that needs `unsafe`: a base for crates that work with sockets, signals or shared memory.
//!
//! System calls go to the kernel directly: through [`rustix`] (whose `linux_raw` backend makes the call itself) or, for the few calls that
//! rustix lacks or that take the host program's own pointers, through [`raw`]. None passes through libc, so the engine can live inside a
//! preloaded library without meeting its own hooks. One exception: [`namespace::fork_into`], for programs of one thread that are not
//! preloaded, reads a directory through the standard library.
#![allow(unsafe_code)]

pub mod anew;
pub mod cpu;
pub mod critical;
pub mod epoll;
pub mod fault;
pub mod fd;
pub mod file;
pub mod lock;
pub mod mem;
pub mod namespace;
pub mod piece;
pub mod process;
pub mod raw;
pub mod recent;
pub mod sealed;
pub mod signals;
pub mod spin_lock;
pub mod tcp;
pub mod time;
pub mod udp;

pub use rustix::io::Errno;

/// An error from a number that may be anything, such as one written by a peer or another library. `EIO` if it is none.
pub fn errno_from(code: i32) -> Errno {
    // `from_raw_os_error` panics for any other.
    if (1..4096).contains(&code) { Errno::from_raw_os_error(code) } else { Errno::IO }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_is_some_error() {
        assert_eq!(errno_from(libc::ECONNRESET), Errno::CONNRESET);
        for code in [i32::MIN, -1, 0, 4096, 0xff_ffff, i32::MAX] {
            assert_eq!(errno_from(code), Errno::IO);
        }
    }
}

//! System calls that rustix lacks, and memory that needs `unsafe`: what every other crate of ours stands on.
//!
//! Everything here goes to the kernel directly: through [`rustix`] (whose `linux_raw` backend makes the call itself) or, for
//! the few calls rustix lacks or that take the host program's own pointers, through [`raw`]. Nothing passes through libc, so
//! the engine can live inside a preloaded library without ever meeting its own hooks.
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
pub mod signals;
pub mod spin_lock;
pub mod tcp;
pub mod time;

pub use rustix::io::Errno;

/// An error by a number that may be anything: what a peer, or another library, wrote. `EIO` where it is none.
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

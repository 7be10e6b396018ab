//! Namespaces: processes that start in new ones, and the network devices that live in them.
//!
//! A fork here continues with a copy of one thread. So it is only for programs of one thread; [`fork_into`] refuses others.

use core::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;
use rustix::thread::UnshareFlags;

use crate::{Errno, raw};

/// Which of the two a process is after [`fork_into`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forked {
    /// The new one.
    Child,
    /// The old one, with the new one's process id.
    Parent(Pid),
}

/// Forks; the child starts in new namespaces of the kinds in `kinds` (the first process of a new pid namespace, if that is among
/// them). `EAGAIN` where this process has other threads: the child would have copies of their locks, taken for ever.
pub fn fork_into(kinds: UnshareFlags) -> Result<Forked, Errno> {
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads > 1 {
        return Err(Errno::AGAIN);
    }
    // SAFETY: there is one thread (just counted, and only that one could start another), so the child's copy of this process is whole.
    let child = unsafe { raw::fork(u64::from(kinds.bits())) }?;
    Ok(Pid::from_raw(child).map_or(Forked::Child, Forked::Parent))
}

/// Moves this process into new namespaces of these kinds; for pid namespaces, its future children.
pub fn unshare(kinds: UnshareFlags) -> Result<(), Errno> {
    // SAFETY: no other task shares the table of descriptors: this flag is taken out.
    unsafe { rustix::thread::unshare_unsafe(kinds.difference(UnshareFlags::FILES)) }
}

/// The bytes of `struct ifreq` that these requests use.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    /// A union: flags (16 bits) or MTU (32 bits), at its front.
    value: [u8; 24],
}

impl InterfaceRequest {
    fn new(name: &str, value: &[u8]) -> Result<Self, Errno> {
        let mut request = Self { name: [0; libc::IFNAMSIZ], value: [0; 24] };
        // The last byte stays null.
        let room = request.name.get_mut(..name.len()).filter(|room| room.len() < libc::IFNAMSIZ);
        room.ok_or(Errno::NAMETOOLONG)?.copy_from_slice(name.as_bytes());
        request.value.get_mut(..value.len()).ok_or(Errno::INVAL)?.copy_from_slice(value);
        Ok(request)
    }

    fn send(&mut self, fd: impl AsFd, request: libc::c_ulong) -> Result<(), Errno> {
        // SAFETY: the kernel reads and writes at most a `struct ifreq`, 40 bytes on 64-bit systems, which is the size of `self`.
        unsafe { raw::ioctl(fd.as_fd().as_raw_fd(), request, core::ptr::from_mut(self).cast()) }
    }
}

/// Makes the TUN device `name` in the network namespace of this process, and opens it: without blocking, each packet behind a `struct
/// virtio_net_hdr` of ten bytes, with packets of one TCP connection joined. The device lives as long as the descriptor.
pub fn tun(name: &str) -> Result<OwnedFd, Errno> {
    let device = rustix::fs::open("/dev/net/tun", OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
    let flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as u16;
    InterfaceRequest::new(name, &flags.to_ne_bytes())?.send(&device, libc::TUNSETIFF as libc::c_ulong)?;
    let joined = (libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6) as usize;
    raw::ioctl_value(device.as_raw_fd(), libc::TUNSETOFFLOAD as libc::c_ulong, joined)?;
    Ok(device)
}

/// Sets the longest packet of a device; `socket` is any socket made in the device's network namespace.
pub fn set_mtu(socket: impl AsFd, name: &str, mtu: u32) -> Result<(), Errno> {
    InterfaceRequest::new(name, &mtu.to_ne_bytes())?.send(socket, libc::SIOCSIFMTU as libc::c_ulong)
}

/// A signal that was waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caught {
    /// Which.
    pub signal: c_int,
    /// Whether a process sent it, and not the kernel (a terminal, the end of a child).
    pub sent: bool,
}

/// A set of signals, as the kernel has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signals(u64);

impl Signals {
    /// These.
    pub fn of(signals: &[c_int]) -> Self {
        let bits = signals.iter().filter(|signal| (1..=64).contains(*signal)).map(|signal| 1 << (signal - 1));
        Self(bits.fold(0, |all, bit: u64| all | bit))
    }

    /// Blocks exactly these in this thread, from now on; returns those that were blocked.
    pub fn block(self) -> Result<Self, Errno> {
        raw::signal_mask(self.0).map(Self)
    }

    /// Waits for one of these, which must be blocked.
    pub fn wait(self) -> Result<Caught, Errno> {
        loop {
            match raw::wait_signal(self.0) {
                // Stopped and continued.
                Err(Errno::INTR) => {}
                caught => return caught.map(|(signal, code)| Caught { signal, sent: code <= 0 }),
            }
        }
    }
}

/// Ignores a signal (`true`), or gives it its default effect.
pub fn ignore_signal(signal: c_int, ignore: bool) -> Result<(), Errno> {
    raw::signal_disposition(signal, if ignore { libc::SIG_IGN } else { libc::SIG_DFL })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_threads_is_not_forked() {
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || wait.recv());
        assert_eq!(fork_into(UnshareFlags::empty()), Err(Errno::AGAIN));
        drop(end);
        other.join().unwrap().unwrap_err();
    }

    #[test]
    fn signals_wait_until_they_are_asked_for() {
        let signals = Signals::of(&[libc::SIGUSR1]);
        let before = signals.block().unwrap();
        raw::raise(libc::SIGUSR1);
        assert_eq!(signals.wait(), Ok(Caught { signal: libc::SIGUSR1, sent: true }));
        assert_eq!(before.block(), Ok(signals));
    }

    #[test]
    fn names_of_devices_are_bounded() {
        assert!(InterfaceRequest::new("fifteen-letters", &[0; 4]).is_ok());
        assert_eq!(InterfaceRequest::new("sixteen-letters!", &[0; 4]).err(), Some(Errno::NAMETOOLONG));
    }
}

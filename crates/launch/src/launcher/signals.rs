//! Signals of the launcher's own, which are meant for the job.

use std::os::fd::{AsFd as _, BorrowedFd};

use madrigal_sys::fd::Fd;
use rustix::io::Errno;

const ENDS: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
const FORWARDED: [i32; 4] = [libc::SIGUSR1, libc::SIGUSR2, libc::SIGWINCH, libc::SIGCONT];

pub(super) enum Meant {
    End(i32),
    Forward(i32),
    Stop,
}

pub(super) struct Signals(Fd);

impl Signals {
    /// From here on they come by a descriptor.
    pub(super) fn take() -> Result<Self, Errno> {
        let mask =
            ENDS.iter().chain(&FORWARDED).chain(&[libc::SIGTSTP]).fold(0, |mask, signal| mask | 1u64 << (signal - 1));
        // An agent that has ended is found out where it is written to.
        madrigal_sys::raw::signal_disposition(libc::SIGPIPE, libc::SIG_IGN)?;
        madrigal_sys::raw::block_signals(mask)?;
        madrigal_sys::raw::signal_fd(mask).map(Self)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(super) fn read(&self) -> Vec<Meant> {
        let mut info = [0; 128];
        let mut all = Vec::new();
        while let Ok(4..) = rustix::io::read(&self.0, &mut info) {
            // `signalfd_siginfo` begins with the signal.
            let signal = i32::from_ne_bytes([info[0], info[1], info[2], info[3]]);
            all.push(match signal {
                libc::SIGTSTP => Meant::Stop,
                signal if ENDS.contains(&signal) => Meant::End(signal),
                signal => Meant::Forward(signal),
            });
        }
        all
    }
}

/// Stops this process, until it is continued.
pub(super) fn stop() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
}

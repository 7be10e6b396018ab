//! How a socket goes through the daemon: kept with the socket, decided by [`crate::remote`].

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};

use madrigal_report::Reason;

/// Where a socket that goes through the daemon stands. All-zero: it does not.
#[derive(Default)]
pub(crate) struct Routed {
    stage: AtomicU32,
    /// What the program asked for: family, port, scope, address.
    family: AtomicU32,
    port: AtomicU32,
    scope: AtomicU32,
    address: [AtomicU32; 4],
}

/// What the program knows of its connect.
pub(crate) mod stage {
    pub(crate) const NONE: u32 = 0;
    /// Not what became of it.
    pub(crate) const PENDING: u32 = 1;
    pub(crate) const DONE: u32 = 2;
}

/// An address as the program wrote it: IPv4 in its mapped form.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) family: c_int,
    pub(crate) port: u16,
    pub(crate) scope: u32,
    pub(crate) address: [u32; 4],
}

impl Routed {
    pub(crate) fn clear(&self) {
        self.stage.store(stage::NONE, Ordering::Relaxed);
    }

    pub(crate) fn stage(&self) -> u32 {
        self.stage.load(Ordering::Acquire)
    }

    /// The result has been reported to the program.
    pub(crate) fn set_done(&self) {
        self.stage.store(stage::DONE, Ordering::Release);
    }

    /// [`Reason::Daemon`] if it goes through the daemon.
    pub(crate) fn way(&self) -> Option<Reason> {
        (self.stage() != stage::NONE).then_some(Reason::Daemon)
    }

    pub(crate) fn begin(&self, to: Asked) {
        self.family.store(to.family as u32, Ordering::Relaxed);
        self.port.store(u32::from(to.port), Ordering::Relaxed);
        self.scope.store(to.scope, Ordering::Relaxed);
        for (cell, part) in self.address.iter().zip(to.address) {
            cell.store(part, Ordering::Relaxed);
        }
        self.stage.store(stage::PENDING, Ordering::Release);
    }

    /// What was asked for.
    pub(crate) fn asked(&self) -> Asked {
        Asked {
            family: self.family.load(Ordering::Relaxed) as c_int,
            port: self.port.load(Ordering::Relaxed) as u16,
            scope: self.scope.load(Ordering::Relaxed),
            address: self.address.each_ref().map(|cell| cell.load(Ordering::Relaxed)),
        }
    }
}

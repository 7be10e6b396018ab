//! Connections that were closed here before the listener has accepted them. The listener still reads what was written, as with TCP: the
//! offer stands, and slot and socket are kept until the other side has left, too, or will never come. No thread waits for that: it is
//! checked when the process next makes or ends a connection.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use madrigal_shm_ring::slot::Lent;
use madrigal_sys::fd::Fd;
use madrigal_sys::{Errno, process};
use rustix::net::RecvFlags;

use super::shared::Shared;

/// Our side of such a connection. It has stored its fate, and reads and writes nothing any more.
pub(super) struct Early {
    pub(super) shared: Arc<Shared>,
    pub(super) index: u32,
    pub(super) lent: Lent,
    /// Kept open: its end shows that the other side has left.
    pub(super) socket: Arc<Fd>,
}

/// By process: those of a parent are not ours to end.
static KEPT: Mutex<Vec<(u32, Early)>> = Mutex::new(Vec::new());
/// How many there are; changed with the lock held.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// A sweep is wanted since the last one began.
static WANTED: AtomicBool = AtomicBool::new(false);

/// The last field of a struct that holds a socket: sweeps after the socket was closed.
pub(super) struct Sweep;

impl Drop for Sweep {
    fn drop(&mut self) {
        sweep();
    }
}

/// Keeps one until the other side has left.
pub(super) fn keep(early: Early) {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    kept.push((process::own_pid(), early));
    COUNT.store(kept.len(), Ordering::Relaxed);
    drop(kept);
    // For threads that could not sweep while the lock was held.
    sweep();
}

/// Ends those whose other side has left.
pub(super) fn sweep() {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let own = process::own_pid();
    WANTED.store(true, Ordering::SeqCst);
    // The thread with the lock sweeps once more after unlocking. Or the lock was held at a fork: no thread waits for it.
    while WANTED.load(Ordering::SeqCst)
        && let Ok(mut kept) = KEPT.try_lock()
    {
        WANTED.store(false, Ordering::SeqCst);
        kept.retain(|(pid, early)| *pid == own && !early.is_over());
        COUNT.store(kept.len(), Ordering::Relaxed);
    }
}

impl Early {
    /// Whether the other side has left, and so the slot is free.
    fn is_over(&self) -> bool {
        let over = at_end(&self.socket);
        if over {
            self.end();
        }
        over
    }

    /// Nobody but us uses the slot: what it has borrowed goes back, and, last, the slot itself.
    pub(super) fn end(&self) {
        let Some(life) = self.shared.arena.slot(self.index).map(|slot| &slot.life) else { return };
        let free = || self.shared.free(self.index, self.lent);
        if !life.revoke(self.lent, free) {
            // A contradiction leaves everything as it is: what a corrupt word marks as ours may belong to another connection.
            let _ = life.abandon(0, self.lent, free);
        }
        self.shared.arena.let_go(self.index);
    }
}

/// Takes the doorbells that came. Whether the end lies behind them.
pub(super) fn at_end(socket: &Fd) -> bool {
    let mut bells = [0u8; 64];
    loop {
        match rustix::net::recv(socket, &mut bells, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return true,
            Err(Errno::AGAIN) => return false,
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return true,
        }
    }
}

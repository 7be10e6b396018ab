//! A peer that closed, or was killed, with doorbells in its queue: the kernel tells of a reset, where TCP alone would tell of the end of the
//! stream, take one more send, and only then break. So the program is told of that:
//!
//! ```text
//!   NOT --(a reset that nobody meant)--> ENDED --(a send: taken, and lost)--> RESET --(told by EPIPE)--> TOLD
//! ```

use madrigal_base::sync::Ordering;

use super::Session;

const NOT: u32 = 0;
const ENDED: u32 = 1;
const RESET: u32 = 2;
const TOLD: u32 = 3;

const HALF: u32 = libc::EPOLLRDHUP as u32;
const WHOLE: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP) as u32;

impl Session {
    /// The kernel has told of such a reset.
    pub(super) fn set_gone(&self) {
        let _ = self.gone.compare_exchange(NOT, ENDED, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// A reset behind the peer's FIN, taken from the kernel before the program was told of it.
    pub(super) fn set_reset_after_end(&self) {
        let _ = self.gone.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |gone| (gone < RESET).then_some(RESET));
    }

    /// Whether it has.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed) != NOT
    }

    /// Whether this send is the one that is taken and lost.
    pub(crate) fn takes_one_send(&self) -> bool {
        self.gone.compare_exchange(ENDED, RESET, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Whether `EPIPE` is to be told now: by a send, or `SO_ERROR`.
    pub(crate) fn tells_pipe(&self) -> bool {
        self.gone.compare_exchange(RESET, TOLD, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Whether a shutdown(2) finds the connection half open, which it no longer is then.
    pub(crate) fn takes_shutdown(&self) -> bool {
        self.gone.compare_exchange(ENDED, TOLD, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// What poll(2) shows of it.
    pub(super) fn gone_events(&self) -> Option<u32> {
        match self.gone.load(Ordering::Relaxed) {
            ENDED => Some(HALF),
            RESET => Some(WHOLE | libc::EPOLLERR as u32),
            TOLD => Some(WHOLE),
            _ => None,
        }
    }
}

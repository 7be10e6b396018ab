//! The two ends of a stacked link, and a connection of a driver made of them.

use std::io::IoSlice;
use std::sync::Arc;

use madrigal_base::error::{ReadError, WriteError};
use madrigal_progress::driver::{ByteRx, ByteTx, Connection, Ends, Read, Signal, Waker, Watched, Wrote};

use madrigal_progress::bell::Bell;
use madrigal_sys::Errno;

use super::link::Link;

/// A link that both ends have. Dropped, it is closed.
pub(super) struct Made {
    pub(super) rx: Rx,
    pub(super) tx: Tx,
}

impl Made {
    pub(super) fn new(link: &Arc<Link>) -> Self {
        Self { rx: Rx(Arc::clone(link)), tx: Tx(Arc::clone(link)) }
    }

    /// As a driver has it; the kernel may have no descriptor left.
    pub(super) fn connection(self) -> Result<Connection, Errno> {
        let (link, bell) = (Arc::clone(&self.rx.0), Arc::new(Bell::new()?));
        let signal = Arc::clone(&bell) as Arc<dyn Signal>;
        link.report_to(Arc::new(move || bell.ring()));
        let (local, peer) = (link.local.clone(), link.peer.clone());
        Ok(Connection { ends: Ends::Bytes(Box::new(self.rx), Box::new(self.tx)), signal, local, peer })
    }
}

/// The end that is read.
pub(super) struct Rx(pub(super) Arc<Link>);

impl Watched for Rx {
    fn arm(&mut self) -> bool {
        let state = self.0.lock();
        state.is_readable() || !state.is_alive()
    }
}

impl ByteRx for Rx {
    fn read(&mut self, buf: &mut [u8]) -> Result<Read, ReadError> {
        let mut state = self.0.lock();
        let mut done = 0;
        while done < buf.len() {
            let front = state.adapters.front();
            let count = front.len().min(buf.len() - done);
            if count == 0 {
                break;
            }
            buf[done..done + count].copy_from_slice(&front[..count]);
            state.adapters.consume(count);
            done += count;
        }
        state.reader_waits |= done < buf.len();
        if done == 0 && !buf.is_empty() {
            if state.adapters.is_at_end() {
                return Ok(Read::End);
            }
            let peer = self.0.peer.clone();
            return match (state.is_alive(), state.broken()) {
                (true, _) => Ok(Read::WouldBlock),
                (false, Some(what)) => Err(ReadError::Corrupt { peer, what }),
                (false, None) => Err(ReadError::Reset { peer }),
            };
        }
        drop(state);
        // There is room for more.
        self.0.pump();
        Ok(Read::Bytes(done))
    }
}

impl Drop for Rx {
    fn drop(&mut self) {
        self.0.lock().is_deaf = true;
    }
}

/// The end that is written.
pub(super) struct Tx(Arc<Link>);

impl Watched for Tx {
    fn arm(&mut self) -> bool {
        let state = self.0.lock();
        state.adapters.room() > 0 || !state.is_writable()
    }
}

impl ByteTx for Tx {
    fn write(&mut self, bufs: &[IoSlice<'_>]) -> Result<Wrote, WriteError> {
        let mut state = self.0.lock();
        if !state.is_writable() {
            let peer = self.0.peer.clone();
            return Err(match state.broken() {
                Some(what) => WriteError::Corrupt { peer, what },
                None => WriteError::PeerGone { peer },
            });
        }
        let taken: usize = bufs.iter().map(|buf| state.adapters.write(buf)).sum();
        let is_short = taken < bufs.iter().map(|buf| buf.len()).sum();
        state.writer_waits |= is_short;
        drop(state);
        self.0.pump();
        Ok(if is_short && taken == 0 { Wrote::WouldBlock } else { Wrote::Bytes(taken) })
    }

    fn finish(&mut self, then: &Waker) -> bool {
        self.0.finish(then)
    }

    fn lingers(&self) -> bool {
        true
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        self.0.end();
    }
}

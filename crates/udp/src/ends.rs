//! The two ends of a stream, as a driver has them.

use std::io::IoSlice;
use std::sync::Arc;

use madrigal_base::error::{ReadError, WriteError};
use madrigal_base::locator::Locator;
use madrigal_progress::driver::{ByteRx, ByteTx, Connection, Ends, Read, Signal, Waker, Watched, Wrote};

use crate::link::{Link, Why};
use crate::port::{NAME, Port};
use crate::traffic::Id;

/// What carries it, in errors.
const VRP: &str = "vrp";

/// The connection of a link that is open. `None`: there is no such link any more.
pub(crate) fn of(port: &Arc<Port>, id: Id, peer: Locator) -> Option<Connection> {
    let inner = port.lock();
    let (signal, local) = (inner.link(id)?.bell()? as Arc<dyn Signal>, Locator::inet(NAME, inner.at()));
    drop(inner);
    let end = || End { port: Arc::clone(port), id, peer: peer.clone() };
    let ends = Ends::Bytes(Box::new(Rx(end())), Box::new(Tx(end())));
    Some(Connection { ends, signal, local, peer })
}

struct End {
    port: Arc<Port>,
    id: Id,
    peer: Locator,
}

struct Rx(End);

impl Watched for Rx {
    fn arm(&mut self) -> bool {
        let mut inner = self.0.port.lock();
        inner.link_mut(self.0.id).is_none_or(|link| {
            link.reader_waits = true;
            link.is_readable() || link.why().is_some()
        })
    }
}

impl ByteRx for Rx {
    fn read(&mut self, buf: &mut [u8]) -> Result<Read, ReadError> {
        let End { port, id, peer } = &self.0;
        let reset = || ReadError::Reset { peer: peer.clone() };
        let mut inner = port.lock();
        let link = inner.link_mut(*id).ok_or_else(reset)?;
        let done = link.read(buf);
        link.reader_waits |= done < buf.len();
        if done == 0 && !buf.is_empty() {
            return match link.why() {
                _ if link.is_at_end() => Ok(Read::End),
                None => Ok(Read::WouldBlock),
                Some(Why::Corrupt) => Err(ReadError::Corrupt { peer: peer.clone(), what: VRP }),
                Some(_) => Err(reset()),
            };
        }
        // What is behind the last bytes came with them, and nothing else will report it.
        link.wake();
        let owes = link.owes();
        drop(inner);
        if owes {
            // There is room for more.
            port.run(|inner, _| inner.stir(*id).is_some());
        }
        Ok(Read::Bytes(done))
    }
}

impl Drop for Rx {
    fn drop(&mut self) {
        if let Some(link) = self.0.port.lock().link_mut(self.0.id) {
            link.is_deaf = true;
        }
    }
}

struct Tx(End);

impl Watched for Tx {
    fn arm(&mut self) -> bool {
        let mut inner = self.0.port.lock();
        inner.link_mut(self.0.id).is_none_or(|link| {
            link.writer_waits = true;
            link.room() > 0 || link.why().is_some()
        })
    }
}

impl ByteTx for Tx {
    fn write(&mut self, bufs: &[IoSlice<'_>]) -> Result<Wrote, WriteError> {
        let End { port, id, peer } = &self.0;
        let write = |link: &mut Link| match link.why() {
            Some(Why::Corrupt) => Err(WriteError::Corrupt { peer: peer.clone(), what: VRP }),
            Some(_) => Err(WriteError::PeerGone { peer: peer.clone() }),
            None => {
                let wanted: usize = bufs.iter().map(|buf| buf.len()).sum();
                let taken = link.write(bufs);
                link.writer_waits |= taken < wanted;
                Ok(if taken == 0 && wanted > 0 { Wrote::WouldBlock } else { Wrote::Bytes(taken) })
            }
        };
        port.run(|inner, _| match inner.stir(*id) {
            Some(link) => write(link),
            None => Err(WriteError::PeerGone { peer: peer.clone() }),
        })
    }

    fn finish(&mut self, then: &Waker) -> bool {
        let End { port, id, .. } = &self.0;
        port.run(|inner, _| inner.stir(*id).map(|link| link.finish(Some(Arc::clone(then)))));
        port.lock().link(*id).is_none()
    }

    fn lingers(&self) -> bool {
        true
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        self.0.port.abort(self.0.id);
    }
}

//! Adapters: what makes a stream of bytes out of a driver's endpoint, and the table of them.
//!
//! The straight adapter costs nothing. The cross-paradigm adapter pays for the other paradigm where, and only where, a stream is
//! wanted of a packet driver.

use std::io::IoSlice;
use std::sync::Arc;

use madrigal_base::error::{ReadError, WriteError};
use madrigal_base::locator::Locator;
use madrigal_progress::driver::{
    ByteRx, ByteTx, Connection, Ends, Packet, PacketRx, PacketTx, Read, Signal, Watched, Wrote,
};
use madrigal_progress::wait::Peer;

/// A stream of bytes, as a link uses it.
pub struct Stream {
    /// The reading end.
    pub rx: Box<dyn ByteRx>,
    /// The writing end.
    pub tx: Box<dyn ByteTx>,
    /// How a sleeper is woken.
    pub signal: Arc<dyn Signal>,
    /// Our own address.
    pub local: Locator,
    /// The peer's address.
    pub peer: Locator,
    /// Name of the adapter that made it.
    pub adapter: &'static str,
}

/// Makes streams out of endpoints. Both sides of a connection use the same one.
pub trait Adapter: Sync {
    /// Its name. Never changes.
    fn name(&self) -> &'static str;

    /// Makes a stream of the endpoint, or gives it back when it is of a paradigm this adapter is not for. Does not block.
    fn adapt(&self, endpoint: Connection) -> Result<Stream, Box<Connection>>;
}

/// Every adapter, the cheapest first.
pub static ADAPTERS: &[&dyn Adapter] = &[&Straight, &Cross];

/// Makes a stream of an endpoint by the first adapter that takes it. `None`: none does.
pub fn adapt(endpoint: Connection) -> Option<Stream> {
    let mut endpoint = endpoint;
    for adapter in ADAPTERS {
        match adapter.adapt(endpoint) {
            Ok(stream) => return Some(stream),
            Err(back) => endpoint = *back,
        }
    }
    None
}

/// A stream is a stream.
pub struct Straight;

impl Adapter for Straight {
    fn name(&self) -> &'static str {
        "straight"
    }

    fn adapt(&self, endpoint: Connection) -> Result<Stream, Box<Connection>> {
        let Connection { ends, signal, local, peer } = endpoint;
        match ends {
            Ends::Bytes(rx, tx) => Ok(Stream { rx, tx, signal, local, peer, adapter: self.name() }),
            ends @ Ends::Packets(..) => Err(Box::new(Connection { ends, signal, local, peer })),
        }
    }
}

/// A stream over packets: bytes are cut into packets of the largest size, and a packet is read as often as the reader's buffers ask.
pub struct Cross;

impl Adapter for Cross {
    fn name(&self) -> &'static str {
        "cross"
    }

    fn adapt(&self, endpoint: Connection) -> Result<Stream, Box<Connection>> {
        let Connection { ends, signal, local, peer } = endpoint;
        match ends {
            Ends::Packets(rx, tx) => {
                let (rx, tx) = (Box::new(CrossRx { rx, taken: 0, failed: None }), Box::new(CrossTx { tx }));
                Ok(Stream { rx, tx, signal, local, peer, adapter: self.name() })
            }
            ends @ Ends::Bytes(..) => Err(Box::new(Connection { ends, signal, local, peer })),
        }
    }
}

/// Reads a stream out of packets. The packet in front stays the driver's until its last byte is read: nothing is copied twice.
struct CrossRx {
    rx: Box<dyn PacketRx>,
    /// Bytes of the packet in front that were read.
    taken: usize,
    /// What was found behind bytes, for the next read.
    failed: Option<ReadError>,
}

impl Watched for CrossRx {
    fn arm(&mut self) -> bool {
        self.failed.is_some() || self.rx.arm()
    }

    fn cheap(&self) -> bool {
        self.rx.cheap()
    }

    fn patience_ns(&mut self) -> u64 {
        self.rx.patience_ns()
    }

    fn peer(&self) -> Peer {
        self.rx.peer()
    }
}

impl ByteRx for CrossRx {
    fn read(&mut self, buf: &mut [u8]) -> Result<Read, ReadError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let mut done = 0;
        while done < buf.len() {
            let packet = match self.rx.packet() {
                Ok(Packet::Bytes(packet)) => packet,
                Ok(Packet::WouldBlock) if done == 0 => return Ok(Read::WouldBlock),
                Ok(Packet::End) if done == 0 => return Ok(Read::End),
                Err(error) if done == 0 => return Err(error),
                Err(error) => {
                    self.failed = Some(error);
                    break;
                }
                _ => break,
            };
            let rest = packet.get(self.taken..).unwrap_or_default();
            let n = rest.len().min(buf.len() - done);
            buf[done..done + n].copy_from_slice(&rest[..n]);
            done += n;
            self.taken += n;
            if n == rest.len() {
                self.taken = 0;
                self.rx.release();
            }
        }
        Ok(Read::Bytes(done))
    }
}

/// Writes a stream as packets.
struct CrossTx {
    tx: Box<dyn PacketTx>,
}

impl Watched for CrossTx {
    fn arm(&mut self) -> bool {
        self.tx.arm()
    }

    fn cheap(&self) -> bool {
        self.tx.cheap()
    }

    fn peer(&self) -> Peer {
        self.tx.peer()
    }
}

impl ByteTx for CrossTx {
    fn write(&mut self, bufs: &[IoSlice<'_>]) -> Result<Wrote, WriteError> {
        let max = self.tx.max().max(1);
        if bufs.iter().map(|buf| buf.len()).sum::<usize>() <= max {
            return if bufs.iter().all(|buf| buf.is_empty()) { Ok(Wrote::Bytes(0)) } else { self.tx.send(bufs) };
        }
        let mut done = 0;
        for piece in bufs.iter().flat_map(|buf| buf.chunks(max)) {
            match self.tx.send(&[IoSlice::new(piece)]) {
                Ok(Wrote::Bytes(n)) => done += n,
                Ok(Wrote::WouldBlock) if done == 0 => return Ok(Wrote::WouldBlock),
                Err(error) if done == 0 => return Err(error),
                // What was taken is reported first; the rest is tried again.
                Ok(Wrote::WouldBlock) | Err(_) => break,
            }
        }
        Ok(Wrote::Bytes(done))
    }
}

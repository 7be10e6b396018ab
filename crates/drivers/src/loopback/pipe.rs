//! One direction of a loopback connection: a bounded queue of packets and its two ends.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::{Arc, Mutex};

use madrigal_base::error::{ReadError, WriteError};
use madrigal_base::locator::Locator;
use madrigal_progress::bell::Bell;
use madrigal_progress::driver::{Packet, PacketRx, PacketTx, Watched, Wrote};

use super::lock::lock;

/// The longest packet, in bytes.
const LONGEST: usize = 16 << 10;
/// A direction holds no more than this many bytes, and this many packets.
const FULL_BYTES: usize = 256 << 10;
const FULL_PACKETS: usize = 1024;
/// Buffers kept for packets to come: this many, each of at most this capacity.
const SPARE: usize = 2;
const SPARE_BYTES: usize = 2 << 10;

/// The queue both ends share.
#[derive(Default)]
struct Queue {
    packets: VecDeque<Vec<u8>>,
    bytes: usize,
    spare: Vec<Vec<u8>>,
    /// The reader may sleep: ring for the next packet.
    armed: bool,
    /// The writer may sleep: ring when half is free.
    want: bool,
    tx_gone: bool,
    rx_gone: bool,
    /// The writer's side dropped packets of the other direction unread.
    reset: bool,
}

impl Queue {
    fn full(&self) -> bool {
        self.bytes >= FULL_BYTES || self.packets.len() >= FULL_PACKETS
    }

    fn half_free(&self) -> bool {
        self.bytes <= FULL_BYTES / 2 && self.packets.len() <= FULL_PACKETS / 2
    }

    fn keep(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < SPARE && buffer.capacity() <= SPARE_BYTES {
            buffer.clear();
            self.spare.push(buffer);
        }
    }
}

/// The ends of both sides of a connection named `name`, given their doorbells.
pub(super) fn pair(near: &Arc<Bell>, far: &Arc<Bell>, name: &Locator) -> [(Rx, Tx); 2] {
    let (there, back): (Arc<Mutex<Queue>>, Arc<Mutex<Queue>>) = Default::default();
    let side = |from: &Arc<Mutex<Queue>>, to: &Arc<Mutex<Queue>>, other: &Arc<Bell>| {
        let unread = Arc::new(AtomicBool::new(false));
        let (bell, peer) = (|| Arc::clone(other), || name.clone());
        let rx = Rx { queue: Arc::clone(from), writer: bell(), front: None, unread: Arc::clone(&unread), peer: peer() };
        (rx, Tx { queue: Arc::clone(to), reader: bell(), unread, peer: peer() })
    };
    [side(&back, &there, far), side(&there, &back, near)]
}

/// The writing end.
pub(super) struct Tx {
    queue: Arc<Mutex<Queue>>,
    reader: Arc<Bell>,
    /// Set by our own reading end if it was dropped with packets unread.
    unread: Arc<AtomicBool>,
    peer: Locator,
}

impl Watched for Tx {
    fn arm(&mut self) -> bool {
        let mut queue = lock(&self.queue);
        queue.want = true;
        queue.half_free() || queue.rx_gone
    }

    fn cheap(&self) -> bool {
        true
    }
}

impl PacketTx for Tx {
    fn send(&mut self, parts: &[IoSlice<'_>]) -> Result<Wrote, WriteError> {
        let len = parts.iter().map(|part| part.len()).sum();
        if len > LONGEST {
            return Err(WriteError::TooLong { peer: self.peer.clone(), len, max: LONGEST });
        }
        let mut queue = lock(&self.queue);
        if queue.rx_gone {
            return Err(WriteError::PeerGone { peer: self.peer.clone() });
        }
        if queue.full() {
            return Ok(Wrote::WouldBlock);
        }
        let mut packet = queue.spare.pop().unwrap_or_default();
        parts.iter().for_each(|part| packet.extend_from_slice(part));
        queue.packets.push_back(packet);
        queue.bytes += len;
        let ring = core::mem::take(&mut queue.armed);
        drop(queue);
        if ring {
            self.reader.ring();
        }
        Ok(Wrote::Bytes(len))
    }

    fn max(&self) -> usize {
        LONGEST
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        let mut queue = lock(&self.queue);
        queue.tx_gone = true;
        queue.reset = self.unread.load(Ordering::Relaxed);
        drop(queue);
        self.reader.ring();
    }
}

/// The reading end.
pub(super) struct Rx {
    queue: Arc<Mutex<Queue>>,
    writer: Arc<Bell>,
    front: Option<Vec<u8>>,
    unread: Arc<AtomicBool>,
    peer: Locator,
}

impl Watched for Rx {
    fn arm(&mut self) -> bool {
        let mut queue = lock(&self.queue);
        queue.armed = true;
        // A reader about to sleep is idle, and idle connections hold nothing.
        queue.spare = Vec::new();
        self.front.is_some() || !queue.packets.is_empty() || queue.tx_gone
    }

    fn cheap(&self) -> bool {
        true
    }
}

impl PacketRx for Rx {
    fn packet(&mut self) -> Result<Packet<'_>, ReadError> {
        if self.front.is_none() {
            let mut queue = lock(&self.queue);
            self.front = queue.packets.pop_front();
            let Some(packet) = &self.front else {
                return match (queue.tx_gone, queue.reset) {
                    (false, _) => Ok(Packet::WouldBlock),
                    (true, false) => Ok(Packet::End),
                    (true, true) => Err(ReadError::Reset { peer: self.peer.clone() }),
                };
            };
            queue.bytes -= packet.len();
            let ring = queue.want && queue.half_free();
            if ring {
                queue.want = false;
                drop(queue);
                self.writer.ring();
            }
        }
        Ok(self.front.as_deref().map_or(Packet::WouldBlock, Packet::Bytes))
    }

    fn release(&mut self) {
        if let Some(packet) = self.front.take() {
            lock(&self.queue).keep(packet);
        }
    }
}

impl Drop for Rx {
    fn drop(&mut self) {
        let mut queue = lock(&self.queue);
        queue.rx_gone = true;
        let dropped = core::mem::take(&mut queue.packets);
        drop(queue);
        self.unread.store(self.front.is_some() || !dropped.is_empty(), Ordering::Relaxed);
        self.writer.ring();
    }
}

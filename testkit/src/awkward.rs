//! Ports that make it hard for the layer above, while keeping their contract: around any driver of messages.
//!
//! One refuses single copies or allows them within the process, takes long frames in parts and short ones often not at all, and gives
//! long bodies late. The choices come from a seed.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_progress::driver::{Facts, Place};
use madrigal_progress::message::{Explained, LinkError, LinkIndex, MessageDriver, Port, Sent, SingleCopy, Sink};

use crate::noise::Noise;

/// What is made hard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ways {
    /// Long frames are taken in parts, and any frame may be refused for now.
    pub parts: bool,
    /// Memory of peers, which live in the same process, can be copied.
    pub copies: bool,
}

/// A driver whose ports are awkward.
pub struct Awkward {
    /// The driver beneath.
    pub driver: &'static dyn MessageDriver,
    /// What its ports do.
    pub ways: Ways,
}

impl MessageDriver for Awkward {
    fn name(&self) -> &'static str {
        "awkward"
    }

    fn facts(&self) -> Facts {
        self.driver.facts()
    }

    fn usable(&self, place: &Place) -> Result<(), String> {
        self.driver.usable(place)
    }

    fn open(&self, me: NodeId, place: &Place) -> Result<Box<dyn Port>, String> {
        let port = self.driver.open(me, place)?;
        Ok(Box::new(AwkwardPort { port, ways: self.ways, noise: Noise::new(me.number()), partly: Vec::new() }))
    }
}

struct AwkwardPort {
    port: Box<dyn Port>,
    ways: Ways,
    noise: Noise,
    /// Frames taken in part, by link.
    partly: Vec<Vec<u8>>,
}

impl AwkwardPort {
    /// The bytes of a frame taken so far.
    fn taken(&mut self, link: LinkIndex) -> &mut Vec<u8> {
        let at = link.0 as usize;
        if self.partly.len() <= at {
            self.partly.resize(at + 1, Vec::new());
        }
        &mut self.partly[at]
    }
}

impl Port for AwkwardPort {
    fn publish(&self, address: &mut NodeAddress) {
        self.port.publish(address);
    }

    fn link(&mut self, to: &NodeAddress) -> Result<LinkIndex, String> {
        self.port.link(to)
    }

    fn send(&mut self, link: LinkIndex, head: &[u8], body: &[IoSlice<'_>], skip: usize) -> Result<Sent, LinkError> {
        if !self.ways.parts {
            return self.port.send(link, head, body, skip);
        }
        assert_eq!(self.taken(link).len(), skip, "the frame that was begun is continued");
        if self.noise.below(3) == 0 {
            return Ok(Sent::Part(0));
        }
        let mut whole = head.to_vec();
        body.iter().for_each(|piece| whole.extend_from_slice(piece));
        let long = whole.len() - head.len() > self.port.short();
        let rest = whole.len() - skip;
        if long && self.noise.below(4) != 0 {
            // The buffers are the caller's again: keep a copy.
            let more = self.noise.below(rest);
            self.taken(link).extend_from_slice(&whole[skip..skip + more]);
            return Ok(Sent::Part(more));
        }
        let mut kept = core::mem::take(self.taken(link));
        kept.extend_from_slice(&whole[skip..]);
        assert!(kept.len() == whole.len());
        let (head, body) = kept.split_at(head.len());
        let sent = self.port.send(link, head, &[IoSlice::new(body)], 0)?;
        if sent != Sent::All {
            kept.truncate(skip);
            *self.taken(link) = kept;
        }
        Ok(sent)
    }

    fn poll(&mut self, sink: &mut dyn Sink) -> usize {
        self.port.poll(sink)
    }

    fn short(&self) -> usize {
        self.port.short()
    }

    fn pull(&mut self, _link: LinkIndex, remote: &[(u64, usize)], local: &[(u64, usize)]) -> SingleCopy {
        if self.ways.copies { copy(remote, local) } else { SingleCopy::No }
    }

    fn push(&mut self, _link: LinkIndex, local: &[(u64, usize)], remote: &[(u64, usize)]) -> SingleCopy {
        if self.ways.copies { copy(local, remote) } else { SingleCopy::No }
    }

    fn cut(&mut self, link: LinkIndex) {
        self.port.cut(link);
    }

    fn arm(&mut self) -> bool {
        self.port.arm()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.port.descriptor()
    }

    fn woken(&mut self) {
        self.port.woken();
    }

    fn explain(&self, link: LinkIndex) -> Explained {
        self.port.explain(link)
    }
}

/// Copies between memory of this process, as the kernel would.
fn copy(from: &[(u64, usize)], to: &[(u64, usize)]) -> SingleCopy {
    let sum = |pieces: &[(u64, usize)]| pieces.iter().map(|piece| piece.1).sum::<usize>();
    assert_eq!(sum(from), sum(to), "both sides have the same length");
    let mut bytes = Vec::new();
    for &(at, len) in from {
        // SAFETY: both sides vouch for their pieces, and live in this process.
        #[allow(unsafe_code)]
        bytes.extend_from_slice(unsafe { core::slice::from_raw_parts(at as *const u8, len) });
    }
    let mut rest = &bytes[..];
    for &(at, len) in to {
        // SAFETY: as above; the bytes were copied to memory of their own first.
        #[allow(unsafe_code)]
        unsafe {
            core::ptr::copy_nonoverlapping(rest.as_ptr(), at as *mut u8, len);
        }
        rest = &rest[len..];
    }
    SingleCopy::Done
}

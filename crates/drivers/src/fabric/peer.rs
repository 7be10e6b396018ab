//! One link: meeting the peer, what either side may send, and the frame that is on its way to us.

use madrigal_base::node::NodeId;
use madrigal_progress::message::{LinkError, LinkIndex, MAX_HEAD, Placement, Sink};
use madrigal_sys::{piece, process};

use super::packet::{Head, Kind, LinkId};

/// Messages a peer may send before some are reported as taken.
pub(super) const WINDOW: u16 = 32;
/// Longer bodies are received where they belong.
pub(super) const SHORT: usize = 8 << 10;
/// The longest body (docs/drivers/tcp.md: the same).
const LONGEST: u64 = (1 << 47) - 1;

/// A node, as this driver knows it.
pub(super) struct Peer {
    pub(super) node: NodeId,
    /// The provider's address of it, and the provider's number for that.
    pub(super) name: Vec<u8>,
    pub(super) at: u64,
    /// What it calls this link by.
    pub(super) session: u64,
    /// What we call it by, once we know.
    pub(super) link_id: Option<LinkId>,
    pub(super) phase: Phase,
    /// Messages we may send.
    pub(super) credits: u16,
    /// Messages that were taken and not reported to it.
    pub(super) owed: u16,
    /// It sent a hello and got no answer yet.
    pub(super) welcome: bool,
    /// It is in the list of peers that a message must be sent to.
    pub(super) queued: bool,
    /// Nothing was sent to it since this was set.
    pub(super) quiet: bool,
    /// What went wrong last.
    pub(super) trouble: Option<String>,
    /// Its process, where that is one of this host.
    pub(super) process: Option<(u32, u64)>,
    /// The process was gone at the last check: what it sent before is still read.
    pub(super) dying: bool,
    coming: Option<Coming>,
}

pub(super) enum Phase {
    /// A link is being made: when the next hello goes, and when to give up (nanoseconds of the monotonic clock).
    Linking {
        ask: u64,
        until: u64,
    },
    Up,
    Down(LinkError),
}

/// A long frame of which a part is here.
struct Coming {
    head: Vec<u8>,
    len: usize,
    got: usize,
    placement: Placement,
}

/// Why a link is over.
pub(super) enum End {
    /// The peer sent a close.
    Closed,
    /// The peer did something that makes no sense.
    Corrupt(&'static str),
}

impl Peer {
    pub(super) fn new(node: NodeId, name: &[u8], at: u64, until: u64) -> Self {
        Self {
            node,
            name: name.to_vec(),
            at,
            session: madrigal_sys::process::random(),
            link_id: None,
            phase: Phase::Linking { ask: 0, until },
            credits: WINDOW,
            owed: 0,
            welcome: false,
            queued: false,
            quiet: false,
            trouble: None,
            process: None,
            dying: false,
            coming: None,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up)
    }

    /// Whether its process was gone at the last two calls.
    pub(super) fn is_dead(&mut self) -> bool {
        let gone = self.process.is_some_and(|(pid, start)| !process::alive(pid, start));
        core::mem::replace(&mut self.dying, gone) && gone
    }

    /// Ends it: no memory it was lent is touched any more. False: it had ended.
    pub(super) fn end(&mut self, why: LinkError) -> bool {
        if matches!(self.phase, Phase::Down(_)) {
            return false;
        }
        self.phase = Phase::Down(why);
        self.coming = None;
        true
    }

    /// Whether the messages taken should be reported to it soon.
    pub(super) fn is_owed(&self) -> bool {
        self.is_up() && self.owed >= WINDOW / 2
    }

    /// A message came, whose head named this link.
    #[inline]
    pub(super) fn handle(&mut self, link: LinkIndex, head: &Head, rest: &[u8], sink: &mut dyn Sink) -> Result<(), End> {
        self.credits = match self.credits.checked_add(head.credit) {
            Some(credits) if credits <= WINDOW => credits,
            _ => return Err(End::Corrupt("it took more than was sent")),
        };
        if head.kind.is_counted() {
            self.owed += 1;
            if self.owed > WINDOW {
                return Err(End::Corrupt("it sent more than it may"));
            }
        }
        match head.kind {
            Kind::Frame => {
                let (frame, body) = split(head, rest)?;
                if body.len() > SHORT || self.coming.is_some() {
                    return Err(End::Corrupt("a frame where none may be"));
                }
                sink.frame(link, frame, body);
                Ok(())
            }
            Kind::Begin => self.begin(link, head, rest, sink),
            Kind::More => self.land(link, rest, sink),
            Kind::Bye => Err(End::Closed),
            Kind::Credit | Kind::Ping | Kind::Hello | Kind::Welcome => Ok(()),
        }
    }

    fn begin(&mut self, link: LinkIndex, head: &Head, rest: &[u8], sink: &mut dyn Sink) -> Result<(), End> {
        let (frame, body) = split(head, rest)?;
        let len = usize::try_from(head.len).ok().filter(|_| head.len <= LONGEST);
        let len = len.ok_or(End::Corrupt("a frame of no length"))?;
        if self.coming.is_some() || body.is_empty() {
            return Err(End::Corrupt("a frame inside another"));
        }
        let mut coming = Coming { head: frame.to_vec(), len, got: 0, placement: Placement::new() };
        sink.place(link, frame, len, &mut coming.placement);
        self.coming = Some(coming);
        self.land(link, body, sink)
    }

    fn land(&mut self, link: LinkIndex, body: &[u8], sink: &mut dyn Sink) -> Result<(), End> {
        let coming = self.coming.as_mut().ok_or(End::Corrupt("the rest of nothing"))?;
        if body.len() > coming.len - coming.got {
            return Err(End::Corrupt("a frame longer than it is"));
        }
        piece::scatter(&coming.placement, coming.got, body);
        coming.got += body.len();
        if coming.got == coming.len
            && let Some(done) = self.coming.take()
        {
            sink.arrived(link, &done.head);
        }
        Ok(())
    }
}

fn split<'a>(head: &Head, rest: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), End> {
    let len = usize::from(head.head);
    rest.split_at_checked(len).filter(|_| len <= MAX_HEAD).ok_or(End::Corrupt("a frame without its head"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Received(Vec<(Vec<u8>, Vec<u8>)>, Vec<u8>);

    impl Sink for Received {
        fn up(&mut self, _link: LinkIndex, _node: NodeId) {}
        fn down(&mut self, _link: LinkIndex, _why: LinkError) {}
        fn frame(&mut self, _link: LinkIndex, head: &[u8], body: &[u8]) {
            self.0.push((head.to_vec(), body.to_vec()));
        }
        fn place(&mut self, _link: LinkIndex, _head: &[u8], _len: usize, _placement: &mut Placement) {}
        fn arrived(&mut self, _link: LinkIndex, head: &[u8]) {
            self.1.extend(head);
        }
    }

    fn peer() -> Peer {
        let mut peer = Peer::new(NodeId::new(1).unwrap(), b"x", 0, 0);
        peer.phase = Phase::Up;
        peer
    }

    fn handle(peer: &mut Peer, received: &mut Received, head: Head, rest: &[u8]) -> bool {
        peer.handle(LinkIndex(0), &head, rest, received).is_ok()
    }

    fn head(kind: Kind) -> Head {
        Head { head: 2, len: 10, ..Head::new(kind, LinkId::default()) }
    }

    #[test]
    fn frames_come_whole_or_piece_by_piece() {
        let (mut peer, mut received) = (peer(), Received::default());
        assert!(handle(&mut peer, &mut received, head(Kind::Frame), b"hdbody"));
        assert_eq!(received.0, [(b"hd".to_vec(), b"body".to_vec())]);
        assert!(handle(&mut peer, &mut received, head(Kind::Begin), b"HD01234"));
        assert!(received.1.is_empty());
        assert!(handle(&mut peer, &mut received, head(Kind::More), b"56789"));
        assert_eq!(received.1, b"HD");
        assert_eq!(peer.owed, 3);
    }

    #[test]
    fn nonsense_is_refused() {
        let begun = |then: Head, rest: &[u8]| {
            let (mut peer, mut received) = (peer(), Received::default());
            assert!(handle(&mut peer, &mut received, head(Kind::Begin), b"HD01234"));
            handle(&mut peer, &mut received, then, rest)
        };
        assert!(!begun(head(Kind::Begin), b"HD0"), "a frame in another");
        assert!(!begun(head(Kind::Frame), b"HD0"), "a frame in another");
        assert!(!begun(head(Kind::More), b"567890"), "too long");
        let fresh = |head: Head, rest: &[u8]| handle(&mut peer(), &mut Received::default(), head, rest);
        assert!(!fresh(head(Kind::More), b"0"), "nothing began");
        assert!(!fresh(head(Kind::Frame), b"H"), "half a head");
        assert!(!fresh(Head { head: 65, ..head(Kind::Frame) }, &[0; 100]), "a long head");
        assert!(!fresh(Head { head: 0, ..head(Kind::Frame) }, &vec![0; SHORT + 1]), "a long body");
        assert!(!fresh(Head { len: u64::MAX, ..head(Kind::Begin) }, b"HD0"), "no such length");
        assert!(!fresh(Head { credit: 1, ..head(Kind::Credit) }, b""), "nothing was sent");
        let (mut peer, mut received) = (peer(), Received::default());
        let taken = (0..100).take_while(|_| handle(&mut peer, &mut received, head(Kind::Frame), b"HD")).count();
        assert_eq!(taken, usize::from(WINDOW), "more than it may send");
    }
}

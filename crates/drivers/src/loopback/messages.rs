//! Messages inside one process: of a node to itself, and between nodes that live in one process.
//!
//! A node has one bounded inbox; a name of a node is known to the whole process. Frames are copied into the inbox and from there to
//! where they go.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, OnceLock};

use madrigal_base::ids::Reach;
use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_progress::bell::Bell;
use madrigal_progress::driver::{Facts, Place, Signal};
use madrigal_progress::message::{
    Explained, LinkError, LinkIndex, MAX_HEAD, MessageDriver, Placement, Port, Sent, Sink,
};
use madrigal_sys::piece;

use super::lock::lock;
use super::{Loopback, NAME, TAKES};

/// Bodies above this are received where the layer above wants them.
const SHORT: usize = 4096;
/// Frames an inbox holds, ...
const FRAMES: usize = 1024;
/// ... and the bytes after which it takes no more.
const BYTES: usize = 1 << 20;
/// Frames taken in one poll.
const BATCH: usize = 64;
/// Buffers kept to be used again.
const SPARE: usize = 64;

impl MessageDriver for Loopback {
    fn name(&self) -> &'static str {
        NAME
    }

    fn facts(&self) -> Facts {
        Facts { reach: Reach::Process, one_user: true, takes: TAKES }
    }

    fn usable(&self, _place: &Place) -> Result<(), String> {
        Ok(())
    }

    fn open(&self, me: NodeId, _place: &Place) -> Result<Box<dyn Port>, String> {
        let bell = Bell::new().map_err(|errno| format!("no eventfd: {errno}"))?;
        let inbox = Arc::new(Inbox { queue: Mutex::default(), waiting: AtomicUsize::new(0), bell });
        let mut nodes = lock(nodes());
        if nodes.contains_key(&me) {
            return Err(format!("node {me} is open already"));
        }
        nodes.insert(me, Arc::clone(&inbox));
        let (links, fresh, known, placement) = (Vec::new(), Vec::new(), HashMap::new(), Vec::new());
        Ok(Box::new(LoopbackPort { me, inbox, links, fresh, known, placement }))
    }
}

/// The nodes of this process.
fn nodes() -> &'static Mutex<HashMap<NodeId, Arc<Inbox>>> {
    static NODES: OnceLock<Mutex<HashMap<NodeId, Arc<Inbox>>>> = OnceLock::new();
    NODES.get_or_init(Mutex::default)
}

/// Where frames for one node wait.
struct Inbox {
    queue: Mutex<Queue>,
    /// How many items there are, so that polling an empty inbox needs no lock. Changed under the lock.
    waiting: AtomicUsize,
    bell: Bell,
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    bytes: usize,
    spare: Vec<Vec<u8>>,
    armed: bool,
    closed: bool,
}

struct Item {
    from: NodeId,
    what: What,
}

enum What {
    /// The sender linked us.
    Hello,
    /// A frame: the head's length, head and body.
    Frame(usize, Vec<u8>),
    /// The sender closed.
    Bye,
}

impl Inbox {
    /// Adds an item whatever the bounds, and wakes the owner. False: it closed.
    fn add(&self, item: Item) -> bool {
        let mut queue = lock(&self.queue);
        if queue.closed {
            return false;
        }
        self.put(&mut queue, item);
        true
    }

    /// Adds an item and wakes the owner.
    fn put(&self, queue: &mut Queue, item: Item) {
        queue.items.push_back(item);
        // SYNC: Release pairs with the Acquire in `is_empty`; the items themselves are ordered by the lock.
        self.waiting.store(queue.items.len(), Ordering::Release);
        if core::mem::take(&mut queue.armed) {
            self.bell.ring();
        }
    }

    /// Whether nothing waits, as far as it is known here: the next poll sees what comes meanwhile, or it rings.
    #[inline]
    fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0
    }

    fn take(&self) -> Option<Item> {
        let mut queue = lock(&self.queue);
        let item = queue.items.pop_front()?;
        self.waiting.store(queue.items.len(), Ordering::Release);
        if let What::Frame(_, bytes) = &item.what {
            queue.bytes -= bytes.len();
        }
        Some(item)
    }
}

struct Peer {
    id: NodeId,
    inbox: Option<Arc<Inbox>>,
    /// [`Sink::up`] was called.
    up: bool,
    down: bool,
}

struct LoopbackPort {
    me: NodeId,
    inbox: Arc<Inbox>,
    links: Vec<Peer>,
    /// Links that were not reported when they were made.
    fresh: Vec<LinkIndex>,
    known: HashMap<NodeId, LinkIndex>,
    placement: Placement,
}

impl LoopbackPort {
    /// The link of a node; a new one if there was none, or the last is down.
    fn link_of(&mut self, id: NodeId) -> LinkIndex {
        let known = self.known.get(&id).filter(|link| !self.links[link.0 as usize].down);
        if let Some(&link) = known {
            return link;
        }
        let inbox = lock(nodes()).get(&id).cloned();
        let link = LinkIndex(self.links.len() as u32);
        self.links.push(Peer { id, inbox, up: false, down: false });
        self.fresh.push(link);
        self.known.insert(id, link);
        link
    }

    /// Whether the layer above has yet to get the report that a link is up.
    fn is_fresh(&self, link: LinkIndex) -> bool {
        self.links.get(link.0 as usize).is_some_and(|peer| !peer.up && !peer.down)
    }

    fn report_up(&mut self, link: LinkIndex, sink: &mut dyn Sink) {
        let peer = &mut self.links[link.0 as usize];
        if !peer.up {
            peer.up = true;
            sink.up(link, peer.id);
        }
    }

    fn deliver(&mut self, item: Item, sink: &mut dyn Sink) {
        // What a node sent before it knew that its link was cut.
        let was_cut = self.known.get(&item.from).is_some_and(|link| self.links[link.0 as usize].down);
        if was_cut && !matches!(item.what, What::Hello) {
            return;
        }
        let link = self.link_of(item.from);
        self.report_up(link, sink);
        match item.what {
            What::Hello => {}
            What::Frame(split, bytes) => {
                let (head, body) = bytes.split_at(split);
                if body.len() <= SHORT {
                    sink.frame(link, head, body);
                } else {
                    self.placement.clear();
                    sink.place(link, head, body.len(), &mut self.placement);
                    piece::scatter(&self.placement, 0, body);
                    sink.arrived(link, head);
                }
                self.keep(bytes);
            }
            What::Bye => {
                let peer = &mut self.links[link.0 as usize];
                peer.down = true;
                peer.inbox = None;
                sink.down(link, LinkError::Gone { node: peer.id, why: "it closed".into() });
            }
        }
    }

    fn keep(&self, mut bytes: Vec<u8>) {
        let mut queue = lock(&self.inbox.queue);
        if queue.spare.len() < SPARE && bytes.capacity() <= SHORT + MAX_HEAD {
            bytes.clear();
            queue.spare.push(bytes);
        }
    }
}

impl Port for LoopbackPort {
    fn publish(&self, _address: &mut NodeAddress) {}

    fn link(&mut self, to: &NodeAddress) -> Result<LinkIndex, String> {
        if !lock(nodes()).contains_key(&to.id) {
            return Err(format!("node {} is in another process", to.id));
        }
        let link = self.link_of(to.id);
        if to.id != self.me
            && let Some(inbox) = &self.links[link.0 as usize].inbox
        {
            inbox.add(Item { from: self.me, what: What::Hello });
        }
        Ok(link)
    }

    fn send(&mut self, link: LinkIndex, head: &[u8], body: &[IoSlice<'_>], skip: usize) -> Result<Sent, LinkError> {
        let unknown = || LinkError::Gone { node: self.me, why: "no such link".into() };
        let peer = self.links.get(link.0 as usize).ok_or_else(unknown)?;
        let gone = || LinkError::Gone { node: peer.id, why: "it closed".into() };
        let inbox = peer.inbox.as_ref().ok_or_else(gone)?;
        if !peer.up || skip != 0 {
            return Ok(Sent::Part(0));
        }
        let len = head.len() + body.iter().map(|piece| piece.len()).sum::<usize>();
        let mut queue = lock(&inbox.queue);
        if queue.closed {
            return Err(gone());
        }
        if queue.items.len() >= FRAMES || queue.bytes >= BYTES {
            return Ok(Sent::Part(0));
        }
        let mut bytes = queue.spare.pop().unwrap_or_default();
        bytes.reserve(len);
        bytes.extend_from_slice(head);
        body.iter().for_each(|piece| bytes.extend_from_slice(piece));
        queue.bytes += len;
        inbox.put(&mut queue, Item { from: self.me, what: What::Frame(head.len(), bytes) });
        Ok(Sent::All)
    }

    fn poll(&mut self, sink: &mut dyn Sink) -> usize {
        if self.fresh.is_empty() && self.inbox.is_empty() {
            return 0;
        }
        let mut count = 0;
        for link in core::mem::take(&mut self.fresh) {
            if self.is_fresh(link) {
                count += 1;
                self.report_up(link, sink);
            }
        }
        while count < BATCH {
            let Some(item) = self.inbox.take() else { break };
            self.deliver(item, sink);
            count += 1;
        }
        count
    }

    fn short(&self) -> usize {
        SHORT
    }

    fn cut(&mut self, link: LinkIndex) {
        let Some(peer) = self.links.get_mut(link.0 as usize).filter(|peer| !peer.down) else { return };
        peer.down = true;
        if let Some(inbox) = peer.inbox.take()
            && peer.id != self.me
        {
            inbox.add(Item { from: self.me, what: What::Bye });
        }
    }

    fn arm(&mut self) -> bool {
        let mut queue = lock(&self.inbox.queue);
        queue.armed = true;
        !queue.items.is_empty() || self.fresh.iter().any(|link| self.is_fresh(*link))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.inbox.bell.descriptor())
    }

    fn woken(&mut self) {
        self.inbox.bell.woken();
    }

    fn explain(&self, link: LinkIndex) -> Explained {
        let up = self.links.get(link.0 as usize).is_some_and(|peer| peer.up && !peer.down);
        Explained { path: if up { "inside the process".into() } else { String::new() }, rejected: Vec::new() }
    }
}

impl Drop for LoopbackPort {
    fn drop(&mut self) {
        lock(nodes()).remove(&self.me);
        let waiting = {
            let mut queue = lock(&self.inbox.queue);
            queue.closed = true;
            core::mem::take(&mut queue.items)
        };
        drop(waiting);
        for peer in self.links.iter().filter(|peer| peer.id != self.me) {
            if let Some(inbox) = &peer.inbox {
                inbox.add(Item { from: self.me, what: What::Bye });
            }
        }
    }
}

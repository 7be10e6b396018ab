//! Messages inside one process: of a node to itself, and between nodes that live in one process.
//!
//! A node has one bounded inbox; a name of a node is known to the whole process. Frames are copied into the inbox and from there to
//! where they go.

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, OnceLock};

use madrigal_base::ids::Reach;
use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_netaccess::driver::{Facts, Place, Signal};
use madrigal_netaccess::message::{Explained, Landing, Link, LinkError, MAX_HEAD, MessageDriver, Port, Sent, Sink};
use madrigal_sys::piece;

use super::{Bell, Loopback, NAME, TAKES, lock};

/// Bodies above this are received where the layer above wants them.
const SHORT: usize = 4096;
/// Frames an inbox holds, ...
const FRAMES: usize = 1024;
/// ... and the bytes after which it takes no more.
const BYTES: usize = 1 << 20;
/// Frames looked at in one poll.
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
        let inbox = Arc::new(Inbox { queue: Mutex::default(), bell });
        let mut nodes = lock(nodes());
        if nodes.contains_key(&me) {
            return Err(format!("node {me} is open already"));
        }
        nodes.insert(me, Arc::clone(&inbox));
        Ok(Box::new(LoopbackPort { me, inbox, links: Vec::new(), known: HashMap::new(), landing: Vec::new() }))
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
    /// Adds an item whatever the bounds say, and wakes the owner. False: it closed.
    fn add(&self, item: Item) -> bool {
        let mut queue = lock(&self.queue);
        if queue.closed {
            return false;
        }
        queue.items.push_back(item);
        self.wake(&mut queue);
        true
    }

    fn wake(&self, queue: &mut Queue) {
        if core::mem::take(&mut queue.armed) {
            self.bell.ring();
        }
    }
}

impl Queue {
    fn take(&mut self) -> Option<Item> {
        let item = self.items.pop_front()?;
        if let What::Frame(_, bytes) = &item.what {
            self.bytes -= bytes.len();
        }
        Some(item)
    }
}

struct Peer {
    id: NodeId,
    inbox: Option<Arc<Inbox>>,
    /// [`Sink::up`] was told.
    up: bool,
    down: bool,
}

struct LoopbackPort {
    me: NodeId,
    inbox: Arc<Inbox>,
    links: Vec<Peer>,
    known: HashMap<NodeId, Link>,
    landing: Landing,
}

impl LoopbackPort {
    /// The link of a node; a new one if there was none, or the last is down.
    fn link_of(&mut self, id: NodeId) -> Link {
        let known = self.known.get(&id).filter(|link| !self.links[link.0 as usize].down);
        if let Some(&link) = known {
            return link;
        }
        let inbox = lock(nodes()).get(&id).cloned();
        let link = Link(self.links.len() as u32);
        self.links.push(Peer { id, inbox, up: false, down: false });
        self.known.insert(id, link);
        link
    }

    fn tell_up(&mut self, link: Link, sink: &mut dyn Sink) {
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
        self.tell_up(link, sink);
        match item.what {
            What::Hello => {}
            What::Frame(split, bytes) => {
                let (head, body) = bytes.split_at(split);
                if body.len() <= SHORT {
                    sink.frame(link, head, body);
                } else {
                    self.landing.clear();
                    sink.place(link, head, body.len(), &mut self.landing);
                    piece::scatter(&self.landing, 0, body);
                    sink.landed(link, head);
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

    fn link(&mut self, to: &NodeAddress) -> Result<Link, String> {
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

    fn send(&mut self, link: Link, head: &[u8], body: &[IoSlice<'_>], skip: usize) -> Result<Sent, LinkError> {
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
        queue.items.push_back(Item { from: self.me, what: What::Frame(head.len(), bytes) });
        inbox.wake(&mut queue);
        Ok(Sent::All)
    }

    fn poll(&mut self, sink: &mut dyn Sink) -> usize {
        let mut count = 0;
        for i in 0..self.links.len() {
            if !self.links[i].up && !self.links[i].down {
                count += 1;
                self.tell_up(Link(i as u32), sink);
            }
        }
        while count < BATCH {
            let Some(item) = lock(&self.inbox.queue).take() else { break };
            self.deliver(item, sink);
            count += 1;
        }
        count
    }

    fn short(&self) -> usize {
        SHORT
    }

    fn cut(&mut self, link: Link) {
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
        !queue.items.is_empty() || self.links.iter().any(|peer| !peer.up && !peer.down)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.inbox.bell.0.as_fd())
    }

    fn woken(&mut self) {
        self.inbox.bell.woken();
    }

    fn explain(&self, link: Link) -> Explained {
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

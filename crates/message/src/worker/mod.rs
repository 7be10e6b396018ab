//! The worker: a process's ports, the nodes it knows, and the progress of everything that is on its way.
//!
//! ```text
//!   Endpoint (matching, memory) ..   Endpoint        channels of one worker
//!        \          |           /
//!         Worker: nodes and their states; what waits for each; operations on their way
//!        /          |          \
//!    loopback      shm         tcp                  ports, nearest reach first
//! ```
//! A node is linked when something is first sent to it, by the first driver that can; if that fails, by the next. There is no thread:
//! callers make progress. Everything lies behind one lock, which costs a compare-exchange if it is free.

mod answers;
mod export;
mod flush;
mod idle;
mod long;
pub(crate) mod out;
pub(crate) mod sink;
mod stacked;
mod stacks;
pub(crate) mod state;
mod wait;
mod yields;

use core::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use madrigal_base::ids::Reach;
use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_progress::driver::Place;
use madrigal_progress::message::{LinkError, LinkIndex, MessageDriver, Port};
use madrigal_progress::wait::WaitPolicy;
use madrigal_sys::spin_lock::{SpinGuard, SpinLock};
use madrigal_sys::time;

use crate::endpoint::credit::{Credit, MAX_KEPT};
pub use answers::Polls;
use idle::Idle;
use sink::EventSink;
pub use stacks::MakeStack;
use stacks::Stacks;
use state::{NodeState, State, new_id};

/// Bodies up to this many bytes are sent eagerly, inside a host and between hosts.
const EAGER_NEAR: usize = 32 << 10;
const EAGER_FAR: usize = 64 << 10;
/// How long a worker that is closed goes on sending what it took before.
const CLOSE_NS: u64 = 5_000_000_000;
/// A port at which nothing came for so many polls is polled less often while others are busy: ...
const QUIET: u32 = 256;
/// ... once in so many rounds.
const SELDOM: u32 = 16;

/// What a worker is made of.
#[derive(Clone)]
pub struct Options<'a> {
    /// The drivers it may use, nearest reach first. One that reaches this process itself should be among them.
    pub drivers: &'a [&'a dyn MessageDriver],
    /// Where it runs.
    pub place: Place,
    /// The longest spin of a waiter, in nanoseconds.
    pub max_spin_ns: u64,
}

/// Why there is no worker.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No driver works here.
    #[error("no driver of messages works here: {0}")]
    NoDriver(String),
    /// Every channel is in use.
    #[error("all 65,536 channels are in use")]
    NoChannel,
    /// A stack that messages cannot have.
    #[error("{stack}: {why}")]
    Stack {
        /// Where it was given, and what.
        stack: String,
        /// Why not.
        why: String,
    },
}

/// The ports of a process and all that goes over them.
pub struct Worker {
    core: SpinLock<Core>,
    idle: Arc<Idle>,
    policy: WaitPolicy,
    address: NodeAddress,
    place: Place,
    stacks: Mutex<Stacks>,
}

/// What the lock is for.
pub(crate) struct Core {
    id: NodeId,
    /// The ids of drivers that were opened for a stack: this process, too.
    further: Vec<NodeId>,
    pub(crate) ports: Vec<PortSlot>,
    pub(crate) state: State,
    /// Drivers that were not opened, and why.
    refused: Vec<(String, String)>,
    /// How often it has progressed.
    passes: u32,
    next_channel: u16,
}

pub(crate) struct PortSlot {
    pub(crate) name: &'static str,
    pub(crate) port: Box<dyn Port>,
    /// Bodies up to this many bytes are sent eagerly, ...
    pub(crate) eager: usize,
    /// ... and up to so many where receives may wait for them, so that they need not be copied.
    pub(crate) unasked: usize,
    /// Polls since something came.
    quiet: u32,
    /// Its peers are on this host.
    near: bool,
}

impl PortSlot {
    fn new(driver: &dyn MessageDriver, port: Box<dyn Port>) -> Self {
        let eager = if is_near(driver) { EAGER_NEAR } else { EAGER_FAR }.max(port.short());
        let unasked = eager.max(port.unasked()).min(MAX_KEPT);
        Self { name: driver.name(), port, eager, unasked, quiet: 0, near: is_near(driver) }
    }
}

/// Whether its peers are on this host.
fn is_near(driver: &dyn MessageDriver) -> bool {
    driver.facts().reach != Reach::Network
}

/// A group of regions: keys are unique in it, and an endpoint gives access to those of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space(pub(crate) u32);

/// A node, for reports to users.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reached {
    /// The node.
    pub node: NodeId,
    /// The driver that carries what we send, and how; `None` while nothing does.
    pub path: Option<(&'static str, String)>,
    /// What was tried and rejected, and why.
    pub rejected: Vec<(String, String)>,
    /// Why it cannot be reached, or is gone.
    pub why: Option<LinkError>,
    /// Frames sent.
    pub sent: u64,
    /// Frames received.
    pub received: u64,
}

impl Worker {
    /// Opens every driver that works here.
    pub fn open(options: &Options<'_>) -> Result<Arc<Self>, OpenError> {
        let id = new_id().ok_or_else(|| OpenError::NoDriver("no random number".into()))?;
        let (mut ports, mut refused) = (Vec::new(), Vec::new());
        for driver in options.drivers {
            let opened = driver.usable(&options.place).and_then(|()| driver.open(id, &options.place));
            match opened {
                Ok(port) => ports.push(PortSlot::new(*driver, port)),
                Err(why) => refused.push((driver.name().to_owned(), why)),
            }
        }
        if ports.is_empty() {
            let text: Vec<_> = refused.iter().map(|(name, why)| format!("{name}: {why}")).collect();
            return Err(OpenError::NoDriver(text.join("; ")));
        }
        let mut address = NodeAddress::bare(id);
        ports.iter().for_each(|slot| slot.port.publish(&mut address));
        let idle = Arc::new(Idle::default());
        let links = ports.iter().map(|_| Vec::new()).collect();
        let near = ports.iter().map(|slot: &PortSlot| slot.near).collect();
        let mut state = State { links, near, idle: Arc::clone(&idle), ..State::default() };
        let names: Vec<_> = ports.iter().map(|slot| slot.name).collect();
        state.publish_own(&address, &names, &refused);
        let core = Core { id, further: Vec::new(), ports, state, refused, passes: 0, next_channel: 0 };
        let policy = WaitPolicy::new();
        policy.set_max_spin_ns(options.max_spin_ns);
        let (place, stacks) = (options.place.clone(), Mutex::default());
        Ok(Arc::new(Self { core: SpinLock::new(core), idle, policy, address, place, stacks }))
    }

    /// Our own node and addresses.
    pub fn address(&self) -> &NodeAddress {
        &self.address
    }

    /// A new group of regions.
    pub fn space(&self) -> Space {
        let spaces = &mut self.core().state.spaces;
        spaces.push(std::collections::HashMap::new());
        Space(spaces.len() as u32 - 1)
    }

    /// Polls every port, sends what waits; returns how much there was.
    #[inline]
    pub fn progress(&self) -> usize {
        self.core().progress()
    }

    /// The nodes that are known.
    pub fn reached(&self) -> Vec<Reached> {
        let core = self.core();
        core.state.nodes.iter().map(|node| core.describe(node)).collect()
    }

    /// Nodes that could not be reached, or did not answer, since the last call: where each should be, and why.
    pub fn lost(&self) -> Vec<(NodeAddress, LinkError)> {
        let mut core = self.core();
        let lost = core::mem::take(&mut core.state.lost);
        let address = |node: u32| core.state.nodes.get(node as usize)?.address.clone();
        lost.into_iter().filter_map(|(node, why)| Some((address(node)?, why))).collect()
    }

    #[inline]
    pub(crate) fn core(&self) -> SpinGuard<'_, Core> {
        self.core.lock()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // What was taken from callers is sent, if that can be done soon.
        self.flush(Some(time::now_ns() + CLOSE_NS));
    }
}

impl Core {
    /// A channel that is not in use; those that were closed come last.
    pub(crate) fn free_channel(&mut self) -> Option<u16> {
        for _ in 0..=u16::MAX {
            let channel = self.next_channel;
            self.next_channel = channel.wrapping_add(1);
            if self.state.endpoint(channel).is_none() {
                return Some(channel);
            }
        }
        None
    }

    /// One more port, under a node id of its own.
    fn add(&mut self, slot: PortSlot, id: NodeId) {
        self.state.links.push(Vec::new());
        self.state.near.push(slot.near);
        self.ports.push(slot);
        self.further.push(id);
    }

    /// Whether it is a node of this process.
    pub(crate) fn is_own(&self, id: NodeId) -> bool {
        self.id == id || self.further.contains(&id)
    }

    fn describe(&self, node: &state::Node) -> Reached {
        let mut reached = Reached {
            node: node.id,
            path: None,
            rejected: node.rejected.clone(),
            why: node.why.clone(),
            sent: node.counters().sent.load(Ordering::Relaxed),
            received: node.counters().received.load(Ordering::Relaxed),
        };
        if let NodeState::Up { port, link } | NodeState::Linking { port, link } = node.state {
            let slot = &self.ports[port];
            let explained = slot.port.explain(link);
            reached.rejected.extend(explained.rejected);
            reached.path = matches!(node.state, NodeState::Up { .. }).then_some((slot.name, explained.path));
        }
        reached
    }

    /// Links a node that has no way yet: by the nearest port that takes it. `Err`: there is none.
    pub(crate) fn link(&mut self, node: u32) -> Result<(), LinkError> {
        let to = &mut self.state.nodes[node as usize];
        let Some(address) = to.address.clone() else {
            return Err(LinkError::Unreachable {
                node: to.id,
                tried: "its address is not known".into(),
                absent: false,
            });
        };
        while let Some(slot) = self.ports.get_mut(self.state.nodes[node as usize].tried) {
            let to = &mut self.state.nodes[node as usize];
            let port = to.tried;
            match slot.port.link(&address) {
                Ok(link) => {
                    self.linked(node, port, link);
                    return Ok(());
                }
                Err(why) => {
                    to.rejected.push((slot.name.to_owned(), why));
                    to.tried += 1;
                    self.state.stale.push(node);
                }
            }
        }
        let to = &mut self.state.nodes[node as usize];
        Err(to.why.take().unwrap_or_else(|| {
            // No port takes it; one that could not be opened might have.
            let all = to.rejected.iter().chain(&self.refused);
            let tried: Vec<_> = all.map(|(name, why)| format!("{name}: {why}")).collect();
            LinkError::Unreachable { node: to.id, tried: tried.join("; "), absent: false }
        }))
    }

    fn linked(&mut self, node: u32, port: usize, link: LinkIndex) {
        let Some(known) = self.state.link(port, link) else { return };
        known.node = node;
        let up = known.up;
        let to = &mut self.state.nodes[node as usize];
        to.state = if up { NodeState::Up { port, link } } else { NodeState::Linking { port, link } };
        if to.id == self.id {
            to.credit = Credit::endless();
        }
        self.ports[port].quiet = 0;
    }

    /// See [`Worker::progress`].
    #[inline]
    pub(crate) fn progress(&mut self) -> usize {
        self.passes = self.passes.wrapping_add(1);
        let mut count = 0;
        let mut busy = false;
        for port in 0..self.ports.len() {
            let slot = &mut self.ports[port];
            // A nearer port is in use: what comes from farther away can wait a little.
            if slot.quiet >= QUIET && busy && !self.passes.is_multiple_of(SELDOM) {
                continue;
            }
            let found = slot.port.poll(&mut EventSink { state: &mut self.state, port });
            slot.quiet = if found > 0 { 0 } else { slot.quiet.saturating_add(1) };
            busy |= slot.quiet < QUIET;
            count += found;
            if !self.state.cuts.is_empty() {
                self.settle();
            }
        }
        if !self.state.stale.is_empty() {
            self.export_status();
        }
        if !self.state.asked.is_empty() && count == 0 {
            self.state.impatient();
        }
        if !self.state.pulls.is_empty() {
            count += self.pull();
        }
        if !self.state.pending.is_empty() {
            count += self.flush_all();
            self.settle();
        }
        if count > 0 {
            self.state.idle.busy();
        }
        count
    }

    /// Cuts the links of nodes that failed, so that no port touches memory after its owner got the completion.
    pub(crate) fn settle(&mut self) {
        while let Some((port, link)) = self.state.cuts.pop() {
            self.ports[port].port.cut(link);
        }
    }
}

//! How often memory is allocated for a short message, there and back, by each driver of messages between hosts, and over stacks.
//!
//! Features (docs/features.md): B20.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering};

use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_progress::message::{LinkError, LinkIndex, MessageDriver, Placement, Port, Sent, Sink};
use madrigal_testkit::watchdog::Watchdog;
use madrigal_testkit::{place, stacked, tidy};

/// Messages each way.
const ROUNDS: u64 = 2_000;

struct Counting;

static COUNT: AtomicU64 = AtomicU64::new(0);

// SAFETY: the system's allocator, beside which only a number is changed.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of this function, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Node {
    id: NodeId,
    port: Box<dyn Port>,
    seen: Seen,
}

#[derive(Default)]
struct Seen {
    up: Option<LinkIndex>,
    frames: u64,
}

impl Sink for Seen {
    fn up(&mut self, link: LinkIndex, _: NodeId) {
        self.up = Some(link);
    }

    fn down(&mut self, _: LinkIndex, why: LinkError) {
        panic!("{why}");
    }

    fn frame(&mut self, _: LinkIndex, _: &[u8], _: &[u8]) {
        self.frames += 1;
    }

    fn place(&mut self, _: LinkIndex, _: &[u8], _: usize, _: &mut Placement) {
        panic!("it is short");
    }

    fn arrived(&mut self, _: LinkIndex, _: &[u8]) {}
}

impl Node {
    fn new(driver: &dyn MessageDriver) -> Self {
        let id = NodeId::new(madrigal_sys::process::random()).expect("random");
        Self { id, port: driver.open(id, &place()).expect("opens"), seen: Seen::default() }
    }

    fn poll(&mut self) {
        self.port.poll(&mut self.seen);
    }
}

/// Sends by one, and polls both until the other has it.
fn carry(from: &mut Node, to: &mut Node) {
    let link = from.seen.up.expect("is linked");
    while from.port.send(link, &[1; 16], &[IoSlice::new(&[2; 64])], 0) != Ok(Sent::All) {
        from.poll();
    }
    let before = to.seen.frames;
    while to.seen.frames == before {
        to.poll();
    }
}

/// Allocations for a message one way, in hundredths.
fn counted(driver: &dyn MessageDriver) -> u64 {
    let (mut near, mut far) = (Node::new(driver), Node::new(driver));
    let mut to = NodeAddress::bare(far.id);
    far.port.publish(&mut to);
    near.port.link(&to).expect("links");
    while near.seen.up.is_none() || far.seen.up.is_none() {
        near.poll();
        far.poll();
    }
    let mut begun = 0;
    for round in 0..2 * ROUNDS {
        if round == ROUNDS {
            begun = COUNT.load(Ordering::Relaxed);
        }
        carry(&mut near, &mut far);
        carry(&mut far, &mut near);
    }
    (COUNT.load(Ordering::Relaxed) - begun) * 100 / (2 * ROUNDS)
}

fn main() {
    let tcp = madrigal::message_driver("tcp").expect("always there");
    let stacks = ["adoc/tcp", "stripe(2)/tcp", "adoc/tls/stripe(2)/tcp"]
        .map(|name| stacked::message_driver(name).expect("a stack"));
    // Hundredths, and some more for what is done now and then: acknowledgements, timers.
    for (driver, most) in std::iter::once(tcp).chain(stacks).zip([0, 550, 560, 780]) {
        let _dog = Watchdog::set(driver.name());
        let count = counted(driver);
        println!("{}: {}.{:02} allocations for a message", driver.name(), count / 100, count % 100);
        assert!(count <= most, "{}: {count} hundredths, and {most} are what it may have", driver.name());
    }
    tidy();
}

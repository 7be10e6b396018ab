//! Peers of a port over a stack that send what no port sends: below the stack, instead of the meeting, and instead of frames. They are cut
//! off with the reason, and others go on.
//!
//! Features (docs/features.md): D7, I8.

use std::io::{IoSlice, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use madrigal::Runtime;
use madrigal::config::Settings;
use madrigal_base::locator::Locator;
use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_progress::message::{LinkError, LinkIndex, Placement, Port, Sent, Sink};
use madrigal_proto::talk::{Next, Talk};
use madrigal_stream::{Below, Stacked, VLink, connect};
use madrigal_testkit::watchdog::Watchdog;
use madrigal_testkit::{place, stacked};

const STACK: &str = "adoc/stripe(2)/tcp";

/// A port, and what it reported.
struct Node {
    id: NodeId,
    port: Box<dyn Port>,
    seen: Seen,
}

#[derive(Default)]
struct Seen {
    up: Vec<(LinkIndex, NodeId)>,
    down: Vec<LinkError>,
    frames: Vec<Vec<u8>>,
}

impl Sink for Seen {
    fn up(&mut self, link: LinkIndex, node: NodeId) {
        self.up.push((link, node));
    }

    fn down(&mut self, _: LinkIndex, why: LinkError) {
        self.down.push(why);
    }

    fn frame(&mut self, _: LinkIndex, head: &[u8], _: &[u8]) {
        self.frames.push(head.to_vec());
    }

    fn place(&mut self, _: LinkIndex, _: &[u8], _: usize, _: &mut Placement) {}

    fn arrived(&mut self, _: LinkIndex, _: &[u8]) {}
}

fn random_id() -> NodeId {
    NodeId::new(madrigal_sys::process::random()).expect("random")
}

impl Node {
    fn new() -> Self {
        let (id, driver) = (random_id(), stacked::messages_over(STACK, madrigal::driver("tcp").expect("always there")));
        Self { id, port: driver.open(id, &place()).expect("opens"), seen: Seen::default() }
    }

    fn poll(&mut self) {
        self.port.poll(&mut self.seen);
    }

    fn address(&self) -> NodeAddress {
        let mut address = NodeAddress::bare(self.id);
        self.port.publish(&mut address);
        address
    }

    fn at(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.address().port))
    }

    /// Another port links with it, and a frame arrives.
    fn still_serves(&mut self) {
        let mut friend = Self::new();
        let link = friend.port.link(&self.address()).expect("links");
        self.seen.frames.clear();
        while friend.port.send(link, b"friendly", &[IoSlice::new(b"body")], 0) != Ok(Sent::All) {
            friend.poll();
            self.poll();
        }
        while self.seen.frames.is_empty() {
            friend.poll();
            self.poll();
        }
        assert_eq!(self.seen.frames, [b"friendly"]);
    }
}

/// A program with a link of the same stack, and no port.
struct Program {
    runtime: Runtime,
    link: VLink,
}

impl Program {
    fn connect(node: &mut Node) -> Self {
        let runtime =
            Runtime::with_settings(&Settings { dir: place().directory, ..Settings::default() }).expect("starts");
        let below = madrigal::driver("tcp").expect("always there");
        let stack = Stacked::new(runtime.engine(), Below::Known(below), STACK.parse().expect("a stack"), None)
            .expect("a stack of links");
        let mut op = connect(runtime.engine(), &stack, &Locator::inet("tcp", node.at()), &place());
        let link = loop {
            node.poll();
            if let core::task::Poll::Ready(link) = op.poll() {
                break link.expect("connects");
            }
        };
        Self { runtime, link }
    }

    /// Writes bytes; nothing where the link is over.
    fn write(&self, bytes: &[u8], node: &mut Node) {
        let mut op = self.link.write(bytes.to_vec());
        while op.poll().is_pending() {
            node.poll();
        }
    }

    fn read(&self, count: usize, node: &mut Node) -> Vec<u8> {
        let mut read = Vec::new();
        while read.len() < count {
            let mut op = self.link.read(vec![0; count - read.len()]);
            let filled = loop {
                node.poll();
                if let core::task::Poll::Ready(filled) = op.poll() {
                    break filled.expect("reads");
                }
            };
            assert_ne!(filled.len, 0, "an answer");
            read.extend(filled.bytes());
        }
        read
    }

    /// Whether the port has closed the link.
    fn is_closed(&self, node: &mut Node) -> bool {
        let mut op = self.link.read(vec![0; 100]);
        for _ in 0..2_000_000 {
            node.poll();
            self.runtime.do_work();
            if let core::task::Poll::Ready(read) = op.poll() {
                return read.map_or(true, |filled| filled.len == 0);
            }
        }
        false
    }

    /// Becomes a node's only link with the port.
    fn meet(&self, me: NodeId, node: &mut Node) {
        let (mut talk, hello) = Talk::call(me, node.id, 77);
        self.write(&hello, node);
        loop {
            let bytes = self.read(talk.wants(), node);
            let mut out = Vec::new();
            match talk.take(&bytes, &mut out).expect("the node itself") {
                Next::Choose => {
                    talk.go(&mut out);
                    self.write(&out, node);
                    return;
                }
                Next::Chosen => return,
                Next::Answered => self.write(&out, node),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn below_the_stack_nothing_but_a_greeting_is_heard() {
    let _dog = Watchdog::set("below_the_stack");
    let mut node = Node::new();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 5000], b"\x05\0hello", b""] {
        let mut peer = TcpStream::connect(node.at()).expect("connects");
        peer.write_all(bytes).expect("writes");
        drop(peer.shutdown(std::net::Shutdown::Write));
        peer.set_nonblocking(true).expect("a socket");
        let mut rest = [0; 1000];
        loop {
            node.poll();
            match peer.read(&mut rest) {
                Ok(1..) => {}
                Ok(0) => break,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
    }
    node.still_serves();
    assert_eq!(node.seen.up.len(), 1, "only the friend");
}

#[test]
fn who_does_not_know_the_node_gets_no_answer() {
    let _dog = Watchdog::set("who_does_not_know");
    let mut node = Node::new();
    let program = Program::connect(&mut node);
    let (_, hello) = Talk::call(random_id(), random_id(), 1);
    program.write(&hello, &mut node);
    assert!(program.is_closed(&mut node));
    let program = Program::connect(&mut node);
    program.write(&[7; 100], &mut node);
    assert!(program.is_closed(&mut node));
    node.still_serves();
    assert_eq!(node.seen.up.len(), 1, "only the friend");
}

#[test]
fn what_is_no_frame_ends_its_link_only() {
    let _dog = Watchdog::set("what_is_no_frame");
    let mut node = Node::new();
    let word = |head: u64, body: u64| (0xA7 | head << 8 | body << 16).to_le_bytes();
    for (bytes, told) in [
        (b"no frame".to_vec(), "no frame begins with"),
        (word(65, 0).to_vec(), "a head of 65"),
        (word(0, (1 << 48) - 1).to_vec(), "a head of 0 and a body of"),
        // Behind whole ones.
        ([&word(1, 3)[..], b"habc", &[0xA8; 8]].concat(), "no frame begins with the byte 0xa8"),
    ] {
        let (program, me) = (Program::connect(&mut node), random_id());
        program.meet(me, &mut node);
        program.write(&bytes, &mut node);
        while node.seen.down.is_empty() {
            node.poll();
        }
        let down = node.seen.down.remove(0);
        assert!(matches!(&down, LinkError::Corrupt { node, what } if *node == me && what.contains(told)), "{down}");
        assert!(program.is_closed(&mut node));
    }
    // One that ends in the middle of a long body.
    let (program, me) = (Program::connect(&mut node), random_id());
    program.meet(me, &mut node);
    program.write(&[&word(0, 1 << 40)[..], &[1; 100_000]].concat(), &mut node);
    drop(program.link.close());
    while node.seen.down.is_empty() {
        node.poll();
        program.runtime.do_work();
    }
    let down = node.seen.down.remove(0).to_string();
    assert!(down.contains("in the middle of a frame"), "{down}");
    node.still_serves();
}

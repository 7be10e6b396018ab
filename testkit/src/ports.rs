//! The contract of `progress::message`, for any driver of messages: ports and links, without the layer above.
//!
//! Features (docs/features.md): A4, A8, B12.

use std::collections::HashMap;
use std::io::IoSlice;

use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_progress::driver::Place;
use madrigal_progress::message::{
    LinkError, LinkIndex, MAX_HEAD, MessageDriver, Placement, Port, Sent, SingleCopy, Sink,
};
use madrigal_sys::piece::Piece;
use rustix::event::{PollFd, PollFlags, poll};

use crate::noise::Noise;
use crate::{Case, place};

/// What a case gets: a driver and where it runs.
pub struct Context {
    driver: &'static dyn MessageDriver,
    place: Place,
}

/// Makes the context for a driver.
pub fn context(driver: &'static dyn MessageDriver) -> Context {
    // Nobody answers some of them.
    let mut place = place();
    place.network.connect_timeout = 6;
    Context { driver, place }
}

/// The suite.
pub static CASES: &[Case<Context>] = &[
    Case { name: "is_usable_here", run: usable },
    Case { name: "carries_both_ways_in_order", run: both_ways },
    Case { name: "who_is_linked_learns_who_came", run: learns },
    Case { name: "a_node_nobody_is_cannot_be_reached", run: nobody },
    Case { name: "heads_and_bodies_of_every_length", run: lengths },
    Case { name: "gathers_the_pieces_of_a_body", run: gathers },
    Case { name: "what_was_taken_is_delivered_before_the_end", run: the_end },
    Case { name: "a_link_that_is_cut_is_silent", run: cut },
    Case { name: "a_link_that_is_full_takes_no_more_until_polled", run: back_pressure },
    Case { name: "what_was_not_placed_is_thrown_away", run: thrown_away },
    Case { name: "a_flood_on_one_link_leaves_room_for_another", run: flood },
    Case { name: "sleepers_are_woken", run: sleepers },
    Case { name: "many_nodes_all_to_all", run: all_to_all },
    Case { name: "single_copies_copy_or_say_no", run: single_copies },
    Case { name: "says_how_a_link_goes", run: explains },
];

/// A frame as it came: its head and its body.
type Frame = (Vec<u8>, Vec<u8>);

/// The events of a port, by link.
#[derive(Default)]
struct Recorder {
    up: HashMap<LinkIndex, NodeId>,
    down: HashMap<LinkIndex, LinkError>,
    frames: HashMap<LinkIndex, Vec<Frame>>,
    placed: HashMap<LinkIndex, Box<[u8]>>,
    /// How many bytes less than asked for are given to place a body in.
    stingy: usize,
}

impl Sink for Recorder {
    fn up(&mut self, link: LinkIndex, node: NodeId) {
        assert_eq!(self.up.insert(link, node), None, "up is told once");
    }

    fn down(&mut self, link: LinkIndex, why: LinkError) {
        self.placed.remove(&link);
        assert_eq!(self.down.insert(link, why), None, "down is told once");
    }

    fn frame(&mut self, link: LinkIndex, head: &[u8], body: &[u8]) {
        assert!(self.up.contains_key(&link) && !self.down.contains_key(&link), "frames come while a link is up");
        self.frames.entry(link).or_default().push((head.to_vec(), body.to_vec()));
    }

    fn place(&mut self, link: LinkIndex, _head: &[u8], len: usize, placement: &mut Placement) {
        assert!(placement.is_empty() && self.up.contains_key(&link) && !self.down.contains_key(&link));
        let room = len - self.stingy.min(len);
        let boxed = self.placed.entry(link).insert_entry(vec![0xEE; room].into_boxed_slice());
        let memory = boxed.into_mut();
        // Two pieces where that can be.
        let cut = room / 3;
        // SAFETY: the box is kept, and not accessed by other code, until `arrived` or `down`.
        #[allow(unsafe_code)]
        unsafe {
            let at = memory.as_mut_ptr();
            placement.push(Piece::lend(at, cut));
            placement.push(Piece::lend(at.wrapping_add(cut), room - cut));
        }
    }

    fn arrived(&mut self, link: LinkIndex, head: &[u8]) {
        let body = self.placed.remove(&link).expect("placed before");
        self.frames.entry(link).or_default().push((head.to_vec(), body.into_vec()));
    }
}

/// A node: a port, and its events.
struct Node {
    id: NodeId,
    port: Box<dyn Port>,
    recorder: Recorder,
}

impl Node {
    fn poll(&mut self) -> usize {
        self.port.poll(&mut self.recorder)
    }

    fn address(&self) -> NodeAddress {
        let mut address = NodeAddress::bare(self.id);
        self.port.publish(&mut address);
        address
    }

    /// The frames that came over a link since the last call.
    fn frames(&mut self, link: LinkIndex) -> Vec<Frame> {
        self.recorder.frames.get_mut(&link).map(core::mem::take).unwrap_or_default()
    }

    fn link_of(&self, id: NodeId) -> Option<LinkIndex> {
        self.recorder.up.iter().find(|(_, node)| **node == id).map(|(link, _)| *link)
    }
}

impl Context {
    fn node(&self) -> Node {
        let id = NodeId::new(madrigal_sys::process::random()).expect("random");
        let port = self.driver.open(id, &self.place).expect("opens");
        Node { id, port, recorder: Recorder::default() }
    }

    /// Two nodes, linked by the first; and each one's link to the other.
    fn pair(&self) -> ([Node; 2], [LinkIndex; 2]) {
        let mut nodes = [self.node(), self.node()];
        let to = nodes[1].address();
        let link = nodes[0].port.link(&to).expect("links");
        until(&mut nodes, |nodes| nodes[0].recorder.up.contains_key(&link) && nodes[1].link_of(nodes[0].id).is_some());
        let back = nodes[1].link_of(nodes[0].id).expect("came up");
        (nodes, [link, back])
    }
}

/// Polls all nodes in turn until something holds; a little patience where nothing happens.
fn until(nodes: &mut [Node], mut done: impl FnMut(&mut [Node]) -> bool) {
    while !done(nodes) {
        let found: usize = nodes.iter_mut().map(Node::poll).sum();
        if found == 0 {
            std::thread::yield_now();
        }
    }
}

/// Sends a frame whole, polling everybody meanwhile.
fn send(nodes: &mut [Node], by: usize, link: LinkIndex, head: &[u8], body: &[&[u8]]) {
    let pieces: Vec<_> = body.iter().map(|piece| IoSlice::new(piece)).collect();
    let len = head.len() + body.iter().map(|piece| piece.len()).sum::<usize>();
    let mut skip = 0;
    loop {
        match nodes[by].port.send(link, head, &pieces, skip).expect("sends") {
            Sent::All => return,
            Sent::Part(n) => skip += n,
        }
        let short = len - head.len() <= nodes[by].port.short();
        assert!(skip == 0 || (!short && skip < len), "a short frame is taken whole or not at all");
        for node in &mut *nodes {
            node.poll();
        }
    }
}

fn bytes(noise: &mut Noise, len: usize) -> Vec<u8> {
    (0..len).map(|_| noise.next_u64() as u8).collect()
}

fn usable(at: &Context) {
    assert_eq!(at.driver.usable(&at.place), Ok(()));
    let node = at.node();
    assert!(node.port.short() >= 64, "a small message is short");
}

fn both_ways(at: &Context) {
    let (mut nodes, links) = at.pair();
    for i in 0..100u32 {
        for by in [0, 1] {
            send(&mut nodes, by, links[by], &i.to_le_bytes(), &[&[by as u8; 8]]);
        }
    }
    let mut got = [Vec::new(), Vec::new()];
    until(&mut nodes, |nodes| {
        (0..2).for_each(|by| got[by].extend(nodes[by].frames(links[by])));
        got.iter().all(|got| got.len() == 100)
    });
    for (by, got) in got.iter().enumerate() {
        for (i, (head, body)) in got.iter().enumerate() {
            assert_eq!((&head[..], &body[..]), (&(i as u32).to_le_bytes()[..], &[1 - by as u8; 8][..]));
        }
    }
}

fn learns(at: &Context) {
    let (mut nodes, links) = at.pair();
    assert_eq!(nodes[1].recorder.up[&links[1]], nodes[0].id);
    // Linking back gives the link there is.
    let to = nodes[0].address();
    assert_eq!(nodes[1].port.link(&to), Ok(links[1]));
    let to = nodes[1].address();
    assert_eq!(nodes[0].port.link(&to), Ok(links[0]));
    for node in &mut nodes {
        node.poll();
    }
}

fn nobody(at: &Context) {
    let mut node = at.node();
    let gone = at.node();
    let to = gone.address();
    drop(gone);
    // Refused at once, or found out later.
    if let Ok(link) = node.port.link(&to) {
        let mut nodes = [node];
        until(&mut nodes, |nodes| nodes[0].recorder.down.contains_key(&link));
        assert!(!nodes[0].recorder.up.contains_key(&link));
        assert!(nodes[0].port.send(link, b"head", &[], 0).is_err(), "a link that is down takes nothing");
    }
}

fn lengths(at: &Context) {
    let (mut nodes, links) = at.pair();
    let short = nodes[0].port.short();
    let mut noise = Noise::new(1);
    let mut sizes = vec![0, 1, 7, 8, 63, 64, 65, 255, 4095, 4096, 4097, short - 1, short, short + 1, 3 * short, 65_536];
    sizes.extend([1 << 20, (5 << 20) + 3]);
    sizes.extend((0..100).map(|_| noise.size(300_000)));
    for (i, size) in sizes.into_iter().enumerate() {
        let head = bytes(&mut noise, 1 + i % MAX_HEAD);
        let body = bytes(&mut noise, size);
        send(&mut nodes, 0, links[0], &head, &[&body]);
        let mut got = Vec::new();
        until(&mut nodes, |nodes| {
            got.extend(nodes[1].frames(links[1]));
            !got.is_empty()
        });
        assert!(got.len() == 1 && got[0].0 == head && got[0].1 == body, "{size} bytes came as they were");
    }
}

fn gathers(at: &Context) {
    let (mut nodes, links) = at.pair();
    let mut noise = Noise::new(2);
    for round in 0..50 {
        let pieces: Vec<_> = (0..noise.below(17)).map(|_| bytes(&mut noise, noise_len(round))).collect();
        let lent: Vec<_> = pieces.iter().map(Vec::as_slice).collect();
        send(&mut nodes, 0, links[0], b"gather", &lent);
        let mut got = Vec::new();
        until(&mut nodes, |nodes| {
            got.extend(nodes[1].frames(links[1]));
            !got.is_empty()
        });
        assert!(got[0].1 == pieces.concat(), "round {round}");
    }
}

fn noise_len(round: usize) -> usize {
    [0, 1, 5, 100, 9_000][round % 5]
}

fn the_end(at: &Context) {
    let (nodes, links) = at.pair();
    let [mut leaver, stayer] = nodes;
    let mut sent = 0u32;
    while sent < 10
        && leaver.port.send(links[0], &sent.to_le_bytes(), &[IoSlice::new(b"last words")], 0) == Ok(Sent::All)
    {
        sent += 1;
    }
    assert!(sent > 0);
    drop(leaver);
    let mut nodes = [stayer];
    until(&mut nodes, |nodes| nodes[0].recorder.down.contains_key(&links[1]));
    assert_eq!(nodes[0].frames(links[1]).len(), sent as usize);
    assert!(matches!(nodes[0].recorder.down[&links[1]], LinkError::Gone { .. }));
    assert!(nodes[0].port.send(links[1], b"head", &[], 0).is_err());
}

fn cut(at: &Context) {
    let (mut nodes, links) = at.pair();
    send(&mut nodes, 0, links[0], b"before", &[b"a word"]);
    nodes[1].port.cut(links[1]);
    nodes[1].port.cut(links[1]);
    until(&mut nodes, |nodes| nodes[0].recorder.down.contains_key(&links[0]));
    assert!(nodes[1].frames(links[1]).is_empty() && !nodes[1].recorder.down.contains_key(&links[1]));
    assert!(nodes[1].port.send(links[1], b"head", &[], 0).is_err());
    assert!(nodes[0].port.send(links[0], b"head", &[], 0).is_err());
}

fn back_pressure(at: &Context) {
    let (mut nodes, links) = at.pair();
    let body = vec![7u8; nodes[0].port.short()];
    let mut sent = 0u32;
    // The other side is not polled: at some time it is full.
    while nodes[0].port.send(links[0], &sent.to_le_bytes(), &[IoSlice::new(&body)], 0) == Ok(Sent::All) {
        sent += 1;
        assert!(sent < 1 << 20, "memory is bounded");
        nodes[0].poll();
    }
    let mut got = Vec::new();
    until(&mut nodes, |nodes| {
        got.extend(nodes[1].frames(links[1]));
        got.len() == sent as usize
    });
    assert!(got.iter().enumerate().all(|(i, (head, _))| head[..] == (i as u32).to_le_bytes()));
    send(&mut nodes, 0, links[0], b"again", &[&body]);
    until(&mut nodes, |nodes| nodes[1].frames(links[1]).len() == 1);
}

fn thrown_away(at: &Context) {
    let (mut nodes, links) = at.pair();
    let body: Vec<u8> = (0..1_000_000u32).map(|i| (i % 251) as u8).collect();
    for stingy in [1, 999_000, 1_000_000] {
        nodes[1].recorder.stingy = stingy;
        send(&mut nodes, 0, links[0], b"long", &[&body]);
        send(&mut nodes, 0, links[0], b"next", &[b"short"]);
        let mut got = Vec::new();
        until(&mut nodes, |nodes| {
            got.extend(nodes[1].frames(links[1]));
            got.len() == 2
        });
        assert!(got[0].1 == body[..body.len() - stingy], "what there was room for");
        assert_eq!(got[1], (b"next".to_vec(), b"short".to_vec()));
    }
}

fn flood(at: &Context) {
    let (nodes, links) = at.pair();
    let [mut loud, mut both] = nodes;
    let mut quiet = at.node();
    let link = quiet.port.link(&both.address()).expect("links");
    let body = vec![1u8; loud.port.short()];
    let (mut asked, mut polls) = (false, 0u32);
    while both.link_of(quiet.id).is_none_or(|quiet| both.frames(quiet).is_empty()) {
        asked |= quiet.port.send(link, b"quiet", &[], 0) == Ok(Sent::All);
        // Whatever was taken out, there is more.
        while loud.port.send(links[0], b"loud", &[IoSlice::new(&body)], 0) == Ok(Sent::All) {}
        for node in [&mut loud, &mut both, &mut quiet] {
            node.poll();
        }
        both.frames(links[1]);
        polls += u32::from(asked);
        assert!(polls < 100_000, "the quiet one is never heard");
    }
}

fn sleepers(at: &Context) {
    let (nodes, links) = at.pair();
    let [sender, mut sleeper] = nodes;
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let mut nodes = [sender];
            let mut noise = Noise::new(3);
            for i in 0..200u32 {
                send(&mut nodes, 0, links[0], &i.to_le_bytes(), &[b"wake up"]);
                // Sometimes the other one sleeps by now, sometimes not.
                (0..noise.below(2_000)).for_each(|_| core::hint::spin_loop());
            }
            nodes
        });
        let mut got = 0;
        while got < 200 {
            sleeper.poll();
            got += sleeper.frames(links[1]).len();
            if got < 200 && !sleeper.port.arm() {
                let fd = sleeper.port.descriptor().expect("whoever gets frames from others can be woken");
                poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None).expect("polls");
                sleeper.port.woken();
            }
        }
        drop(sender.join().expect("the sender ends"));
    });
}

fn all_to_all(at: &Context) {
    const NODES: usize = 8;
    const FRAMES: usize = 50;
    let mut nodes: Vec<_> = (0..NODES).map(|_| at.node()).collect();
    let addresses: Vec<_> = nodes.iter().map(Node::address).collect();
    // Both sides link at the same time: there is one link for both.
    let mut links = HashMap::new();
    for (i, j) in (0..NODES).flat_map(|i| (0..NODES).map(move |j| (i, j))).filter(|(i, j)| i != j) {
        links.insert((i, j), nodes[i].port.link(&addresses[j]).expect("links"));
    }
    until(&mut nodes, |nodes| links.iter().all(|((i, _), link)| nodes[*i].recorder.up.contains_key(link)));
    let mut noise = Noise::new(4);
    for round in 0..FRAMES as u32 {
        for (&(i, _), &link) in &links {
            let body = vec![round as u8; noise.size(20_000)];
            send(&mut nodes, i, link, &round.to_le_bytes(), &[&body]);
        }
    }
    let mut got: HashMap<_, Vec<Frame>> = HashMap::new();
    until(&mut nodes, |nodes| {
        for (&(i, j), &link) in &links {
            got.entry((i, j)).or_default().extend(nodes[i].frames(link));
        }
        got.values().all(|frames| frames.len() == FRAMES)
    });
    for (round, (head, body)) in got.values().flat_map(|frames| frames.iter().enumerate()) {
        assert_eq!(head[..], (round as u32).to_le_bytes());
        assert!(body.iter().all(|b| *b == round as u8));
    }
}

fn single_copies(at: &Context) {
    let (mut nodes, links) = at.pair();
    let mut noise = Noise::new(5);
    for size in [1, 4_096, 100_001, 3 << 20] {
        let theirs = bytes(&mut noise, size);
        let mut ours = vec![0; size];
        let cut = size / 3;
        let remote = [(theirs.as_ptr() as u64, cut), (theirs.as_ptr() as u64 + cut as u64, size - cut)];
        let local = [(ours.as_mut_ptr() as u64, size)];
        match nodes[0].port.pull(links[0], &remote, &local) {
            SingleCopy::Done => assert!(ours == theirs, "what was pulled"),
            SingleCopy::No => assert!(ours.iter().all(|b| *b == 0), "No copies nothing"),
            SingleCopy::Failed => panic!("the memory is there"),
        }
        let mut theirs = vec![0; size];
        let ours = bytes(&mut noise, size);
        let (local, remote) = ([(ours.as_ptr() as u64, size)], [(theirs.as_mut_ptr() as u64, size)]);
        match nodes[0].port.push(links[0], &local, &remote) {
            SingleCopy::Done => assert!(ours == theirs, "what was pushed"),
            SingleCopy::No => assert!(theirs.iter().all(|b| *b == 0), "No copies nothing"),
            SingleCopy::Failed => panic!("the memory is there"),
        }
    }
}

fn explains(at: &Context) {
    let (nodes, links) = at.pair();
    for (node, link) in nodes.iter().zip(links) {
        assert!(!node.port.explain(link).path.is_empty());
    }
}

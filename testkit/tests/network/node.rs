//! A node: in a process of its own that executes commands, or in this one.

use std::time::Instant;

use madrigal_base::config::Settings;
use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_progress::driver::Place;
use madrigal_progress::message::{LinkError, LinkIndex, Placement, Port, Sent, Sink};
use madrigal_sys::time;
use madrigal_testkit::noise::{Noise, Stream};
use madrigal_testkit::stacked;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{bytes_of, text_of};

/// Frames each way of a talk.
const FRAMES: u32 = 300;

/// A port, and its events.
pub(crate) struct Local {
    id: NodeId,
    port: Box<dyn Port>,
    recorder: Recorder,
}

#[derive(Default)]
struct Recorder {
    up: Vec<(LinkIndex, NodeId)>,
    down: Vec<(LinkIndex, LinkError)>,
    frames: Vec<(Vec<u8>, Vec<u8>)>,
    placement: Vec<u8>,
}

#[allow(unsafe_code)]
impl Sink for Recorder {
    fn up(&mut self, link: LinkIndex, node: NodeId) {
        self.up.push((link, node));
    }

    fn down(&mut self, link: LinkIndex, why: LinkError) {
        self.down.push((link, why));
    }

    fn frame(&mut self, _link: LinkIndex, head: &[u8], body: &[u8]) {
        self.frames.push((head.to_vec(), body.to_vec()));
    }

    fn place(&mut self, _link: LinkIndex, _head: &[u8], len: usize, placement: &mut Placement) {
        self.placement = vec![0; len];
        // SAFETY: the memory stays as it is until `arrived`; there is one link.
        placement.push(unsafe { madrigal_sys::piece::Piece::lend(self.placement.as_mut_ptr(), len) });
    }

    fn arrived(&mut self, _link: LinkIndex, head: &[u8]) {
        self.frames.push((head.to_vec(), core::mem::take(&mut self.placement)));
    }
}

impl Local {
    pub(crate) fn open() -> Self {
        let (settings, errors) = Settings::from_pairs(std::env::vars());
        assert!(errors.is_empty(), "{errors:?}");
        let id = NodeId::new(madrigal_sys::process::random()).expect("random");
        let place = Place { network: settings.network, ..Place::default() };
        let name = if settings.message_stack.is_empty() { "tcp" } else { &settings.message_stack };
        let driver = stacked::message_driver(name).expect("there is one");
        Self { id, port: driver.open(id, &place).expect("opens"), recorder: Recorder::default() }
    }

    pub(crate) fn address(&self) -> NodeAddress {
        let mut address = NodeAddress::bare(self.id);
        self.port.publish(&mut address);
        address
    }

    pub(crate) fn poll(&mut self) {
        self.port.poll(&mut self.recorder);
    }

    /// Polls, and sleeps when there is nothing.
    fn wait(&mut self) {
        if self.port.poll(&mut self.recorder) > 0 || self.port.arm() {
            return;
        }
        let now = time::now_ns();
        let left = self.port.deadline().map(|deadline| deadline.saturating_sub(now));
        let left =
            left.map(|ns| Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 });
        let fd = self.port.descriptor().expect("has one");
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], left.as_ref()).expect("polls");
        self.port.woken();
    }

    pub(crate) fn until_up(&mut self) -> LinkIndex {
        while self.recorder.up.is_empty() {
            self.wait();
        }
        self.recorder.up[0].0
    }

    pub(crate) fn until_down(&mut self) -> LinkError {
        while self.recorder.down.is_empty() {
            self.wait();
        }
        self.recorder.down.remove(0).1
    }

    pub(crate) fn id_of(&self, link: LinkIndex) -> NodeId {
        self.recorder.up.iter().find(|(up, _)| *up == link).expect("is up").1
    }

    /// Links to a node that links to us at the same time, and exchanges a frame.
    pub(crate) fn meet(&mut self, to: &NodeAddress) {
        let link = self.port.link(to).expect("links");
        while self.recorder.up.iter().all(|(_, node)| *node != to.id) {
            self.poll();
        }
        let mine = self.id.number().to_le_bytes();
        while self.port.send(link, &mine, &[], 0).expect("sends") != Sent::All {
            self.poll();
        }
        while self.recorder.frames.is_empty() {
            self.poll();
        }
        assert_eq!(self.recorder.frames.remove(0).0, to.id.number().to_le_bytes());
        assert_eq!(self.recorder.up.iter().filter(|(_, node)| *node == to.id).count(), 1, "one link");
        let lost = self.recorder.down.iter().any(|(down, _)| *down == link);
        assert!(!lost, "{:?}", self.recorder.down);
    }

    /// Sends frames of all sizes and checks as many.
    fn talk(&mut self, link: LinkIndex) {
        let (mut out, mut sizes, mut sent, mut skip) = (Stream::new(5), Noise::new(6), 0, 0);
        let (mut back, mut got) = (Stream::new(5), 0);
        let mut body = Vec::new();
        while sent < FRAMES || got < FRAMES {
            if sent < FRAMES {
                if skip == 0 && body.is_empty() {
                    body = out.take(sizes.size(400_000));
                }
                let pieces = [std::io::IoSlice::new(&body)];
                match self.port.send(link, &sent.to_le_bytes(), &pieces, skip).expect("sends") {
                    Sent::All => (sent, skip, body) = (sent + 1, 0, Vec::new()),
                    Sent::Part(n) => skip += n,
                }
                self.poll();
            } else {
                self.wait();
            }
            for (head, body) in core::mem::take(&mut self.recorder.frames) {
                assert_eq!(head, u32::to_le_bytes(got));
                back.check(&body);
                got += 1;
            }
            assert!(self.recorder.down.is_empty(), "{:?}", self.recorder.down);
        }
    }
}

/// A process that executes commands line by line, and reports events.
pub(crate) fn run() {
    let before = descriptors();
    let mut node = Local::open();
    println!("{}", text_of(&node.address().encode(NodeAddress::LONG)));
    let (tell, commands) = std::sync::mpsc::channel();
    std::thread::spawn(move || std::io::stdin().lines().try_for_each(|line| tell.send(line.expect("text"))));
    let (begun, mut ups, mut link) = (Instant::now(), 0, None);
    loop {
        match commands.try_recv() {
            Ok(line) if line == "talk" => {
                node.talk(link.expect("is up"));
                println!("talked");
            }
            Ok(line) if line == "drop" => {
                drop(node);
                println!("dropped, {} descriptors more than before", descriptors() - before);
                // The process lives on: what is seen of the end is the port's.
                commands.iter().for_each(drop);
                return;
            }
            Ok(line) => node.obey(&line),
            Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
            Err(std::sync::mpsc::TryRecvError::Empty) => {}
        }
        node.poll();
        for (_, why) in node.recorder.down.drain(..) {
            println!("down {} ms: {why}", begun.elapsed().as_millis());
        }
        if node.recorder.up.len() > ups {
            ups += 1;
            let (up, _) = node.recorder.up[ups - 1];
            link = Some(up);
            let explained = node.port.explain(up);
            let rejected: Vec<_> = explained.rejected.iter().map(|(what, why)| format!("{what} {why}")).collect();
            println!("up {} ms: {}; {}", begun.elapsed().as_millis(), explained.path, rejected.join("; "));
        }
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
}

/// Descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("is there").count()
}

impl Local {
    fn obey(&mut self, line: &str) {
        match line.split_once(' ') {
            Some(("link", to)) => {
                let to = NodeAddress::decode(&bytes_of(to)).expect("an address");
                self.port.link(&to).expect("links");
            }
            other => panic!("{other:?}"),
        }
    }
}

//! Links by the daemon whose connection is lost, or could be a better one: every frame arrives, once, in order.

use std::io::IoSlice;
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard};

use madrigal_base::node::NodeId;
use madrigal_progress::message::{LinkError, LinkIndex, Placement, Sent, Sink};

use super::{Node, home, reach, two};

/// What the daemon carries: for which host, and both connections.
static CARRIED: Mutex<Vec<(String, UnixStream, TcpStream)>> = Mutex::new(Vec::new());

fn carried() -> MutexGuard<'static, Vec<(String, UnixStream, TcpStream)>> {
    CARRIED.lock().expect("nobody panics")
}

pub(super) fn note(host: &str, client: &UnixStream, far: &TcpStream) {
    if !["lost-", "direct-", "once-"].iter().any(|ours| host.starts_with(ours)) {
        return;
    }
    carried().push((host.to_owned(), client.try_clone().expect("a copy"), far.try_clone().expect("a copy")));
}

pub(super) fn was_connected(host: &str) -> bool {
    carried().iter().any(|(to, ..)| to == host)
}

/// The daemon breaks its connections to that host, with all bytes in flight.
fn kill(host: &str) {
    for (_, client, far) in carried().iter().filter(|(to, ..)| to == host) {
        let _ = client.shutdown(Shutdown::Both);
        let _ = far.shutdown(Shutdown::Both);
    }
}

/// One end of a link: frames of many lengths, numbered, and those that came.
#[derive(Default)]
struct End {
    next: u64,
    skip: usize,
    came: u64,
    down: Option<LinkError>,
}

impl End {
    /// Sends as much as goes.
    fn send(&mut self, node: &mut Node, until: u64) {
        while self.next < until {
            let body = vec![self.next as u8; [0, 8, 700, 16 << 10, 100_000][self.next as usize % 5]];
            let head = self.next.to_le_bytes();
            match node.port.send(node.up[0], &head, &[IoSlice::new(&body)], self.skip) {
                Ok(Sent::All) => (self.next, self.skip) = (self.next + 1, 0),
                Ok(Sent::Part(0)) => return,
                Ok(Sent::Part(more)) => self.skip += more,
                Err(why) => panic!("{why}"),
            }
        }
    }

    fn came(&mut self, head: &[u8]) {
        assert_eq!(head, self.came.to_le_bytes(), "in order, and once");
        self.came += 1;
    }
}

impl Sink for End {
    fn up(&mut self, _: LinkIndex, _: NodeId) {
        panic!("it was up all the time");
    }

    fn down(&mut self, _: LinkIndex, why: LinkError) {
        self.down = Some(why);
    }

    fn frame(&mut self, _: LinkIndex, head: &[u8], body: &[u8]) {
        assert!(body.iter().all(|byte| *byte == self.came as u8));
        self.came(head);
    }

    fn place(&mut self, _: LinkIndex, _: &[u8], _: usize, _: &mut Placement) {}

    fn arrived(&mut self, _: LinkIndex, head: &[u8]) {
        self.came(head);
    }
}

/// Both send each other frames until that many have come at both; `meanwhile` gets the number that the second one has.
fn talk(nodes: &mut [Node; 2], ends: &mut [End; 2], until: u64, meanwhile: &mut dyn FnMut(u64)) {
    while ends.iter().any(|end| end.came < until) {
        for (node, end) in nodes.iter_mut().zip(&mut *ends) {
            end.send(node, until);
            node.port.poll(end);
            assert_eq!(end.down, None);
        }
        meanwhile(ends[1].came);
    }
}

pub(super) fn lost() {
    let mut nodes = two("lost-a", "lost-b", "enciphered", true);
    let to = nodes[1].address();
    reach(&mut nodes, &to);
    let (mut ends, mut kills) = (<[End; 2]>::default(), 0);
    talk(&mut nodes, &mut ends, 4000, &mut |came| {
        if came > (kills + 1) * 500 {
            kill("lost-b");
            kill("lost-a");
            kills += 1;
        }
    });
    assert!(kills >= 3, "{kills}");
    let path = nodes[0].port.explain(nodes[0].up[0]).path;
    assert!(path.starts_with("through the daemon: "), "{path}");
}

pub(super) fn direct() {
    let mut nodes = two("direct-a", "direct-b", "enciphered", true);
    let to = nodes[1].address();
    let [(path, _), _] = reach(&mut nodes, &to);
    assert!(path.starts_with("through the daemon: "), "{path}");
    let mut ends = <[End; 2]>::default();
    talk(&mut nodes, &mut ends, 1000, &mut |_| {});
    // The network between the two is trusted from now on.
    for own in ["direct-a", "direct-b"] {
        let file = format!("{}/{own}/daemon.hosts", home());
        let text = std::fs::read_to_string(&file).expect("is there").replace(" enciphered ", " daemon ");
        std::fs::write(&file, text).expect("writes");
    }
    let mut until = 1000;
    while nodes.iter().any(|node| node.port.explain(node.up[0]).path.contains("daemon")) {
        until += 10;
        talk(&mut nodes, &mut ends, until, &mut |_| {});
    }
    // What the daemon loses now is nothing to them.
    kill("direct-b");
    talk(&mut nodes, &mut ends, until + 1000, &mut |_| {});
    let paths = nodes.each_ref().map(|node| node.port.explain(node.up[0]).path);
    assert!(paths.iter().all(|path| path.contains("round trip")), "{paths:?}");
}

pub(super) fn gone() {
    let mut nodes = two("once-a", "once-b", "enciphered", true);
    let to = nodes[1].address();
    reach(&mut nodes, &to);
    kill("once-b");
    let mut end = End::default();
    while end.down.is_none() {
        nodes[0].port.poll(&mut end);
    }
    let why = end.down.expect("was waited for").to_string();
    assert!(why.contains(&nodes[1].id.to_string()) && why.contains("nobody listens"), "{why}");
}

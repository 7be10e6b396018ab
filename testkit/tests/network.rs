//! The `tcp` driver of messages between processes on two hosts, which are network namespaces of this machine (that needs root; else the
//! trial says `skipped` and why), and at a port to which strangers come.
//!
//! The other processes are this program, started once more with its task in the environment.
//!
//! Features (docs/features.md): A4, A8, G11.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Instant;

use libtest_mimic::{Arguments, Failed, Trial};
use madrigal_base::config::Settings;
use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_netaccess::driver::Place;
use madrigal_netaccess::message::{Landing, Link, LinkError, Port, Sent, Sink};
use madrigal_sys::time;
use madrigal_testkit::hosts::Hosts;
use madrigal_testkit::noise::{Noise, Stream};
use madrigal_testkit::watchdog::Watchdog;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Tells a started copy that it is a node.
const TASK: &str = "_MADRIGAL_TESTKIT_NODE";
/// Frames each way of a talk.
const FRAMES: u32 = 300;

fn main() -> ExitCode {
    if std::env::var_os(TASK).is_some() {
        node::run();
        return ExitCode::SUCCESS;
    }
    let trials = vec![
        trial("two_processes_talk", two_processes),
        trial("a_killed_peer_is_gone", killed),
        trial("both_at_once_make_one_connection", both_at_once),
        trial("strangers_get_nothing_and_harm_nobody", strangers),
        hosted("a_cable_is_found", &[], cable),
        hosted("a_bridge_that_every_host_has_is_no_peer", &[("MADRIGAL_PORTS", "4000")], twins),
        hosted("another_process_at_the_same_place_is_no_peer", &[("MADRIGAL_PORTS", "4000")], another),
        hosted("a_network_that_leads_nowhere_holds_nobody_up", &[], dangling),
        hosted("a_firewall_before_the_first_leaves_the_other_way", &[], |hosts, with| firewall(hosts, with, 0)),
        hosted("a_firewall_before_the_second_leaves_the_other_way", &[], |hosts, with| firewall(hosts, with, 1)),
        hosted("no_way_is_an_error_that_names_everything", &[("MADRIGAL_CONNECT_TIMEOUT", "3")], no_way),
        hosted("what_the_user_does_not_want_is_not_tried", &[("MADRIGAL_NET", "^docker*,^10.66.0.0/16")], unwanted),
        hosted("a_peer_whose_network_is_gone_is_gone", &[], cut_off),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn trial(name: &'static str, run: fn()) -> Trial {
    Trial::test(name, move || {
        let _dog = Watchdog::set(name);
        run();
        Ok::<(), Failed>(())
    })
}

type Environment = &'static [(&'static str, &'static str)];

/// A trial on two hosts.
fn hosted(name: &'static str, with: Environment, run: fn(&Hosts, Environment)) -> Trial {
    Trial::test(name, move || {
        let _dog = Watchdog::set(name);
        match Hosts::two() {
            Ok(hosts) => run(&hosts, with),
            Err(why) => eprintln!("skipped: {name}: no hosts can be made here: {why}"),
        }
        Ok::<(), Failed>(())
    })
}

/// A process that is a node; killed on drop if it still runs.
struct Node {
    child: Child,
    say: ChildStdin,
    hear: BufReader<ChildStdout>,
    address: NodeAddress,
}

impl Node {
    fn start(mut command: Command, with: Environment) -> Self {
        let command = command.env(TASK, "1").envs(with.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
        let (say, hear) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let address = NodeAddress { id: NodeId::new(1).expect("is one"), channel: 0, port: 0, addresses: vec![] };
        let mut node = Self { child, say, hear: BufReader::new(hear), address };
        node.address = NodeAddress::decode(&bytes_of(&node.line())).expect("an address");
        node
    }

    fn here() -> Self {
        Self::start(Command::new("/proc/self/exe"), &[("MADRIGAL_CONNECT_TIMEOUT", "2")])
    }

    fn on(hosts: &Hosts, host: usize, with: Environment) -> Self {
        let program = std::env::current_exe().expect("a path");
        Self::start(hosts.command(host, program.to_str().expect("text")), with)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.hear.read_line(&mut line).expect("reads");
        assert!(line.ends_with('\n'), "the node died, saying {line:?}");
        line.trim_end().to_owned()
    }

    fn tell(&mut self, text: &str) {
        writeln!(self.say, "{text}").expect("the node listens");
    }

    fn link(&mut self, to: &NodeAddress) {
        self.tell(&format!("link {}", text_of(&to.encode(NodeAddress::LONG))));
    }

    /// Waits until it tells that a link is up, in how much time, how it goes, and what was rejected.
    fn is_up(&mut self) -> String {
        let line = self.line();
        assert!(line.starts_with("up "), "{line}");
        println!("    {line}");
        line
    }

    fn is_down(&mut self) -> String {
        let line = self.line();
        assert!(line.starts_with("down "), "{line}");
        println!("    {line}");
        line
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It ended before, or ends now.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Both send and check.
fn talk(a: &mut Node, b: &mut Node) {
    a.tell("talk");
    b.tell("talk");
    assert_eq!((&a.line()[..], &b.line()[..]), ("talked", "talked"));
}

fn text_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of(text: &str) -> Vec<u8> {
    let byte = |i| u8::from_str_radix(&text[i..i + 2], 16).expect("two digits");
    (0..text.len()).step_by(2).map(byte).collect()
}

/// The address with `first` in front, whatever was thought likeliest.
fn preferring(address: &NodeAddress, first: &str) -> NodeAddress {
    let mut address = address.clone();
    let first = first.parse().expect("an address");
    address.addresses.retain(|known| *known != first);
    address.addresses.insert(0, first);
    address
}

fn two_processes() {
    let (mut a, mut b) = (Node::here(), Node::here());
    a.link(&b.address);
    a.is_up();
    b.is_up();
    talk(&mut a, &mut b);
    // Dialling back gives the link there is.
    b.link(&a.address);
    talk(&mut a, &mut b);
}

fn killed() {
    let (mut a, mut b) = (Node::here(), Node::here());
    a.link(&b.address);
    a.is_up();
    b.is_up();
    talk(&mut a, &mut b);
    b.child.kill().expect("is our child");
    let down = a.is_down();
    assert!(down.contains(&format!("node {} is gone", b.address.id)), "{down}");
    // Whoever is gone cannot be reached again.
    a.link(&b.address);
    assert!(a.is_down().contains("Connection refused"));
}

fn both_at_once() {
    let (mut a, mut b) = (node::Local::open(), node::Local::open());
    for round in 0..400u32 {
        if round % 20 == 19 {
            // Sometimes the other one leads.
            core::mem::swap(&mut a, &mut b);
            b = node::Local::open();
        }
        a = node::Local::open();
        let (to_a, to_b) = (a.address(), b.address());
        std::thread::scope(|scope| {
            let one = scope.spawn(|| a.meet(&to_b));
            b.meet(&to_a);
            one.join().expect("no panic");
        });
    }
}

fn strangers() {
    let mut node = node::Local::open();
    let at = node.address();
    let to = std::net::SocketAddr::new(at.addresses[0], at.port);
    let mut noise = Noise::new(1);
    let mut crowd: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(to).expect("connects")).collect();
    for (i, stranger) in crowd.iter_mut().enumerate() {
        let garbage: Vec<u8> = (0..i % 50).map(|_| noise.next_u64() as u8).collect();
        stranger.write_all(&garbage).expect("is sent");
    }
    // Among them, somebody who knows the node id.
    let mut other = Node::here();
    other.link(&at);
    let link = node.until_up();
    other.is_up();
    assert_eq!(node.id_of(link), other.address.id);
    // Who sent as much as a first word and it was none is sent away, without a byte.
    for stranger in crowd.iter_mut().enumerate().filter(|(i, _)| i % 50 >= 32).map(|(_, stranger)| stranger) {
        node.poll();
        let mut answer = [0; 64];
        stranger.set_read_timeout(None).expect("waits");
        assert!(matches!(stranger.read(&mut answer), Ok(0) | Err(_)));
    }
}

fn cable(hosts: &Hosts, with: Environment) {
    let (mut a, mut b) = (Node::on(hosts, 0, with), Node::on(hosts, 1, with));
    b.link(&a.address);
    assert!(a.is_up().contains("10.77.0.1:"));
    assert!(b.is_up().contains("-> 10.77.0.1:"));
    talk(&mut a, &mut b);
}

fn twins(hosts: &Hosts, with: Environment) {
    (0..2).for_each(|host| hosts.bridge(host, "docker0", "172.17.0.1/16"));
    let (mut a, mut b) = (Node::on(hosts, 0, with), Node::on(hosts, 1, with));
    assert_eq!((a.address.port, b.address.port), (4000, 4000));
    assert_eq!(a.address.addresses.last(), Some(&"172.17.0.1".parse().expect("an address")));
    // Both bridges lead home, to the very process that dials.
    a.link(&preferring(&b.address, "172.17.0.1"));
    let up = a.is_up();
    assert!(up.contains("172.17.0.1:4000 answered by another node"), "{up}");
    b.is_up();
    talk(&mut a, &mut b);
}

fn another(hosts: &Hosts, with: Environment) {
    (0..2).for_each(|host| hosts.bridge(host, "docker0", "172.17.0.1/16"));
    let (other, mut b) = (Node::on(hosts, 0, with), Node::on(hosts, 1, with));
    let mut a = Node::on(hosts, 0, &[]);
    assert_eq!(other.address.port, b.address.port);
    a.link(&preferring(&b.address, "172.17.0.1"));
    let up = a.is_up();
    assert!(up.contains("172.17.0.1:4000 answered by another node"), "{up}");
    b.is_up();
    talk(&mut a, &mut b);
}

fn dangling(hosts: &Hosts, with: Environment) {
    for host in 0..2 {
        hosts.ip(host, "link add dangling type veth peer name nowhere");
        hosts.ip(host, &format!("addr add 10.88.0.{}/24 dev dangling", host + 1));
        hosts.ip(host, "link set dangling up");
        hosts.ip(host, "link set nowhere up");
    }
    let (mut a, mut b) = (Node::on(hosts, 0, with), Node::on(hosts, 1, with));
    a.link(&preferring(&b.address, "10.88.0.2"));
    let up = a.is_up();
    assert!(up.contains("-> 10.77.0.2:"), "{up}");
    b.is_up();
    talk(&mut a, &mut b);
}

fn firewall(hosts: &Hosts, with: Environment, before: usize) {
    hosts.shut(before);
    let (mut a, mut b) = (Node::on(hosts, 0, with), Node::on(hosts, 1, with));
    a.link(&b.address);
    b.link(&a.address);
    a.is_up();
    b.is_up();
    talk(&mut a, &mut b);
}

fn no_way(hosts: &Hosts, with: Environment) {
    (0..2).for_each(|host| hosts.shut(host));
    (0..2).for_each(|host| hosts.bridge(host, "docker0", "172.17.0.1/16"));
    let (mut a, b) = (Node::on(hosts, 0, with), Node::on(hosts, 1, with));
    a.link(&b.address);
    let down = a.is_down();
    let port = b.address.port;
    for part in [
        format!("cannot reach node {}", b.address.id),
        format!("10.77.0.2:{port}: no answer, "),
        format!("172.17.0.1:{port}: Connection refused"),
        "it did not connect to us".to_owned(),
    ] {
        assert!(down.contains(&part), "{part}: {down}");
    }
}

fn unwanted(hosts: &Hosts, with: Environment) {
    for host in 0..2 {
        hosts.bridge(host, "docker0", "172.17.0.1/16");
        hosts.ip(host, &format!("addr add 10.66.0.{}/24 dev cable", host + 1));
    }
    let (mut a, b) = (Node::on(hosts, 0, with), Node::on(hosts, 1, with));
    assert_eq!(b.address.addresses, ["10.77.0.2".parse::<std::net::IpAddr>().expect("an address")]);
    a.link(&preferring(&b.address, "10.66.0.2"));
    let up = a.is_up();
    assert!(up.contains(&format!("10.66.0.2:{} excluded by MADRIGAL_NET", b.address.port)), "{up}");
}

fn cut_off(hosts: &Hosts, with: Environment) {
    let (mut a, mut b) = (Node::on(hosts, 0, with), Node::on(hosts, 1, with));
    a.link(&b.address);
    a.is_up();
    b.is_up();
    talk(&mut a, &mut b);
    hosts.ip(1, "link set cable down");
    assert!(a.is_down().contains("is gone"));
    assert!(b.is_down().contains("is gone"));
}

/// What a node does: in a process of its own as it is told, or in this one.
mod node {
    use super::*;

    /// A port, and what it told.
    pub(crate) struct Local {
        id: NodeId,
        port: Box<dyn Port>,
        told: Told,
    }

    #[derive(Default)]
    struct Told {
        up: Vec<(Link, NodeId)>,
        down: Vec<(Link, LinkError)>,
        frames: Vec<(Vec<u8>, Vec<u8>)>,
        landing: Vec<u8>,
    }

    #[allow(unsafe_code)]
    impl Sink for Told {
        fn up(&mut self, link: Link, node: NodeId) {
            self.up.push((link, node));
        }

        fn down(&mut self, link: Link, why: LinkError) {
            self.down.push((link, why));
        }

        fn frame(&mut self, _link: Link, head: &[u8], body: &[u8]) {
            self.frames.push((head.to_vec(), body.to_vec()));
        }

        fn place(&mut self, _link: Link, _head: &[u8], len: usize, landing: &mut Landing) {
            self.landing = vec![0; len];
            // SAFETY: the memory stays as it is until `landed`; there is one link.
            landing.push(unsafe { madrigal_sys::piece::Piece::lend(self.landing.as_mut_ptr(), len) });
        }

        fn landed(&mut self, _link: Link, head: &[u8]) {
            self.frames.push((head.to_vec(), core::mem::take(&mut self.landing)));
        }
    }

    impl Local {
        pub(crate) fn open() -> Self {
            let (settings, errors) = Settings::from_pairs(std::env::vars());
            assert!(errors.is_empty(), "{errors:?}");
            let id = NodeId::new(madrigal_sys::process::random()).expect("random");
            let place = Place { network: settings.network, ..Place::default() };
            let driver = madrigal_drivers::message_driver("tcp").expect("there is one");
            Self { id, port: driver.open(id, &place).expect("opens"), told: Told::default() }
        }

        pub(crate) fn address(&self) -> NodeAddress {
            let mut address = NodeAddress { id: self.id, channel: 0, port: 0, addresses: Vec::new() };
            self.port.publish(&mut address);
            address
        }

        pub(crate) fn poll(&mut self) {
            self.port.poll(&mut self.told);
        }

        /// Polls, and sleeps when there is nothing.
        fn wait(&mut self) {
            if self.port.poll(&mut self.told) > 0 || self.port.arm() {
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

        pub(crate) fn until_up(&mut self) -> Link {
            while self.told.up.is_empty() {
                self.wait();
            }
            self.told.up[0].0
        }

        pub(crate) fn id_of(&self, link: Link) -> NodeId {
            self.told.up.iter().find(|(up, _)| *up == link).expect("is up").1
        }

        /// Links to a node that links to us at the same time, and exchanges a frame.
        pub(crate) fn meet(&mut self, to: &NodeAddress) {
            let link = self.port.link(to).expect("links");
            while self.told.up.iter().all(|(_, node)| *node != to.id) {
                self.poll();
            }
            let mine = self.id.number().to_le_bytes();
            while self.port.send(link, &mine, &[], 0).expect("sends") != Sent::All {
                self.poll();
            }
            while self.told.frames.is_empty() {
                self.poll();
            }
            assert_eq!(self.told.frames.remove(0).0, to.id.number().to_le_bytes());
            assert_eq!(self.told.up.iter().filter(|(_, node)| *node == to.id).count(), 1, "one link");
            let lost = self.told.down.iter().any(|(down, _)| *down == link);
            assert!(!lost, "{:?}", self.told.down);
        }

        /// Sends frames of all sizes and checks as many.
        fn talk(&mut self, link: Link) {
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
                for (head, body) in core::mem::take(&mut self.told.frames) {
                    assert_eq!(head, u32::to_le_bytes(got));
                    back.check(&body);
                    got += 1;
                }
                assert!(self.told.down.is_empty(), "{:?}", self.told.down);
            }
        }
    }

    /// A process that does what it is told line by line, and tells what happens.
    pub(crate) fn run() {
        let mut node = Local::open();
        println!("{}", text_of(&node.address().encode(NodeAddress::LONG)));
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || std::io::stdin().lines().try_for_each(|line| tell.send(line.expect("text"))));
        let (begun, mut ups, mut link) = (Instant::now(), 0, None);
        loop {
            match told.try_recv() {
                Ok(line) if line == "talk" => {
                    node.talk(link.expect("is up"));
                    println!("talked");
                }
                Ok(line) => node.obey(&line),
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
                Err(std::sync::mpsc::TryRecvError::Empty) => {}
            }
            node.poll();
            for (_, why) in node.told.down.drain(..) {
                println!("down {} ms: {why}", begun.elapsed().as_millis());
            }
            if node.told.up.len() > ups {
                ups += 1;
                let (up, _) = node.told.up[ups - 1];
                link = Some(up);
                let explained = node.port.explain(up);
                let rejected: Vec<_> = explained.rejected.iter().map(|(what, why)| format!("{what} {why}")).collect();
                println!("up {} ms: {}; {}", begun.elapsed().as_millis(), explained.path, rejected.join("; "));
            }
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
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
}

//! The `tcp` driver of messages, and one with a stack, between processes on two hosts, which are network namespaces of this machine (that
//! needs root; else the trial is ignored, and says why), and at a port to which unauthenticated peers come.
//!
//! The other processes are this program, started once more with its task in the environment.
//!
//! Features (docs/features.md): A4, A8, G11.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_progress::message::LinkError;
use madrigal_proto::talk::{Next, Talk};
use madrigal_testkit::hosts::Hosts;
use madrigal_testkit::noise::Noise;
use madrigal_testkit::watchdog::Watchdog;

#[path = "network/node.rs"]
mod node;

/// Tells a started copy that it is a node.
const TASK: &str = "_MADRIGAL_TESTKIT_NODE";

/// What links of the trials over a stack have.
const STACK: (&str, &str) = ("MADRIGAL_MESSAGE_STACK", "adoc/stripe(2)/tcp");

fn main() -> ExitCode {
    if std::env::var_os(TASK).is_some() {
        node::run();
        return ExitCode::SUCCESS;
    }
    let trials = vec![
        trial("two_processes_talk", two_processes),
        trial("a_killed_peer_is_gone", killed),
        trial("a_port_that_is_dropped_leaves_nothing", || dropped(&[])),
        trial("over_a_stack_a_port_that_is_dropped_leaves_nothing", || dropped(&[STACK])),
        trial("both_at_once_make_one_connection", both_at_once),
        trial("unauthenticated_peers_get_nothing_and_harm_nobody", unauthenticated_peers),
        trial("a_peer_that_sends_no_frames_is_corrupt", corrupt),
        hosted("a_cable_is_found", &[], cable),
        hosted("a_bridge_that_every_host_has_is_no_peer", &[("MADRIGAL_PORTS", "4000")], twins),
        hosted("another_process_at_the_same_place_is_no_peer", &[("MADRIGAL_PORTS", "4000")], another),
        hosted("a_network_that_leads_nowhere_holds_nobody_up", &[], dangling),
        hosted("a_firewall_before_the_first_leaves_the_other_way", &[], |hosts, with| firewall(hosts, with, 0)),
        hosted("a_firewall_before_the_second_leaves_the_other_way", &[], |hosts, with| firewall(hosts, with, 1)),
        hosted("no_way_is_an_error_that_names_everything", &[("MADRIGAL_CONNECT_TIMEOUT", "3")], no_way),
        hosted("what_the_user_does_not_want_is_not_tried", &[("MADRIGAL_NET", "^docker*,^10.66.0.0/16")], unwanted),
        hosted("a_peer_whose_network_is_gone_is_gone", &[], cut_off),
        hosted("over_a_stack_a_cable_is_found", &[STACK], cable),
        hosted("over_a_stack_a_bridge_is_no_peer", &[STACK, ("MADRIGAL_PORTS", "4000")], twins),
        hosted("over_a_stack_either_may_open", &[STACK], |hosts, with| firewall(hosts, with, 1)),
        hosted("over_a_stack_no_way_names_everything", &[STACK, ("MADRIGAL_CONNECT_TIMEOUT", "3")], no_way),
        hosted("over_a_stack_a_peer_whose_network_is_gone_is_gone", &[STACK], cut_off),
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
    Trial::ignorable_test(name, move || {
        let _dog = Watchdog::set(name);
        match Hosts::two() {
            Ok(hosts) => run(&hosts, with),
            Err(why) => return Ok(Completion::ignored_with(format!("no hosts can be made here: {why}"))),
        }
        Ok::<_, Failed>(Completion::Completed)
    })
}

/// A process that is a node; killed on drop if it still runs.
struct Node {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    address: NodeAddress,
}

impl Node {
    fn start(mut command: Command, with: Environment) -> Self {
        let command = command.env(TASK, "1").envs(with.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
        let (input, output) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let address = NodeAddress::bare(NodeId::new(1).expect("is one"));
        let mut node = Self { child, input, output: BufReader::new(output), address };
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
        self.output.read_line(&mut line).expect("reads");
        assert!(line.ends_with('\n'), "the node died, saying {line:?}");
        line.trim_end().to_owned()
    }

    fn send_line(&mut self, text: &str) {
        writeln!(self.input, "{text}").expect("the node listens");
    }

    fn link(&mut self, to: &NodeAddress) {
        self.send_line(&format!("link {}", text_of(&to.encode(NodeAddress::LONG))));
    }

    /// Waits until it reports that a link is up: the time it took, its path, and the rejected paths.
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
    a.send_line("talk");
    b.send_line("talk");
    assert_eq!((&a.line()[..], &b.line()[..]), ("talked", "talked"));
}

fn text_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of(text: &str) -> Vec<u8> {
    let byte = |i| u8::from_str_radix(&text[i..i + 2], 16).expect("two digits");
    (0..text.len()).step_by(2).map(byte).collect()
}

/// The address with `first` in front.
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
    // A node that is gone cannot be reached again.
    a.link(&b.address);
    assert!(a.is_down().contains("Connection refused"));
}

/// The process goes on: its peer learns of the end, and no socket is left.
fn dropped(with: Environment) {
    let start = || Node::start(Command::new("/proc/self/exe"), with);
    let (mut a, mut b, mut c) = (start(), start(), start());
    // It talks on the last one.
    for other in [&mut c, &mut a] {
        b.link(&other.address);
        b.is_up();
        other.is_up();
    }
    talk(&mut a, &mut b);
    // One more is on its way, and nobody takes it.
    let mut gone = b.address.clone();
    (gone.id, gone.port) = (NodeId::new(7).expect("is one"), c.address.port);
    b.link(&gone);
    b.send_line("drop");
    assert_eq!(b.line(), "dropped, 0 descriptors more than before");
    for other in [&mut a, &mut c] {
        let down = other.is_down();
        assert!(down.contains(&format!("node {} is gone", b.address.id)), "{down}");
    }
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

fn unauthenticated_peers() {
    let mut node = node::Local::open();
    let at = node.address();
    let to = std::net::SocketAddr::new(at.addresses[0], at.port);
    let mut noise = Noise::new(1);
    let mut crowd: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(to).expect("connects")).collect();
    for (i, unauthenticated) in crowd.iter_mut().enumerate() {
        let garbage: Vec<u8> = (0..i % 50).map(|_| noise.next_u64() as u8).collect();
        unauthenticated.write_all(&garbage).expect("is sent");
    }
    // Among them, a peer that knows the node id.
    let mut other = Node::here();
    other.link(&at);
    let link = node.until_up();
    other.is_up();
    assert_eq!(node.id_of(link), other.address.id);
    // Who sent as much as a first word and it was none is sent away, without a byte.
    for unauthenticated in
        crowd.iter_mut().enumerate().filter(|(i, _)| i % 50 >= 32).map(|(_, unauthenticated)| unauthenticated)
    {
        node.poll();
        let mut answer = [0; 64];
        unauthenticated.set_read_timeout(None).expect("waits");
        assert!(matches!(unauthenticated.read(&mut answer), Ok(0) | Err(_)));
    }
}

/// A peer that knows the node id, and then sends bytes that are no frame.
fn corrupt() {
    let mut noise = Noise::new(3);
    for round in 0..200u8 {
        let mut node = node::Local::open();
        let at = node.address();
        // The callee leads, as its id is larger.
        let me = NodeId::new(1).expect("is one");
        let mut peer = TcpStream::connect(std::net::SocketAddr::new(at.addresses[0], at.port)).expect("connects");
        let (mut talk, hello) = Talk::call(me, at.id, noise.next_u64());
        peer.write_all(&hello).expect("is sent");
        let mut next = Next::Wait;
        peer.set_nonblocking(true).expect("can");
        while next != Next::Chosen {
            node.poll();
            let mut bytes = vec![0; talk.wants()];
            if let Ok(n) = peer.read(&mut bytes) {
                let mut out = Vec::new();
                next = talk.take(&bytes[..n], &mut out).expect("an honest node");
                peer.write_all(&out).expect("is sent");
            }
        }
        let mut garbage: Vec<u8> = (0..20).map(|_| noise.next_u64() as u8).collect();
        // Either no mark of a frame, or one with forbidden lengths.
        (garbage[0], garbage[1]) = if round % 2 == 0 { (round, 0) } else { (0xA7, 65 + round % 100) };
        peer.write_all(&garbage).expect("is sent");
        let why = node.until_down();
        assert!(matches!(&why, LinkError::Corrupt { node, .. } if *node == me), "{why}");
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
    // Hosts choose their ports without regard to each other: where both have the same, it is itself that answers at the other's bridge.
    let bridge = if a.address.port == port { "answered by another node" } else { "Connection refused" };
    for part in [
        format!("cannot reach node {}", b.address.id),
        format!("10.77.0.2:{port}: no answer (ETIMEDOUT), "),
        format!("172.17.0.1:{port}: {bridge}"),
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
    assert!(a.is_down().contains("no answer from its host"));
    assert!(b.is_down().contains("no answer from its host"));
}

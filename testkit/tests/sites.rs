//! The `tcp` driver of messages where a daemon leads to other hosts: the whole suite of ports by it, and when requests are sent to it. The
//! daemon is part of this program; it takes every host for this one, and answers byte by byte.
//!
//! Features (docs/features.md): A4, B18.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use libtest_mimic::{Arguments, Failed, Trial};
use madrigal_base::network::Network;
use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_progress::driver::{Facts, Place};
use madrigal_progress::message::{LinkError, LinkIndex, MessageDriver, Placement, Port, Sink};
use madrigal_proto::frame;
use madrigal_testkit::watchdog::Watchdog;
use madrigal_testkit::{mailboxes, message_trials, ports, stacked, tidy};

/// As in `daemon/src/wire.rs`.
const DONE: u8 = 32;
const FAILED: u8 = 33;
/// Hosts there are.
const HOSTS: usize = 96;

#[path = "sites/moves.rs"]
mod moves;

fn main() {
    let mut trials = message_trials(&[&Through], ports::CASES, ports::context);
    trials.extend(message_trials(&[&Through], mailboxes::CASES, mailboxes::context));
    trials.extend([
        trial("the_way_is_told_at_both_ends", paths),
        trial("who_publishes_no_name_is_known_by_its_address", nameless),
        trial("the_direct_way_goes_first", direct),
        trial("without_a_daemon_it_is_plain", plain),
        trial("a_refusal_is_told_with_everything_else", refused),
        trial("what_has_to_be_enciphered_is_not_tried_without_a_daemon", barred),
        trial("what_has_to_be_enciphered_goes_by_the_daemon_alone_without_tls", guarded),
        trial("nonsense_and_silence_are_no_way", nonsense),
        trial("it_goes_on_when_the_daemon_loses_a_connection", moves::lost),
        trial("it_moves_to_a_direct_way_once_there_is_one", moves::direct),
        trial("a_node_that_is_no_more_is_told", moves::gone),
    ]);
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    let _ = std::fs::remove_dir_all(home());
    tidy();
    conclusion.exit();
}

fn trial(name: &'static str, run: fn()) -> Trial {
    Trial::test(name, move || {
        let _dog = Watchdog::set(name);
        run();
        Ok::<(), Failed>(())
    })
}

fn home() -> String {
    format!("/dev/shm/madrigal-test-sites-{}", std::process::id())
}

/// A directory as a daemon of the host `own` has it: the other hosts, how to connect to them, and the daemon that they all share.
fn grid(name: &str, own: &str, others: &[(&str, &str)], up: bool) -> String {
    static DAEMON: OnceLock<()> = OnceLock::new();
    DAEMON.get_or_init(|| {
        std::fs::create_dir_all(home()).expect("a directory");
        let listener = UnixListener::bind(format!("{}/daemon.sock", home())).expect("a socket");
        thread::spawn(move || listener.incoming().flatten().for_each(|client| drop(thread::spawn(|| serve(client)))));
    });
    let directory = format!("{}/{name}", home());
    std::fs::create_dir_all(&directory).expect("a directory");
    let alias = |n: usize| format!("127.77.0.{}", n + 1);
    let mut text = format!("madrigal-hosts 1\n{own} own {} 192.0.2.254\n", alias(0));
    for (n, (host, how)) in others.iter().enumerate() {
        text += &format!("{host} {how} {}\n", alias(n + 1));
    }
    std::fs::write(format!("{directory}/daemon.hosts"), text).expect("writes");
    if up {
        let _ = symlink(format!("{}/daemon.sock", home()), format!("{directory}/daemon.sock"));
    }
    directory
}

/// What a daemon does with a client.
fn serve(mut client: UnixStream) {
    let mut front = [0; frame::PREFIX + 1];
    if client.read_exact(&mut front).is_err() {
        return;
    }
    let len = u64::from_le_bytes(*front.first_chunk().expect("is longer")) >> 16;
    let mut body = vec![0; len as usize];
    client.read_exact(&mut body).expect("asks");
    let body = String::from_utf8(body).expect("text");
    let value = |key: &str| {
        body.split(&format!("\"{key}\":")).nth(1).expect("is there").split([',', '}']).next().expect("is one")
    };
    let (host, port) = (value("host").trim_matches('"'), value("port").parse::<u16>().expect("a port"));
    assert!(value("within").parse::<u64>().is_ok_and(|ms| ms > 0), "{body}");
    let answer = |kind, text: &str| {
        [&frame::prefix(1, text.len() as u64).expect("short")[..], &[kind], text.as_bytes()].concat()
    };
    match host.split('-').next() {
        Some("refusing") => client.write_all(&answer(FAILED, "cannot connect: the relay r is\ndown")).unwrap_or(()),
        Some("babbling") => client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap_or(()),
        Some("silent") => drop(client.read(&mut [0])),
        Some("once") if moves::was_connected(host) => client.write_all(&answer(FAILED, "nobody listens")).unwrap_or(()),
        _ => match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            Ok(far) => {
                let reply = answer(DONE, &format!("here, r, {host} (TLS)"));
                moves::note(host, &client, &far);
                if reply.chunks(1).all(|byte| client.write_all(byte).is_ok()) {
                    join(client, far);
                }
            }
            Err(error) => drop(client.write_all(&answer(FAILED, &error.to_string()))),
        },
    }
}

/// Carries bytes both ways.
fn join(client: UnixStream, far: TcpStream) {
    let (mut from, mut to) = (client.try_clone().expect("a copy"), far.try_clone().expect("a copy"));
    let there = thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
    let (mut from, mut to) = (far, client);
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
    let _ = there.join();
}

fn tcp() -> &'static dyn MessageDriver {
    madrigal_drivers::message_driver("tcp").expect("there is one")
}

/// The driver, each port of it on a host of its own, from which all others are reached by the daemon only.
struct Through;

impl MessageDriver for Through {
    fn name(&self) -> &'static str {
        "tcp-through-the-daemon"
    }

    fn facts(&self) -> Facts {
        tcp().facts()
    }

    fn usable(&self, place: &Place) -> Result<(), String> {
        tcp().usable(place)
    }

    fn open(&self, me: NodeId, place: &Place) -> Result<Box<dyn Port>, String> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let own = COUNT.fetch_add(1, Ordering::Relaxed) % HOSTS;
        let names: Vec<String> = (0..HOSTS).map(|n| format!("h{n}")).collect();
        let others: Vec<_> =
            names.iter().filter(|name| **name != names[own]).map(|name| (name.as_str(), "enciphered")).collect();
        let daemons = vec![grid(&names[own], &names[own], &others, true)];
        tcp().open(me, &Place { daemons, ..place.clone() })
    }
}

/// A node, and the events of its port.
struct Node {
    id: NodeId,
    port: Box<dyn Port>,
    up: Vec<LinkIndex>,
    down: Vec<LinkError>,
}

impl Node {
    fn at(directory: String) -> Self {
        let id = NodeId::new(madrigal_sys::process::random()).expect("random");
        let network = Network { connect_timeout: 2, ..Network::default() };
        let place = Place { network, daemons: vec!["/nonexistent".to_owned(), directory], ..Place::default() };
        Self { id, port: tcp().open(id, &place).expect("opens"), up: vec![], down: vec![] }
    }

    fn address(&self) -> NodeAddress {
        let mut address = NodeAddress::bare(self.id);
        self.port.publish(&mut address);
        NodeAddress::decode(&address.encode(NodeAddress::LONG)).expect("an address")
    }

    fn poll(&mut self) {
        let mut recorder = Recorder::default();
        self.port.poll(&mut recorder);
        self.up.extend(recorder.up);
        self.down.extend(recorder.down);
    }
}

#[derive(Default)]
struct Recorder {
    up: Vec<LinkIndex>,
    down: Vec<LinkError>,
}

impl Sink for Recorder {
    fn up(&mut self, link: LinkIndex, _: NodeId) {
        self.up.push(link);
    }

    fn down(&mut self, _: LinkIndex, why: LinkError) {
        self.down.push(why);
    }

    fn frame(&mut self, _: LinkIndex, _: &[u8], _: &[u8]) {}

    fn place(&mut self, _: LinkIndex, _: &[u8], _: usize, _: &mut Placement) {}

    fn arrived(&mut self, _: LinkIndex, _: &[u8]) {}
}

/// Two nodes, on hosts of these names, the first of which reaches the second like that.
fn two(own: &str, other: &str, how: &str, up: bool) -> [Node; 2] {
    [Node::at(grid(own, own, &[(other, how)], up)), Node::at(grid(other, other, &[(own, how)], up))]
}

/// How the first one reaches an address of the second one, and how the second one sees that.
fn reach([a, b]: &mut [Node; 2], to: &NodeAddress) -> [(String, Vec<(String, String)>); 2] {
    a.port.link(to).expect("links");
    while a.up.is_empty() || b.up.is_empty() {
        assert!(a.down.is_empty(), "{:?}", a.down);
        a.poll();
        b.poll();
    }
    [a, b].map(|node| node.port.explain(node.up[0])).map(|path| (path.path, path.rejected))
}

fn paths() {
    let mut nodes = two("told-a", "told-b", "enciphered", true);
    let to = nodes[1].address();
    let [(path, rejected), (back, _)] = reach(&mut nodes, &to);
    assert_eq!(path, "through the daemon: here, r, told-b (TLS)");
    assert!(back.starts_with("through the daemon: 127.0.0.1:"), "{back}");
    assert_eq!(rejected.len(), to.addresses.len());
    assert!(
        rejected.iter().all(|(_, why)| why == "not tried, for the network between the sites is not trusted"),
        "{rejected:?}"
    );
}

fn nameless() {
    let mut nodes = two("nameless-a", "nameless-b", "daemon", true);
    let file = format!("{}/nameless-a/daemon.hosts", home());
    let text = std::fs::read_to_string(&file).expect("is there");
    std::fs::write(&file, text.trim_end().to_owned() + " 192.0.2.77\n").expect("writes");
    // It is read when the port opens.
    nodes[0] = Node::at(format!("{}/nameless-a", home()));
    let to = NodeAddress { addresses: vec![[192, 0, 2, 77].into()], foreign: vec![], ..nodes[1].address() };
    let [(path, _), _] = reach(&mut nodes, &to);
    assert_eq!(path, "through the daemon: here, r, nameless-b (TLS)");
}

fn direct() {
    for how in ["direct", "daemon"] {
        let mut nodes = two(&format!("near-{how}"), "near-b", how, true);
        let to = NodeAddress { addresses: vec![Ipv4Addr::LOCALHOST.into()], ..nodes[1].address() };
        let [(path, rejected), _] = reach(&mut nodes, &to);
        assert!(path.contains(&format!("-> 127.0.0.1:{}", to.port)), "{path}");
        assert!(rejected.iter().any(|(way, _)| way == "the daemon"), "{rejected:?}");
    }
}

fn plain() {
    let mut nodes = two("plain-a", "plain-b", "preferred", false);
    let to = NodeAddress { addresses: vec![Ipv4Addr::LOCALHOST.into()], ..nodes[1].address() };
    let [(path, rejected), _] = reach(&mut nodes, &to);
    assert!(path.contains(&format!("-> 127.0.0.1:{}", to.port)), "{path}");
    assert_eq!(rejected, [("the daemon".to_owned(), "no daemon is up on this host".to_owned())]);
}

fn barred() {
    let [mut a, b] = two("barred-a", "barred-b", "enciphered", false);
    let to = NodeAddress { addresses: vec![Ipv4Addr::LOCALHOST.into()], ..b.address() };
    a.port.link(&to).expect("links");
    while a.down.is_empty() {
        a.poll();
    }
    let error = a.down.remove(0).to_string();
    let left = format!("127.0.0.1:{}: not tried, for the network between the sites is not trusted; ", to.port);
    assert!(error.contains(&left) && error.contains("through the daemon: no daemon is up on this host; "), "{error}");
}

/// Links with a stack do not go by the daemon: where it is to encipher them they do so themselves, or there is none.
fn guarded() {
    let directory = grid("guarded-a", "guarded-a", &[], false);
    let hosts = "madrigal-hosts 1\nguarded-a own 127.77.0.1 192.0.2.254\nguarded-b enciphered 127.77.0.2 192.0.2.8\n";
    std::fs::write(format!("{directory}/daemon.hosts"), hosts).expect("writes");
    let place = Place { daemons: vec![directory], ..Place::default() };
    let told = |stack: &str| {
        let mut to = NodeAddress {
            port: 9,
            addresses: vec![[192, 0, 2, 8].into()],
            ..NodeAddress::bare(NodeId::new(5).expect("a number"))
        };
        to.set_stack(stack);
        let network = Network { connect_timeout: 1, ..Network::default() };
        let place = Place { network, ..place.clone() };
        let id = NodeId::new(madrigal_sys::process::random()).expect("random");
        let mut port = stacked::message_driver(stack).expect("a stack").open(id, &place).expect("opens");
        port.link(&to).expect("is tried");
        let mut seen = Recorder::default();
        while seen.down.is_empty() {
            port.poll(&mut seen);
        }
        seen.down.remove(0).to_string()
    };
    // No daemon is up.
    let why = told("adoc/tcp");
    assert!(why.contains("192.0.2.8:9: not tried") && why.contains("none of yours is up"), "{why}");
    // What enciphers itself goes straight there, too.
    let why = told("adoc/tls/tcp");
    assert!(!why.contains("not tried") && why.contains("192.0.2.8:9: "), "{why}");
}

/// The reason that is reported if the first node does not reach the second one.
fn failure(other: &str) -> String {
    let [mut a, b] = two(&format!("from-{other}"), other, "enciphered", true);
    let to = NodeAddress { addresses: vec![[192, 0, 2, 1].into()], ..b.address() };
    a.port.link(&to).expect("links");
    while a.down.is_empty() {
        a.poll();
    }
    let error = a.down.remove(0).to_string();
    let left = format!("192.0.2.1:{}: not tried, for the network between the sites is not trusted; ", to.port);
    assert!(error.contains(&left) && error.ends_with("it did not connect to us"), "{error}");
    error
}

fn refused() {
    let error = failure("refusing-b");
    assert!(error.contains("through the daemon: cannot connect: the relay r is down; "), "{error}");
}

fn nonsense() {
    assert!(failure("babbling-b").contains("through the daemon: it answers nonsense; "));
    assert!(failure("silent-b").contains("through the daemon: no answer (ETIMEDOUT), 1 attempt; "));
}

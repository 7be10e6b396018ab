//! Unmodified programs under `madrigal exec` that connect to hosts of a grid through daemons of this machine.
//!
//! Features (docs/features.md): B16, B18, L7.

#[path = "../common/mod.rs"]
mod common;
mod hangs;

use madrigal_tests::trials::{need, skip};
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::bed::{Bed, echo, free_port, is_root};
use common::{Running, madrigal, run};

madrigal_tests::trials![
    a_blocking_connect_by_name_and_by_alias,
    what_a_server_says_at_once_is_not_lost,
    what_was_set_before_the_connect_holds_behind_it,
    a_connect_that_does_not_block_ends_when_the_far_end_is_there,
    what_fails_fails_as_it_would_there,
    why_shows_the_hops,
    between_program_and_daemon_bytes_go_through_shared_memory,
    without_a_daemon_and_by_the_users_rules_all_is_plain,
    a_killed_daemon_is_a_reset_and_new_connections_work_once_it_is_back,
    unauthenticated_peers_get_nothing_where_sockets_wait,
    the_server_of_a_connection_through_daemons_has_its_hops_in_why,
    hangs::a_daemon_that_hangs_is_an_error_that_says_so_where_there_is_no_other_way,
    hangs::a_daemon_that_hangs_holds_up_no_connect_that_does_not_block,
];

/// Daemons of hosts a1 and b1, and an unreachable host c1. The second host of the file has the alias 127.77.0.2.
fn bed(what: &str, allow: &str) -> Bed {
    // With the library that programs get.
    let _ = madrigal();
    let (a, b) = (free_port(), free_port());
    let grid = format!(
        "trusted = true\n[site.a]\nhosts.a1 = '127.0.0.1:{a}'\n[site.b]\nhosts = {{ b1 = '127.0.0.1:{b}', c1 = [] }}\nallow = '{allow}'\n"
    );
    let mut bed = Bed::new(&format!("route-{what}"), &grid);
    bed.up("a1");
    bed.up("b1");
    bed.linked("a1", "b1");
    bed
}

impl Bed {
    /// A Python script under `madrigal exec` on host a1, with what the scripts share.
    fn script(&self, options: &[&str], script: &str, args: &[&str]) -> Command {
        let python = need("python3");
        let whole = format!("{SHARED}{script}");
        let words = [&["exec"], options, &["--", python.to_str().unwrap(), "-c", &whole], args].concat();
        self.on("a1", &words)
    }

    /// What it prints; it must end well.
    #[track_caller]
    fn prints(&self, script: &str, args: &[&str]) -> String {
        let (status, out, err) = run(&mut self.script(&[], script, args));
        assert_eq!(status, Some(0), "{out}{err}{}", self.logs());
        out
    }

    fn logs(&self) -> String {
        format!("--- a1\n{}--- b1\n{}", self.log("a1"), self.log("b1"))
    }
}

const SHARED: &str = "
import errno, os, select, socket, struct, sys, threading
def exchange(s, n=300000):
    b = bytes(i * 7 % 251 for i in range(n))
    t = threading.Thread(target=lambda: (s.sendall(b), s.shutdown(1))); t.start()
    got = bytearray()
    while r := s.recv(65536): got += r
    t.join(); assert got == b, (len(got), n)
def failed(f):
    try: f()
    except OSError as e: return errno.errorcode[e.errno] if e.errno in errno.errorcode else str(e)
    return 'fine'
def move(s):
    for i in range(40):
        s.sendall(bytes(1000)); n = 0
        while n < 1000: n += len(s.recv(65536))
def error(s): return s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
";

/// A low water mark keeps a connection out of the rings, whichever way it goes.
fn what_was_set_before_the_connect_holds_behind_it() {
    need("python3");
    let bed = bed("before", "1-65535");
    let port = echo().to_string();
    let script = "
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 100)
s.connect(('b1', int(sys.argv[1]))); move(s)
p = select.poll(); p.register(s, select.POLLIN)
s.sendall(bytes(10)); few = p.poll(500)
s.sendall(bytes(90)); all = p.poll(20000)
print(len(few), len(all), len(s.recv(200)))
";
    assert_eq!(bed.prints(script, &[&port]), "0 1 100\n");
}

fn a_blocking_connect_by_name_and_by_alias() {
    need("python3");
    let bed = bed("blocking", "1-65535");
    let port = echo().to_string();
    let script = "
port = int(sys.argv[1])
for name in ['b1', 'B1', '127.77.0.2']:
    s = socket.create_connection((name, port))
    assert s.getpeername() == ('127.77.0.2', port), s.getpeername()
    assert s.getsockname()[1] != 0
    assert error(s) == 0
    assert failed(lambda: s.connect((name, port))) == 'EISCONN'
    assert s.getpeername() == ('127.77.0.2', port)
    exchange(s); s.close()
assert socket.gethostbyname('b1') == '127.77.0.2'
# As a socket of IPv6, that knows IPv4 by mapped addresses.
if socket.has_ipv6:
    s = socket.socket(socket.AF_INET6)
    a = socket.getaddrinfo('b1', port, socket.AF_INET6, socket.SOCK_STREAM)[0][4]
    assert a[0] == '::ffff:127.77.0.2', a
    s.connect(a)
    assert s.getpeername()[:2] == ('::ffff:127.77.0.2', port), s.getpeername()
    exchange(s)
# Its peer as SO_PEERNAME and a raw system call have it.
s = socket.create_connection(('b1', port))
d = s.dup(); s.close()
assert d.getpeername() == ('127.77.0.2', port)
peer = d.getsockopt(socket.SOL_SOCKET, 28, 16)
assert peer[2:8] == struct.pack('!H', port) + bytes([127, 77, 0, 2]), peer
exchange(d)
# With a time-out it is a connect that does not block; and bound before.
s = socket.socket(); s.settimeout(30); s.bind(('127.0.0.1', 0)); s.connect(('b1', port)); exchange(s)
# What is of this host goes as ever.
l = socket.create_server(('127.0.0.1', 0))
s = socket.create_connection(l.getsockname())
assert s.getpeername() == l.getsockname()
print('well')
";
    assert_eq!(bed.prints(script, &[&port]), "well\n");
}

fn what_a_server_says_at_once_is_not_lost() {
    need("python3");
    let bed = bed("first", "1-65535");
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port().to_string();
    // Its first words come while the program's socket is being connected, before, or after.
    std::thread::spawn(move || {
        for (n, client) in server.incoming().flatten().enumerate() {
            std::thread::sleep(Duration::from_micros(n as u64 % 40 * 50));
            let _ = (&client).write_all(b"greetings\n");
        }
    });
    let script = "
def ask(n):
    for _ in range(n):
        s = socket.create_connection(('b1', int(sys.argv[1])))
        s.settimeout(20)
        got = b''
        while r := s.recv(100): got += r
        assert got == b'greetings\\n', got
        s.close()
        told.append(1)
told = []
threads = [threading.Thread(target=ask, args=[100]) for _ in range(8)]
for t in threads: t.start()
for t in threads: t.join()
print(len(told))
";
    assert_eq!(bed.prints(script, &[&port]), "800\n");
}

fn a_connect_that_does_not_block_ends_when_the_far_end_is_there() {
    need("python3");
    let bed = bed("nonblocking", "1-65535");
    let port = echo().to_string();
    let script = "
port = int(sys.argv[1])
def begin():
    s = socket.socket(); s.setblocking(False)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return s
# Registered before it connects, edge-triggered.
s = begin(); e = select.epoll()
e.register(s, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
e.poll(0)
assert s.connect_ex(('b1', port)) == errno.EINPROGRESS
assert s.connect_ex(('b1', port)) in (errno.EALREADY, 0)
fd, events = e.poll(30)[0]
assert fd == s.fileno() and events == select.EPOLLOUT, events
assert error(s) == 0
assert s.connect_ex(('b1', port)) in (0, errno.EISCONN)
assert s.connect_ex(('b1', port)) == errno.EISCONN
assert s.getpeername() == ('127.77.0.2', port)
assert s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
s.send(b'x'); assert e.poll(30)[0][1] & select.EPOLLIN
assert s.recv(9) == b'x'
s.setblocking(True); exchange(s)
# Poll, select, and many at once.
many = [begin() for i in range(200)]
for s in many: assert s.connect_ex(('b1', port)) == errno.EINPROGRESS
left = set(many)
while left:
    _, ready, _ = select.select([], left, [], 30)
    assert ready
    for s in ready:
        assert error(s) == 0 and s.getpeername()[1] == port
        left.remove(s)
for s in many: s.setblocking(True); exchange(s, 3000)
import asyncio
async def talk():
    r, w = await asyncio.open_connection('b1', port)
    w.write(b'hello'); assert await r.readexactly(5) == b'hello'
    assert w.get_extra_info('peername') == ('127.77.0.2', port)
    w.close()
asyncio.run(talk())
print('well')
";
    assert_eq!(bed.prints(script, &[&port]), "well\n");
}

fn what_fails_fails_as_it_would_there() {
    need("python3");
    let shut = free_port();
    let bed = bed("failed", &shut.to_string());
    let other = echo();
    let script = "
shut, other = int(sys.argv[1]), int(sys.argv[2])
# Nobody listens there; not allowed.
for port in [shut, other]:
    s = socket.socket()
    assert failed(lambda: s.connect(('b1', port))) == 'ECONNREFUSED', port
    # The same socket again, as with any other.
    assert failed(lambda: s.connect(('b1', port))) == 'ECONNREFUSED', port
    s = socket.socket(); s.setblocking(False)
    assert s.connect_ex(('b1', port)) == errno.EINPROGRESS
    p = select.poll(); p.register(s, select.POLLOUT)
    assert p.poll(30000)[0][1] & (select.POLLERR | select.POLLHUP)
    assert error(s) == errno.ECONNREFUSED
    s = socket.socket(); s.setblocking(False)
    assert s.connect_ex(('b1', port)) == errno.EINPROGRESS
    p = select.poll(); p.register(s, select.POLLOUT); p.poll(30000)
    assert s.connect_ex(('b1', port)) == errno.ECONNREFUSED
    s = socket.socket(); s.settimeout(30)
    assert failed(lambda: s.connect(('b1', port))) == 'ECONNREFUSED'
print('well', flush=True)
sys.stdin.readline()
# No way there.
s = socket.socket()
print(failed(lambda: s.connect(('c1', shut))), flush=True)
s = socket.socket(); s.setblocking(False)
assert s.connect_ex(('c1', shut)) == errno.EINPROGRESS
p = select.poll(); p.register(s, select.POLLOUT); p.poll(30000)
print(errno.errorcode[error(s)])
";
    let mut program = Running::start(&mut bed.script(&[], script, &[&shut.to_string(), &other.to_string()]));
    assert_eq!(program.line(), "well", "{}", bed.logs());
    let (status, told, err) = run(&mut bed.on("a1", &["why", &program.pid().to_string()]));
    assert_eq!(status, Some(0), "{err}");
    for part in [
        format!("not connected, 0 s ago, to 127.77.0.2:{other}: cannot connect to b1:{other}: b1 lets nobody connect"),
        format!("cannot connect to b1:{shut}: 127.0.0.1:{shut}: Connection refused"),
    ] {
        assert!(told.contains(&part), "{part}\n{told}");
    }
    program.send_line("");
    assert_eq!((program.line(), program.line()), ("EHOSTUNREACH".to_owned(), "EHOSTUNREACH".to_owned()));
}

fn why_shows_the_hops() {
    need("python3");
    let bed = bed("why", "1-65535");
    let port = echo().to_string();
    let script = "s = socket.create_connection(('b1', int(sys.argv[1]))); s.sendall(b'x'); s.recv(1)\n\
        print('open', flush=True); sys.stdin.readline()";
    let mut program = Running::start(&mut bed.script(&[], script, &[&port]));
    assert_eq!(program.line(), "open", "{}", bed.logs());
    let pid = program.pid().to_string();
    let json = run(&mut bed.on("a1", &["why", &pid, "--json"])).1;
    let answer: serde_json::Value = serde_json::from_str(&json).unwrap();
    let connection = &answer["processes"][0]["connections"][0];
    assert_eq!((&connection["path"], &connection["reason"]["name"]), (&"daemon".into(), &"daemon".into()), "{json}");
    assert_eq!(connection["peer"], format!("127.77.0.2:{port}"), "{json}");
    assert_eq!(connection["daemon"]["hops"], serde_json::json!(["a1", "b1"]), "{json}");
    let table = run(&mut bed.on("a1", &["why", &pid])).1;
    assert!(table.contains(&format!("a1 > b1:{port} (")), "{table}");
}

/// Of a program's bytes those that went through shared memory, to and from its only connection.
fn moved(bed: &Bed, host: &str, program: &Running) -> (u64, u64) {
    let json = run(&mut bed.on(host, &["why", &program.pid().to_string(), "--json"])).1;
    let answer: serde_json::Value = serde_json::from_str(&json).unwrap();
    let connection = &answer["processes"][0]["connections"][0];
    (connection["ring_in"].as_u64().unwrap(), connection["ring_out"].as_u64().unwrap())
}

fn between_program_and_daemon_bytes_go_through_shared_memory() {
    need("python3");
    let mut bed = bed("rings", "1-65535");
    let server = "
l = socket.create_server(('127.0.0.1', 0)); print(l.getsockname()[1], flush=True)
c = l.accept()[0]
def serve():
    while b := c.recv(65536): c.sendall(b)
print(failed(serve), flush=True)
";
    let python = need("python3");
    let words = ["exec", "--", python.to_str().unwrap(), "-c", &format!("{SHARED}{server}")];
    let mut server = Running::start(&mut bed.on("b1", &words));
    let port = server.line();
    let script = "
s = socket.create_connection(('b1', int(sys.argv[1]))); move(s)
print('open', flush=True)
print(failed(lambda: s.recv(1)), flush=True)
";
    let mut client = Running::start(&mut bed.script(&[], script, &[&port]));
    assert_eq!(client.line(), "open", "{}", bed.logs());
    for (host, program) in [("a1", &client), ("b1", &server)] {
        let (came, went) = moved(&bed, host, program);
        assert!(came > 10_000 && went > 10_000, "{host}: {came} and {went} bytes by rings; {}", bed.logs());
    }
    bed.kill("b1");
    assert_eq!(server.line(), "ECONNRESET");
}

fn without_a_daemon_and_by_the_users_rules_all_is_plain() {
    need("python3");
    let mut bed = bed("rules", "1-65535");
    let port = echo().to_string();
    let script = "
port = int(sys.argv[1])
print(failed(lambda: socket.create_connection(('b1', port))), failed(lambda: socket.create_connection(('127.77.0.2', port))))
s = socket.create_connection(('127.0.0.1', port)); exchange(s, 100)
";
    let told = |bed: &Bed, options: &[&str]| {
        let (status, out, err) = run(&mut bed.script(options, script, &[&port]));
        assert_eq!(status, Some(0), "{err}");
        out
    };
    assert_eq!(told(&bed, &[]), "fine fine\n");
    // The name is unknown, and the alias is an address of this host without a listener.
    for rules in [["--methods", "shm,tcp"], ["--methods", "^daemon"]] {
        let out = told(&bed, &rules);
        assert!(out.ends_with(" ECONNREFUSED\n") && !out.starts_with("fine"), "{rules:?}: {out}");
    }
    assert_eq!(told(&bed, &["--only", "1"]), "EHOSTUNREACH EHOSTUNREACH\n");
    bed.kill("a1");
    assert_eq!(told(&bed, &[]), "EHOSTUNREACH EHOSTUNREACH\n");
    bed.up("a1");
    bed.linked("a1", "b1");
    assert_eq!(told(&bed, &[]), "fine fine\n");
}

fn a_killed_daemon_is_a_reset_and_new_connections_work_once_it_is_back() {
    need("python3");
    let mut bed = bed("killed", "1-65535");
    let port = echo().to_string();
    let script = "
port = int(sys.argv[1])
s = socket.create_connection(('b1', port)); s.sendall(b'x'); assert s.recv(1) == b'x'
moved = socket.create_connection(('b1', port)); move(moved)
print('open', flush=True)
print(failed(lambda: s.recv(1)), failed(lambda: moved.recv(1)), flush=True)
sys.stdin.readline()
s = socket.create_connection(('b1', port)); exchange(s)
print('again', flush=True)
";
    let mut program = Running::start(&mut bed.script(&[], script, &[&port]));
    assert_eq!(program.line(), "open", "{}", bed.logs());
    bed.kill("a1");
    // In shared memory as by the kernel.
    assert_eq!(program.line(), "ECONNRESET ECONNRESET");
    bed.up("a1");
    bed.linked("a1", "b1");
    program.send_line("");
    assert_eq!(program.line(), "again", "{}", bed.logs());
}

/// Ports at which a process listens on 127.0.0.1.
fn listens(pid: u32) -> Vec<u16> {
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let held: Vec<String> =
        fds.filter_map(|fd| Some(std::fs::read_link(fd.ok()?.path()).ok()?.to_str()?.to_owned())).collect();
    let lines = table.lines().skip(1).map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let own = lines.filter(|f| f[3] == "0A" && held.contains(&format!("socket:[{}]", f[9])));
    own.map(|fields| u16::from_str_radix(fields[1].split_once(':').unwrap().1, 16).unwrap()).collect()
}

/// Connects to ports, and takes them for itself; what came of it.
const UNAUTHENTICATED: &str = "
import errno, socket, sys
for port in map(int, sys.argv[1:]):
    s = socket.socket(); s.settimeout(0.3)
    try: s.connect(('127.0.0.1', port)); print('connected', s.recv(1))
    except OSError as e: print(type(e).__name__)
    for option in [socket.SO_REUSEADDR, socket.SO_REUSEPORT]:
        t = socket.socket(); t.setsockopt(socket.SOL_SOCKET, option, 1)
        try: t.bind(('127.0.0.1', port)); print('bound')
        except OSError as e: print(errno.errorcode[e.errno])
";

fn unauthenticated_peers_get_nothing_where_sockets_wait() {
    // Where everybody may execute it.
    let python = Path::new("/usr/bin/python3");
    if !python.exists() {
        skip("no /usr/bin/python3");
    }
    if !is_root() {
        skip("only root can become somebody else");
    }
    let bed = bed("unauthenticated", "1-65535");
    let port = echo().to_string();
    let grid = std::fs::read_to_string(bed.folder.path("grid.toml")).unwrap();
    let decoys = listens(bed.pid("a1"));
    let decoys: Vec<String> = decoys.iter().map(u16::to_string).filter(|port| !grid.contains(port)).collect();
    assert_eq!(decoys.len(), 1, "{decoys:?}");
    let mut unauthenticated = Command::new(python);
    unauthenticated.args(["-c", UNAUTHENTICATED]).args(&decoys).uid(65534).gid(65534).env_clear().current_dir("/");
    let (status, out, err) = run(&mut unauthenticated);
    assert_eq!((status, out.as_str()), (Some(0), "TimeoutError\nEADDRINUSE\nEADDRINUSE\n"), "{err}");
    // All the while and afterwards programs of the daemon's user are served.
    let script = "s = socket.create_connection(('b1', int(sys.argv[1]))); exchange(s); print('well')";
    assert_eq!(bed.prints(script, &[&port]), "well\n");
}

fn the_server_of_a_connection_through_daemons_has_its_hops_in_why() {
    let python = need("python3");
    let bed = bed("server", "1-65535");
    let script = "import socket, sys\ns = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)\n\
        c, _ = s.accept(); c.sendall(c.recv(1)); print('open', flush=True); sys.stdin.readline()";
    let mut wrapped = bed.on("b1", &["exec", "--"]);
    let mut server = Running::start(wrapped.arg(&python).args(["-c", script]));
    let port = server.line();
    let client = "s = socket.create_connection(('b1', int(sys.argv[1]))); s.sendall(b'x'); s.recv(1)\n\
        print('open', flush=True); sys.stdin.readline()";
    let mut program = Running::start(&mut bed.script(&[], client, &[&port]));
    assert_eq!((program.line(), server.line()), ("open".to_owned(), "open".to_owned()), "{}", bed.logs());
    let (_, told, err) = run(&mut bed.on("b1", &["why", &server.pid().to_string()]));
    assert!(told.contains(&format!("a1 > b1:{port} (plain): let in by the daemon")), "{told}{err}");
}

//! WAN links that are cut, and relays that are killed, under traffic that goes by TLS through the daemons of `lab up --with-daemons`.
//!
//! Features (docs/features.md): B15, B18, L1.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use madrigal_tests::trials::need_all;

use super::bed::{Bed, DAEMON_LOG, Who, example, need_lab};
use super::common::bed::until;

/// Two ends that send to each other without rest, bytes that tell where they belong, until a file is there; each says what it has read,
/// or how it ended. The server writes that to a file.
const SOAK: &str = "import socket, sys, os, threading, time, hashlib\n\
    def block(role, n): return hashlib.sha256(b'%s %d' % (role, n)).digest() * 1024\n\
    def send(c, role, stop, sent):\n    \
        try:\n        \
            while not stop(): c.sendall(block(role, sent[0])); sent[0] += 1; time.sleep(0.01)\n        \
            c.shutdown(1)\n    \
        except OSError as e: sent[1] = type(e).__name__\n\
    def read(c, role, ready):\n    \
        n, got = 0, b''\n    \
        while r := c.recv(65536):\n        \
            got += r\n        \
            while len(got) >= 32768:\n            \
                if got[:32768] != block(role, n): return 'other bytes in block %d' % n\n            \
                got = got[32768:]; n += 1\n            \
                if n == 3 and ready: print('ready', flush=True)\n    \
        return n if not got else 'part of block %d' % n\n\
    def both(c, out, into, stop, ready):\n    \
        sent = [0, '']; t = threading.Thread(target=send, args=(c, out, stop, sent), daemon=True); t.start()\n    \
        try: got = read(c, into, ready); t.join(); return sent[1] or 'sent %d got %s' % (sent[0], got)\n    \
        except OSError as e: return type(e).__name__\n\
    if sys.argv[1] == 'serve':\n    \
        s = socket.create_server(('127.0.0.1', 7000)); print('ready', flush=True)\n    \
        while True:\n        \
            c, _ = s.accept(); over = [False]\n        \
            def ends(c=c):\n            \
                told = both(c, b'b', b'a', lambda: os.path.exists(sys.argv[2] + '/end'), False)\n            \
                open(sys.argv[2] + '/new', 'w').write(told); os.rename(sys.argv[2] + '/new', sys.argv[2] + '/served')\n        \
            threading.Thread(target=ends, daemon=True).start()\n\
    else:\n    \
        c = socket.create_connection(('127.0.0.1', int(sys.argv[3])))\n    \
        print(both(c, b'a', b'b', lambda: os.path.exists(sys.argv[2] + '/end'), True))\n";

/// A counter of redis, counted up by one until the file is there: every answer must be the next number.
const COUNT: &str = "import socket, sys, os\n\
    c = socket.create_connection(('127.0.0.1', int(sys.argv[2]))); f = c.makefile('rb'); n = 0\n\
    while not os.path.exists(sys.argv[1] + '/end'):\n    \
        c.sendall(b'INCR count\\r\\n'); n += 1; r = f.readline()\n    \
        if r != b':%d\\r\\n' % n: print('%r for %d' % (r, n)); break\n    \
        if n == 3: print('ready', flush=True)\n\
    else: print('counted')\n";

/// A program that runs on a host, and its output.
pub(crate) struct Program(pub(crate) Child, BufReader<ChildStdout>);

impl Program {
    pub(crate) fn start(bed: &Bed, host: &str, command: &[&str]) -> Self {
        let mut lab = bed.home.lab(&[&["exec", host, "--"], command].concat());
        let mut child = lab.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self(child, output)
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A lab with daemons, and traffic from a1 to b1.
struct Soak {
    bed: Bed,
    folder: String,
    client: Program,
    count: Program,
    others: Vec<Program>,
}

impl Soak {
    fn start(bed: Bed) -> Self {
        let folder = bed.home.folder();
        let mut server = Program::start(&bed, "b1", &["/usr/bin/python3", "-c", SOAK, "serve", &folder]);
        assert_eq!(server.line(), "ready");
        let (forward, port) = Self::forward(&bed, "b1:7000");
        let mut client = Program::start(&bed, "a1", &["/usr/bin/python3", "-c", SOAK, "call", &folder, &port]);
        assert_eq!(client.line(), "ready");
        need_all(&["redis-server", "redis-cli"]);
        let redis = ["redis-server", "--port", "6379", "--save", "", "--bind", "127.0.0.1"];
        let redis = Program::start(&bed, "b1", &redis);
        until("redis", || bed.exec("b1", &["redis-cli", "ping"]).1.contains("PONG").then_some(()));
        let (forward_redis, port) = Self::forward(&bed, "b1:6379");
        let mut count = Program::start(&bed, "a1", &["/usr/bin/python3", "-c", COUNT, &folder, &port]);
        assert_eq!(count.line(), "ready");
        Self { bed, folder, client, count, others: vec![server, forward, redis, forward_redis] }
    }

    fn forward(bed: &Bed, to: &str) -> (Program, String) {
        let mut forward = Program::start(bed, "a1", &[&bed.home.exe(), "forward", "0", to]);
        let line = forward.line();
        let port = line.split([':', ' ']).nth(1).unwrap_or_else(|| panic!("{line}")).to_owned();
        (forward, port)
    }

    /// Both ends have all that the other one sent.
    fn whole(&mut self) {
        std::fs::write(format!("{}/end", self.folder), "").unwrap();
        let told = self.client.line();
        let served = until("the server's word", || std::fs::read_to_string(format!("{}/served", self.folder)).ok());
        let numbers = |text: &str| text.split(' ').filter_map(|word| word.parse::<u64>().ok()).collect::<Vec<_>>();
        let (one, other) = (numbers(&told), numbers(&served));
        assert!(one.len() == 2 && one[0] == other[1] && one[1] == other[0], "{told}; {served}");
        println!("the client {told} blocks of 32 KiB");
        assert_eq!(self.count.line(), "counted");
    }

    /// What became of everything where there is no way any more.
    fn lost(&mut self) {
        assert_eq!(self.client.line(), "ConnectionResetError");
    }

    fn down(self) {
        let Self { bed, client, count, others, .. } = self;
        drop((client, count, others));
        bed.down();
    }

    /// The relay that connections take.
    fn relay(&self) -> String {
        until("a way through a relay", || {
            let (_, out, _) = self.bed.exec("a1", &[&self.bed.home.exe(), "why", "a1", "b1", "--json"]);
            let why: serde_json::Value = serde_json::from_str(&out).ok()?;
            why["chosen"].as_str()?.strip_prefix("through ").map(str::to_owned)
        })
    }

    fn log(&self, host: &str) -> String {
        self.bed.exec(host, &["sh", "-c", DAEMON_LOG]).1
    }
}

fn wait(seconds: &str) {
    assert!(Command::new("sleep").arg(seconds).status().unwrap().success());
}

pub(crate) fn streams_by_tls_survive_a_cut_of_five_seconds_and_hear_of_a_longer_one() {
    need_lab(Who::Me);
    let mut soak = Soak::start(Bed::up_with(Who::Me, &example("two-sites.toml"), &["--with-daemons"]).0);
    let links = soak.log("a1").matches("no link with r").count();
    soak.bed.lab(&["cut", "ar"]);
    wait("5");
    soak.bed.lab(&["heal", "ar"]);
    soak.whole();
    // The connection between the daemons was there all the time: the kernel sent again what was lost.
    assert_eq!(soak.log("a1").matches("no link with r").count(), links);
    for file in ["end", "served"] {
        std::fs::remove_file(format!("{}/{file}", soak.folder)).unwrap();
    }
    let (_forward, port) = Soak::forward(&soak.bed, "b1:7000");
    soak.client = Program::start(&soak.bed, "a1", &["/usr/bin/python3", "-c", SOAK, "call", &soak.folder, &port]);
    assert_eq!(soak.client.line(), "ready");
    soak.bed.lab(&["cut", "ar"]);
    let began = Instant::now();
    soak.lost();
    let near = began.elapsed();
    let served = until("the server's word", || std::fs::read_to_string(format!("{}/served", soak.folder)).ok());
    println!("after the cut a reset {near:?} at the near end, {:?} at the far end", began.elapsed());
    assert_eq!(served, "ConnectionResetError");
    soak.down();
}

/// Two sites, and two relays, each with links of its own.
pub(crate) const TWO_WAYS: &str = "[site.a]\nnetwork = '10.1.0.0/24'\nnat = true\nhosts = ['a1']\n\
    [site.b]\nnetwork = '10.2.0.0/24'\nnat = true\nhosts = ['b1']\n\
    [site.north]\nnetwork = '203.0.113.0/24'\nhosts = ['r1']\n\
    [site.south]\nnetwork = '198.51.100.0/24'\nhosts = ['r2']\n\
    [link.an]\nbetween = ['a', 'north']\nrate = '100M'\ndelay = '5ms'\n[link.bn]\nbetween = ['b', 'north']\nrate = '100M'\ndelay = '5ms'\n\
    [link.as]\nbetween = ['a', 'south']\nrate = '100M'\ndelay = '10ms'\n[link.bs]\nbetween = ['b', 'south']\nrate = '100M'\ndelay = '10ms'\n";

pub(crate) fn streams_go_on_by_another_relay_when_one_is_killed_or_cut_off() {
    need_lab(Who::Me);
    let bed = Bed::up_text_with(TWO_WAYS, &["--with-daemons"]).0;
    let exe = bed.home.exe();
    let mut soak = Soak::start(bed);
    let first = soak.relay();
    let (status, out, err) = soak.bed.exec(&first, &[&exe, "status", "--json"]);
    assert_eq!(status, 0, "{err}");
    let status: serde_json::Value = serde_json::from_str(&out).unwrap();
    let began = Instant::now();
    assert_eq!(soak.bed.exec(&first, &["kill", "-9", &status["pid"].to_string()]).0, 0);
    until("another way", || soak.log("a1").contains("moved: a stream to port 7000").then_some(()));
    println!("by another relay {:?} after the first was killed", began.elapsed());
    let second = soak.relay();
    assert_ne!(first, second);
    // It is back, and the other one is cut off from a1: there is no error, it only falls silent.
    let (status, _, err) = soak.bed.exec(&first, &[&exe, "up"]);
    assert_eq!(status, 0, "{err}");
    until("both relays", || {
        let (_, out, _) = soak.bed.exec("a1", &[&exe, "why", "a1", "b1", "--json"]);
        let why: serde_json::Value = serde_json::from_str(&out).ok()?;
        (why["ways"].as_array()?.iter().filter(|way| way["usable"] == true).count() == 2).then_some(())
    });
    let moved = soak.log("a1").matches("moved: a stream to port 7000").count();
    let began = Instant::now();
    soak.bed.lab(&["cut", if second == "r1" { "an" } else { "as" }]);
    until("the first way again", || {
        (soak.log("a1").matches("moved: a stream to port 7000").count() > moved).then_some(())
    });
    println!("by the first relay again {:?} after the other was cut off", began.elapsed());
    soak.whole();
    soak.down();
}

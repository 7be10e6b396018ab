//! Daemons on hosts of a lab, and programs there: by `lab up --with-daemons`, or with a `grid.toml` of the test's own. Unless that file
//! declares everything trusted, each host has a certificate of a CA, and links are encrypted.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use madrigal_identity::{Authority, DAY};
use serde_json::Value;

use super::bed::{Bed, DAEMON_LOG, Who, example};
use super::common;
use super::common::bed::{life, name, until};

/// An echo server at port `argv[1]` of the addresses `argv[2]`; it prints a line when it is ready.
const ECHO: &str = "import socket, sys, threading\n\
    s = socket.create_server((sys.argv[2], int(sys.argv[1])))\nprint('ready', flush=True)\n\
    def serve(c):\n    \
        try:\n        \
            while b := c.recv(65536): c.sendall(b)\n        c.shutdown(1)\n    \
        except OSError: pass\n\
    while True: threading.Thread(target=serve, args=(s.accept()[0],)).start()\n";

/// Sends bytes that are easily found to port `argv[2]` of `argv[1]` while it reads; what became of them.
pub(crate) const EXCHANGE: &str = "import socket, sys, threading\n\
    c = socket.create_connection((sys.argv[1], int(sys.argv[2]))); n = int(sys.argv[3])\n\
    b = b''.join(b'MADRIGAL-PLAIN-TEXT.%08d' % i for i in range(n // 28 + 1))[:n]\n\
    threading.Thread(target=lambda: (c.sendall(b), c.shutdown(1))).start()\n\
    got = bytearray()\n\
    while r := c.recv(65536): got += r\n\
    print('same' if got == b else 'other: %d of %d' % (len(got), n))\n";

/// A lab with daemons.
pub(crate) struct Grid {
    pub(crate) bed: Bed,
    own: Option<Own>,
    pub(crate) running: Vec<(String, Child)>,
}

/// A description of the grid that is the test's own.
struct Own {
    file: String,
    ca: Option<Authority>,
}

impl Grid {
    /// `lab up --with-daemons` with an example; and its output.
    pub(crate) fn with_daemons(who: Who, lab: &str) -> (Self, String) {
        Self::on_lab_of_daemons(Bed::up_with(who, &example(lab), &["--with-daemons"]))
    }

    /// A lab that is up with daemons.
    pub(crate) fn on_lab_of_daemons((bed, told): (Bed, String)) -> (Self, String) {
        (Self { bed, own: None, running: Vec::new() }, told)
    }

    /// An example, with a daemon on each of some hosts.
    pub(crate) fn up(lab: &str, grid: &str, hosts: &[&str]) -> Self {
        Self::on(Bed::up(lab), grid, hosts)
    }

    /// On a lab that is up.
    pub(crate) fn on(bed: Bed, grid: &str, hosts: &[&str]) -> Self {
        let file = bed.home.file("grid.toml", grid);
        let ca = PathBuf::from(bed.home.folder()).join("ca");
        let ca = (!grid.starts_with("trusted = true"))
            .then(|| Authority::create(&ca, &name("lab"), life(DAY), false).unwrap());
        let mut all = Self { bed, own: Some(Own { file, ca }), running: Vec::new() };
        hosts.iter().for_each(|host| all.start(host));
        all
    }

    /// Whether links are enciphered.
    fn tls(&self) -> bool {
        self.own.as_ref().is_none_or(|own| own.ca.is_some())
    }

    /// Starts the daemon of a host, and waits until it is up.
    pub(crate) fn start(&mut self, host: &str) {
        let Some(Own { file, ca }) = &self.own else {
            let (status, _, err) = self.run(host, &["up"]);
            assert_eq!(status, 0, "{host}: {err}");
            return;
        };
        let config = self.config(host);
        if let Some(ca) = ca.as_ref().filter(|_| !config.exists()) {
            ca.issue_host(&name(host), life(DAY)).unwrap().install(&config, true).unwrap();
        }
        let args = ["up", "--foreground", "--grid", file, "--host", host];
        let child = self.spawn(host, &[&[self.bed.home.exe().as_str()], &args[..]].concat());
        self.running.push((host.to_owned(), child));
        until("a daemon", || (self.run(host, &["status"]).0 == 0).then_some(()));
    }

    /// What is typed to start the daemon of a host in the background.
    pub(crate) fn up_words(&self, host: &str) -> Vec<String> {
        let mut words = vec![self.bed.home.exe(), "up".to_owned()];
        if let Some(own) = &self.own {
            words.extend(["--grid", &own.file, "--host", host].map(str::to_owned));
        }
        words
    }

    /// Ends the daemon of a host.
    pub(crate) fn stop(&mut self, host: &str) {
        assert_eq!(self.run(host, &["down"]).0, 0);
        // Where it was our child, it is waited for.
        if let Some(place) = self.running.iter().position(|(name, _)| name == host) {
            let (_, mut child) = self.running.remove(place);
            child.wait().unwrap();
        }
    }

    /// As `kill -9` of the daemon of a host.
    pub(crate) fn kill(&mut self, host: &str) {
        // The daemon itself is a child of the command that entered the host, and is killed with it.
        let place = self.running.iter().position(|(name, _)| name == host).unwrap();
        let (_, mut child) = self.running.remove(place);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Where a host has its certificate, if the test gave it one.
    fn config(&self, host: &str) -> PathBuf {
        PathBuf::from(self.bed.home.folder()).join(format!("config-{host}"))
    }

    /// A command on a host, with the host's identity.
    pub(crate) fn command(&self, host: &str, command: &[&str]) -> Command {
        let mut lab = self.bed.home.lab(&[&["exec", host, "--"], command].concat());
        lab.env("MADRIGAL_CONFIG_DIR", self.config(host));
        lab
    }

    /// Runs it to its end.
    pub(crate) fn exec(&self, host: &str, command: &[&str]) -> (i32, String, String) {
        super::bed::run(&mut self.command(host, command))
    }

    /// `madrigal` on a host.
    pub(crate) fn run(&self, host: &str, args: &[&str]) -> (i32, String, String) {
        self.exec(host, &[&[self.bed.home.exe().as_str()], args].concat())
    }

    /// `madrigal` with `--json`: its exit status and its output.
    #[track_caller]
    pub(crate) fn json(&self, host: &str, args: &[&str]) -> (i32, Value) {
        let (status, out, err) = self.run(host, &[args, &["--json"]].concat());
        (status, serde_json::from_str(&out).unwrap_or_else(|_| panic!("{args:?} on {host}: {out}{err}")))
    }

    /// A command under `madrigal exec` on a host, by the command that has its library beside it.
    pub(crate) fn wrap(&self, host: &str, words: &[&str]) -> Command {
        let _ = common::madrigal();
        self.command(host, &[&[common::exe().to_str().unwrap(), "exec", "--"], words].concat())
    }

    /// Its output; it must end well.
    #[track_caller]
    pub(crate) fn wrapped(&self, host: &str, words: &[&str]) -> String {
        let (status, out, err) = super::bed::run(&mut self.wrap(host, words));
        let words: String = words.join(" ").chars().take(300).collect();
        assert_eq!(status, 0, "{host}: {words}: {out}{err}{}", self.logs());
        out
    }

    /// The output of the daemons.
    fn logs(&self) -> String {
        let hosts = self.bed.status()["hosts"].as_array().cloned().unwrap_or_default();
        let of = |host: &Value| {
            let name = host["name"].as_str().unwrap_or_default().to_owned();
            format!("--- {name}\n{}", self.exec(&name, &["sh", "-c", DAEMON_LOG]).1)
        };
        hosts.iter().map(of).collect()
    }

    /// Starts a command on a host.
    pub(crate) fn spawn(&self, host: &str, command: &[&str]) -> Child {
        self.command(host, command).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Starts a program that prints a line when it is ready. Returns the line.
    pub(crate) fn ready(&mut self, host: &str, command: &[&str]) -> String {
        let mut child = self.spawn(host, command);
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        self.running.push((String::new(), child));
        line
    }

    /// Starts something that runs until the grid is down.
    pub(crate) fn serve(&mut self, host: &str, command: &[&str]) {
        let child = self.spawn(host, command);
        self.running.push((String::new(), child));
    }

    /// A server that sends back what comes, for this host's own programs.
    pub(crate) fn echo(&mut self, host: &str, port: &str) {
        self.echo_at(host, port, "127.0.0.1");
    }

    /// The same at another address.
    pub(crate) fn echo_at(&mut self, host: &str, port: &str, address: &str) {
        assert_eq!(self.ready(host, &["/usr/bin/python3", "-c", ECHO, port, address]), "ready\n");
    }

    /// The local port of `host` that leads to another one's.
    pub(crate) fn forward(&mut self, host: &str, to: &str) -> String {
        let exe = self.bed.home.exe();
        let line = self.ready(host, &[&exe, "forward", "0", to]);
        line.split([':', ' ']).nth(1).unwrap_or_else(|| panic!("{host} to {to}: {line}")).to_owned()
    }

    /// The same for datagrams, with options of `forward`.
    pub(crate) fn forward_datagrams(&mut self, host: &str, options: &[&str], to: &str) -> String {
        let exe = self.bed.home.exe();
        let line = self.ready(host, &[&[exe.as_str(), "forward", "--udp"][..], options, &["0", to]].concat());
        line.split([':', ' ']).nth(1).unwrap_or_else(|| panic!("{host} to {to}: {line}")).to_owned()
    }

    /// `status` of a host.
    pub(crate) fn status(&self, host: &str) -> Value {
        self.json(host, &["status"]).1
    }

    /// The hosts that a host has links with, which are enciphered if they have to be; but what a command leads through is by the command.
    #[track_caller]
    pub(crate) fn links(&self, host: &str) -> Vec<String> {
        let status = self.status(host);
        let linked = |peer: &&Value| {
            let links = peer["links"].as_array().unwrap();
            let good = |link: &Value| link["tls"] == self.tls() || link["method"] == "command";
            assert!(links.iter().all(good), "{links:?}");
            !links.is_empty()
        };
        let peers = status["peers"].as_array().unwrap().iter().filter(linked);
        peers.map(|peer| peer["host"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits for a link.
    #[track_caller]
    pub(crate) fn linked(&self, host: &str, peer: &str) {
        until("a link", || self.links(host).iter().any(|one| one == peer).then_some(()));
    }

    /// Waits until connections take this way.
    pub(crate) fn takes(&self, host: &str, from: &str, to: &str, way: &str) -> Value {
        until(way, || {
            Some(self.run(host, &["why", from, to, "--json"]).1).filter(|out| !out.is_empty()).and_then(|out| {
                let why: Value = serde_json::from_str(&out).unwrap();
                (why["chosen"] == way && why["ways"][0]["figures"]["round_trip_us"].is_u64()).then_some(why)
            })
        })
    }

    /// A port of `to` works from `from`, through its daemon.
    #[track_caller]
    pub(crate) fn works(&mut self, from: &str, to: &str) {
        let port = self.forward(from, &format!("{to}:7000"));
        let args = ["127.0.0.1", &port, "1000000"];
        assert_eq!(self.bed.python(from, EXCHANGE, &args), "same", "{from} to {to}");
    }

    /// Ends everything; nothing may be left.
    pub(crate) fn down(mut self) {
        for (_, child) in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.running.clear();
        self.bed.down();
    }
}

/// Keeps what passes a device; at SIGTERM says what the TCP connections there were: for each direction of each connection whose beginning
/// was seen, its ports, and the types of its TLS records, or the bytes that are none; and whether plain text of the tests was found.
const CAPTURE: &str = "import socket, struct, signal, sys\n\
    s = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3)); s.bind((sys.argv[1], 0))\n\
    s.setsockopt(socket.SOL_SOCKET, 33, 256 << 20)\n\
    class End(Exception): pass\n\
    def end(*_): raise End\n\
    signal.signal(signal.SIGTERM, end)\n\
    packets = []\n\
    try:\n    \
        print('ready', flush=True)\n    \
        while True: packets.append(s.recv(70000))\n\
    except End: pass\n\
    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
    flows = {}; plain = False\n\
    for p in packets:\n    \
        if p[0] >> 4 == 4 and p[9] == 6: ends, t = p[12:20], p[(p[0] & 15) * 4:struct.unpack('!H', p[2:4])[0]]\n    \
        elif p[0] >> 4 == 6 and p[6] == 6: ends, t = p[8:40], p[40:40 + struct.unpack('!H', p[4:6])[0]]\n    \
        else: continue\n    \
        here, there, seq = struct.unpack('!HHI', t[:8])\n    \
        body = t[(t[12] >> 4) * 4:]; flow = flows.setdefault((ends, here, there), {})\n    \
        plain |= b'PLAIN-TEXT' in body or b'\"version\"' in body\n    \
        if t[13] & 2: flow['start'] = seq + 1\n    \
        elif body and len(flow.get(seq, b'')) < len(body): flow[seq] = body\n\
    for (_, here, there), flow in flows.items():\n    \
        if 'start' not in flow: continue\n    \
        start = flow.pop('start'); data = bytearray()\n    \
        for seq, body in sorted(flow.items(), key=lambda i: (i[0] - start) % 2**32):\n        \
            at = (seq - start) % 2**32\n        \
            if at > len(data): break\n        \
            data[at:at + len(body)] = body\n    \
        types = {}; at = 0\n    \
        while at + 5 <= len(data):\n        \
            kind, version, size = struct.unpack('!BHH', data[at:at + 5])\n        \
            if kind not in (20, 21, 22, 23) or version not in (0x301, 0x303) or size > 16640:\n            \
                types['other'] = bytes(data[at:at + 16]); break\n        \
            types[kind] = types.get(kind, 0) + 1; at += 5 + size\n    \
        if data: print('flow', here, there, len(data), types)\n\
    print('plain' if plain else 'no plain text')\n";

/// What passes a device of a host or a router is kept.
pub(crate) struct Capture(Child, BufReader<ChildStdout>);

/// What passed.
#[derive(Debug)]
pub(crate) struct Seen {
    /// For each direction of each TCP connection that began: its ports, and which TLS records it had.
    flows: Vec<String>,
    /// Text of the tests was among it.
    pub(crate) plain: bool,
}

impl Capture {
    pub(crate) fn start(bed: &Bed, host: &str, device: &str) -> Self {
        let mut child = bed.start(host, &["/usr/bin/python3", "-c", CAPTURE, device]);
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child, output)
    }

    /// What it saw.
    pub(crate) fn end(mut self) -> Seen {
        assert!(Command::new("kill").arg(self.0.id().to_string()).status().unwrap().success());
        let mut text = String::new();
        self.1.read_to_string(&mut text).unwrap();
        assert!(self.0.wait().unwrap().success());
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let last = lines.pop();
        assert!(last.is_some(), "{text}");
        Seen { flows: lines, plain: last.as_deref() == Some("plain") }
    }
}

impl Seen {
    /// Directions of connections that were TLS from the first byte to the last.
    pub(crate) fn enciphered(&self) -> usize {
        self.flows.iter().filter(|flow| flow.contains("22:") && !flow.contains("other")).count()
    }

    /// Those that were not.
    pub(crate) fn others(&self) -> Vec<&str> {
        let other = |flow: &&String| !flow.contains("22:") || flow.contains("other");
        self.flows.iter().filter(other).map(String::as_str).collect()
    }
}

//! `madrigal lab up --with-daemons`: a CA, and a daemon on every host; what passes between sites is TLS and nothing else.
//!
//! Features (docs/features.md): L1, B18, D3.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::bed::{Bed, Who, example, is_root, possible, run, until};

/// Sends back what comes, and says so on its output when it is ready.
const ECHO: &str = "import socket, sys, threading\n\
    s = socket.create_server(('', int(sys.argv[1])))\nprint('ready', flush=True)\n\
    def serve(c):\n    \
        try:\n        \
            while b := c.recv(65536): c.sendall(b)\n        c.shutdown(1)\n    \
        except OSError: pass\n\
    while True: threading.Thread(target=serve, args=(s.accept()[0],)).start()\n";

/// Sends bytes that are easily found to an address while it reads; what became of them.
const EXCHANGE: &str = "import socket, sys, threading\n\
    c = socket.create_connection((sys.argv[1], int(sys.argv[2]))); b = b'MADRIGAL-PLAIN-TEXT.' * 20000\n\
    threading.Thread(target=lambda: (c.sendall(b), c.shutdown(1))).start()\n\
    got = bytearray()\n\
    while r := c.recv(65536): got += r\n\
    print('same' if got == b else 'other: %d of %d' % (len(got), len(b)))\n";

/// Keeps what passes a device from or to port 7780 (IPv4, TCP); at SIGTERM says what it was: for each direction of each connection whose
/// beginning was seen, the types of its TLS records, or the bytes that are none; and whether the text was found anywhere.
const CAPTURE: &str = "import socket, struct, signal, sys\n\
    s = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3)); s.bind((sys.argv[1], 0))\n\
    s.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)\n\
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
        if p[0] >> 4 != 4 or p[9] != 6: continue\n    \
        t = p[(p[0] & 15) * 4:struct.unpack('!H', p[2:4])[0]]\n    \
        here, there, seq = struct.unpack('!HHI', t[:8])\n    \
        if 7780 not in (here, there): continue\n    \
        body = t[(t[12] >> 4) * 4:]; flow = flows.setdefault((p[12:20], here, there), {})\n    \
        plain |= b'PLAIN-TEXT' in body or b'version' in body\n    \
        if t[13] & 2: flow['start'] = seq + 1\n    \
        elif body and len(flow.get(seq, b'')) < len(body): flow[seq] = body\n\
    for flow in flows.values():\n    \
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
        if types: print('flow', len(data), types)\n\
    print('plain' if plain else 'no plain text')\n";

/// A capture that runs.
struct Capture(Child, BufReader<std::process::ChildStdout>);

impl Capture {
    fn start(bed: &Bed, host: &str, device: &str) -> Self {
        let mut child = bed.start(host, &["/usr/bin/python3", "-c", CAPTURE, device]);
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child, output)
    }

    /// What it saw, a line each.
    fn end(mut self) -> Vec<String> {
        assert!(Command::new("kill").arg(self.0.id().to_string()).status().unwrap().success());
        let mut text = String::new();
        self.1.read_to_string(&mut text).unwrap();
        assert!(self.0.wait().unwrap().success());
        text.lines().map(str::to_owned).collect()
    }
}

fn up(who: Who, file: &str) -> (Bed, String) {
    Bed::up_with(who, &example(file), &["--with-daemons"])
}

/// `madrigal` on a host.
fn madrigal(bed: &Bed, host: &str, args: &[&str]) -> (i32, String, String) {
    bed.exec(host, &[&[bed.home.exe().as_str()], args].concat())
}

/// Hosts that a host has a link with, by TLS.
fn links(bed: &Bed, host: &str) -> Vec<String> {
    let (status, out, err) = madrigal(bed, host, &["status", "--json"]);
    assert_eq!(status, 0, "{err}");
    let status: serde_json::Value = serde_json::from_str(&out).unwrap();
    let linked = |peer: &&serde_json::Value| {
        let links = peer["links"].as_array().unwrap();
        assert!(links.iter().all(|link| link["tls"] == true), "{links:?}");
        !links.is_empty()
    };
    let peers = status["peers"].as_array().unwrap().iter().filter(linked);
    peers.map(|peer| peer["host"].as_str().unwrap().to_owned()).collect()
}

/// Starts something that says a line when it is ready; the line.
fn ready(bed: &Bed, host: &str, command: &[&str]) -> (Child, String) {
    let mut child = bed.home.lab(&[&["exec", host, "--"], command].concat()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (child, line)
}

#[test]
fn two_sites_with_daemons_show_nothing_but_tls_at_the_border() {
    if !possible(Who::Me) {
        return;
    }
    let (bed, told) = up(Who::Me, "two-sites.toml");
    assert!(told.contains("daemons on 5 hosts"), "{told}");
    // All there can be when the command returns: behind a NAT nobody is called from outside.
    for (host, with) in [("a1", vec!["a2", "r"]), ("b2", vec!["b1", "r"]), ("r", vec!["a1", "a2", "b1", "b2"])] {
        assert_eq!(links(&bed, host), with, "{told}");
    }
    // Links made anew under the eyes of a stranger at the border.
    let capture = Capture::start(&bed, "gw-a", "ar");
    assert_eq!(madrigal(&bed, "r", &["down"]).0, 0);
    let (status, _, err) = madrigal(&bed, "r", &["up"]);
    assert_eq!(status, 0, "{err}");
    until("links", || (links(&bed, "r").len() == 4).then_some(()));
    let (mut server, line) = ready(&bed, "b1", &["/usr/bin/python3", "-c", ECHO, "7000"]);
    assert_eq!(line, "ready\n");
    let (mut forward, line) = ready(&bed, "a1", &[&bed.home.exe(), "forward", "0", "b1:7000"]);
    let port = line.split([':', ' ']).nth(1).unwrap().to_owned();
    assert_eq!(bed.python("a1", EXCHANGE, &["127.0.0.1", &port]), "same");
    let seen = capture.end();
    let flows: Vec<_> = seen.iter().filter(|line| line.starts_with("flow")).collect();
    // Two connections, both ways; the exchange alone is hundreds of records.
    assert!(flows.len() >= 4 && flows.iter().all(|flow| flow.contains("22:") && !flow.contains("other")), "{seen:?}");
    assert_eq!(seen.last().unwrap(), "no plain text", "{seen:?}");
    // The same eyes see what is not enciphered.
    let capture = Capture::start(&bed, "gw-a", "ar");
    let (mut plain, line) = ready(&bed, "gw-public", &["/usr/bin/python3", "-c", ECHO, "7780"]);
    assert_eq!(line, "ready\n");
    assert_eq!(bed.python("a1", EXCHANGE, &["gw-public", "7780"]), "same");
    let seen = capture.end();
    assert!(seen.last().unwrap() == "plain" && seen.iter().any(|flow| flow.contains("other")), "{seen:?}");
    for child in [&mut server, &mut forward, &mut plain] {
        let _ = child.kill();
        let _ = child.wait();
    }
    bed.down();
}

#[test]
fn a_host_of_a_lab_is_shut_out_by_its_ca() {
    if !possible(Who::Me) {
        return;
    }
    let (bed, _) = up(Who::Me, "nat-left.toml");
    assert_eq!(links(&bed, "b1"), ["a1"]);
    let state = bed.home.runtime().join("madrigal-lab/nat-left/config");
    let mut revoke = Command::new(bed.home.exe());
    revoke.args(["ca", "revoke", "--host", "a1"]).env("MADRIGAL_CONFIG_DIR", &state);
    assert_eq!(run(&mut revoke).0, 0);
    // Its list is brought to b1: that reads it by itself.
    let list = std::fs::read_to_string(state.join("revoked.pem")).unwrap();
    let put = "cat > $MADRIGAL_CONFIG_DIR/.new && mv $MADRIGAL_CONFIG_DIR/.new $MADRIGAL_CONFIG_DIR/revoked.pem";
    let mut bring = bed.home.lab(&["exec", "b1", "--", "sh", "-c", put]);
    let mut child = bring.stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), list.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    until("the end of the link", || links(&bed, "b1").is_empty().then_some(()));
    until("the reason", || madrigal(&bed, "a1", &["status"]).1.contains("certificate_revoked").then_some(()));
    bed.down();
}

#[test]
fn labs_of_all_shapes_have_daemons() {
    if !possible(Who::Me) {
        return;
    }
    for (file, host, with) in [
        ("overlapping.toml", "r", vec!["a1", "b1"]),
        ("ipv6-only.toml", "r", vec!["a1", "b1"]),
        ("one-way-firewall.toml", "a1", vec!["b1"]),
        ("docker0-twins.toml", "a1", vec!["a2"]),
    ] {
        let (bed, told) = up(Who::Me, file);
        assert_eq!(links(&bed, host), with, "{file}: {told}");
        bed.down();
    }
}

#[test]
fn daemons_need_no_rights() {
    let who = if is_root() { Who::Nobody } else { Who::Me };
    if !possible(who) {
        return;
    }
    let (bed, _) = up(who, "nat-left.toml");
    assert_eq!(links(&bed, "a1"), ["b1"]);
    bed.down();
}

#[test]
fn a_lab_whose_daemons_cannot_start_is_not_up() {
    if !possible(Who::Me) {
        return;
    }
    let home = super::bed::Home::new(Who::Me);
    // The command itself is out of sight on that host.
    let hidden = Path::new(&home.exe()).parent().unwrap().to_str().unwrap().to_owned();
    let file = home.file(
        "hidden.toml",
        &format!("[site.a]\nnetwork = '10.1.0.0/24'\nhosts = ['a1', 'a2']\n[host.a2]\nprivate = ['{hidden}']\n"),
    );
    let (status, _, err) = run(&mut home.lab(&["up", &file, "--with-daemons"]));
    assert!(status == 1 && err.contains("no daemon on a2: "), "{err}");
    assert_eq!(run(&mut home.lab(&["down"])).1, "no lab was up\n");
}

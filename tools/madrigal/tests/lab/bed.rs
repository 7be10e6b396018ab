//! A lab for one test: up under a name of its own, with real programs on its hosts, and down at the end, when nothing may be left.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use madrigal_tests::trials::skip;

use super::common::bed::{is_root, until, until_none};

/// The examples.
pub(crate) fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name)
}

/// How the commands of a test are run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// As the user that runs the tests.
    Me,
    /// As a user without any rights, where the tests run as root.
    Nobody,
}

/// Prints the log of a host's daemon.
pub(crate) const DAEMON_LOG: &str = "cat $XDG_RUNTIME_DIR/madrigal/daemon.log";

/// The user without rights.
const NOBODY: u32 = 65534;

/// The shell's commands that let a user without rights open TUN devices, as on most systems, and then become that user.
const AS_NOBODY: &str = "set -e; d=$(mktemp -d); mount -t tmpfs none $d; mknod -m 666 $d/tun c 10 200; mount --bind $d/tun /dev/net/tun; \
    umount -l $d; rmdir $d; exec setpriv --reuid 65534 --regid 65534 --clear-groups -- \"$@\"";

/// A folder of the test's own, with the command in it where anybody can reach it.
pub(crate) struct Home {
    path: PathBuf,
    who: Who,
}

impl Home {
    pub(crate) fn new(who: Who) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("madrigal-lab-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::DirBuilder::new().mode(0o755).create(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let run = path.join("run");
        std::fs::DirBuilder::new().mode(0o700).create(&run).unwrap();
        if who == Who::Nobody {
            std::os::unix::fs::chown(&run, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let exe = env!("CARGO_BIN_EXE_madrigal");
        std::fs::hard_link(exe, path.join("madrigal")).or_else(|_| symlink(exe, path.join("madrigal"))).unwrap();
        Self { path, who }
    }

    /// `madrigal lab` with these arguments.
    pub(crate) fn lab(&self, args: &[&str]) -> Command {
        let exe = self.path.join("madrigal");
        let mut command = match self.who {
            Who::Me => Command::new(exe),
            Who::Nobody => {
                let mut command = Command::new("unshare");
                command.args(["-m", "sh", "-c", AS_NOBODY, "sh"]).arg(exe);
                command
            }
        };
        command.arg("lab").args(args).env("XDG_RUNTIME_DIR", self.path.join("run")).stdin(Stdio::null());
        command.current_dir(Path::new("/"));
        command
    }

    /// The command, where anybody can reach it.
    pub(crate) fn exe(&self) -> String {
        self.path.join("madrigal").to_str().unwrap().to_owned()
    }

    /// Where its files are.
    pub(crate) fn folder(&self) -> String {
        self.path.to_str().unwrap().to_owned()
    }

    /// The runtime directory of the user that runs the commands.
    pub(crate) fn runtime(&self) -> PathBuf {
        self.path.join("run")
    }

    /// Writes a file.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.path.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// What is left in the runtime directory.
    fn left_over(&self) -> Vec<PathBuf> {
        std::fs::read_dir(self.path.join("run")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // Whatever a failed test left up: by name, so that several are no obstacle.
        for lab in std::fs::read_dir(self.path.join("run/madrigal-lab")).into_iter().flatten().flatten() {
            let name = lab.file_name().into_string().unwrap_or_default();
            let _ = self.lab(&["down", "--name", &name]).output();
        }
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Exit status, standard output, standard error.
pub(crate) fn run(command: &mut Command) -> (i32, String, String) {
    let (status, out, err) = super::common::run(command);
    (status.unwrap_or(-1), out, err)
}

/// A test that builds labs.
pub(crate) fn need_lab(who: Who) {
    static KNOWN: [OnceLock<Option<String>>; 2] = [const { OnceLock::new() }; 2];
    let obstacle = KNOWN[usize::from(who == Who::Nobody)].get_or_init(|| obstacle(who));
    if let Some(obstacle) = obstacle {
        skip(obstacle.as_str());
    }
}

/// Why labs cannot be built here.
fn obstacle(who: Who) -> Option<String> {
    static NEEDED: &[&str] = &["/usr/bin/python3"];
    if let Some(missing) = NEEDED.iter().find(|file| !Path::new(file).exists()) {
        return Some(format!("no {missing} here"));
    }
    let home = Home::new(who);
    let file = home.path.join("one.toml");
    std::fs::write(&file, "[site.a]\nnetwork = '10.1.0.0/24'\nhosts = ['a1']\n[site.b]\nnetwork = '10.2.0.0/24'\n[link.ab]\nbetween = ['a', 'b']\n").unwrap();
    let (status, _, err) = run(&mut home.lab(&["up", file.to_str().unwrap()]));
    if status != 0 {
        // Where it is root's, it has to work.
        assert!(!is_root() || who == Who::Nobody, "{err}");
        return Some(err.trim().to_owned());
    }
    assert_eq!(run(&mut home.lab(&["down"])).0, 0);
    None
}

const NAMESPACES: [&str; 5] = ["net", "pid", "mnt", "uts", "ipc"];

/// The namespaces, by kind and number, in which some process is.
fn namespaces(pids: impl Iterator<Item = u64>) -> BTreeSet<PathBuf> {
    pids.flat_map(|pid| NAMESPACES.map(|kind| std::fs::read_link(format!("/proc/{pid}/ns/{kind}")))).flatten().collect()
}

/// Keeps the namespaces of some processes, and with them their numbers. A process that has ended has none.
fn hold_namespaces(pids: &[u64]) -> Vec<File> {
    pids.iter().flat_map(|pid| NAMESPACES.map(|kind| File::open(format!("/proc/{pid}/ns/{kind}")))).flatten().collect()
}

/// A process: number, name and state.
fn described(pid: u64) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .unwrap_or_default()
        .split(' ')
        .take(3)
        .collect::<Vec<_>>()
        .join(" ")
}

fn all_pids() -> impl Iterator<Item = u64> {
    std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Devices and mounts of a lab that can be seen where the tests run; other people's come and go.
fn strays(status: &serde_json::Value) -> Vec<String> {
    let named =
        |list: &str| status[list].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned());
    let names: Vec<String> = named("hosts").chain(named("links")).chain(["lan".to_owned()]).collect();
    let devices = std::fs::read_dir("/sys/class/net").unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let devices = devices.filter(|name| names.contains(name) || name.starts_with("wire"));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    devices.chain(mounts.lines().filter(|line| line.contains("- tmpfs lab ")).map(str::to_owned)).collect()
}

/// A lab that is up.
pub(crate) struct Bed {
    pub(crate) home: Home,
    servers: Vec<Child>,
}

impl Bed {
    /// Brings up an example.
    pub(crate) fn up(file: &str) -> Self {
        Self::up_as(Who::Me, &example(file))
    }

    pub(crate) fn up_as(who: Who, file: &Path) -> Self {
        Self::up_with(who, file, &[]).0
    }

    /// Brings up what this text describes.
    pub(crate) fn up_text(text: &str) -> Self {
        Self::up_text_with(text, &[]).0
    }

    /// The same with further arguments; and the output of the command.
    pub(crate) fn up_text_with(text: &str, more: &[&str]) -> (Self, String) {
        let home = Home::new(Who::Me);
        let file = home.file("lab.toml", text);
        Self::up_in(home, Path::new(&file), more)
    }

    /// With further arguments; and the output of the command.
    pub(crate) fn up_with(who: Who, file: &Path, more: &[&str]) -> (Self, String) {
        Self::up_in(Home::new(who), file, more)
    }

    /// Where the text has `nat = true` and nothing behind it, the NAT is symmetric: tests of relays are not to find another way.
    fn up_in(home: Home, file: &Path, more: &[&str]) -> (Self, String) {
        let text = std::fs::read_to_string(file).unwrap();
        let name = file.file_name().unwrap().to_str().unwrap();
        let file = &PathBuf::from(home.file(name, &text.replace("nat = true\n", "nat = 'symmetric'\n")));
        let (status, out, err) = run(&mut home.lab(&[&["up", file.to_str().unwrap()], more].concat()));
        assert_eq!(status, 0, "{out}{err}");
        (Self { home, servers: Vec::new() }, out)
    }

    /// Runs a command on a host.
    pub(crate) fn exec(&self, host: &str, command: &[&str]) -> (i32, String, String) {
        run(&mut self.home.lab(&[&["exec", host, "--"], command].concat()))
    }

    /// Runs a Python script on a host; its output.
    #[track_caller]
    pub(crate) fn python(&self, host: &str, script: &str, args: &[&str]) -> String {
        let (status, out, err) = self.exec(host, &[&["/usr/bin/python3", "-c", script], args].concat());
        assert_eq!(status, 0, "{host}: {err}");
        out.trim().to_owned()
    }

    /// Starts a server on a host that sends each client its own name and the client's address.
    pub(crate) fn serve(&mut self, host: &str, port: u16) {
        const SERVER: &str = "import socket, sys\n\
            s = socket.create_server(('::', int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True)\n\
            print('ready', flush=True)\n\
            while True:\n    c, a = s.accept()\n    c.sendall((socket.gethostname() + ' ' + a[0].removeprefix('::ffff:')).encode())\n    c.close()\n";
        let mut child = self.start(host, &["/usr/bin/python3", "-c", SERVER, &port.to_string()]);
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "a server on {host}");
        self.servers.push(child);
    }

    /// Starts a command on a host.
    pub(crate) fn start(&self, host: &str, command: &[&str]) -> Child {
        self.home.lab(&[&["exec", host, "--"], command].concat()).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// What a host receives from each `ADDRESS PORT`; `-` without an answer within two seconds.
    pub(crate) fn call(&self, host: &str, targets: &[(&str, u16)]) -> Vec<String> {
        const CLIENT: &str = "import socket, sys, threading\n\
            said = ['-'] * (len(sys.argv) // 2)\n\
            def call(n, address, port):\n    \
                try:\n        c = socket.create_connection((address, port), timeout=2)\n        said[n] = c.recv(99).decode() or '-'\n    \
                except OSError: pass\n\
            all = [threading.Thread(target=call, args=(n, sys.argv[2*n+1], int(sys.argv[2*n+2]))) for n in range(len(said))]\n\
            [t.start() for t in all]; [t.join() for t in all]\n\
            print('\\n'.join(said))\n";
        let ports: Vec<String> = targets.iter().map(|target| target.1.to_string()).collect();
        let args: Vec<&str> = targets.iter().zip(&ports).flat_map(|(target, port)| [target.0, port.as_str()]).collect();
        self.python(host, CLIENT, &args).lines().map(str::to_owned).collect()
    }

    /// Round-trip times in milliseconds by ICMP echo, `None` where nothing came back within a second.
    pub(crate) fn ping(&self, host: &str, target: &str, count: usize, bytes: usize) -> Vec<Option<f64>> {
        const PING: &str = "import socket, sys, time, struct\n\
            six = sys.argv[4] == 'six'\n\
            at = socket.getaddrinfo(sys.argv[1], 0, socket.AF_INET6 if six else socket.AF_INET)[0][4]\n\
            s = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMPV6 if six else socket.IPPROTO_ICMP)\n\
            s.connect(at)\n\
            def checksum(b):\n    t = sum(struct.unpack('!%dH' % (len(b) // 2), b)); t = (t >> 16) + (t & 0xffff); return ~(t + (t >> 16)) & 0xffff\n\
            for n in range(int(sys.argv[2])):\n    \
                b = struct.pack('!BBHHH', 128 if six else 8, 0, 0, 77, n) + b'x' * (int(sys.argv[3]) // 2 * 2)\n    \
                b = b[:2] + struct.pack('!H', 0 if six else checksum(b)) + b[4:]\n    \
                t = time.monotonic(); s.send(b); got = '-'\n    \
                try:\n        \
                    while got == '-':\n            \
                        s.settimeout(max(0.001, t + 1 - time.monotonic())); r = s.recv(9000); r = r if six else r[20:]\n            \
                        if r[0] == (129 if six else 0) and r[4:8] == b[4:8]: got = (time.monotonic() - t) * 1000\n    \
                except OSError: pass\n    \
                print(got)\n";
        let family = if target.contains(':') { "six" } else { "four" };
        let told = self.python(host, PING, &[target, &count.to_string(), &bytes.to_string(), family]);
        told.lines().map(|line| line.parse().ok()).collect()
    }

    /// `lab status --json`.
    pub(crate) fn status(&self) -> serde_json::Value {
        let (status, out, err) = run(&mut self.home.lab(&["status", "--json"]));
        assert_eq!(status, 0, "{err}");
        serde_json::from_str(&out).unwrap()
    }

    /// A command of `madrigal lab` that must succeed.
    #[track_caller]
    pub(crate) fn lab(&self, args: &[&str]) -> String {
        let (status, out, err) = run(&mut self.home.lab(args));
        assert_eq!(status, 0, "{args:?}: {err}");
        out
    }

    /// Takes the lab down and checks that nothing is left of it.
    pub(crate) fn down(mut self) {
        let status = self.status();
        let pids = |list: &str| {
            status[list].as_array().unwrap().iter().map(|one| one["pid"].as_u64().unwrap()).collect::<Vec<_>>()
        };
        let pids = [vec![status["keeper"].as_u64().unwrap()], pids("hosts"), pids("links")].concat();
        let mut theirs = namespaces(pids.iter().copied());
        theirs.retain(|one| !namespaces([u64::from(std::process::id())].into_iter()).contains(one));
        assert!(theirs.len() > 5, "{theirs:?}");
        // The kernel gives the number of a namespace that has ended to the next one, which may be that of a test beside this one.
        let held = hold_namespaces(&pids);
        assert!(self.lab(&["down"]).contains("is down"));
        self.servers.drain(..).for_each(|mut server| {
            // What ran on the hosts ended with them.
            until("the end of a server", || server.try_wait().unwrap());
        });
        until_none("of what runs in the namespaces", || {
            all_pids().filter(|pid| !namespaces([*pid].into_iter()).is_disjoint(&theirs)).map(described).collect()
        });
        drop(held);
        assert_eq!((self.home.left_over(), strays(&status)), (vec![], vec![]));
        assert_eq!(self.lab(&["down"]), "no lab was up\n");
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

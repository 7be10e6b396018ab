//! A grid whose hosts are all here: real daemons, each with a runtime directory of its own, started and killed, and with certificates of the
//! grid's CA where their links have to be enciphered.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use madrigal_identity::{Authority, DAY, Moment, Name, Validity};
pub(crate) use madrigal_tests::host::free_port;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{Folder, Running, command, run};

/// A generous end for anything that should take moments.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(150);

/// Waits until `ready` answers something; panics when it takes too long.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + WATCHDOG;
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(Instant::now() < end, "{what}: nothing after {WATCHDOG:?}");
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// Waits until there are none; panics with what there still is when it takes too long.
#[track_caller]
pub(crate) fn until_none(what: &str, mut left: impl FnMut() -> Vec<String>) {
    let end = Instant::now() + WATCHDOG;
    loop {
        let left = left();
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < end, "{what}, after {WATCHDOG:?}: {left:?}");
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// Whether the tests run as root.
pub(crate) fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|data| std::os::unix::fs::MetadataExt::uid(&data) == 0)
}

/// The most memory a process has had.
pub(crate) fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// As many descriptors as there may be.
pub(crate) fn raise_limits() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// A name in a certificate.
pub(crate) fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

/// From a minute ago until so many seconds from now.
pub(crate) fn life(seconds: i64) -> Validity {
    let now = Moment::now();
    Validity { from: now.plus(-60), to: now.plus(seconds) }
}

/// The grid.
pub(crate) struct Bed {
    pub(crate) folder: Folder,
    pub(crate) ca: Authority,
    daemons: Vec<(String, Child)>,
}

impl Bed {
    /// No daemon is up, and no host has a certificate.
    pub(crate) fn new(what: &str, grid: &str) -> Self {
        let folder = Folder::new(what);
        folder.file("grid.toml", 0o600, grid);
        let ca = Authority::create(&folder.0.join("ca"), &name("lab"), life(DAY), false).unwrap();
        Self { folder, ca, daemons: Vec::new() }
    }

    /// For links that have to be enciphered: `a1` calls `b1`, which listens at this port of 127.0.0.1 and calls nobody. a1 has no address,
    /// so that this is no matter of one machine alone.
    pub(crate) fn two(what: &str) -> (Self, u16) {
        let port = free_port();
        let grid = format!(
            "[site.a]\nhosts.a1 = []\nallow = '1-65535'\n[site.b]\nhosts.b1 = '127.0.0.1:{port}'\nallow = '1-65535'\n"
        );
        (Self::new(&format!("tls-{what}"), &grid), port)
    }

    /// Where a host has its certificate.
    pub(crate) fn config(&self, host: &str) -> PathBuf {
        self.folder.0.join(host).join("config")
    }

    /// Gives a host a certificate.
    pub(crate) fn issue(&self, host: &str, life: Validity) {
        self.ca.issue_host(&name(host), life).unwrap().install(&self.config(host), true).unwrap();
    }

    /// The command, as typed on `host`.
    pub(crate) fn on(&self, host: &str, args: &[&str]) -> Command {
        let home = self.folder.0.join(host);
        std::fs::create_dir_all(&home).unwrap();
        let mut command = command();
        command.args(args).env("XDG_RUNTIME_DIR", home).env("MADRIGAL_CONFIG_DIR", self.config(host));
        command
    }

    /// A file in the runtime directory of a host.
    pub(crate) fn runtime(&self, host: &str, file: &str) -> PathBuf {
        self.folder.0.join(host).join("madrigal").join(file)
    }

    /// Starts the daemon of a host.
    pub(crate) fn up(&mut self, host: &str) {
        self.up_as(host, host, "grid.toml");
    }

    /// Starts a daemon that has `place`'s directories and claims to be `host`.
    pub(crate) fn up_as(&mut self, place: &str, host: &str, grid: &str) {
        self.up_with(place, host, grid, &[]);
    }

    /// The same with further arguments.
    pub(crate) fn up_with(&mut self, place: &str, host: &str, grid: &str, more: &[&str]) {
        let grid = self.folder.path(grid);
        let log = std::fs::File::options().create(true).append(true).open(self.log_file(place)).unwrap();
        let mut command = self.on(place, &[&["up", "--foreground", "--grid", &grid, "--host", host], more].concat());
        let child = command.stdin(Stdio::null()).stderr(log).spawn().unwrap();
        self.daemons.push((place.to_owned(), child));
        until("a daemon", || (run(&mut self.on(place, &["status"])).0 == Some(0)).then_some(()));
    }

    /// The process of a host's daemon.
    pub(crate) fn pid(&self, host: &str) -> u32 {
        self.daemons.iter().find(|(name, _)| name == host).unwrap().1.id()
    }

    /// As `kill -9` of a host's daemon.
    pub(crate) fn kill(&mut self, host: &str) {
        let place = self.daemons.iter().position(|(name, _)| name == host).unwrap();
        let (_, mut child) = self.daemons.remove(place);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn log_file(&self, host: &str) -> PathBuf {
        self.folder.0.join(format!("{host}.log"))
    }

    /// The output of all daemons of a host.
    pub(crate) fn log(&self, host: &str) -> String {
        std::fs::read_to_string(self.log_file(host)).unwrap_or_default()
    }

    /// Waits until a line of a host's log has all of these in it.
    #[track_caller]
    pub(crate) fn expect_log(&self, host: &str, parts: &[&str]) {
        let has = |line: &str| parts.iter().all(|part| line.contains(part));
        until(&format!("{parts:?} from {host}"), || self.log(host).lines().any(has).then_some(()));
    }

    /// `status --json` on a host.
    pub(crate) fn status(&self, host: &str) -> serde_json::Value {
        let (status, out, err) = run(&mut self.on(host, &["status", "--json"]));
        assert_eq!(status, Some(0), "{err}");
        serde_json::from_str(&out).unwrap()
    }

    /// The status of another host at a host.
    pub(crate) fn peer(&self, host: &str, peer: &str) -> serde_json::Value {
        let status = self.status(host);
        status["peers"].as_array().unwrap().iter().find(|one| one["host"] == peer).unwrap().clone()
    }

    /// The links that a host has with another one.
    pub(crate) fn links(&self, host: &str, peer: &str) -> Vec<serde_json::Value> {
        self.peer(host, peer)["links"].as_array().unwrap().clone()
    }

    /// Waits for a link; which is enciphered where the host has a certificate, and only there.
    #[track_caller]
    pub(crate) fn linked(&self, host: &str, peer: &str) {
        let links = until("a link", || Some(self.links(host, peer)).filter(|links| !links.is_empty()));
        let tls = self.config(host).join("host.pem").exists();
        assert!(links.iter().all(|link| link["tls"] == tls), "{links:?}");
    }

    /// A local port on `host` that leads to another one's.
    pub(crate) fn forward(&self, host: &str, to: &str) -> (Running, u16) {
        let mut forward = Running::start(&mut self.on(host, &["forward", "0", to]));
        let line = forward.line();
        let port = line.split([':', ' ']).nth(1).unwrap().parse().unwrap();
        (forward, port)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for (host, daemon) in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
            if std::thread::panicking() {
                let log = std::fs::read_to_string(self.folder.0.join(format!("{host}.log"))).unwrap_or_default();
                eprintln!("--- {host}");
                let lines: Vec<_> = log.lines().collect();
                lines[lines.len().saturating_sub(200)..].iter().for_each(|line| eprintln!("{line}"));
            }
        }
    }
}

/// Sends back what comes, on as many connections as come; its port.
pub(crate) fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut to = stream.try_clone().unwrap();
                let _ = std::io::copy(&mut &stream, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
        }
    });
    port
}

/// Bytes that encode their position.
pub(crate) fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8).collect()
}

/// Sends everything while reading everything.
pub(crate) fn exchange(stream: &TcpStream, bytes: &[u8]) -> Vec<u8> {
    let mut got = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut to = stream;
            to.write_all(bytes).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        });
        let mut from = stream;
        from.read_to_end(&mut got).unwrap();
    });
    got
}

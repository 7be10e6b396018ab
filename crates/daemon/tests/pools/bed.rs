//! Daemons on loopback, and programs that talk to them; all of it ends with the test.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use madrigal_daemon::Runtime;
use madrigal_daemon::client::reload;
use madrigal_pools::{Membership, PoolError, Wish};
use madrigal_sys::time::now_ns;
use madrigal_tests::host::free_port;
use madrigal_tests::trials;

use crate::part::PART;
use crate::proxy::{self, Acts};

/// Where pools are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Keeper,
    Etcd,
}

/// A test of a store, and its name.
pub(crate) type Test = (&'static str, fn(Kind));

/// The watchdog of a wait.
pub(crate) const LONG: Duration = Duration::from_secs(200);

/// A deadline that no test reaches.
pub(crate) fn soon() -> Option<u64> {
    Some(now_ns() + LONG.as_nanos() as u64)
}

/// Waits until something holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A process that is killed at the end.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.0.id().cast_signed()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

/// A grid of hosts on loopback.
pub(crate) struct Bed {
    // Ended before the folder is removed.
    daemons: Vec<Option<Process>>,
    etcd: Option<(Process, String)>,
    grid: PathBuf,
    folder: Folder,
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The logs may say why.
            let _ = std::fs::remove_dir_all(self.0.join("etcd"));
            return eprintln!("its logs are in {}", self.0.display());
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Bed {
    /// Hosts `h0`, `h1` ... with their daemons, of which the first keeps the pools.
    pub(crate) fn new(kind: Kind, hosts: usize) -> Self {
        Self::with(kind, hosts, str::to_owned)
    }

    /// With an etcd behind a proxy, which is told where that is.
    pub(crate) fn behind(hosts: usize, acts: impl FnOnce(String) -> Acts) -> Self {
        Self::with(Kind::Etcd, hosts, |etcd| proxy::begin(etcd.to_owned(), acts(etcd.to_owned())))
    }

    fn with(kind: Kind, hosts: usize, before: impl FnOnce(&str) -> String) -> Self {
        if kind == Kind::Etcd {
            trials::need("etcd");
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("madrigal-pools-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = Folder(std::env::temp_dir().join(name));
        std::fs::create_dir(&folder.0).unwrap();
        let listed = (0..hosts).map(|host| format!("h{host} = '127.0.0.1:{}'", free_port())).collect::<Vec<_>>();
        let mut text = format!("[site.s]\nhosts = {{ {} }}\n", listed.join(", "));
        let mut etcd = None;
        match kind {
            Kind::Keeper => text += "[pools]\nkeeper = 'h0'\n",
            Kind::Etcd => {
                let (process, url) = start_etcd(&folder.0);
                text += &format!("[pools]\netcd = '{}'\nprefix = '/a-test/'\n", before(&url));
                etcd = Some((process, url));
            }
        }
        let grid = folder.0.join("grid.toml");
        std::fs::write(&grid, text).unwrap();
        let mut bed = Self { daemons: Vec::new(), etcd, grid, folder };
        for host in 0..hosts {
            bed.daemons.push(None);
            bed.start(host);
        }
        bed
    }

    /// Starts the daemon of a host, and waits until it takes requests.
    pub(crate) fn start(&mut self, host: usize) {
        let (grid, directory) = (self.grid.display(), self.directory(host));
        let part = format!("daemon {grid} h{host} {}", directory.display());
        let log = std::fs::File::create(self.folder.0.join(format!("h{host}.log"))).unwrap();
        let daemon = play(&part).stderr(log.try_clone().unwrap()).stdout(log).stdin(Stdio::null()).spawn().unwrap();
        let mut daemon = Process(daemon);
        let (socket, log) = (directory.join("daemon.sock"), self.folder.0.join(format!("h{host}.log")));
        until("a daemon is up", || {
            let ended = daemon.0.try_wait().unwrap();
            assert!(ended.is_none(), "h{host}: {ended:?}: {}", std::fs::read_to_string(&log).unwrap_or_default());
            UnixStream::connect(&socket).is_ok()
        });
        self.daemons[host] = Some(daemon);
    }

    pub(crate) fn daemon(&mut self, host: usize) -> &mut Process {
        self.daemons[host].as_mut().unwrap()
    }

    pub(crate) fn etcd(&mut self) -> &mut Process {
        &mut self.etcd.as_mut().unwrap().0
    }

    /// What etcdctl says to these arguments.
    pub(crate) fn etcdctl(&self, arguments: &[&str]) -> String {
        etcdctl(&self.etcd.as_ref().unwrap().1, arguments)
    }

    /// Changes the file of the grid, and has the daemons read it again.
    pub(crate) fn change_grid(&self, from: &str, to: &str) {
        let text = std::fs::read_to_string(&self.grid).unwrap();
        assert!(text.contains(from));
        std::fs::write(&self.grid, text.replace(from, to)).unwrap();
        for host in 0..self.daemons.len() {
            reload(&Runtime::at(self.directory(host))).unwrap();
        }
    }

    /// What the daemon of a host has logged.
    pub(crate) fn log(&self, host: usize) -> String {
        std::fs::read_to_string(self.folder.0.join(format!("h{host}.log"))).unwrap()
    }

    /// How many keys of etcd begin so.
    pub(crate) fn keys(&self, prefix: &str) -> usize {
        self.etcdctl(&["get", "--prefix", "--keys-only", prefix]).lines().filter(|line| !line.is_empty()).count()
    }

    pub(crate) fn directory(&self, host: usize) -> PathBuf {
        self.folder.0.join(format!("run-h{host}"))
    }

    pub(crate) fn join(&self, host: usize, pool: &str) -> Membership {
        self.try_join(host, Wish { pool: pool.to_owned(), ..Wish::default() }).unwrap()
    }

    pub(crate) fn try_join(&self, host: usize, wish: Wish) -> Result<Membership, PoolError> {
        Membership::join(&[self.directory(host)], wish, soon())
    }

    /// A member that is a process of its own.
    pub(crate) fn program(&self, host: usize, pool: &str) -> Program {
        Program::start(&self.directory(host), pool)
    }
}

/// What etcdctl says to these arguments, of the etcd with this URL.
pub(crate) fn etcdctl(etcd: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(trials::need("etcdctl"));
    let output = command.env("ETCDCTL_API", "3").args(["--endpoints", etcd]).args(arguments).output().unwrap();
    assert!(output.status.success(), "etcdctl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A real etcd on loopback, and its URL.
fn start_etcd(folder: &Path) -> (Process, String) {
    let program = trials::need("etcd");
    let [client, peer] = [(); 2].map(|()| format!("http://127.0.0.1:{}", free_port()));
    let log = std::fs::File::create(folder.join("etcd.log")).unwrap();
    let mut command = Command::new(program);
    command.args(["--data-dir", folder.join("etcd").to_str().unwrap(), "--name", "e", "--log-level", "error"]);
    command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &format!("e={peer}"), "--unsafe-no-fsync"]);
    // Debian's default configuration is in the environment of its service alone.
    let mut etcd = Process(command.stdin(Stdio::null()).stderr(log.try_clone().unwrap()).stdout(log).spawn().unwrap());
    let address = client.trim_start_matches("http://").to_owned();
    let ready = || {
        let ended = etcd.0.try_wait().unwrap();
        assert!(ended.is_none(), "{ended:?}: {}", std::fs::read_to_string(folder.join("etcd.log")).unwrap_or_default());
        let Ok(mut socket) = std::net::TcpStream::connect(&address) else { return false };
        let _ = write!(socket, "GET /health HTTP/1.0\r\n\r\n");
        let mut answer = String::new();
        let _ = std::io::Read::read_to_string(&mut socket, &mut answer);
        answer.contains("\"true\"")
    };
    until("etcd is up", ready);
    (etcd, client)
}

/// A member that is a process of its own.
pub(crate) struct Program {
    pub(crate) process: Process,
    pub(crate) id: u64,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Program {
    fn start(directory: &Path, pool: &str) -> Self {
        let part = format!("member {} {pool}", directory.display());
        let mut child = play(&part).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut program = Self { process: Process(child), id: 0, stdin, stdout };
        program.id = program.line().strip_prefix("joined ").unwrap().parse().unwrap();
        program
    }

    /// Tells it a line, and returns the line that it says then.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        writeln!(self.stdin, "{line}").unwrap();
        self.line()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

/// This program, in that part.
pub(crate) fn play(part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(PART, part);
    command
}

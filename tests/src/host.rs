//! What integration tests need of the host: the library to preload, programs with an end, scratch folders, random choices.
#![allow(unsafe_code)]

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::net;

/// A generous end for anything that should take moments.
pub const WATCHDOG: Duration = Duration::from_secs(60);

/// The library to preload, built if need be; `MADRIGAL_SYSWRAP` names another.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| given("MADRIGAL_SYSWRAP").unwrap_or_else(|| release().join("libmadrigal_syswrap.so")))
}

/// The command, built if need be, with the library beside it; `MADRIGAL` names another.
pub fn madrigal() -> &'static Path {
    static COMMAND: OnceLock<PathBuf> = OnceLock::new();
    COMMAND.get_or_init(|| given("MADRIGAL").unwrap_or_else(|| release().join("madrigal")))
}

/// The file that a variable names, by an absolute path: programs run in other folders.
fn given(name: &str) -> Option<PathBuf> {
    let file = PathBuf::from(std::env::var_os(name)?);
    let found = file.canonicalize();
    Some(found.unwrap_or_else(|error| panic!("{name}={}: {error}", file.display())))
}

/// The folder of what `make build` builds: the command and the libraries. Built if need be, all together: a package built by itself may
/// have other features of what it depends on, and then everything is built twice.
pub fn release() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = target().join("release");
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build.args(["build", "--quiet", "--release", "--target-dir"]).arg(target()).current_dir(root());
        let done = build.status();
        // Where there is no cargo, what is there is tested.
        let built = done.map_or_else(|_| folder.join("madrigal").exists(), |status| status.success());
        assert!(built, "cargo cannot build the release");
        folder
    })
}

/// The same folder, with the libraries for C in it, which `make build` links of what cargo built. The caller has a C compiler.
pub fn release_for_c() -> &'static Path {
    static LINKED: OnceLock<&Path> = OnceLock::new();
    LINKED.get_or_init(|| {
        let folder = release();
        let link = |script: &str, files: &[PathBuf]| {
            let done = Command::new(root().join(script)).args(files).status();
            assert!(done.is_ok_and(|status| status.success()), "{script} fails");
        };
        link("personalities/capi/link", &[folder.join("libmadrigal_capi.a"), folder.join("libmadrigal.so.0")]);
        link("personalities/classic/link", &[folder.to_path_buf()]);
        folder
    })
}

/// The workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests lie in the workspace")
}

/// The folder this test was built in: `target/debug/deps/this-test`.
fn target() -> PathBuf {
    let exe = std::env::current_exe().expect("this program has a name");
    exe.ancestors().nth(3).expect("target/debug/deps").to_path_buf()
}

/// A folder of its own for one test, removed at the end.
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new, empty folder, private to this user.
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        loop {
            let name = format!("madrigal-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Self(path),
                // A test that was killed left it, and this process has its number.
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => panic!("a scratch folder at {}: {e}", path.display()),
            }
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The shared directory of wrapped programs of this test; they make it.
    pub fn shared(&self) -> PathBuf {
        self.0.join("shared")
    }

    /// What is left in the shared directory.
    pub fn left_over(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.shared()).into_iter().flatten();
        entries.filter_map(|e| Some(e.ok()?.file_name().to_string_lossy().into_owned())).collect()
    }

    /// Waits until nothing is left in the shared directory, or panics.
    pub fn assert_empty(&self) {
        let end = Instant::now() + Duration::from_secs(10);
        while !self.left_over().is_empty() {
            assert!(Instant::now() < end, "left in the shared directory: {:?}", self.left_over());
            net::sleep_ms(10);
        }
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether a program runs with the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// As it is.
    Plain,
    /// With the library preloaded.
    Wrapped,
    /// The same, and connections earn their rings at the first byte; sums of what travels in them are compared.
    First,
    /// The same, and they leave and earn them again at random points.
    Random,
}

impl How {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Plain, Self::Wrapped, Self::First, Self::Random];

    /// Whether the library is preloaded.
    pub fn is_wrapped(self) -> bool {
        self != Self::Plain
    }

    /// What is to be set for it (README, "Settings").
    fn settings(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Plain | Self::Wrapped => &[],
            Self::First => &[("MADRIGAL_EAGER", "first"), ("MADRIGAL_CHECK", "1")],
            Self::Random => &[("MADRIGAL_EAGER", "random"), ("MADRIGAL_CHECK", "1")],
        }
    }
}

/// A command as this test wants it run: plain or wrapped, with the shared directory of `scratch`.
pub fn command(how: How, program: impl AsRef<std::ffi::OsStr>, scratch: &Scratch) -> Command {
    let mut command = Command::new(program);
    command.current_dir(scratch.path()).stdin(Stdio::null()).env("RUST_BACKTRACE", "0");
    for name in ["LD_PRELOAD", "MADRIGAL_METHODS", "MADRIGAL_ONLY", "MADRIGAL_EAGER", "MADRIGAL_CHECK", "EXPECT_RING"] {
        command.env_remove(name);
    }
    command.envs(how.settings().iter().copied());
    command.env("MADRIGAL_DIR", scratch.shared());
    if how.is_wrapped() {
        command.env("LD_PRELOAD", library());
    }
    command
}

/// What a program left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Exit status, or 128 + signal.
    pub status: i32,
    /// Standard output.
    pub out: Vec<u8>,
    /// Standard error.
    pub err: Vec<u8>,
}

impl Ended {
    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    /// Panics unless the program ended well.
    #[track_caller]
    pub fn expect_success(self) -> Self {
        let (out, err) = (String::from_utf8_lossy(&self.out), String::from_utf8_lossy(&self.err));
        assert_eq!(self.status, 0, "out: {out}\nerr: {err}");
        self
    }
}

/// A running program with everything it starts (its process group), ended at the latest when this is dropped.
pub struct Running {
    child: Child,
    out: Option<JoinHandle<Vec<u8>>>,
    err: Option<JoinHandle<Vec<u8>>>,
}

impl Running {
    /// Starts a command; its output is collected.
    pub fn start(command: &mut Command) -> Self {
        command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: prctl is async-signal-safe: a test that is killed takes its programs along.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{:?}: {e}", command.get_program()));
        let (out, err) = (collect(child.stdout.take()), collect(child.stderr.take()));
        Self { child, out: Some(out), err: Some(err) }
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        let _ = net::kill(self.pid(), signal);
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end; panics when it takes longer than the watchdog allows.
    #[track_caller]
    pub fn wait(mut self) -> Ended {
        let end = Instant::now() + WATCHDOG;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                break status;
            }
            assert!(Instant::now() < end, "process {} hangs", self.pid());
            net::sleep_ms(3);
        };
        // What it started and left behind must not keep the pipes open.
        self.kill_group();
        let take = |half: &mut Option<JoinHandle<Vec<u8>>>| half.take().and_then(|h| h.join().ok()).unwrap_or_default();
        let (out, err) = (take(&mut self.out), take(&mut self.err));
        let status = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        Ended { status, out, err }
    }

    /// Ends it and its group at once.
    pub fn kill(&mut self) {
        self.kill_group();
        let _ = self.child.wait();
    }

    fn kill_group(&self) {
        // A group of ours: its leader has not been waited for by anybody else.
        let _ = net::kill(-self.pid(), libc::SIGKILL);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

fn collect(pipe: Option<impl std::io::Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

/// Runs a command to its end.
#[track_caller]
pub fn run(command: &mut Command) -> Ended {
    Running::start(command).wait()
}

/// Waits until `ready` answers something; panics when it takes too long.
#[track_caller]
pub fn until<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + WATCHDOG;
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(Instant::now() < end, "{what}: nothing after {WATCHDOG:?}");
        net::sleep_ms(1);
    }
}

/// Copies a file that is to be executed. By cp(1): a file that this process has open for writing cannot be executed (ETXTBSY) as long as a child
/// has it, too, that another thread forks meanwhile.
pub fn copy_program(from: &Path, to: &Path) {
    assert!(Command::new("cp").args([from, to]).status().expect("cp").success(), "{}", to.display());
}

/// Writes a script, which may be executed; as [`copy_program`].
pub fn script(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let mut tee = Command::new("tee").arg(path).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("tee");
    tee.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("tee reads");
    assert!(tee.wait().expect("is our child").success(), "{}", path.display());
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("its mode");
}

/// A port for a listener that has SO_REUSEADDR. The kernel gives it to no other process for a minute: a connection of it is in TIME_WAIT.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("a name")).expect("a connection");
    let (server, _) = listener.accept().expect("a connection");
    let port = server.local_addr().expect("a name").port();
    drop(server);
    drop(client);
    port
}

/// Whether this port has a listener, checked without a connection.
pub fn listens(port: u16) -> bool {
    let wanted = format!(":{port:04X} ");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|file| {
        let table = std::fs::read_to_string(file).unwrap_or_default();
        table.lines().any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let local = fields.next().unwrap_or("");
            format!("{local} ").ends_with(&wanted) && fields.nth(1) == Some("0A")
        })
    })
}

/// Waits until this port has a listener.
#[track_caller]
pub fn await_port(port: u16) {
    until("a listener", || listens(port).then_some(()));
}

/// Whether this user is root: some tests need another user, a mount, or a raised limit.
pub fn is_root() -> bool {
    // SAFETY: no pointers.
    unsafe { libc::geteuid() == 0 }
}

/// Finds a program on the usual paths.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let dirs = path.split(':').chain(["/usr/sbin", "/sbin", "/usr/local/sbin"]);
    dirs.map(|dir| Path::new(dir).join(name)).find(|p| p.is_file())
}

/// Random choices that can be repeated: `SEED` in the environment is used if given; the seed in use is printed.
pub struct Choices(u64);

impl Choices {
    /// New choices, their seed printed.
    pub fn new() -> Self {
        let given = std::env::var("SEED").ok().and_then(|s| s.parse().ok());
        let seed = given.unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.map_or(1, |d| d.as_nanos() as u64)
        });
        println!("SEED={seed}");
        Self::from_seed(seed)
    }

    /// The choices of this seed.
    pub fn from_seed(seed: u64) -> Self {
        Self(seed)
    }

    /// A number.
    pub fn number(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.number() % n
    }
}

impl Default for Choices {
    fn default() -> Self {
        Self::new()
    }
}

//! The library as programs see it: its exports, and programs in C and C++ that are built with nothing but the output of `pkg-config` for
//! an installed prefix. Ignored without a compiler.
//!
//! Features (docs/features.md): A1, A2, A3, A5, B1, B4, B5, D5, D6, I4, P1, P3, P4, P5.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use madrigal_identity::{Authority, DAY, Name, Validity};
use madrigal_tests::host;
use madrigal_tests::trials::need;

madrigal_tests::trials![
    exports_what_the_header_declares_and_no_more,
    uninstalls_what_it_installs,
    echoes_between_processes,
    reports_misuse,
    is_right_at_its_edges,
    completes_by_test_wait_and_handler,
    has_the_programs_own_sources_in_its_engine,
    has_the_programs_own_sources_under_syswrap,
    is_used_by_several_threads,
    sends_messages_over_shared_memory,
    sends_messages_over_tcp,
    ports_send_over_shared_memory,
    ports_send_over_tcp,
    ports_send_over_a_stack,
    sends_messages_over_a_stack,
    messages_may_lose_a_part,
    mailboxes_over_shared_memory,
    mailboxes_over_tcp,
    joins_pools,
    has_examples_that_run,
    survives_random_calls,
    compiles_as_cpp,
    joins_what_a_launcher_started,
    speaks_madeleine,
    speaks_fast_messages,
    has_sockets_by_another_name,
    has_asynchronous_requests,
];

fn ran(command: &mut Command) -> Output {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let output = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{command:?}: {:?}: {output}", out.status);
    out
}

/// The folder of the libraries, linked as `make build` does.
fn built() -> &'static Path {
    need("cc");
    host::release_for_c()
}

/// What `make` does with a prefix.
fn make(what: &str, prefix: &Path) {
    let mut make = Command::new(need("make"));
    make.args(["-s", what]).arg(format!("RELEASE={}", built().display())).arg(format!("PREFIX={}", prefix.display()));
    ran(make.current_dir(host::root()).env_remove("MAKEFLAGS").env_remove("DESTDIR"));
}

/// A folder that is removed with all that is in it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("madrigal-capi-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).expect("a folder");
        Self(path)
    }

    /// With the library installed in it.
    fn prefix(name: &str) -> Self {
        let folder = Self::new(name);
        make("install-c", &folder.0);
        folder
    }

    /// What a compiler needs to use what is installed.
    fn flags(&self) -> Vec<String> {
        let mut config = Command::new(need("pkg-config"));
        config.args(["--cflags", "--libs", "madrigal-classic"]).env("PKG_CONFIG_PATH", self.0.join("lib/pkgconfig"));
        let output = String::from_utf8(ran(&mut config).stdout).expect("UTF-8");
        output.split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles a program of `tests/c`.
    fn compile(&self, compiler: &[&str], name: &str) -> PathBuf {
        self.compile_file(compiler, &Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c")))
    }

    fn compile_file(&self, compiler: &[&str], source: &Path) -> PathBuf {
        let program = self.0.join(source.file_stem().expect("a name"));
        let mut cc = Command::new(need(compiler.first().expect("a compiler")));
        cc.args(&compiler[1..]).args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-pthread", "-o"]);
        cc.arg(&program).arg(source).args(self.flags());
        ran(&mut cc);
        program
    }

    /// Compiles and runs one, which must report success.
    fn run(&self, name: &str, arguments: &[&str]) {
        let program = self.compile(C, name);
        self.run_again(&program, arguments);
    }

    fn run_again(&self, program: &Path, arguments: &[&str]) {
        self.run_with(program, arguments, &[]);
    }

    /// What it printed.
    fn run_with(&self, program: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> String {
        let mut command = self.command(program, arguments);
        let output = String::from_utf8_lossy(&ran(command.envs(variables.iter().copied())).stdout).into_owned();
        assert!(output.ends_with("good\n"), "{command:?}: {output}");
        output
    }

    /// The output of an example.
    fn example(&self, name: &str, arguments: &[&str]) -> String {
        let out = ran(&mut self.command(&self.0.join(name), arguments));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// A program with the library, for two minutes at most.
    fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(host::root().join("tools/within"));
        command.arg("120").arg(program).args(arguments);
        command.env("MADRIGAL_DIR", self.0.join("meet")).env("LD_LIBRARY_PATH", self.0.join("lib"));
        command
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const C: &[&str] = &["cc", "-std=c11"];
const CPP: &[&str] = &["c++", "-std=c++17", "-x", "c++"];

fn exports_what_the_header_declares_and_no_more() {
    let header = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("include/madrigal.h"));
    let header = header.expect("the header");
    let lines =
        header.lines().filter(|line| !line.starts_with([' ', '*', '/', '#', '}']) && !line.starts_with("typedef"));
    let name = |line: &str| {
        let before = line.split('(').next()?;
        let name = before.rsplit([' ', '*']).next()?;
        name.starts_with("mdg_").then(|| format!("{name}@@MADRIGAL_0"))
    };
    let mut declared: Vec<_> = lines.filter_map(name).collect();
    declared.sort();
    let library = built().join("libmadrigal.so.0");
    let out = ran(Command::new(need("nm")).args(["-D", "--defined-only", "--with-symbol-versions"]).arg(&library));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut exported: Vec<_> = text.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    exported.retain(|name| *name != "MADRIGAL_0");
    exported.sort_unstable();
    assert!(declared.len() > 20);
    assert_eq!(exported, declared);
    let out = ran(Command::new(need("readelf")).arg("-d").arg(&library));
    assert!(String::from_utf8_lossy(&out.stdout).contains("soname: [libmadrigal.so.0]"));
    let out = ran(Command::new("ldd").arg(&library));
    let known = ["linux-vdso", "libgcc_s", "libc.so", "libm.so", "ld-linux"];
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let unknown: Vec<_> = text.lines().filter(|line| !known.iter().any(|name| line.contains(name))).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

fn uninstalls_what_it_installs() {
    let folder = Folder::new("install");
    std::fs::create_dir(folder.0.join("include")).expect("a folder");
    std::fs::write(folder.0.join("include/other.h"), "").expect("a file");
    let listed = || {
        let out = ran(Command::new("find").arg(&folder.0).args(["-mindepth", "1", "-printf", "%P\n"]));
        let mut all: Vec<_> = String::from_utf8_lossy(&out.stdout).lines().map(str::to_owned).collect();
        all.sort();
        all
    };
    make("install-c", &folder.0);
    let installed = listed();
    for file in [
        "include/madrigal.h",
        "include/madeleine.h",
        "include/fm.h",
        "include/vio.h",
        "include/vaio.h",
        "lib/libmadrigal.so",
        "lib/libmadrigal.so.0",
        "lib/libmadrigal-classic.so.0",
        "lib/pkgconfig/madrigal.pc",
        "lib/pkgconfig/madrigal-classic.pc",
    ] {
        assert!(installed.iter().any(|found| found == file), "{file} is not in {installed:?}");
    }
    make("uninstall", &folder.0);
    assert_eq!(listed(), ["include", "include/other.h"]);
}

fn echoes_between_processes() {
    let folder = Folder::prefix("echo");
    folder.run("echo", &["shm://capi-echo"]);
    folder.run_again(&folder.0.join("echo"), &["tcp://127.0.0.1:0"]);
    folder.run_again(&folder.0.join("echo"), &["serve:capi-echo-served"]);
}

fn reports_misuse() {
    Folder::prefix("misuse").run("misuse", &[]);
}

/// Each by its name, and in a process of its own: the name identifies a wait that does not end.
fn is_right_at_its_edges() {
    let folder = Folder::prefix("edges");
    let program = folder.compile(C, "edges");
    let output = ran(folder.command(&program, &["names"]).stdout(Stdio::piped())).stdout;
    let output = String::from_utf8(output).expect("UTF-8");
    assert!(output.lines().count() > 10, "{output}");
    for name in output.lines() {
        folder.run_again(&program, &[name]);
    }
}

fn completes_by_test_wait_and_handler() {
    let folder = Folder::prefix("complete");
    folder.run("complete", &["loopback://complete"]);
    folder.run_again(&folder.0.join("complete"), &["shm://capi-complete"]);
    folder.run_again(&folder.0.join("complete"), &["tcp://127.0.0.1:0"]);
}

fn has_the_programs_own_sources_in_its_engine() {
    Folder::prefix("engine").run("engine", &[]);
}

/// Sockets of the program's that SysWrap handles, in the engine.
fn has_the_programs_own_sources_under_syswrap() {
    let folder = Folder::prefix("wrapped");
    let program = folder.compile(C, "wrapped");
    let library = host::library();
    let preload = format!("LD_PRELOAD={}", library.display());
    for eager in ["MADRIGAL_EAGER=", "MADRIGAL_EAGER=first"] {
        folder.run_again(&need("env"), &[&preload, eager, &program.to_string_lossy()]);
    }
}

fn is_used_by_several_threads() {
    let folder = Folder::prefix("threads");
    folder.run("threads", &["loopback://threads"]);
    folder.run_again(&folder.0.join("threads"), &["shm://capi-threads"]);
    folder.run_again(&folder.0.join("threads"), &["tcp://127.0.0.1:0"]);
}

fn sends_messages_over_shared_memory() {
    circuit("shm", "\"driver\":\"shm\"");
}

fn sends_messages_over_tcp() {
    circuit("tcp", "\"driver\":\"tcp\"");
}

fn circuit(methods: &str, told: &str) {
    let folder = Folder::prefix(&format!("circuit-{methods}"));
    let program = folder.compile(C, "circuit");
    let output = folder.run_with(&program, &[], &[("MADRIGAL_METHODS", methods)]);
    assert!(output.contains(told), "{told} is not in {output}");
}

/// The programs of the guide, which are those of `examples/c`.
fn ports_send_over_shared_memory() {
    ports("shm");
}

fn ports_send_over_tcp() {
    ports("tcp");
}

fn ports(methods: &str) {
    let folder = Folder::prefix(&format!("ports-{methods}"));
    let program = folder.compile(C, "ports");
    folder.run_with(&program, &[], &[("MADRIGAL_METHODS", methods)]);
}

/// By an attribute of the ports, beside shared memory that carries all else.
fn ports_send_over_a_stack() {
    let folder = Folder::prefix("ports-stack");
    let program = folder.compile(C, "ports");
    folder.run_with(&program, &["adoc/stripe(2)/tcp"], &[]);
}

/// All messages between the processes, by the environment.
fn sends_messages_over_a_stack() {
    let folder = Folder::prefix("circuit-stack");
    let program = folder.compile(C, "circuit");
    let stack = ("MADRIGAL_MESSAGE_STACK", "adoc/stripe(2)/tcp");
    let output = folder.run_with(&program, &[], &[("MADRIGAL_METHODS", "tcp"), stack]);
    assert!(output.contains("\"driver\":\"adoc/stripe(2)/tcp\""), "{output}");
}

/// By the certificate of a grid that is made for that.
fn messages_may_lose_a_part() {
    let folder = Folder::prefix("lossy");
    let own = folder.0.join("grid");
    let name = |text| Name::parse(text).expect("a name");
    let grid = Authority::create(&own, &name("test"), Validity::seconds(DAY), false).expect("a CA");
    grid.issue_host(&name("a1"), Validity::seconds(DAY))
        .expect("a certificate")
        .install(&own, false)
        .expect("is installed");
    let program = folder.compile(C, "lossy");
    folder.run_with(&program, &[], &[("MADRIGAL_CONFIG_DIR", own.to_str().expect("UTF-8"))]);
}

fn mailboxes_over_shared_memory() {
    mailboxes("shm");
}

fn mailboxes_over_tcp() {
    mailboxes("tcp");
}

fn mailboxes(methods: &str) {
    let folder = Folder::prefix(&format!("mailboxes-{methods}"));
    let program = folder.compile(C, "mailboxes");
    folder.run_with(&program, &[], &[("MADRIGAL_METHODS", methods)]);
}

/// A daemon of one host, and the environment in which programs find it.
struct Daemon(std::process::Child, String);

impl Daemon {
    fn start(folder: &Folder) -> Self {
        let (grid, run) = (folder.0.join("grid.toml"), folder.0.join("run"));
        std::fs::create_dir(&run).expect("a folder");
        let text = format!("[site.s]\nhosts = {{ h0 = '127.0.0.1:{}' }}\n", host::free_port());
        std::fs::write(&grid, text).expect("it is written");
        let mut up = Command::new(host::madrigal());
        up.args(["up", "--foreground", "--host", "h0", "--grid"]).arg(&grid).env("XDG_RUNTIME_DIR", &run);
        let child = up.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
        host::until("the daemon is up", || run.join("madrigal/daemon.sock").exists().then_some(()));
        Self(child, run.to_string_lossy().into_owned())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Features: I4.
fn joins_pools() {
    let folder = Folder::prefix("pools");
    let program = folder.compile(C, "pool");
    let daemon = Daemon::start(&folder);
    folder.run_with(&program, &[], &[("XDG_RUNTIME_DIR", &daemon.1)]);
}

fn has_examples_that_run() {
    let folder = Folder::prefix("examples");
    let guide = std::fs::read_to_string(host::root().join("docs/c-api.md")).expect("the guide");
    let examples = host::root().join("examples/c");
    let mut count = 0;
    for entry in std::fs::read_dir(&examples).expect("the examples") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a text");
        assert!(guide.contains(&format!("```c\n{text}```\n")), "{} is not in docs/c-api.md as it is", path.display());
        folder.compile_file(C, &path);
        count += 1;
    }
    assert_eq!(guide.matches("```c\n").count(), count);
    assert_eq!(folder.example("hello", &[]), "who is there?\n");
    let output = folder.example("handlers", &[]);
    let mut lines: Vec<_> = output.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["a link: hello", "a pipe: hello", "a timer: 1"]);
    assert_eq!(folder.example("circuit", &[]), "hello from rank 0\n");
    let steps = "step 1 begins with 20\nstep 2 begins with 40\nstep 3 begins with 60\n";
    assert_eq!(folder.example("mailbox", &[]), steps);
    let mut server =
        folder.command(&folder.0.join("echo"), &["serve"]).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut card = String::new();
    let stdout = server.stdout.take().expect("it is piped");
    BufReader::new(stdout).read_line(&mut card).expect("a card");
    let output = folder.example("echo", &["ask", card.trim()]);
    assert!(output.starts_with("hello\n{") && output.contains("\"driver\":\"shm\""), "{output}");
    assert!(server.wait().expect("it ends").success());
    assert_eq!(two(&folder, "ports", ["take", "give"]), ["temperature of step 7, 283.0 at the end\n", ""]);
    let met = ["the ocean has 284.000 K\n", "the air has 284.000 K\n"];
    assert_eq!(two(&folder, "coupled", ["ocean", "air"]), met);
    assert_eq!(job(&folder, "4", &folder.0.join("parameters"), &[]), ["the parameters' sum is 300000.0"]);
    let counted = "9592 primes below 100000, counted by 3 workers";
    assert_eq!(job(&folder, "4", &folder.0.join("workers"), &[]), [counted]);
    let daemon = Daemon::start(&folder);
    let members = [(); 3].map(|()| {
        let mut member = folder.command(&folder.0.join("pool"), &["demo", "3"]);
        member.env("XDG_RUNTIME_DIR", &daemon.1).stdout(Stdio::piped()).spawn().expect("it runs")
    });
    let said =
        members.map(|member| String::from_utf8(member.wait_with_output().expect("it ends").stdout).expect("UTF-8"));
    let said = said.concat();
    assert!(said.starts_with("2 others, their ranks make ") && said.lines().count() == 1, "{said}");
}

/// What two processes of an example print, of which the first one prints an address for the second, too.
fn two(folder: &Folder, name: &str, [first, second]: [&str; 2]) -> [String; 2] {
    let mut other = folder.command(&folder.0.join(name), &[first]).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut printed = BufReader::new(other.stdout.take().expect("it is piped"));
    let (mut address, mut told) = (String::new(), String::new());
    printed.read_line(&mut address).expect("an address");
    let here = folder.example(name, &[second, address.trim()]);
    printed.read_to_string(&mut told).expect("what it prints");
    assert!(other.wait().expect("it ends").success());
    [told, here]
}

/// The same seeds each time, and a fresh one; `MADRIGAL_CAPI_FUZZ=SEEDS` for more.
fn survives_random_calls() {
    let folder = Folder::prefix("fuzz");
    let program = folder.compile(C, "fuzz");
    let more = std::env::var("MADRIGAL_CAPI_FUZZ").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let fresh = (0..=more).map(|at: u64| u64::from(now.subsec_nanos()) + at);
    for seed in (1..=4).chain(fresh) {
        folder.run_again(&program, &[&seed.to_string(), "2000"]);
    }
}

fn compiles_as_cpp() {
    let folder = Folder::prefix("cpp");
    for (name, arguments) in [("misuse", &[][..]), ("echo", &["shm://capi-cpp"]), ("engine", &[])] {
        let program = folder.compile(CPP, name);
        folder.run_again(&program, arguments);
    }
}

/// The output of so many ranks of a program, sorted.
fn job(folder: &Folder, ranks: &str, program: &Path, arguments: &[&str]) -> Vec<String> {
    let command = host::madrigal();
    let mut all = vec!["run", "--plain", "-n", ranks, program.to_str().expect("UTF-8")];
    all.extend_from_slice(arguments);
    let output = String::from_utf8(ran(&mut folder.command(command, &all)).stdout).expect("UTF-8");
    let mut lines: Vec<String> = output.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn joins_what_a_launcher_started() {
    let folder = Folder::prefix("world");
    let program = folder.compile(C, "world");
    for ranks in ["1", "2", "5"] {
        let output = job(&folder, ranks, &program, &[]);
        let all: Vec<_> =
            (0..ranks.parse().expect("a number")).map(|rank: u32| format!("{rank} of {ranks}: good")).collect();
        assert_eq!(output, all);
    }
    // It has no launcher.
    assert_eq!(folder.example("world", &[]), "0 of 1: good\n");
    // A launcher that does not answer, that ends, that answers nonsense.
    let output = ran(&mut folder.command(&program, &["launchers"])).stdout;
    assert_eq!(String::from_utf8_lossy(&output), "good\n");
}

/// An example of the personalities, whose text is in their guide.
fn classic_example(folder: &Folder, name: &str) -> PathBuf {
    let source = host::root().join(format!("personalities/classic/examples/{name}.c"));
    let text = std::fs::read_to_string(&source).expect("the example");
    let guide = std::fs::read_to_string(host::root().join("docs/personalities.md")).expect("the guide");
    assert!(guide.contains(&format!("```c\n{text}```\n")), "{name}.c is not in docs/personalities.md as it is");
    folder.compile_file(C, &source)
}

fn speaks_madeleine() {
    let folder = Folder::prefix("madeleine");
    let ring = classic_example(&folder, "ring");
    assert_eq!(job(&folder, "4", &ring, &[]), ["4 ranks, and their sum is 6"]);
    assert_eq!(job(&folder, "1", &ring, &[]), ["1 ranks, and their sum is 0"]);
    let program = folder.compile(C, "madeleine");
    for ranks in ["2", "4"] {
        assert_eq!(job(&folder, ranks, &program, &[]), ["good"]);
    }
    folder.compile(CPP, "madeleine");
}

fn speaks_fast_messages() {
    let folder = Folder::prefix("fm");
    let ask = classic_example(&folder, "ask");
    assert_eq!(job(&folder, "3", &ask, &[]), ["3 squared is 9", "4 squared is 16"]);
    let program = folder.compile(C, "fm");
    for ranks in ["2", "4"] {
        assert_eq!(job(&folder, ranks, &program, &[]), ["good"]);
    }
    folder.compile(CPP, "fm");
}

fn has_sockets_by_another_name() {
    let folder = Folder::prefix("vio");
    let shout = classic_example(&folder, "shout");
    let at = "shm://capi-shout";
    let mut server = folder.command(&shout, &["serve", at]).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut line = String::new();
    BufReader::new(server.stdout.take().expect("it is piped")).read_line(&mut line).expect("a line");
    assert_eq!((line.as_str(), folder.example("shout", &["ask", at, "hello"]).as_str()), ("ready\n", "HELLO\n"));
    assert!(server.wait().expect("it ends").success());
    let program = folder.compile(C, "vio");
    for at in ["tcp://127.0.0.1:0", "shm://capi-vio", "loopback://vio"] {
        folder.run_again(&program, &[at]);
    }
    folder.compile(CPP, "vio");
}

fn has_asynchronous_requests() {
    let folder = Folder::prefix("vaio");
    let carry = classic_example(&folder, "carry");
    let at = "shm://capi-carry";
    let [from, to] = ["from", "to"].map(|name| folder.0.join(name));
    let bytes: Vec<u8> = (0..1_000_003_u32).map(|at| (at ^ (at >> 9)) as u8).collect();
    std::fs::write(&from, &bytes).expect("a file");
    let mut taker = folder.command(&carry, &["take", at, to.to_str().expect("UTF-8")]);
    let mut taker = taker.stdout(Stdio::piped()).spawn().expect("it runs");
    let mut output =
        BufReader::new(taker.stdout.take().expect("it is piped")).lines().map(|line| line.expect("a line"));
    assert_eq!(output.next().as_deref(), Some("ready"));
    assert_eq!(folder.example("carry", &["give", at, from.to_str().expect("UTF-8")]), "1000003 bytes\n");
    assert_eq!(output.next().as_deref(), Some("1000003 bytes"));
    assert!(taker.wait().expect("it ends").success());
    assert!(std::fs::read(&to).expect("the file") == bytes, "what was taken is something else");
    for name in ["vaio", "vaio_told"] {
        let program = folder.compile(C, name);
        for at in ["tcp://127.0.0.1:0", "shm://capi-vaio", "loopback://vaio"] {
            folder.run_again(&program, &[at]);
        }
        folder.compile(CPP, name);
    }
}

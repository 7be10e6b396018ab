//! The library as libfabric and the loader see it: what it exports, what it links, and everything a program can do with it, through
//! the installed libfabric. Skipped without that, or without a C compiler.
//!
//! Features (docs/features.md): P7, G9.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The folder this test was built in: `target/debug/deps/this-test`.
fn target() -> PathBuf {
    let exe = std::env::current_exe().expect("this program has a name");
    exe.ancestors().nth(2).expect("target/debug").to_path_buf()
}

/// The library, built if need be: cargo does not build it for the tests of its package, for they cannot link it.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let built = target().join("libmadrigal_ofi.so");
        let folder = target().parent().expect("target/debug lies in target").to_path_buf();
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "-p", "madrigal-ofi", "--target-dir"]).arg(folder);
        let done = build.current_dir(env!("CARGO_MANIFEST_DIR")).status();
        assert!(done.is_ok_and(|status| status.success()), "cargo cannot build the library");
        built
    })
}

/// A folder that holds nothing but the library, by the name libfabric looks for.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("madrigal-ofi-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).expect("a folder");
        std::os::unix::fs::symlink(library(), path.join("libmadrigal-fi.so")).expect("a link");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn exports_one_name_and_links_nothing_but_the_c_library() {
    let Ok(out) = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output() else {
        return println!("skipped: no nm");
    };
    let text = String::from_utf8_lossy(&out.stdout);
    let names: Vec<_> = text.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    assert_eq!(names, ["fi_prov_ini"]);
    let out = Command::new("ldd").arg(library()).output().expect("ldd comes with the C library");
    let text = String::from_utf8_lossy(&out.stdout);
    let known = ["linux-vdso", "libgcc_s", "libc.so", "libm.so", "ld-linux"];
    let strangers: Vec<_> = text.lines().filter(|line| !known.iter().any(|name| line.contains(name))).collect();
    assert!(strangers.is_empty(), "{strangers:?}");
}

/// Compiles the program that drives us; `None`: not here.
fn driver(folder: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drive.c");
    let program = folder.join("drive");
    let out =
        Command::new("cc").args(["-Wall", "-O1", "-o"]).arg(&program).arg(source).arg("-lfabric").output().ok()?;
    let said = String::from_utf8_lossy(&out.stderr);
    if said.contains("rdma/fabric.h: No such file") || said.contains("-lfabric") {
        return None;
    }
    assert!(out.status.success(), "{said}");
    Some(program)
}

fn drive(how: &str, methods: &str) {
    let folder = Folder::new(&format!("{}-{methods}", how.replace(' ', "-")));
    let Some(program) = driver(&folder.0) else {
        return println!("skipped: no libfabric to compile against, or no C compiler");
    };
    let mut command = Command::new(program);
    command.args(how.split(' ')).env("FI_PROVIDER_PATH", &folder.0).env("MADRIGAL_METHODS", methods);
    command.env("MADRIGAL_DIR", folder.0.join("meet"));
    let out = command.output().expect("it runs");
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && said.contains("good"), "{:?}: {said}", out.status);
}

#[test]
fn does_everything_within_a_process() {
    drive("local", "shm");
}

#[test]
fn does_everything_between_processes_over_shared_memory() {
    drive("pair", "shm");
}

#[test]
fn does_everything_between_processes_over_tcp() {
    drive("pair", "tcp");
}

#[test]
fn sleeps_on_a_descriptor() {
    drive("pair asleep", "shm");
    drive("pair asleep", "tcp");
}

#[test]
fn finds_peers_by_host_and_port() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    drive(&format!("named {}", free.port()), "shm");
}

//! The library as libfabric and the loader see it: what it exports, what it links, and everything a program can do with it, through
//! the installed libfabric. Ignored without that, or without a C compiler.
//!
//! Features (docs/features.md): P7, G9.

use std::path::{Path, PathBuf};
use std::process::Command;

use madrigal_tests::host;
use madrigal_tests::trials::{need, skip};

madrigal_tests::trials![
    exports_one_name_and_links_nothing_but_the_c_library,
    fi_info_tells_what_is_offered,
    offers_mpich_no_more_to_inject_than_its_eager_threshold,
    does_everything_within_a_process,
    does_everything_between_processes_over_shared_memory,
    does_everything_between_processes_over_tcp,
    sleeps_on_a_descriptor,
    finds_peers_by_host_and_port,
];

/// The library, as `make build` builds it.
fn library() -> PathBuf {
    host::release().join("libmadrigal_ofi.so")
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

fn exports_one_name_and_links_nothing_but_the_c_library() {
    let out = Command::new(need("nm")).args(["-D", "--defined-only"]).arg(library()).output().expect("nm runs");
    let text = String::from_utf8_lossy(&out.stdout);
    let names: Vec<_> = text.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    assert_eq!(names, ["fi_prov_ini"]);
    let out = Command::new("ldd").arg(library()).output().expect("ldd comes with the C library");
    let text = String::from_utf8_lossy(&out.stdout);
    let known = ["linux-vdso", "libgcc_s", "libc.so", "libm.so", "ld-linux"];
    let unknown: Vec<_> = text.lines().filter(|line| !known.iter().any(|name| line.contains(name))).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

/// Compiles the program that drives us.
fn driver(folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drive.c");
    let program = folder.join("drive");
    let mut cc = Command::new(need("cc"));
    let out = cc.args(["-Wall", "-O1", "-o"]).arg(&program).arg(source).arg("-lfabric").output().expect("cc runs");
    let output = String::from_utf8_lossy(&out.stderr);
    if output.contains("rdma/fabric.h: No such file") || output.contains("-lfabric") {
        skip("no libfabric to compile against");
    }
    assert!(out.status.success(), "{output}");
    program
}

fn drive(how: &str, methods: &str) {
    let folder = Folder::new(&format!("{}-{methods}", how.replace(' ', "-")));
    let mut command = Command::new(driver(&folder.0));
    command.args(how.split(' ')).env("FI_PROVIDER_PATH", &folder.0).env("MADRIGAL_METHODS", methods);
    command.env("MADRIGAL_DIR", folder.0.join("meet"));
    let out = command.output().expect("it runs");
    let output = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && output.contains("good"), "{:?}: {output}", out.status);
}

/// The exit status and the output of `fi_info -p madrigal ARGUMENTS`.
fn fi_info(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = Command::new(need("fi_info"));
    command.args(["-p", "madrigal"]).args(arguments).env("FI_PROVIDER_PATH", folder);
    let out = command.envs(variables.iter().copied()).output().expect("fi_info runs");
    (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
}

fn fi_info_tells_what_is_offered() {
    let folder = Folder::new("info");
    let (code, brief) = fi_info(&folder.0, &[], &[]);
    for line in ["provider: madrigal", "fabric: madrigal", "domain: madrigal", "type: FI_EP_RDM"] {
        assert!(code == Some(0) && brief.contains(line), "{line} is not in {brief}");
    }
    let (code, full) = fi_info(&folder.0, &["-v"], &[]);
    for word in ["FI_TAGGED", "FI_ATOMIC", "FI_MULTI_RECV", "FI_DIRECTED_RECV", "mr_mode: [  ]", "src_addrlen: 64"] {
        assert!(code == Some(0) && full.contains(word), "{word} is not in {full}");
    }
    for other in ["FI_EP_MSG", "FI_EP_DGRAM"] {
        let (code, output) = fi_info(&folder.0, &["-t", other], &[]);
        assert!(code != Some(0) && output.is_empty(), "{other}: {output}");
    }
}

/// MPICH receives no more than this at once, but sends all that may be injected.
fn offers_mpich_no_more_to_inject_than_its_eager_threshold() {
    let folder = Folder::new("eager");
    let inject = |variables: &[(&str, &str)]| {
        let (code, full) = fi_info(&folder.0, &["-v"], variables);
        assert_eq!(code, Some(0), "{full}");
        full.lines().find_map(|line| line.trim().strip_prefix("inject_size: ")?.parse::<usize>().ok())
    };
    let most = inject(&[]).expect("a size");
    assert_eq!(inject(&[("MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD", "16384")]), Some(16384));
    assert_eq!(inject(&[("MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD", "-1")]), Some(most));
}

fn does_everything_within_a_process() {
    drive("local", "shm");
}

fn does_everything_between_processes_over_shared_memory() {
    drive("pair", "shm");
}

fn does_everything_between_processes_over_tcp() {
    drive("pair", "tcp");
}

fn sleeps_on_a_descriptor() {
    drive("pair asleep", "shm");
    drive("pair asleep", "tcp");
}

fn finds_peers_by_host_and_port() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    drive(&format!("named {}", free.port()), "shm");
}

//! Drivers that are added at run time: those of `examples/drivers`, compiled here by the system's compiler.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use madrigal_sys::process::own_pid;

/// The variable that names the directory.
pub const KEY: &str = "MADRIGAL_DRIVERS";
/// The drivers of `examples/drivers`.
pub const EXAMPLES: [&str; 2] = ["unixpacket", "unixstream"];

/// Starts this program once more, with `MADRIGAL_DRIVERS` naming a directory that has the compiled examples; nothing if it is set. For the
/// beginning of a test program whose suites are to run over them, too; its processes of its own find them as well.
pub fn start() {
    if std::env::var_os(KEY).is_some() {
        return;
    }
    let directory = directory();
    compile_examples(&directory);
    let error = Command::new("/proc/self/exe").args(std::env::args_os().skip(1)).env(KEY, &directory).exec();
    panic!("cannot start again: {error}");
}

/// Compiles the examples, and puts their descriptions beside them; makes the directory, where it was there already anew.
pub fn compile_examples(directory: &Path) {
    make(directory);
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/drivers");
    for name in EXAMPLES {
        compile(&from.join(format!("{name}.c")), &[], &directory.join(format!("lib{name}.so")));
        std::fs::copy(from.join(format!("{name}.toml")), directory.join(format!("{name}.toml"))).expect("copies");
    }
}

/// An empty directory that only its owner may write to.
pub fn make(directory: &Path) {
    let _ = std::fs::remove_dir_all(directory);
    std::fs::create_dir_all(directory).expect("a directory");
    std::fs::set_permissions(directory, Permissions::from_mode(0o700)).expect("its mode");
}

/// Compiles a shared object of one file in C, as strictly as can be.
pub fn compile(source: &Path, flags: &[&str], to: &Path) {
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../crates/plugin/include");
    let strict = ["-std=gnu11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-shared", "-fPIC", include];
    let built = Command::new("cc").args(strict).args(flags).arg("-o").arg(to).arg(source).status().expect("cc");
    assert!(built.success(), "cc cannot compile {} with {flags:?}", source.display());
}

/// Where they are for this process: beside the program, for others may write to the directory of temporary files.
fn directory() -> PathBuf {
    let program = std::env::current_exe().expect("a program");
    program.with_file_name(format!("madrigal-test-{}-drivers", own_pid()))
}

/// Removes what [`start`] left.
pub(crate) fn tidy() {
    let _ = std::fs::remove_dir_all(directory());
}

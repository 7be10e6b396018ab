//! Drivers of one's own, as the command shows and measures them.
//!
//! Features (docs/features.md): A8, D1.

mod common;

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use common::{Folder, command, run};
use serde_json::Value;

/// A folder with the example of a driver of streams.
fn example(what: &str) -> Folder {
    let folder = Folder::new(&format!("drivers-{what}"));
    std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o700)).unwrap();
    let root = madrigal_tests::host::root();
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-shared", "-fPIC", "-I"]).arg(root.join("crates/plugin/include"));
    cc.arg("-o").arg(folder.path("libunixstream.so")).arg(root.join("examples/drivers/unixstream.c"));
    assert!(cc.status().unwrap().success());
    std::fs::copy(root.join("examples/drivers/unixstream.toml"), folder.path("unixstream.toml")).unwrap();
    folder
}

fn info(folder: &Folder) -> (Value, Vec<Value>) {
    let (code, stdout, stderr) = run(command().args(["info", "--json"]).env("MADRIGAL_DRIVERS", &folder.0));
    assert_eq!(code, Some(0), "{stderr}");
    let info: Value = serde_json::from_str(&stdout).unwrap();
    let drivers = info["drivers"].as_array().unwrap();
    let ours = drivers.iter().find(|driver| driver["name"] == "unixstream").unwrap().clone();
    (ours, info["warnings"].as_array().unwrap().clone())
}

#[test]
fn a_driver_of_ones_own_is_shown() {
    let folder = example("shown");
    let (driver, warnings) = info(&folder);
    let file = folder.path("libunixstream.so");
    assert_eq!((&driver["ok"], driver["detail"].as_str()), (&Value::Bool(true), Some(&*format!("usable: {file}"))));
    assert!(warnings.is_empty(), "{warnings:?}");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::write(folder.path("shm.toml"), "").unwrap();
    let (driver, warnings) = info(&folder);
    let why = driver["detail"].as_str().unwrap();
    assert!(driver["ok"] == false && why.contains("others may write to ") && why.contains("chmod go-w"), "{driver}");
    assert!(
        warnings.len() == 1 && warnings[0].as_str().unwrap().contains("shm.toml: the name is taken"),
        "{warnings:?}"
    );
}

#[test]
fn a_driver_of_ones_own_is_measured() {
    let folder = example("measured");
    let mut perf = command();
    perf.args(["perf", "vlink", "--method", "unixstream", "--json"]).env("MADRIGAL_DRIVERS", &folder.0);
    perf.args(["--iterations", "100"]);
    let (code, stdout, stderr) = run(&mut perf);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert!(stdout.contains("unixstream"), "{stdout}");
    let (code, _, stderr) = run(command().args(["perf", "vlink", "--method", "unixstream"]));
    assert!(code == Some(2) && stderr.contains("there is no method `unixstream`"), "{stderr}");
}

//! The programs do what they say.
//!
//! Features (docs/features.md): I1, I3.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

/// What a program prints that ends well.
fn printed(program: &str, arguments: &[&str]) -> String {
    let out = Command::new(program).args(arguments).output().unwrap();
    assert!(out.status.success(), "{program}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn two_codes_come_to_one_temperature() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coupled"));
    let mut ocean = command.arg("ocean").stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(ocean.stdout.take().unwrap());
    let (mut address, mut rest) = (String::new(), String::new());
    output.read_line(&mut address).unwrap();
    assert_eq!(printed(env!("CARGO_BIN_EXE_coupled"), &["air", address.trim_end()]), "the air has 284.000 K\n");
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "the ocean has 284.000 K\n");
    assert!(ocean.wait().unwrap().success());
}

#[test]
fn a_server_adds_what_its_workers_send() {
    assert_eq!(printed(env!("CARGO_BIN_EXE_parameters"), &["3"]), "the parameters' sum is 300000\n");
}

#[test]
fn a_pipeline_has_three_stages() {
    assert_eq!(printed(env!("CARGO_BIN_EXE_pipeline"), &[]), "the sum is 328350 by squares\n");
}

#[test]
fn a_master_gives_tasks_to_workers() {
    let wanted = "9592 primes below 100000, counted by 3 workers\n";
    assert_eq!(printed(env!("CARGO_BIN_EXE_workers"), &["3"]), wanted);
}

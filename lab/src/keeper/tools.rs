//! ip(8) and nft(8), run in the network namespace of a node.

use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace.
pub(super) struct Network(OwnedFd);

impl Network {
    /// That of a process.
    pub(super) fn of(pid: u32) -> Result<Self, Errno> {
        let path = format!("/proc/{pid}/ns/net");
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(Self)
    }

    /// Moves this process there.
    pub(super) fn enter(&self) -> Result<(), Errno> {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
    }
}

/// The Debian package a program comes from.
fn package(program: &str) -> &'static str {
    if program == "nft" { "nftables" } else { "iproute2" }
}

/// Where a program is: `PATH` of a user often lacks the directories that these are in.
fn find(program: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let found = std::env::split_paths(&path).chain(more).map(|dir| dir.join(program)).find(|file| file.is_file());
    found.ok_or_else(|| format!("`{program}` is missing: type: apt-get install {}", package(program)))
}

/// Runs a program with `input`; the error is its output, if it failed.
fn run(program: &str, args: &[&str], input: &str) -> Result<(), String> {
    let mut command = Command::new(find(program)?);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("cannot run {program}: {error}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that stops reading reports the reason by its exit status.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| format!("cannot wait for {program}: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()) }
}

/// Runs ip(8) with these commands; an error names the one that was refused.
pub(super) fn ip(lines: &[String]) -> Result<(), String> {
    if lines.is_empty() {
        return Ok(());
    }
    run("ip", &["-batch", "-"], &(lines.join("\n") + "\n")).map_err(|output| {
        let number = output.rsplit_once("-:").and_then(|(_, n)| n.trim().parse::<usize>().ok());
        let line = number.and_then(|n| lines.get(n.checked_sub(1)?));
        match line {
            Some(line) => format!("ip {line}: {}", output.lines().next().unwrap_or_default()),
            None => output,
        }
    })
}

/// Runs nft(8) with these rules.
pub(super) fn nft(rules: &str) -> Result<(), String> {
    if rules.is_empty() { Ok(()) } else { run("nft", &["-f", "-"], rules).map_err(|output| format!("nft: {output}")) }
}

/// Reports which of the needed programs are missing.
pub(super) fn check(needs_nft: bool) -> Result<(), String> {
    find("ip")?;
    if needs_nft { find("nft").map(drop) } else { Ok(()) }
}

//! Servers that hand a connection to another program: what these count is the kernel's, and agrees with what the other end counts.

use std::path::Path;
use std::process::Command;

use madrigal_tests::host::{self, How};

use crate::stage::{Actor, Missing, Played, Seen, Stage, need, need_root, seen};

/// So many bytes go through.
const BYTES: u64 = 20 << 20;

/// The report with these arguments about connections whose local, or peer, address has this port.
fn connections(stage: &Stage, args: &[&str], end: &str, port: u16) -> Vec<Seen> {
    let (status, json, err) = stage.why(args);
    assert_eq!(status, 0, "{err}");
    let address = format!("127.0.0.1:{port}");
    seen(&json).into_iter().filter(|seen| seen.0[end] == address.as_str()).collect()
}

/// Waits until both ends report the same number of bytes, and checks the reasons.
fn agree(stage: &Stage, port: u16, (client, reason): (&Actor, &str), (server_way, client_way): (&str, &str)) {
    let pid = client.pid().to_string();
    let (of_servers, of_client) = host::until("the same bytes at both ends", || {
        let servers = connections(stage, &["--json"], "local", port);
        let client_end = connections(stage, &[&pid, "--json"], "peer", port).pop()?;
        let carried = client_end.number(client_way);
        let same = |one: &Seen| one.number(server_way) == carried;
        (carried >= BYTES && !servers.is_empty() && servers.iter().all(same)).then_some((servers, client_end))
    });
    for end in &of_servers {
        // Where the server does not start itself anew for a connection (sshd of Ubuntu), its hooks know it; and one of its children was in
        // a sandbox.
        let why = if end.0["counted"] == "kernel" { "inherited" } else { "uncounted" };
        assert_eq!((end.0["path"].as_str(), end.reason(), end.number("moves")), (Some("tcp"), Some(why), 0), "{end:?}");
        assert_eq!(end.0["peer_process"]["pid"].as_i64(), Some(client.pid().into()), "{end:?}");
    }
    let c = &of_client;
    assert_eq!((c.0["path"].as_str(), c.reason(), c.number("moves")), (Some("tcp"), Some(reason), 0), "{c:?}");
    assert_eq!(c.0["peer_process"]["reason"].as_str(), of_servers.last().and_then(Seen::reason), "{c:?}");
}

pub(crate) fn sshd(stage: &Stage) -> Played {
    need_root()?;
    let (sshd, ssh) = (need("sshd")?, need("ssh")?);
    let dir = stage.scratch.path();
    for key in ["host", "user"] {
        let made = host::run(
            Command::new(need("ssh-keygen")?).args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(dir.join(key)),
        );
        made.expect_success();
    }
    std::fs::create_dir_all("/run/sshd").expect("a folder for sshd");
    let (port, here) = (host::free_port(), dir.display());
    let config = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {here}/host\nAuthorizedKeysFile {here}/user.pub\nStrictModes no\n\
         UsePAM no\nPermitRootLogin yes\nPidFile none\n"
    );
    std::fs::write(dir.join("config"), config).expect("a file");
    let mut serve = host::command(How::Wrapped, &sshd, &stage.scratch);
    let _sshd = Actor::start(serve.args(["-D", "-e", "-f"]).arg(dir.join("config")).stderr(log(dir)));
    host::await_port(port);
    let mut command = host::command(How::Wrapped, &ssh, &stage.scratch);
    command.args([
        "-F",
        "/dev/null",
        "-o",
        "BatchMode=yes",
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        "UserKnownHostsFile=/dev/null",
    ]);
    command
        .args(["-o", "LogLevel=ERROR", "-o", "IdentitiesOnly=yes", "-i"])
        .arg(dir.join("user"))
        .arg("-p")
        .arg(port.to_string());
    let mut client = Actor::start(command.arg("127.0.0.1").arg(format!("head -c {BYTES} | wc -c; read line")));
    client.give(&vec![b'x'; BYTES as usize]);
    client.expect_line(&BYTES.to_string());
    agree(stage, port, (&client, "peer-stays"), ("tcp_in", "tcp_out"));
    client.send_line("");
    Ok(())
}

fn log(dir: &Path) -> std::fs::File {
    std::fs::File::create(dir.join("log")).expect("a file")
}

/// A clone whose pack has been sent, and has not ended: what packs objects waits for a file.
pub(crate) fn git_daemon(stage: &Stage) -> Played {
    let git = need("git")?;
    if !host::run(Command::new(&git).args(["daemon", "-h"])).err.starts_with(b"usage: git daemon") {
        return Err(Missing("git has no daemon here".to_owned()));
    }
    let dir = stage.scratch.path();
    let here = dir.display();
    let config = format!(
        "[user]\nname = a\nemail = a@b\n[safe]\ndirectory = *\n[core]\ncompression = 0\n[gc]\nauto = 0\n\
         [uploadpack]\npackObjectsHook = {here}/hook\n"
    );
    std::fs::write(dir.join("gitconfig"), config).expect("a file");
    let hook = format!("#!/bin/sh\n\"$@\"\nwhile [ ! -e {here}/go ]; do sleep 0.05; done\n");
    host::script(&dir.join("hook"), &hook);
    let run = |how: How, args: &[&str]| {
        let mut command = host::command(how, &git, &stage.scratch);
        command
            .args(args)
            .env("HOME", dir)
            .env("GIT_CONFIG_GLOBAL", dir.join("gitconfig"))
            .env("GIT_CONFIG_NOSYSTEM", "1");
        command.stderr(log(dir));
        command
    };
    host::run(&mut run(How::Plain, &["init", "-q", "there"])).expect_success();
    let mut noise = host::Choices::from_seed(1);
    let bytes: Vec<u8> = (0..BYTES / 8).flat_map(|_| noise.number().to_ne_bytes()).collect();
    std::fs::write(dir.join("there/file"), bytes).expect("a file");
    host::run(&mut run(How::Plain, &["-C", "there", "add", "."])).expect_success();
    host::run(&mut run(How::Plain, &["-C", "there", "commit", "-q", "-m", "m"])).expect_success();
    let port = host::free_port();
    let (base, at) = (format!("--base-path={here}"), format!("--port={port}"));
    let daemon = ["daemon", "--reuseaddr", "--export-all", &base, "--listen=127.0.0.1", &at];
    let _daemon = Actor::start(&mut run(How::Wrapped, &daemon));
    host::await_port(port);
    let mut clone = run(How::Wrapped, &["clone", "-q", &format!("git://127.0.0.1:{port}/there"), "here"]);
    let clone = Actor::start(&mut clone);
    // Its own child that indexes the pack has the socket, too.
    agree(stage, port, (&clone, "shared-unknown"), ("tcp_out", "tcp_in"));
    std::fs::write(dir.join("go"), "").expect("a file");
    let cloned = dir.join("here/file");
    host::until("the clone", || std::fs::metadata(&cloned).is_ok_and(|file| file.len() == BYTES).then_some(()));
    drop(clone);
    Ok(())
}

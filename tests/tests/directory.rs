//! The shared directory missing, full, unsafe, stale, or another user's: connections work by TCP, and the reason is named.
//!
//! Features (docs/features.md): B16, B17.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use madrigal_report::{Reason, Report};
use madrigal_tests::host::{self, How, Running, Scratch};
use madrigal_tests::trials::{need, skip};

madrigal_tests::trials![
    it_moves_when_all_is_well,
    it_is_the_same_behind_a_cleared_environment,
    a_directory_that_cannot_be_made,
    a_directory_others_may_enter,
    a_link_instead_of_a_directory,
    a_directory_of_another_user,
    a_directory_that_cannot_be_written,
    a_full_directory,
    a_directory_with_room_for_little,
    a_mark_of_a_dead_server,
    a_server_that_gave_up_its_user,
    a_plain_peer_on_either_side,
    another_user_cannot_look_in,
];

const ACTOR: &str = env!("CARGO_BIN_EXE_actor");
/// A user that is not this one.
const NOBODY: u32 = 65_534;

/// Server and client in a wrapped program; each one's report of its connection.
fn both(scratch: &Scratch, prepare: impl FnOnce(&mut Command)) -> String {
    let file = scratch.path().join("port");
    let mut command = host::command(How::Wrapped, ACTOR, scratch);
    command.args(["both", file.to_str().unwrap()]);
    prepare(&mut command);
    let text = host::run(&mut command).expect_success().text();
    assert_eq!(text.matches("missed=0").count(), 2, "{text}");
    text
}

#[track_caller]
fn assert_reason(text: &str, reasons: &[Reason]) {
    let client = text.lines().find(|l| l.starts_with("client")).unwrap_or("nothing");
    let named = reasons.iter().any(|r| client.contains(&format!("path=tcp why={} ", r.name())));
    assert!(named, "wanted {reasons:?}, got {text}");
}

fn it_moves_when_all_is_well() {
    let scratch = Scratch::new();
    let text = both(&scratch, |_| {});
    assert!(text.contains("client path=shm") && text.contains("server moved=true"), "{text}");
    scratch.assert_empty();
}

fn it_is_the_same_behind_a_cleared_environment() {
    let scratch = Scratch::new();
    let file = scratch.path().join("port");
    let mut command = host::command(How::Wrapped, ACTOR, &scratch);
    let actor = Running::start(command.args(["cleared", file.to_str().unwrap()]));
    host::until("the end of its exchange", || file.exists().then_some(()));
    assert_ne!(scratch.left_over(), [""; 0], "its table is elsewhere");
    std::fs::remove_file(&file).unwrap();
    let text = actor.wait().expect_success().text();
    assert!(text.contains("client path=shm"), "{text}");
    scratch.assert_empty();
}

fn a_directory_that_cannot_be_made() {
    let scratch = Scratch::new();
    let text = both(&scratch, |c| {
        c.env("MADRIGAL_DIR", scratch.path().join("no/such/place"));
    });
    assert_reason(&text, &[Reason::DirMissing]);
    let text = both(&scratch, |c| {
        c.env("MADRIGAL_DIR", "/proc/nowhere");
    });
    assert_reason(&text, &[Reason::DirMissing, Reason::DirReadOnly]);
    std::fs::write(scratch.path().join("file"), "").unwrap();
    let text = both(&scratch, |c| {
        c.env("MADRIGAL_DIR", scratch.path().join("file"));
    });
    assert_reason(&text, &[Reason::DirMissing, Reason::DirUnsafe]);
}

fn a_directory_others_may_enter() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.shared()).unwrap();
    std::fs::set_permissions(scratch.shared(), PermissionsExt::from_mode(0o755)).unwrap();
    assert_reason(&both(&scratch, |_| {}), &[Reason::DirUnsafe]);
    std::fs::set_permissions(scratch.shared(), PermissionsExt::from_mode(0o700)).unwrap();
    assert!(both(&scratch, |_| {}).contains("path=shm"));
}

fn a_link_instead_of_a_directory() {
    let scratch = Scratch::new();
    let real = scratch.path().join("real");
    std::fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, scratch.shared()).unwrap();
    assert_reason(&both(&scratch, |_| {}), &[Reason::DirUnsafe]);
}

fn a_directory_of_another_user() {
    if !host::is_root() {
        skip("only root can make a directory of another user");
    }
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.shared()).unwrap();
    std::fs::set_permissions(scratch.shared(), PermissionsExt::from_mode(0o700)).unwrap();
    chown(scratch.shared(), Some(NOBODY), Some(NOBODY)).unwrap();
    assert_reason(&both(&scratch, |_| {}), &[Reason::DirUnsafe]);
}

/// Runs `both` in a mount namespace of its own, after `script` has prepared the shared directory `$1`. Skips the test where that cannot be done.
fn mounted(scratch: &Scratch, script: &str) -> String {
    let possible = Command::new("unshare").args(["-m", "true"]).output().is_ok_and(|o| o.status.success());
    if !possible {
        skip("mounting needs root and unshare");
    }
    std::fs::create_dir(scratch.shared()).unwrap();
    let (shared, file) = (scratch.shared(), scratch.path().join("port"));
    // Only the program under test is wrapped.
    let script = format!("set -e; {script}; export LD_PRELOAD=\"$LIBRARY\"; exec \"$2\" both \"$3\"");
    let mut command = host::command(How::Plain, "unshare", scratch);
    command.args(["-m", "sh", "-c", &script, "sh"]).arg(&shared).arg(ACTOR).arg(&file).env("LIBRARY", host::library());
    host::run(&mut command).expect_success().text()
}

fn a_directory_that_cannot_be_written() {
    let scratch = Scratch::new();
    let text = mounted(&scratch, "mount -t tmpfs -o ro,mode=700 none \"$1\"");
    assert_reason(&text, &[Reason::DirReadOnly]);
}

fn a_full_directory() {
    let scratch = Scratch::new();
    let fill =
        "mount -t tmpfs -o size=2m,mode=700 none \"$1\"; dd if=/dev/zero of=\"$1/fill\" bs=4k 2>/dev/null || true";
    let text = mounted(&scratch, fill);
    assert_reason(&text, &[Reason::DirFull]);
}

fn a_directory_with_room_for_little() {
    let scratch = Scratch::new();
    let fill = "mount -t tmpfs -o size=2m,mode=700 none \"$1\"";
    let text = mounted(&scratch, fill);
    assert!(text.contains("client path=shm") && text.contains("server moved=true"), "2 MB are enough: {text}");
}

fn port_in(file: &std::path::Path) -> String {
    host::until("a port", || std::fs::read_to_string(file).ok())
}

fn ask(scratch: &Scratch, how: How, port: &str) -> String {
    host::run(host::command(how, ACTOR, scratch).args(["ask", port])).expect_success().text()
}

fn a_mark_of_a_dead_server() {
    let scratch = Scratch::new();
    let file = scratch.path().join("port");
    let serve = |how| Running::start(host::command(how, ACTOR, &scratch).args(["echo", file.to_str().unwrap()]));
    // Keeps the marks alive while servers come and go.
    let mut keeper = Running::start(
        host::command(How::Wrapped, ACTOR, &scratch).args(["echo", scratch.path().join("keeper").to_str().unwrap()]),
    );
    port_in(&scratch.path().join("keeper"));
    let mut server = serve(How::Wrapped);
    let port = port_in(&file);
    assert!(ask(&scratch, How::Wrapped, &port).contains("path=shm"));
    server.kill();
    // A plain server on the very port.
    let script = "import socket,sys\n\
        l=socket.create_server(('127.0.0.1',int(sys.argv[1])))\n\
        open(sys.argv[2],'w').write('x')\n\
        while True:\n c=l.accept()[0]\n \
        while True:\n  d=c.recv(99)\n  if not d: break\n  c.sendall(d)\n";
    let up = scratch.path().join("up");
    let python = need("python3");
    let mut plain = host::command(How::Plain, python, &scratch);
    let mut plain = Running::start(plain.args(["-c", script, &port]).arg(&up));
    host::until("a plain server", || up.exists().then_some(()));
    assert_reason(&ask(&scratch, How::Wrapped, &port), &[Reason::NoAnswer, Reason::NoListener]);
    plain.kill();
    keeper.kill();
    assert!(both(&scratch, |_| {}).contains("path=shm"));
    scratch.assert_empty();
}

fn a_server_that_gave_up_its_user() {
    if !host::is_root() {
        skip("only root can change the user");
    }
    let scratch = Scratch::new();
    let file = scratch.path().join("port");
    let words = ["echo-as", &NOBODY.to_string(), file.to_str().unwrap()];
    let server = Running::start(host::command(How::Wrapped, ACTOR, &scratch).args(words));
    let text = ask(&scratch, How::Wrapped, &port_in(&file));
    assert_reason(&text, &[Reason::OtherUser, Reason::NoAnswer, Reason::NoListener]);
    assert!(text.contains("missed=0"), "{text}");
    drop(server);
}

fn a_plain_peer_on_either_side() {
    let scratch = Scratch::new();
    for (server, client) in [(How::Plain, How::Wrapped), (How::Wrapped, How::Plain)] {
        let file = scratch.path().join("port");
        let _ = std::fs::remove_file(&file);
        let serving = Running::start(host::command(server, ACTOR, &scratch).args(["echo", file.to_str().unwrap()]));
        let text = ask(&scratch, client, &port_in(&file));
        if client == How::Wrapped {
            assert_reason(&text, &[Reason::NoListener, Reason::NoAnswer]);
        }
        drop(serving);
    }
}

fn another_user_cannot_look_in() {
    if !host::is_root() {
        skip("only root can become another user");
    }
    let scratch = Scratch::new();
    let (file, idle) = (scratch.path().join("port"), scratch.path().join("idle"));
    let serve = ["echo", file.to_str().unwrap()];
    let server = Running::start(host::command(How::Wrapped, ACTOR, &scratch).args(serve));
    let words = ["many", &port_in(&file), "1", idle.to_str().unwrap()];
    let client = Running::start(host::command(How::Wrapped, ACTOR, &scratch).args(words));
    host::until("an idle client", || idle.exists().then_some(()));
    let mode = |path: std::path::PathBuf| std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(scratch.shared()), 0o700);
    let names = scratch.left_over();
    assert_eq!(names.len(), 1, "{names:?}");
    assert_eq!(mode(scratch.shared().join(&names[0])), 0o600);
    // Neither the directory nor the descriptors that hold arenas and reports.
    for path in
        [scratch.shared(), format!("/proc/{}/fd", server.pid()).into(), format!("/proc/{}/fd", client.pid()).into()]
    {
        let listed = Command::new("ls").arg(&path).uid(NOBODY).gid(NOBODY).output().unwrap();
        assert!(!listed.status.success(), "another user sees {path:?}");
    }
    assert!(Report::of(client.pid() as u32).is_ok(), "this user sees the report");
    std::fs::remove_file(&idle).unwrap();
    assert!(client.wait().expect_success().text().contains("path=shm"));
}

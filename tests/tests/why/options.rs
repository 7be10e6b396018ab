//! Requests of a program, or its user, that rings cannot or may not fulfil.

use madrigal_tests::host::How;

use crate::stage::{Actor, CLIENT, ECHO, MESSAGE, Played, Seen, Stage, listening, played, with};

const ROUNDS: u32 = 200;

/// Bytes of so many rounds, read and written.
fn all(rounds: u32) -> (u64, u64) {
    let bytes = u64::from(rounds) * MESSAGE;
    (bytes, bytes)
}

/// A pair of which one end has a setting; the reason is that end's own from the beginning, and the other end points to it.
fn set_at(stage: &Stage, at_server: bool, setting: (&str, &str), reason: &str) -> Played {
    for rounds in [1, ROUNDS] {
        let set = |of_server: bool, command| {
            if of_server == at_server { with(command, setting.0, setting.1) } else { command }
        };
        let (server, port) = listening(&mut set(true, stage.python(How::Wrapped, ECHO, &[])));
        let client = played(&mut set(false, stage.python(How::Wrapped, CLIENT, &[&port])), rounds);
        let (own, other) = if at_server { (&server, &client) } else { (&client, &server) };
        stage.connection(own.pid()).expect("tcp", Some(reason), all(rounds));
        points_to(&stage.connection(other.pid()), own, reason, rounds);
    }
    Ok(())
}

/// The reason of an end is that of the other one, which it names.
fn points_to(seen: &Seen, peer: &Actor, reason: &str, rounds: u32) {
    seen.expect("tcp", Some("peer-stays"), all(rounds)).expect_peer(peer.pid(), true, Some(reason));
    let text = seen.0["reason"]["text"].as_str().unwrap();
    assert!(text.contains(&format!("process {} (python3): {reason}: ", peer.pid())), "{text}");
}

pub(crate) fn only_at_the_client(stage: &Stage) -> Played {
    set_at(stage, false, ("MADRIGAL_ONLY", "1-9"), "port-off")
}

pub(crate) fn only_at_the_server(stage: &Stage) -> Played {
    set_at(stage, true, ("MADRIGAL_ONLY", "1-9"), "port-off")
}

/// A connect that does not wait.
pub(crate) fn only_while_it_connects(stage: &Stage) -> Played {
    let (server, port) = stage.server(How::Wrapped);
    let connect = "
connection = socket.socket(); connection.setblocking(False)
connection.connect_ex(('127.0.0.1', int(sys.argv[1])))
connection.setblocking(True); rounds(connection)";
    let command = stage.python(How::Wrapped, connect, &[&port]);
    let client = played(&mut with(command, "MADRIGAL_ONLY", "1-9"), 1);
    stage.connection(client.pid()).expect("tcp", Some("port-off"), all(1));
    points_to(&stage.connection(server.pid()), &client, "port-off", 1);
    Ok(())
}

pub(crate) fn off_at_the_client(stage: &Stage) -> Played {
    set_at(stage, false, ("MADRIGAL_METHODS", "^shm"), "method-off")
}

pub(crate) fn off_at_the_server(stage: &Stage) -> Played {
    set_at(stage, true, ("MADRIGAL_METHODS", "tcp"), "method-off")
}

pub(crate) fn other_directory(stage: &Stage) -> Played {
    let (server, port) = stage.server(How::Wrapped);
    let elsewhere = stage.scratch.path().join("elsewhere");
    let client = played(&mut with(stage.python(How::Wrapped, CLIENT, &[&port]), "MADRIGAL_DIR", elsewhere), ROUNDS);
    for end in [&server, &client] {
        stage.connection(end.pid()).expect("tcp", Some("other-directory"), all(ROUNDS));
    }
    Ok(())
}

pub(crate) fn unsafe_directory(stage: &Stage) -> Played {
    use std::os::unix::fs::PermissionsExt as _;
    let open = stage.scratch.path().join("open");
    std::fs::create_dir(&open).expect("a folder");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let (server, port) = listening(&mut with(stage.python(How::Wrapped, ECHO, &[]), "MADRIGAL_DIR", &open));
    let client = played(&mut with(stage.python(How::Wrapped, CLIENT, &[&port]), "MADRIGAL_DIR", &open), ROUNDS);
    for end in [&server, &client] {
        stage.connection(end.pid()).expect("tcp", Some("dir-unsafe"), all(ROUNDS));
    }
    Ok(())
}

/// In rings first, then an urgent byte, then more.
pub(crate) fn urgent_data(stage: &Stage) -> Played {
    stage.moves()?;
    let (server, port) = stage.server(How::Wrapped);
    let program = "
connection = connect()
play(connection, int(told())); say('done'); told()
connection.send(b'!', socket.MSG_OOB)
play(connection, 10); say('sent'); told()";
    let mut client = played(&mut stage.python(How::Wrapped, program, &[&port]), 1000);
    stage.connection(client.pid()).expect("shm", None, all(1000));
    client.send_line("go on");
    client.expect_line("sent");
    let (read, written) = all(1010);
    let c = stage.connection(client.pid());
    c.expect("tcp", Some("urgent"), (read, written + 1)).expect_peer(server.pid(), true, Some("peer-left"));
    let s = stage.connection(server.pid());
    s.expect("tcp", Some("peer-left"), (read, written)).expect_peer(client.pid(), true, Some("urgent"));
    for end in [c, s] {
        assert!(end.number("moves") >= 1 && end.number("ring_in") > 0 && end.number("tcp_in") >= 1000, "{end:?}");
    }
    Ok(())
}

pub(crate) fn half_closed(stage: &Stage) -> Played {
    stage.moves()?;
    let (server, port) = stage.server(How::Wrapped);
    let program = "
connection = connect()
play(connection, int(told())); connection.shutdown(socket.SHUT_WR); say('done'); told()";
    let client = played(&mut stage.python(How::Wrapped, program, &[&port]), 1000);
    stage.connection(client.pid()).expect("tcp", Some("half-closed"), all(1000));
    let s = stage.connection(server.pid());
    assert_eq!((s.bytes(), s.0["state"].as_str()), (all(1000), Some("close-wait")), "{s:?}");
    Ok(())
}

/// The C library has a FILE there.
pub(crate) fn standard_input(stage: &Stage) -> Played {
    let (server, port) = stage.server(How::Wrapped);
    let program = "
connection = connect(); play(connection, 2)
os.dup2(connection.fileno(), 0); connection.close()
connection = socket.socket(fileno=0); play(connection, 298)
say('done'); time.sleep(600)";
    let client = played(&mut stage.python(How::Wrapped, program, &[&port]), 0);
    let c = stage.connection(client.pid());
    assert_eq!(c.number("fd"), 0);
    c.expect("tcp", Some("stdio"), all(300));
    points_to(&stage.connection(server.pid()), &client, "stdio", 300);
    Ok(())
}

/// A filter that allows everything: seccomp(2), BPF_RET with SECCOMP_RET_ALLOW.
const ENTER_SANDBOX: &str = "
def enter():
    class Step(ctypes.Structure): _fields_ = [('code', ctypes.c_uint16), ('jt', ctypes.c_uint8), ('jf', ctypes.c_uint8), ('k', ctypes.c_uint32)]
    class Filter(ctypes.Structure): _fields_ = [('len', ctypes.c_uint16), ('steps', ctypes.POINTER(Step))]
    step = Step(6, 0, 0, 0x7fff0000)
    libc = ctypes.CDLL(None, use_errno=True)
    allowed = Filter(1, ctypes.pointer(step))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.byref(allowed), 0, 0) == 0, ctypes.get_errno()
";

/// What it does after it entered passes by the hooks' counters, and the kernel counts it.
pub(crate) fn sandbox(stage: &Stage) -> Played {
    let serve = format!("{ENTER_SANDBOX}\nconnection = accept(); enter(); echo(connection); told()");
    let (server, port) = listening(&mut stage.python(How::Wrapped, &serve, &[]));
    let client = stage.client(How::Wrapped, &port, ROUNDS);
    stage.connection(server.pid()).expect("tcp", Some("seccomp"), all(ROUNDS));
    points_to(&stage.connection(client.pid()), &server, "seccomp", ROUNDS);
    Ok(())
}

/// The parent goes on with the connection when a child has ended in a sandbox, as sshd does: it counts what that carried, too, and cannot
/// know who else has it.
pub(crate) fn sandbox_in_a_child_that_ends(stage: &Stage) -> Played {
    let serve = format!(
        "{ENTER_SANDBOX}
connection = accept()
if child := os.fork(): os.waitpid(child, 0); echo(connection); told()
else: enter(); connection.sendall(connection.recv(1, socket.MSG_WAITALL)); os._exit(0)"
    );
    let (server, port) = listening(&mut stage.python(How::Wrapped, &serve, &[]));
    let client = stage.client(How::Wrapped, &port, ROUNDS);
    stage.connection(server.pid()).expect("tcp", Some("uncounted"), all(ROUNDS));
    points_to(&stage.connection(client.pid()), &server, "uncounted", ROUNDS);
    Ok(())
}

/// A child that never used the connection before.
pub(crate) fn sandbox_in_a_child(stage: &Stage) -> Played {
    let serve = format!(
        "{ENTER_SANDBOX}
connection = accept()
if child := os.fork(): connection.close(); say(child); os.waitpid(child, 0)
else: enter(); echo(connection); told()"
    );
    let (server, port) = listening(&mut stage.python(How::Wrapped, &serve, &[]));
    let client = stage.client(How::Wrapped, &port, ROUNDS);
    let child = server.number();
    stage.connection(child).expect("tcp", Some("seccomp"), all(ROUNDS));
    let seen = stage.connection(client.pid());
    seen.expect("tcp", Some("peer-stays"), all(ROUNDS)).expect_peer(child, true, Some("seccomp"));
    Ok(())
}

//! Sockets that come to another process or program: by fork, exec, posix_spawn, in messages; and to another number.

use madrigal_tests::host::How;

use crate::stage::{Actor, CLIENT, MESSAGE, Missing, Played, Stage, listening, played};

const ROUNDS: u32 = 1000;

/// Bytes of so many rounds, read and written.
fn all(rounds: u32) -> (u64, u64) {
    let bytes = u64::from(rounds) * MESSAGE;
    (bytes, bytes)
}

/// A server that prints its port, and then the number of a process; and its client behind `rounds`.
fn served(stage: &Stage, program: &str, rounds: u32) -> (Actor, i32, Actor) {
    let (server, port) = listening(&mut stage.python(How::Wrapped, program, &[]));
    let mut client = Actor::start(&mut stage.python(How::Wrapped, CLIENT, &[&port]));
    let child = server.number();
    if rounds > 0 {
        client.send_line(&rounds.to_string());
        client.expect_line("done");
    }
    (server, child, client)
}

/// A forking server as there are many.
pub(crate) fn fork_child_serves(stage: &Stage) -> Played {
    stage.moves()?;
    let program = "
connection = accept()
if child := os.fork(): connection.close(); say(child); os.waitpid(child, 0)
else: echo(connection)";
    let (server, child, client) = served(stage, program, ROUNDS);
    stage.connection(child).expect("shm", None, all(ROUNDS)).expect_peer(client.pid(), true, None);
    stage.connection(client.pid()).expect("shm", None, all(ROUNDS)).expect_peer(child, true, None);
    assert_eq!(stage.connections(server.pid()).len(), 0);
    Ok(())
}

/// A child of it that has not come to its connection yet.
pub(crate) fn fork_child_is_idle(stage: &Stage) -> Played {
    let program = "
connection = accept()
if child := os.fork(): connection.close(); say(child); os.waitpid(child, 0)
else: time.sleep(600)";
    let (_server, child, client) = served(stage, program, 0);
    stage.connection(child).expect("tcp", Some("not-used-yet"), (0, 0)).expect_peer(
        client.pid(),
        true,
        Some("unearned"),
    );
    stage.connection(client.pid()).expect("tcp", Some("unearned"), (0, 0)).expect_peer(
        child,
        true,
        Some("not-used-yet"),
    );
    Ok(())
}

pub(crate) fn fork_both_hold(stage: &Stage) -> Played {
    let program = "
connection = accept()
if child := os.fork(): say(child); os.waitpid(child, 0)
else: echo(connection)";
    for rounds in [0, ROUNDS] {
        let (server, child, client) = served(stage, program, rounds);
        let (of_child, of_parent) = (stage.connection(child), stage.connection(server.pid()));
        of_child.expect("tcp", Some("shared"), all(rounds));
        of_parent.expect("tcp", Some("shared"), (0, 0));
        assert_eq!(of_child.0["also_held_by"][0].as_i64(), Some(server.pid().into()));
        assert_eq!(of_parent.0["also_held_by"][0].as_i64(), Some(child.into()));
        let c = stage.connection(client.pid());
        c.expect("tcp", Some("peer-stays"), all(rounds));
        assert_eq!(c.0["peer_process"]["reason"], "shared", "{c:?}");
    }
    Ok(())
}

/// The connection becomes input and output of another program.
pub(crate) fn exec_as_inetd(stage: &Stage) -> Played {
    let program = "
connection = accept()
if child := os.fork(): connection.close(); say(child); os.waitpid(child, 0); sys.exit()
for standard in 0, 1: os.dup2(connection.fileno(), standard)
os.execvp('cat', ['cat'])";
    let (server, child, client) = served(stage, program, ROUNDS);
    let seen = stage.connection(child);
    seen.expect("tcp", Some("inherited"), all(ROUNDS)).expect_peer(client.pid(), true, Some("no-answer"));
    assert_eq!((seen.0["counted"].as_str(), seen.number("fd")), (Some("kernel"), 0));
    let seen = stage.connection(client.pid());
    seen.expect("tcp", Some("peer-stays"), all(ROUNDS)).expect_peer(child, true, Some("inherited"));
    assert!(seen.0["reason"]["text"].as_str().unwrap().contains("(cat): inherited: "));
    assert_eq!(stage.connections(server.pid()).len(), 0);
    Ok(())
}

/// The parent does not close it: neither of them is ever alone with it.
pub(crate) fn exec_and_parent_holds(stage: &Stage) -> Played {
    let program = "
connection = accept(); connection.set_inheritable(True)
if child := os.fork(): say(child); echo(connection); sys.exit()
os.execvp('sleep', ['sleep', '600'])";
    let (server, child, client) = served(stage, program, ROUNDS);
    stage.connection(server.pid()).expect("tcp", Some("shared"), all(ROUNDS));
    let seen = stage.connection(child);
    seen.expect("tcp", Some("inherited"), all(ROUNDS));
    assert_eq!(seen.0["counted"], "kernel");
    let seen = stage.connection(client.pid());
    seen.expect("tcp", Some("peer-stays"), all(ROUNDS)).expect_peer(server.pid(), true, Some("shared"));
    Ok(())
}

pub(crate) fn posix_spawn(stage: &Stage) -> Played {
    let program = "
connection = accept()
onto = [(os.POSIX_SPAWN_DUP2, connection.fileno(), standard) for standard in (0, 1)]
say(os.posix_spawn('/bin/cat', ['cat'], os.environ, file_actions=onto)); told()";
    if !std::path::Path::new("/bin/cat").exists() {
        return Err(Missing("no /bin/cat here".to_owned()));
    }
    let (server, child, client) = served(stage, program, ROUNDS);
    stage.connection(child).expect("tcp", Some("inherited"), all(ROUNDS));
    // It kept its own descriptor, and did nothing with it.
    stage.connection(server.pid()).expect("tcp", Some("passed"), (0, 0));
    let seen = stage.connection(client.pid());
    seen.expect("tcp", Some("peer-stays"), all(ROUNDS));
    Ok(())
}

/// In a message to a program that was not there when it was accepted.
pub(crate) fn descriptor_passed(stage: &Stage) -> Played {
    const TAKE: &str = "
here = socket.socket(socket.AF_UNIX); here.bind(sys.argv[1]); here.listen(); say('up')
_, descriptors, _, _ = socket.recv_fds(here.accept()[0], 1, 1)
echo(socket.socket(fileno=descriptors[0])); told()";
    const PASS: &str = "
connection = accept()
there = socket.socket(socket.AF_UNIX); there.connect(sys.argv[1])
socket.send_fds(there, [b'x'], [connection.fileno()])
if sys.argv[2] == 'closes': connection.close()
say('passed'); told()";
    for what in ["closes", "keeps"] {
        let path = stage.scratch.path().join(what);
        let path = path.to_str().expect("a path");
        let taker = Actor::start(&mut stage.python(How::Wrapped, TAKE, &[path]));
        taker.expect_line("up");
        let (giver, port) = listening(&mut stage.python(How::Wrapped, PASS, &[path, what]));
        let client = played(&mut stage.python(How::Wrapped, CLIENT, &[&port]), ROUNDS);
        giver.expect_line("passed");
        stage.connection(taker.pid()).expect("tcp", Some("shared-unknown"), all(ROUNDS));
        let kept = stage.connections(giver.pid());
        assert_eq!(kept.len(), usize::from(what == "keeps"));
        for seen in kept {
            seen.expect("tcp", Some("passed"), (0, 0));
        }
        let seen = stage.connection(client.pid());
        seen.expect("tcp", Some("peer-stays"), all(ROUNDS));
    }
    Ok(())
}

/// The same connection by another number.
pub(crate) fn dup2_and_close(stage: &Stage) -> Played {
    stage.moves()?;
    let (server, port) = stage.server(How::Wrapped);
    let program = "
connection = connect(); play(connection, int(told()))
os.dup2(connection.fileno(), 77); connection.close()
connection = socket.socket(fileno=77); play(connection, 500); say('done'); told()";
    let client = played(&mut stage.python(How::Wrapped, program, &[&port]), 500);
    let seen = stage.connection(client.pid());
    seen.expect("shm", None, all(ROUNDS)).expect_peer(server.pid(), true, None);
    assert_eq!(seen.number("fd"), 77);
    stage.connection(server.pid()).expect("shm", None, all(ROUNDS)).expect_peer(client.pid(), true, None);
    Ok(())
}

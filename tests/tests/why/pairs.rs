//! Two programs and one connection: wrapped or not, much traffic or little.

use std::process::Command;

use madrigal_tests::host::{self, How};

use crate::stage::{Actor, MESSAGE, Missing, Played, Stage, listening, need};

/// So many rounds earn a ring.
const MUCH: u32 = 1000;
/// These do not.
const LITTLE: u32 = 3;

/// Bytes of so many rounds, read and written.
fn all(rounds: u32) -> (u64, u64) {
    let bytes = u64::from(rounds) * MESSAGE;
    (bytes, bytes)
}

pub(crate) fn both_wrapped(stage: &Stage) -> Played {
    stage.moves()?;
    let (server, client) = stage.pair(How::Wrapped, How::Wrapped, MUCH);
    let (s, c) = (stage.connection(server.pid()), stage.connection(client.pid()));
    s.expect("shm", None, all(MUCH)).expect_peer(client.pid(), true, None);
    c.expect("shm", None, all(MUCH)).expect_peer(server.pid(), true, None);
    assert_eq!((&s.0["local"], &s.0["peer"]), (&c.0["peer"], &c.0["local"]));
    assert_eq!((s.0["state"].as_str(), s.0["counted"].as_str()), (Some("established"), Some("program")));
    Ok(())
}

pub(crate) fn little_traffic(stage: &Stage) -> Played {
    let (server, mut client) = stage.pair(How::Wrapped, How::Wrapped, 0);
    for rounds in [0, LITTLE] {
        client.send_line(&rounds.to_string());
        client.expect_line("done");
        for (end, peer) in [(&server, &client), (&client, &server)] {
            let seen = stage.connection(end.pid());
            seen.expect("tcp", Some("unearned"), all(rounds)).expect_peer(peer.pid(), true, Some("unearned"));
        }
    }
    Ok(())
}

pub(crate) fn plain_client(stage: &Stage) -> Played {
    for rounds in [LITTLE, MUCH] {
        let (server, client) = stage.pair(How::Wrapped, How::Plain, rounds);
        let seen = stage.connection(server.pid());
        seen.expect("tcp", Some("peer-not-wrapped"), all(rounds)).expect_peer(client.pid(), false, None);
        assert_plain(stage, &client);
    }
    Ok(())
}

pub(crate) fn plain_server(stage: &Stage) -> Played {
    for rounds in [LITTLE, MUCH] {
        let (server, client) = stage.pair(How::Plain, How::Wrapped, rounds);
        let seen = stage.connection(client.pid());
        seen.expect("tcp", Some("peer-not-wrapped"), all(rounds)).expect_peer(server.pid(), false, None);
        let (_, text, _) = stage.why(&[&client.pid().to_string()]);
        assert!(text.contains(&format!("; peer: process {} (python3)", server.pid())), "{text}");
        assert_plain(stage, &server);
    }
    Ok(())
}

/// For a program that is not wrapped only that is reported.
fn assert_plain(stage: &Stage, actor: &Actor) {
    let (status, text, err) = stage.why(&[&actor.pid().to_string()]);
    assert_eq!((status, &text[..]), (1, ""));
    assert!(err.contains("is not under madrigal"), "{err}");
}

/// Compiles a C program that answers on one connection.
const ECHO_IN_C: &str = r#"
#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>
int main(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    char bytes[65536];
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&at, size) || listen(listener, 1) || getsockname(listener, (struct sockaddr *)&at, &size)) return 1;
    printf("%d\n", ntohs(at.sin_port)), fflush(stdout);
    int connection = accept(listener, 0, 0);
    for (ssize_t n; (n = read(connection, bytes, sizeof bytes)) > 0;)
        if (write(connection, bytes, n) != n) return 1;
    return 0;
}
"#;

pub(crate) fn static_server(stage: &Stage) -> Played {
    let (source, program) = (stage.scratch.path().join("echo.c"), stage.scratch.path().join("echo"));
    std::fs::write(&source, ECHO_IN_C).expect("a file");
    let made = host::run(Command::new(need("gcc")?).args(["-static", "-o"]).arg(&program).arg(&source));
    if made.status != 0 {
        return Err(Missing("gcc links no static programs here".to_owned()));
    }
    // With the library to preload in its environment: there is no loader that would load it.
    let (server, port) = listening(&mut host::command(How::Wrapped, &program, &stage.scratch));
    let client = stage.client(How::Wrapped, &port, MUCH);
    let seen = stage.connection(client.pid());
    seen.expect("tcp", Some("peer-unfit"), all(MUCH)).expect_peer(server.pid(), false, None);
    Ok(())
}

/// C in it makes it a dynamically linked program.
const ECHO_IN_GO: &str = r#"
package main
import "C"
import ("fmt"; "io"; "net")
func main() {
    listener, _ := net.Listen("tcp", "127.0.0.1:0")
    fmt.Println(listener.Addr().(*net.TCPAddr).Port)
    connection, _ := listener.Accept()
    io.Copy(struct{ io.Writer }{connection}, connection)
}
"#;

pub(crate) fn go_server(stage: &Stage) -> Played {
    need("gcc")?;
    let (source, program) = (stage.scratch.path().join("echo.go"), stage.scratch.path().join("echo"));
    std::fs::write(&source, ECHO_IN_GO).expect("a file");
    let mut build = Command::new(need("go")?);
    build.current_dir(stage.scratch.path()).env("GO111MODULE", "off").args(["build", "-o"]).arg(&program).arg(&source);
    let (status, _, err) = crate::stage::output_of(&mut build);
    if status != 0 {
        return Err(Missing(format!("go builds nothing here: {err}")));
    }
    let (server, port) = listening(&mut host::command(How::Wrapped, &program, &stage.scratch));
    let client = stage.client(How::Wrapped, &port, MUCH);
    stage.connection(server.pid()).expect("tcp", Some("raw-calls"), all(MUCH)).expect_peer(
        client.pid(),
        true,
        Some("no-listener"),
    );
    let seen = stage.connection(client.pid());
    seen.expect("tcp", Some("peer-stays"), all(MUCH)).expect_peer(server.pid(), true, Some("raw-calls"));
    Ok(())
}

pub(crate) fn not_accepted(stage: &Stage) -> Played {
    let (server, port) = listening(&mut stage.python(How::Wrapped, "listener = listen(); told()", &[]));
    let send = "connection = connect()\nfor _ in range(20): connection.sendall(b'x' * 100)\nsay('done'); told()";
    let client = Actor::start(&mut stage.python(How::Wrapped, send, &[&port]));
    client.expect_line("done");
    stage.connection(client.pid()).expect("tcp", Some("not-accepted"), (0, 20 * MESSAGE));
    assert_eq!(stage.connections(server.pid()).len(), 0);
    Ok(())
}

/// Names that a terminal would obey: escaped in the text, and right in JSON.
pub(crate) fn names(stage: &Stage) -> Played {
    const RENAMED: &str = r#"
name = bytes.fromhex(sys.argv[2])
ctypes.CDLL(None).prctl(15, name, 0, 0, 0)
rounds(connect())
"#;
    let cases: [(&[u8], &str, &str); 3] = [
        (b"\x1b[31m\nred\t\\", r"\x1b[31m\nred\t\\", "\x1b[31m\nred\t\\"),
        ("\u{9b}2J\u{202e}x".as_bytes(), r"\x9b2J\u{202e}x", "\u{9b}2J\u{202e}x"),
        (b"\xff\xfe\x07)", "\u{fffd}\u{fffd}\\x07)", "\u{fffd}\u{fffd}\x07)"),
    ];
    for (bytes, text, json) in cases {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let (server, port) = stage.server(How::Wrapped);
        let client = crate::stage::played(&mut stage.python(How::Wrapped, RENAMED, &[&port, &hex]), LITTLE);
        let (pid, peer) = (client.pid().to_string(), server.pid().to_string());
        let (_, own, _) = stage.why(&[&pid]);
        assert!(own.starts_with(&format!("process {pid} ({text}): 1 connection, ")), "{own:?}");
        let (_, of_peer, _) = stage.why(&[&peer]);
        assert!(of_peer.contains(&format!("peer: process {pid} ({text})\n")), "{of_peer:?}");
        let (_, own_json, _) = stage.why(&[&pid, "--json"]);
        let (_, peer_json, _) = stage.why(&[&peer, "--json"]);
        for text in [&own, &of_peer, &own_json, &peer_json] {
            assert!(text.chars().all(|c| c == '\n' || !c.is_control() && c != '\u{202e}'), "{text:?}");
        }
        let named: serde_json::Value = serde_json::from_str(&own_json).expect("JSON");
        assert_eq!(named["processes"][0]["program"], json);
        assert_eq!(crate::stage::seen(&peer_json)[0].0["peer_process"]["program"], json);
        stage.connection(server.pid()).expect("tcp", Some("unearned"), all(LITTLE));

        let (_server, port) = stage.server(How::Plain);
        let plain = crate::stage::played(&mut stage.python(How::Plain, RENAMED, &[&port, &hex]), LITTLE);
        let (status, _, err) = stage.why(&[&plain.pid().to_string()]);
        assert!(status == 1 && err.contains(&format!("({text}) is not under madrigal")), "{err:?}");
        assert!(err.trim_end_matches('\n').chars().all(|c| !c.is_control()), "{err:?}");
    }
    Ok(())
}

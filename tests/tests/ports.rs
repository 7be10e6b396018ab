//! `--only`: connections to other ports stay with TCP, also if only one side has the option.
//!
//! Features (docs/features.md): B14.

use madrigal_tests::host::{self, How, Running, Scratch};

const ACTOR: &str = env!("CARGO_BIN_EXE_actor");

/// What a client says of its connection to a server, where only the server, or only the client, was told which `ports` may move; `PORT`
/// among them is the server's.
fn path_of(at_server: bool, ports: &str) -> String {
    let scratch = Scratch::new();
    let file = scratch.path().join("port");
    let mut serve = host::command(How::Wrapped, ACTOR, &scratch);
    if at_server {
        // Its port is known once it listens.
        serve.env("MADRIGAL_ONLY", ports.replace("PORT", "2-65535"));
    }
    let server = Running::start(serve.args(["echo", file.to_str().unwrap()]));
    let port = host::until("a port", || std::fs::read_to_string(&file).ok());
    let mut ask = host::command(How::Wrapped, ACTOR, &scratch);
    if !at_server {
        ask.env("MADRIGAL_ONLY", ports.replace("PORT", &port));
    }
    let text = host::run(ask.args(["ask", &port])).expect_success().text();
    drop(server);
    text
}

#[test]
fn the_accepting_side_keeps_to_only() {
    let text = path_of(true, "1");
    assert!(text.contains("path=tcp why=no-answer"), "{text}");
    let text = path_of(true, "1,PORT");
    assert!(text.contains("path=shm"), "{text}");
}

#[test]
fn the_connecting_side_keeps_to_only() {
    let text = path_of(false, "1");
    assert!(text.contains("path=tcp why=port-off"), "{text}");
    let text = path_of(false, "1,PORT");
    assert!(text.contains("path=shm"), "{text}");
}

//! A small socket program for faults and hostile peers: `actor ROLE ARGUMENTS...`, see the match in `main`.
//!
//! A server writes its port to a file; every role ends with one line on standard output about the end of its connection.

mod crowd;
mod hostile;
mod stream;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::process::Command;

use madrigal_tests::{net, pair};

fn main() {
    // A test that dies takes its actors along; a role that hangs does not stay for ever.
    stream::watchdog(120);
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        // One connection each way, in the named mode.
        ["serve", file, mode] => stream::play(&serve_one(file), mode),
        ["connect", port, mode] => stream::play(&net::client(address(port)), mode),
        // A server (this process) and a client (a child program) that ping-pong; tells both reasons.
        ["both", file] => both(file),
        ["cleared", file] => cleared(file),
        ["ask", port] => ask(&net::client(address(port))),
        // Servers for many.
        ["echo", file] => crowd::echo(&listen(file)),
        ["echo-as", user, file] => {
            let listener = listen(file);
            crowd::become_user(user.parse().expect("a user number"));
            crowd::echo(&listener);
        }
        // Clients in numbers.
        ["many", port, count, file] => crowd::many(address(port), number(count), file),
        ["bomb", port, children, each] => crowd::bomb(address(port), number(children), number(each)),
        // Hostile peers.
        ["echo-threads", file] => hostile::echo_threads(&listen(file)),
        ["noise", port] => hostile::noise(address(port)),
        ["stray", port, file] => hostile::stray(address(port), file),
        ["good", port, file] => hostile::good(address(port), file),
        ["foreign", count] => hostile::foreign(number(count)),
        ["files", limit] => crowd::until_no_more_files(number(limit)),
        _ => panic!("unknown role {words:?}"),
    }
}

fn number(word: &str) -> usize {
    word.parse().expect("a number")
}

fn address(port: &str) -> SocketAddr {
    let mut addr = pair::loopback();
    addr.set_port(port.parse().expect("a port"));
    addr
}

/// Listens, and leaves the port in `file`.
fn listen(file: &str) -> OwnedFd {
    let (listener, addr) = net::listener(pair::loopback());
    let unfinished = format!("{file}.new");
    std::fs::write(&unfinished, addr.port().to_string()).expect("the port's file");
    std::fs::rename(&unfinished, file).expect("the port's file");
    listener
}

fn serve_one(file: &str) -> OwnedFd {
    let fd = net::accept(&listen(file), 0).expect("accept");
    std::fs::write(format!("{file}.up"), "").expect("a file");
    fd
}

fn both(file: &str) {
    let listener = listen(file);
    let port = std::fs::read_to_string(file).expect("our own file");
    let me = std::env::current_exe().expect("this program has a name");
    let mut child = Command::new(me).args(["ask", &port]).spawn().expect("a child");
    let s = net::accept(&listener, 0).expect("accept");
    answer(&s);
    // The client is gone, and the connection may have left its rings again.
    println!("server moved={} {}", pair::moves(&s) > 0, described(&s));
    assert!(child.wait().expect("the child").success());
}

fn answer(s: &OwnedFd) {
    while let Ok(n @ 1..) = net::read(s, &mut [0; 1]) {
        net::send_all(s, &[b'.'; 1][..n]);
    }
}

/// The same of a program that clears its environment at its start, and of its child, as nginx does. It makes the file, and stays until
/// somebody removes it.
fn cleared(file: &str) {
    crowd::clear_environment();
    let (listener, addr) = net::listener(pair::loopback());
    let child = net::fork(|| {
        ask(&net::client(addr));
        0
    });
    answer(&net::accept(&listener, 0).expect("accept"));
    assert_eq!(net::wait(child), 0);
    std::fs::write(file, "").expect("a file");
    while std::fs::exists(file).expect("a look at our own file") {
        net::sleep_ms(1);
    }
}

/// Ping-pong for a while, then a larger piece.
fn ask(c: &OwnedFd) {
    for _ in 0..500 {
        net::send_all(c, b".");
        assert_eq!(net::recv_exact(c, 1), b".");
    }
    println!("client {}", described(c));
}

/// Path, reason and lost wake-ups, for the test to read.
fn described(fd: &OwnedFd) -> String {
    let path = pair::path(fd).map_or("none".to_owned(), |p| format!("{p:?}").to_lowercase());
    let why = pair::why(fd).map_or("none", |r| r.name());
    format!("path={path} why={why} missed={}", pair::missed_bells())
}

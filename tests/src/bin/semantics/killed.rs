//! Processes that are killed, and what the other end sees.

use madrigal_tests::net::{self, read, recv_exact, recv_up_to, send_all};
use madrigal_tests::pair::{self, Pair};

crate::checks![child_killed, peer_killed_behind_a_doorbell, peer_killed_that_resets];

fn child_killed() {
    let (out, input) = net::pipe();
    let Pair { c, s } = Pair::warm();
    let pid = net::fork(|| {
        net::close_in_child(&c);
        send_all(&s, b"last words");
        net::write(&input, b"r").unwrap();
        net::nap(60_000);
        0
    });
    drop(s);
    assert_eq!(net::read(&out, &mut [0; 1]), Ok(1));
    net::kill(pid, libc::SIGKILL).unwrap();
    net::wait(pid);
    assert_eq!(recv_up_to(&c, 100), b"last words");
}

/// A process killed after it read everything ends its connections as with a close, whatever doorbells it left: the first send after
/// that is taken.
fn peer_killed_behind_a_doorbell() {
    let (out, input) = net::pipe();
    let child = net::fork(|| {
        let fd = pair::client_told_by(&out);
        pair::warm_client(&fd);
        recv_exact(&fd, 1);
        send_all(&fd, b"last");
        net::kill(std::process::id() as i32, libc::SIGKILL).unwrap();
        0
    });
    let (listener, addr) = net::listener(pair::loopback());
    pair::tell_port(&input, addr);
    let fd = net::accept(&listener, 0).unwrap();
    pair::warm_server(&fd);
    // By now it sleeps, and has to be woken.
    net::nap(50);
    send_all(&fd, b"?");
    net::wait(child);
    assert_eq!(recv_exact(&fd, 4), b"last");
    net::await_events(&fd, libc::POLLRDHUP);
    assert_eq!(net::send(&fd, b"taken", 0), Ok(5));
    assert_eq!(read(&fd, &mut [0; 1]), Ok(0));
    assert_eq!(net::send(&fd, b"not taken", 0), Err(libc::EPIPE));
}

/// Of a process that lets its connections be reset when they are closed, a kill shows as a reset.
fn peer_killed_that_resets() {
    for early in [true, false] {
        let (out, input) = net::pipe();
        let child = net::fork(|| {
            let fd = pair::client_told_by(&out);
            if early {
                net::linger(&fd, 0);
            }
            pair::warm_client(&fd);
            if !early {
                net::linger(&fd, 0);
            }
            send_all(&fd, b"last");
            recv_exact(&fd, 1);
            net::kill(std::process::id() as i32, libc::SIGKILL).unwrap();
            0
        });
        let (listener, addr) = net::listener(pair::loopback());
        pair::tell_port(&input, addr);
        let fd = net::accept(&listener, 0).unwrap();
        pair::warm_server(&fd);
        assert_eq!(recv_exact(&fd, 4), b"last");
        send_all(&fd, b"?");
        net::wait(child);
        assert_eq!(read(&fd, &mut [0; 1]), Err(libc::ECONNRESET));
    }
}

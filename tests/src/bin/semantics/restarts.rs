//! Receives that sleep on behind a handler with `SA_RESTART`, whatever other threads do meanwhile.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};

use libc::SIGUSR1;
use madrigal_tests::net::{self, send_all};
use madrigal_tests::pair::Pair;

crate::checks![
    though_given_a_timeout,
    though_all_is_closed,
    though_its_number_is_taken,
    unless_a_child_has_made_it_non_blocking,
];

/// A receive that sleeps, its handler running while it does; then `meanwhile` and the handler again, and a byte.
fn restarts_behind((to, from): (OwnedFd, OwnedFd), meanwhile: impl FnOnce(&OwnedFd)) {
    let before = net::signals();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            // SAFETY: no pointers.
            tell.send((net::this_thread(), unsafe { libc::gettid() })).unwrap();
            net::recv(&to, &mut [0; 16], 0)
        });
        let (thread, tid) = told.recv().unwrap();
        crate::await_asleep(tid);
        meanwhile(&to);
        crate::await_asleep(tid);
        net::signal_thread(thread, SIGUSR1);
        while net::signals() == before {
            net::sleep_ms(1);
        }
        crate::await_asleep(tid);
        send_all(&from, b"byte");
        assert_eq!(receiver.join().unwrap(), Ok(4));
    });
}

/// A receive has the time-out that was set when it began: what another thread sets meanwhile makes no handler end it.
fn though_given_a_timeout() {
    net::on_signal(SIGUSR1, net::count_signal, true);
    for ends_session in [false, true] {
        let (p, before) = (Pair::warm(), net::signals());
        restarts_behind((p.s, p.c), |to| {
            net::set(to, libc::SOL_SOCKET, libc::SO_RCVTIMEO, net::timeval(10_000)).unwrap();
            if ends_session {
                assert_eq!(net::wait(net::fork(|| 0)), 0);
            }
        });
        assert_eq!(net::signals(), before + 1);
    }
}

/// It begins anew on a socket that a child of a fork has made non-blocking, while the child lives and when it has ended.
fn unless_a_child_has_made_it_non_blocking() {
    net::on_signal(SIGUSR1, net::count_signal, true);
    for child_lives in [true, false] {
        let (p, (out, input)) = (Pair::warm(), net::pipe());
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                // SAFETY: no pointers.
                tell.send((net::this_thread(), unsafe { libc::gettid() })).unwrap();
                net::recv(&p.s, &mut [0; 16], 0)
            });
            let (thread, tid) = told.recv().unwrap();
            crate::await_asleep(tid);
            let child = net::fork(|| {
                net::set_nonblocking(&p.s, true);
                net::write(&input, b"d").unwrap();
                net::sleep_ms(if child_lives { 60_000 } else { 0 });
                0
            });
            net::read(&out, &mut [0]).unwrap();
            if !child_lives {
                assert_eq!(net::wait(child), 0);
            }
            crate::await_asleep(tid);
            net::signal_thread(thread, SIGUSR1);
            assert_eq!(receiver.join().unwrap(), Err(libc::EAGAIN));
            if child_lives {
                net::kill(child, libc::SIGKILL).unwrap();
                net::wait(child);
            }
        });
    }
}

/// One handler ends calls, the other does not: which of them ran is seen by a descriptor, which the program neither sees nor closes.
fn though_all_is_closed() {
    net::on_signal(SIGUSR1, net::count_signal, true);
    net::on_signal(libc::SIGUSR2, net::count_signal, false);
    restarts_behind(one_that_has_sent(), |_| {
        // SAFETY: no descriptor of a test has such a number.
        assert_eq!(unsafe { libc::close_range(500, u32::MAX, 0) }, 0);
    });
}

/// The same where the program makes descriptors of all numbers that the other may have: they are its own, and stay open.
fn though_its_number_is_taken() {
    net::on_signal(SIGUSR1, net::count_signal, true);
    net::on_signal(libc::SIGUSR2, net::count_signal, false);
    let (out, _input) = net::pipe();
    restarts_behind(one_that_has_sent(), |_| {
        for number in 955..980 {
            // SAFETY: as above.
            assert_eq!(unsafe { libc::dup2(out.as_raw_fd(), number) }, number);
        }
    });
    for number in 955..980 {
        assert_eq!(net::fcntl(number, libc::F_GETFD, 0), Ok(0), "{number}");
        drop(net::new_fd(number));
    }
}

/// A connection whose first end has sent, and not received: no byte has come by its ring.
fn one_that_has_sent() -> (OwnedFd, OwnedFd) {
    let p = Pair::fresh();
    crate::both(|| send_all(&p.c, &vec![1; 300_000]), || drop(net::recv_exact(&p.s, 300_000)));
    (p.c, p.s)
}

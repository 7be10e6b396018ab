//! Links with `tls`: who has one, who does not, and what both are told.

use std::path::PathBuf;
use std::task::Poll;
use std::thread;

use madrigal::config::Settings;
use madrigal::error::ConnectError;
use madrigal::{Acceptor, Address, Runtime, VLink, grid_tls_in, time};
use madrigal_identity::{Authority, DAY, Name, Validity, login};
use madrigal_progress::driver::Driver;
use madrigal_sys::process;

use crate::noise::Stream;
use crate::{Case, place};

/// The suite.
pub static CASES: &[Case<&'static dyn Driver>] = &[
    Case { name: "processes_of_one_user_have_links", run: one_user },
    Case { name: "those_of_another_user_are_refused", run: another_user },
    Case { name: "without_a_certificate_it_is_said_what_to_type", run: no_certificate },
    Case { name: "one_that_shows_no_certificate_keeps_nobody_waiting", run: silent },
    Case { name: "a_streams_own_encryption_is_refused", run: below_stripe },
];

const SECOND: u64 = 1_000_000_000;

/// Users of a grid, each with a directory of its own; removed at the end.
struct Grid {
    dir: PathBuf,
    authority: Authority,
}

impl Grid {
    fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("madrigal-grid-{}-{:x}", process::own_pid(), process::random()));
        let authority = Authority::create(&dir, &name("test"), Validity::seconds(DAY), false).expect("a CA");
        Self { dir, authority }
    }

    /// A process of that user.
    fn process(&self, user: &str) -> Runtime {
        let dir = self.dir.join(user);
        let issued = self.authority.issue_user(&name(user), Validity::seconds(DAY)).expect("an identity");
        issued.install(&dir, true).expect("is installed");
        login(&dir, None, DAY).expect("logs in");
        let mut runtime = bare();
        runtime.set_tls(grid_tls_in(&dir));
        runtime
    }
}

impl Drop for Grid {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn name(text: &str) -> Name {
    Name::parse(text).expect("a name")
}

fn bare() -> Runtime {
    Runtime::with_settings(&Settings { dir: place().directory, ..Settings::default() }).expect("starts")
}

fn listen(runtime: &Runtime, driver: &dyn Driver, stack: &str) -> (Acceptor, Address) {
    let at = driver.address_for(&format!("tls-{:x}", process::random())).expect("an address");
    let at: Address = format!("{stack}/{at}").parse().expect("an address");
    let acceptor = runtime.listen_at(&at).expect("listens");
    let to = Address { locator: acceptor.locator().clone(), ..at };
    (acceptor, to)
}

/// Connects and accepts by two runtimes, both of which are turned meanwhile, and for half a second more where nothing is accepted.
fn meet(
    (near, to): (&Runtime, &Address),
    (far, acceptor): (&Runtime, &Acceptor),
) -> (Result<VLink, ConnectError>, Option<VLink>) {
    let (mut connect, mut accept) = (near.connect_at(to), acceptor.accept());
    let (mut connected, mut accepted, mut until) = (None, None, u64::MAX);
    while connected.is_none() || (accepted.is_none() && time::now_ns() < until) {
        turn(&[near, far]);
        if connected.is_none()
            && let Poll::Ready(outcome) = connect.poll()
        {
            (connected, until) = (Some(outcome), time::now_ns() + SECOND / 2);
        }
        if accepted.is_none()
            && let Poll::Ready(link) = accept.poll()
        {
            accepted = Some(link.expect("accepts"));
        }
    }
    (connected.expect("is decided"), accepted)
}

fn turn(runtimes: &[&Runtime]) {
    for runtime in runtimes {
        runtime.do_work();
    }
    thread::yield_now();
}

fn one_user(driver: &&'static dyn Driver) {
    let grid = Grid::new();
    let (one, other) = (grid.process("ann"), grid.process("ann"));
    let (acceptor, to) = listen(&other, *driver, "adoc/tls/stripe(2)");
    let (near, far) = meet((&one, &to), (&other, &acceptor));
    let (near, far) = (near.expect("connects"), far.expect("accepts"));
    let (sent, mut got) = (Stream::new(1).take(300_000), Vec::new());
    let mut write = near.write(sent.clone());
    let mut is_written = false;
    while got.len() < sent.len() || !is_written {
        turn(&[&one, &other]);
        is_written |= write.poll().is_ready();
        if let Poll::Ready(filled) = far.read(vec![0; 50_000]).poll() {
            got.extend_from_slice(filled.expect("reads").bytes());
        }
    }
    assert_eq!(got, sent);
    let (mut nears, mut fars) = (near.close(), far.close());
    let mut open = 2;
    while open > 0 {
        turn(&[&one, &other]);
        open -= u32::from(nears.poll().is_ready()) + u32::from(fars.poll().is_ready());
    }
}

fn another_user(driver: &&'static dyn Driver) {
    let grid = Grid::new();
    let (near, far) = (grid.process("bob"), grid.process("ann"));
    let (acceptor, to) = listen(&far, *driver, "tls");
    let (linked, accepted) = meet((&near, &to), (&far, &acceptor));
    let why = linked.expect_err("another user").to_string();
    assert!(
        why.contains("another user: the peer is user ann of grid test, and this is user bob of grid test"),
        "{why}"
    );
    assert!(accepted.is_none(), "a link with another user");
}

fn no_certificate(driver: &&'static dyn Driver) {
    let (none, dir) = (bare(), std::env::temp_dir().join(format!("madrigal-none-{}", process::own_pid())));
    let mut empty = bare();
    empty.set_tls(grid_tls_in(&dir));
    let at: Address = format!("tls/{}", driver.address_for("nobody").expect("an address")).parse().expect("one");
    for (runtime, told) in [(&none, "this program has no certificates"), (&empty, "madrigal ca init")] {
        let refused = runtime.listen_at(&at).expect_err("no certificate").to_string();
        assert!(refused.contains(told), "{refused}");
        let refused = runtime.connect_at(&at).wait().expect_err("no certificate").to_string();
        assert!(refused.contains(told), "{refused}");
    }
}

/// One that connects, greets, and then shows no certificate: others go on, and its end is closed in time.
fn silent(driver: &&'static dyn Driver) {
    let grid = Grid::new();
    let (near, far) = (grid.process("ann"), grid.process("ann"));
    let (acceptor, to) = listen(&far, *driver, "tls");
    let bare = Address::from(to.locator.clone());
    let greeting = b"link 1 000000000000000000000000000000ff 1 tls/tcp -";
    let greeting = [&u16::try_from(greeting.len()).expect("short").to_le_bytes()[..], greeting].concat();
    let mut connect = near.connect_at(&bare);
    let idle = loop {
        turn(&[&near, &far]);
        if let Poll::Ready(link) = connect.poll() {
            break link.expect("connects");
        }
    };
    let (_write, mut answer) = (idle.write(greeting), idle.read(vec![0; 100]));
    while answer.poll().is_pending() {
        turn(&[&near, &far]);
    }
    let (linked, accepted) = meet((&near, &to), (&far, &acceptor));
    [linked.expect("connects"), accepted.expect("accepts")].iter().chain([&idle]).for_each(VLink::abort);
}

fn below_stripe(driver: &&'static dyn Driver) {
    let grid = Grid::new();
    let at: Address = format!("stripe(2)/tls/{}", driver.address_for("below").expect("one")).parse().expect("one");
    let refused = grid.process("ann").listen_at(&at).expect_err("refused").to_string();
    assert!(refused.contains("write `tls/stripe(N)`"), "{refused}");
}

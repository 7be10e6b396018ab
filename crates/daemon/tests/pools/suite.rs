//! What holds of pools whatever store they are in, and what of one store alone.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use madrigal_pools::client::Told;
use madrigal_pools::record::Entry;
use madrigal_pools::wire::{Request, encode};
use madrigal_pools::{Change, Event, Membership, PoolError, Refusal, Wish};
use madrigal_proto::client::POOL;
use madrigal_sys::time::now_ns;
use madrigal_tests::trials;
use rustix::process::Signal;

use crate::bed::{Bed, Kind, Test, soon, until};

/// Over each store.
pub(crate) const TESTS: &[Test] = &[
    ("closed_pools_wait_for_all_and_refuse_more", closed_pools_wait_for_all_and_refuse_more),
    ("launched_processes_have_their_ranks", launched_processes_have_their_ranks),
    ("one_wins_and_another_when_that_dies", one_wins_and_another_when_that_dies),
    ("a_winner_for_life_stays", a_winner_for_life_stays),
    ("all_are_told_the_same_in_one_order", all_are_told_the_same_in_one_order),
    ("signals_reach_those_they_are_for", signals_reach_those_they_are_for),
    ("attributes_are_known_to_all", attributes_are_known_to_all),
    ("who_terminates_ends_the_wait_of_all", who_terminates_ends_the_wait_of_all),
    (
        "a_process_that_is_killed_is_dead_though_its_child_lives",
        a_process_that_is_killed_is_dead_though_its_child_lives,
    ),
    ("members_die_with_their_daemon", members_die_with_their_daemon),
    ("a_suspected_member_is_checked", a_suspected_member_is_checked),
    ("who_reads_nothing_misses_events_and_nothing_else", who_reads_nothing_misses_events_and_nothing_else),
    ("nonsense_ends_a_session_and_nothing_else", nonsense_ends_a_session_and_nothing_else),
];

/// Of one store, or of none.
pub(crate) const OF_ONE_STORE: &[(&str, fn())] = &[
    ("without_a_daemon_the_error_says_what_to_type", without_a_daemon_the_error_says_what_to_type),
    ("members_are_told_that_the_keeper_died", members_are_told_that_the_keeper_died),
    ("another_keeper_counts_from_the_next_start_on", another_keeper_counts_from_the_next_start_on),
    ("pools_in_etcd_outlive_any_host", pools_in_etcd_outlive_any_host),
    ("without_etcd_members_are_told", without_etcd_members_are_told),
    ("a_long_log_is_replaced_by_a_snapshot", a_long_log_is_replaced_by_a_snapshot),
];

fn closed(pool: &str, size: u32) -> Wish {
    Wish { pool: pool.to_owned(), size: Some(size), ..Wish::default() }
}

/// Events until one that `is_last`, that one with them.
fn events(of: &Membership, is_last: impl Fn(&Change) -> bool) -> Vec<Event> {
    let mut all = Vec::new();
    loop {
        match of.next_event(soon()).unwrap() {
            Some(Told::Event(event)) => all.push(event),
            other => panic!("{other:?} behind {all:?}"),
        }
        if is_last(&all[all.len() - 1].change) {
            return all;
        }
    }
}

fn closed_pools_wait_for_all_and_refuse_more(kind: Kind) {
    let bed = Bed::new(kind, 3);
    let early = Membership::begin(&[bed.directory(0)], closed("four", 4), soon()).unwrap();
    until("the first one has joined", || early.view(|view| view.members.len()) == 1);
    let error = early.wait_joined(Some(now_ns() + 1_000_000)).unwrap_err().to_string();
    assert_eq!(error, "1 of 4 members of pool four have joined: start the others");
    drop(early);
    let members: Vec<Membership> = thread::scope(|scope| {
        let joins: Vec<_> = (0..4)
            .map(|n| {
                let bed = &bed;
                scope.spawn(move || bed.try_join(n % 3, closed("four", 4)).unwrap())
            })
            .collect();
        joins.into_iter().map(|join| join.join().unwrap()).collect()
    });
    let seen = |member: &Membership| {
        member.view(|view| {
            let members = view.members.iter().map(|(id, member)| (*id, member.rank, member.location.clone()));
            members.collect::<Vec<_>>()
        })
    };
    let first = seen(&members[0]);
    assert!(members.iter().all(|member| seen(member) == first), "{first:?}");
    assert_eq!(first.iter().map(|(_, rank, _)| *rank).collect::<Vec<_>>(), [Some(0), Some(1), Some(2), Some(3)]);
    let mut hosts: Vec<&str> = first.iter().map(|(_, _, location)| location.as_str()).collect();
    hosts.sort_unstable();
    assert_eq!(hosts, ["h0@s", "h0@s", "h1@s", "h2@s"]);
    let more = bed.try_join(1, closed("four", 4)).unwrap_err();
    assert!(matches!(more, PoolError::Refused(Refusal::Closed { size: 4 })), "{more}");
    let other = bed.try_join(1, closed("four", 5)).unwrap_err();
    assert!(matches!(other, PoolError::Refused(Refusal::OtherKind { .. })), "{other}");
    // When all are gone the name is free.
    drop(members);
    until("the name is free", || bed.try_join(2, closed("four", 1)).is_ok());
}

fn launched_processes_have_their_ranks(kind: Kind) {
    let bed = Bed::new(kind, 2);
    let ranked = |rank| Wish { rank: Some(rank), ..closed("job", 2) };
    thread::scope(|scope| {
        for rank in 0..2 {
            let bed = &bed;
            scope.spawn(move || {
                let member = bed.try_join(1 - rank as usize, ranked(rank)).unwrap();
                let own = member.view(|view| view.members[&member.id().unwrap()].rank);
                assert_eq!(own, Some(rank));
                // None leaves before the other has looked.
                member.signal(&[], "done", soon()).unwrap();
                let mut signals = 0;
                while signals < 2 {
                    events(&member, |change| matches!(change, Change::Signal { .. }));
                    signals += 1;
                }
            });
        }
    });
}

fn one_wins_and_another_when_that_dies(kind: Kind) {
    let bed = Bed::new(kind, 2);
    let mut programs: Vec<_> = (0..4).map(|n| bed.program(n % 2, "race")).collect();
    let watch = bed.join(1, "race");
    for left in (1..=4).rev() {
        let said: Vec<String> = programs.iter_mut().map(|one| one.ask("elect master")).collect();
        assert!(said.iter().all(|line| *line == said[0]), "{said:?}");
        let (winner, number) = watch.winner("master", soon()).unwrap();
        assert_eq!(said[0], format!("elected {winner}"));
        let at = programs.iter().position(|one| one.id == winner).unwrap();
        let mut gone = programs.remove(at);
        if left % 2 == 0 {
            gone.process.kill();
            events(&watch, |change| *change == Change::Died { member: winner });
        } else {
            assert_eq!(gone.ask("leave"), "left");
            events(&watch, |change| *change == Change::Left { member: winner });
        }
        events(&watch, |change| *change == Change::Vacant { name: "master".to_owned() });
        assert!(watch.view(|view| view.elections["master"].winner.is_none()));
        assert!(number < watch.view(|view| view.next));
    }
}

fn a_winner_for_life_stays(kind: Kind) {
    let bed = Bed::new(kind, 2);
    let (first, second) = (bed.join(0, "p"), bed.join(1, "p"));
    assert_eq!(first.elect("root", true, soon()).unwrap().0, first.id().unwrap());
    let other_rule = second.elect("root", false, soon()).unwrap_err();
    assert!(matches!(other_rule, PoolError::Refused(Refusal::OtherRule { .. })), "{other_rule}");
    let id = first.id().unwrap();
    first.leave(soon()).unwrap();
    events(&second, |change| *change == Change::Left { member: id });
    assert_eq!(second.elect("root", true, soon()).unwrap().0, id);
}

fn all_are_told_the_same_in_one_order(kind: Kind) {
    let bed = Bed::new(kind, 3);
    let members: Vec<Membership> = (0..6).map(|n| bed.join(n % 3, "order")).collect();
    thread::scope(|scope| {
        for member in &members {
            scope.spawn(move || {
                for round in 0..20 {
                    member.signal(&[], &format!("{} {round}", member.id().unwrap()), soon()).unwrap();
                    member.set(false, "last", Some(&[round]), soon()).unwrap();
                    member.elect(&format!("e{round}"), false, soon()).unwrap();
                }
                member.signal(&[], "done", soon()).unwrap();
            });
        }
    });
    let told: Vec<Vec<Event>> = members
        .iter()
        .map(|member| {
            let is_done = |change: &Change| matches!(change, Change::Signal { text, .. } if text == "done");
            (0..6).flat_map(|_| events(member, is_done)).collect()
        })
        .collect();
    // From the last join on all have been there.
    let last = members[5].id().unwrap();
    let since = |told: &[Event]| {
        let at = told.iter().position(|event| matches!(event.change, Change::Joined { member, .. } if member == last));
        told[at.unwrap() + 1..].to_vec()
    };
    let first = since(&told[0]);
    assert_eq!(first.len(), 6 * 20 * 2 + 20 + 6);
    assert!(first.windows(2).all(|two| two[0].number + 1 == two[1].number));
    for other in &told {
        assert_eq!(since(other), first);
    }
}

fn signals_reach_those_they_are_for(kind: Kind) {
    let bed = Bed::new(kind, 2);
    let members: Vec<Membership> = (0..3).map(|n| bed.join(n % 2, "p")).collect();
    members[0].signal(&[members[2].id().unwrap()], "for you", soon()).unwrap();
    members[0].signal(&[], "for all", soon()).unwrap();
    let texts = |member: &Membership| {
        let is_last = |change: &Change| matches!(change, Change::Signal { text, .. } if text == "for all");
        let text = |event: Event| match event.change {
            Change::Signal { text, from } if from == members[0].id().unwrap() => Some(text),
            _ => None,
        };
        events(member, is_last).into_iter().filter_map(text).collect::<Vec<_>>()
    };
    assert_eq!([texts(&members[0]).len(), texts(&members[1]).len(), texts(&members[2]).len()], [1, 1, 2]);
    let nobody = members[0].signal(&[77], "x", soon()).unwrap_err();
    assert!(matches!(nobody, PoolError::Refused(Refusal::NoMember(77))), "{nobody}");
}

fn attributes_are_known_to_all(kind: Kind) {
    let bed = Bed::new(kind, 2);
    let first = bed.try_join(0, Wish { pool: "p".to_owned(), blob: b"tcp://a:1".to_vec(), ..Wish::default() }).unwrap();
    first.set(false, "version", Some(b"3"), soon()).unwrap();
    first.set(true, "role", Some(b"store"), soon()).unwrap();
    let second = bed.join(1, "p");
    second.view(|view| {
        assert_eq!(view.attributes["version"], b"3");
        let member = &view.members[&first.id().unwrap()];
        assert_eq!((&member.attributes["role"][..], &member.blob[..]), (&b"store"[..], &b"tcp://a:1"[..]));
    });
    second.set(false, "version", None, soon()).unwrap();
    events(&first, |change| matches!(change, Change::Set { of: None, value: None, .. }));
    assert!(first.view(|view| view.attributes.is_empty()));
    assert!(
        first.set(false, "a b", Some(b""), soon()).is_err() && first.set(false, "k", Some(&[0; 4097]), soon()).is_err()
    );
    // Longer than a request may be, too: that does not end the membership.
    let long = first.set(false, "k", Some(&[0; 100_000]), soon()).unwrap_err();
    assert!(matches!(long, PoolError::Refused(Refusal::Invalid(_))), "{long}");
    first.set(false, "k", Some(b"1"), soon()).unwrap();
}

fn who_terminates_ends_the_wait_of_all(kind: Kind) {
    let bed = Bed::new(kind, 2);
    let (first, second) = (bed.join(0, "p"), bed.join(1, "p"));
    let in_vain = first.wait_terminated(Some(now_ns() + 1_000_000)).unwrap_err();
    assert_eq!(in_vain.to_string(), "nobody has terminated pool p");
    thread::scope(|scope| {
        let waits = scope.spawn(|| first.wait_terminated(soon()));
        second.terminate(soon()).unwrap();
        waits.join().unwrap().unwrap();
    });
    let late = bed.try_join(0, Wish { pool: "p".to_owned(), ..Wish::default() }).unwrap_err();
    assert!(matches!(late, PoolError::Refused(Refusal::Terminated)), "{late}");
}

fn a_process_that_is_killed_is_dead_though_its_child_lives(kind: Kind) {
    let bed = Bed::new(kind, 2);
    let watch = bed.join(0, "p");
    let mut program = bed.program(1, "p");
    let child: i32 = program.ask("fork").strip_prefix("child ").unwrap().parse().unwrap();
    let killed = Instant::now();
    program.process.kill();
    events(&watch, |change| *change == Change::Died { member: program.id });
    println!("{kind:?}: a death was told after {:?}", killed.elapsed());
    let child = rustix::process::Pid::from_raw(child).unwrap();
    rustix::process::kill_process(child, Signal::KILL).unwrap();
}

fn members_die_with_their_daemon(kind: Kind) {
    let mut bed = Bed::new(kind, 2);
    let watch = bed.join(0, "p");
    let mut program = bed.program(1, "p");
    let killed = Instant::now();
    bed.daemon(1).kill();
    events(&watch, |change| *change == Change::Died { member: program.id });
    println!("{kind:?}: the death of a daemon was told after {:?}", killed.elapsed());
    // Its program learns that it is no member, and a daemon that comes back lets it in again.
    assert_eq!(program.ask("await dead"), "dead the daemon of this host has ended");
    bed.start(1);
    assert!(bed.program(1, "p").id > program.id);
}

fn a_suspected_member_is_checked(kind: Kind) {
    let mut bed = Bed::new(kind, 3);
    let watch = bed.join(0, "p");
    // For one of another daemon there is 1.5 s, which may be too short on a busy machine: `front` tests that.
    let [well, hung] = [0, 2].map(|host| bed.program(host, "p"));
    watch.suspect(well.id, soon()).unwrap();
    bed.daemon(2).signal(Signal::STOP);
    let asked = Instant::now();
    watch.suspect(hung.id, soon()).unwrap();
    let told = events(&watch, |change| *change == Change::Died { member: hung.id });
    println!("{kind:?}: a member of a hung daemon is dead after {:?}", asked.elapsed());
    assert!(!told.iter().any(|event| event.change == Change::Died { member: well.id }));
    assert!(watch.suspect(hung.id, soon()).is_err());
    // A daemon that was taken for lost tells its programs.
    bed.daemon(2).signal(Signal::CONT);
    let mut hung = hung;
    assert!(hung.ask("await dead").starts_with("dead "));
    assert!(watch.view(|view| view.members.contains_key(&well.id)));
}

fn who_reads_nothing_misses_events_and_nothing_else(kind: Kind) {
    let bed = Bed::new(kind, 1);
    let (busy, idle) = (bed.join(0, "p"), bed.join(0, "p"));
    let text = "x".repeat(4000);
    // More than a socket and the daemon keep for a program: 4 MB.
    for _ in 0..1000 {
        busy.signal(&[idle.id().unwrap()], &text, soon()).unwrap();
    }
    busy.set(false, "last", Some(b"1"), soon()).unwrap();
    let mut missed = 0;
    while !idle.view(|view| view.attributes.contains_key("last")) {
        if let Some(Told::Missed(count)) = idle.next_event(soon()).unwrap() {
            missed += count;
        }
    }
    while let Some(told) = idle.next_event(Some(0)).unwrap() {
        missed += if let Told::Missed(count) = told { count } else { 0 };
    }
    assert!((100..1001).contains(&missed), "{missed}");
    idle.signal(&[], "here", soon()).unwrap();
}

fn nonsense_ends_a_session_and_nothing_else(kind: Kind) {
    let bed = Bed::new(kind, 1);
    let member = bed.join(0, "p");
    let request = |entry| Request { number: 1, pool: "p".to_owned(), entry };
    let join = Entry::Join { size: None, rank: None, location: String::new(), blob: Vec::new() };
    let alive = encode(&request(Entry::Lost { daemon: 1 }));
    let long = [&[0xA7, 1][..], &(1u64 << 40).to_le_bytes()[..6], &[POOL]].concat();
    let cases: [(Vec<u8>, &str); 6] = [
        (vec![0; 100], "it has sent nonsense: "),
        (long, "it has sent nonsense: "),
        (encode(&7u8), "it has sent nonsense: "),
        (encode(&request(Entry::Leave)), "it has joined no pool"),
        (
            [encode(&request(join.clone())), encode(&request(join))].concat(),
            "this process is a member of a pool, or wants to be",
        ),
        (alive, "only daemons write that"),
    ];
    for (bytes, why) in cases {
        let mut socket = UnixStream::connect(bed.directory(0).join("daemon.sock")).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(200))).unwrap();
        socket.write_all(&[0xA7, 1, 0, 0, 0, 0, 0, 0, POOL]).unwrap();
        socket.write_all(&bytes).unwrap();
        let mut answer = Vec::new();
        let ended = socket.read_to_end(&mut answer);
        assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset), "{why}");
        let said = String::from_utf8_lossy(&answer);
        assert!(said.contains(why) && answer.len() < 1000, "{said}");
    }
    member.signal(&[], "here", soon()).unwrap();
    // More members than a pool may be large: refused, each with the reason.
    let wish = || Wish { pool: "large".to_owned(), blob: vec![1; 4096], ..Wish::default() };
    let joined: Vec<_> = (0..300).map_while(|_| bed.try_join(0, wish()).ok()).collect();
    assert!((200..300).contains(&joined.len()), "{}", joined.len());
    let full = bed.try_join(0, wish()).unwrap_err();
    assert!(matches!(full, PoolError::Refused(Refusal::Full(_))), "{full}");
    let long = Wish { pool: "p".to_owned(), blob: vec![1; 4097], ..Wish::default() };
    assert!(matches!(bed.try_join(0, long), Err(PoolError::Refused(Refusal::Invalid(_)))));
}

fn without_a_daemon_the_error_says_what_to_type() {
    let wish = Wish { pool: "p".to_owned(), ..Wish::default() };
    let none = Membership::join(&["/nonexistent".into()], wish, soon()).unwrap_err();
    assert!(none.to_string().contains("`madrigal up`"), "{none}");
}

fn members_are_told_that_the_keeper_died() {
    let mut bed = Bed::new(Kind::Keeper, 2);
    let member = bed.join(1, "p");
    bed.daemon(0).kill();
    while member.next_event(soon()).is_ok() {}
    let why = member.dead().unwrap();
    assert!(why.starts_with("host h0, whose daemon keeps the pools, is lost"), "{why}");
    // One that is up again keeps new pools.
    bed.start(0);
    let again = bed.join(1, "p");
    assert_eq!(again.id().unwrap(), 0);
}

fn another_keeper_counts_from_the_next_start_on() {
    let bed = Bed::new(Kind::Keeper, 2);
    // The thread of neither has begun: it begins with the settings of the start.
    bed.change_grid("keeper = 'h0'", "keeper = 'h1'");
    assert!(bed.log(1).contains("[pools] of the grid.toml has changed"), "{}", bed.log(1));
    let members = [bed.join(1, "p"), bed.join(0, "p")];
    members[0].signal(&[], "here", soon()).unwrap();
    let mut bed = bed;
    bed.daemon(0).kill();
    while members[0].next_event(soon()).is_ok() {}
    assert!(members[0].dead().unwrap().starts_with("host h0, whose daemon keeps the pools"));
}

fn pools_in_etcd_outlive_any_host() {
    let mut bed = Bed::new(Kind::Etcd, 3);
    let member = bed.join(2, "p");
    member.set(false, "epoch", Some(b"7"), soon()).unwrap();
    let first = bed.program(0, "p");
    bed.daemon(0).kill();
    events(&member, |change| *change == Change::Died { member: first.id });
    let late = bed.join(1, "p");
    assert_eq!(late.view(|view| (view.members.len(), view.attributes["epoch"].clone())), (2, b"7".to_vec()));
}

fn without_etcd_members_are_told() {
    let mut bed = Bed::new(Kind::Etcd, 1);
    let member = bed.join(0, "p");
    // Hung, not ended: nothing but time tells.
    bed.etcd().signal(Signal::STOP);
    while member.next_event(soon()).is_ok() {}
    let why = member.dead().unwrap();
    assert!(why.starts_with("etcd, where the pools are, is lost: http://127.0.0.1:"), "{why}");
    let none = bed.try_join(0, Wish { pool: "p".to_owned(), ..Wish::default() }).unwrap_err();
    assert!(matches!(none, PoolError::Refused(Refusal::Store(_))), "{none}");
    bed.etcd().signal(Signal::CONT);
    until("a new member is let in", || bed.try_join(0, Wish { pool: "q".to_owned(), ..Wish::default() }).is_ok());
    // What was a member is dead there, too.
    let again = bed.join(0, "p");
    until("the dead one is gone", || again.view(|view| view.members.len()) == 1);
}

fn a_long_log_is_replaced_by_a_snapshot() {
    trials::need("etcdctl");
    let bed = Bed::new(Kind::Etcd, 2);
    let members: Vec<Membership> = (0..2).map(|n| bed.join(n, "p")).collect();
    thread::scope(|scope| {
        for member in &members {
            scope.spawn(move || {
                for round in 0..400u32 {
                    member.set(true, "round", Some(&round.to_le_bytes()), soon()).unwrap();
                }
            });
        }
    });
    let log = bed.keys("/a-test/pools/p/log/");
    assert!(log < 800, "{log} records");
    assert_eq!(bed.keys("/a-test/pools/p/snap"), 1);
    let late = bed.join(0, "p");
    let last = |member: &Membership| late.view(|view| view.members[&member.id().unwrap()].attributes["round"].clone());
    assert_eq!([last(&members[0]), last(&members[1])], [399u32.to_le_bytes().to_vec(), 399u32.to_le_bytes().to_vec()]);
    // Nothing is left of a pool that has ended.
    for member in members.iter().chain([&late]) {
        member.leave(soon()).unwrap();
    }
    until("nothing is left", || bed.keys("/a-test/pools/") == 0);
}

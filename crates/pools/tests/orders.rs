//! The state machine of pools under random schedules: several daemons, each with a copy of the pool, apply one log, each at its own pace, and
//! come and go; programs join, elect, leave and die. Features (docs/features.md): I4.

use std::collections::{BTreeMap, BTreeSet};

use madrigal_pools::pool::Pool;
use madrigal_pools::record::{Entry, Record};
use madrigal_pools::view::{Change, Event, MemberId, View};
use madrigal_seeds::{Random, run};

const DAEMONS: u64 = 4;
const NAMES: [&str; 2] = ["master", "writer"];

/// A member, as its program sees the pool: a snapshot, and the events since.
struct Program {
    me: MemberId,
    view: View,
    told: Vec<Event>,
}

/// A daemon: how far in the log it is, its copy, and its programs by session.
#[derive(Default)]
struct Daemon {
    at: usize,
    pool: Pool,
    programs: BTreeMap<u64, Program>,
}

impl Daemon {
    fn apply(&mut self, number: u64, record: &Record) {
        let applied = self.pool.apply(record);
        for (event, to) in &applied.events {
            for program in self.programs.values_mut() {
                if to.as_ref().is_none_or(|to| to.contains(&program.me)) {
                    program.view.apply(event);
                    program.told.push(event.clone());
                }
            }
        }
        let joined = matches!(record.entry, Entry::Join { .. }).then_some(applied.result.ok().flatten()).flatten();
        if let Some(me) = joined.filter(|_| record.daemon == number) {
            let (view, told) = (self.pool.view().clone(), Vec::new());
            self.programs.insert(record.session, Program { me, view, told });
        }
        let pool = &self.pool;
        self.programs.retain(|session, program| {
            let stays = pool.session_of(program.me) == Some((number, *session));
            assert!(
                !stays || signals_aside(&program.view) == signals_aside(pool.view()),
                "a view differs from the pool"
            );
            stays
        });
        self.at += 1;
    }
}

fn signals_aside(view: &View) -> View {
    View { next: 0, ..view.clone() }
}

fn entry(random: &mut Random, size: Option<u32>) -> Entry {
    let name = NAMES[random.below(2) as usize];
    match random.below(16) {
        0..5 => Entry::Join { size, rank: None, location: "a1@a".to_owned(), blob: vec![1, 2] },
        5 => Entry::Leave,
        6 | 7 => Entry::Died,
        8..12 => Entry::Elect { name: name.to_owned(), for_life: name == "master" },
        12 => Entry::Signal { to: vec![random.below(4)], text: "now".to_owned() },
        13 => Entry::Set { own: random.once_in(2), key: "k".to_owned(), value: Some(vec![7; 9]) },
        14 => Entry::Suspect { member: random.below(5) },
        _ if random.once_in(8) => Entry::Lost { daemon: random.below(DAEMONS) },
        _ => Entry::Alive,
    }
}

/// What must hold of the events of one pool's life.
#[derive(Default)]
struct Checked {
    joined: BTreeSet<MemberId>,
    ended: BTreeSet<MemberId>,
    closed_at: Option<usize>,
    winners: BTreeMap<String, MemberId>,
    next: u64,
}

impl Checked {
    fn see(&mut self, event: &Event, size: Option<u32>) {
        assert_eq!(event.number, self.next, "a number is missing");
        self.next += 1;
        match &event.change {
            Change::Joined { member, .. } => {
                assert!(self.closed_at.is_none(), "let in though it is closed");
                assert!(self.joined.insert(*member), "two members with one id");
            }
            Change::Closed => {
                let living = self.joined.len() - self.ended.len();
                assert_eq!(Some(living), size.map(|size| size as usize), "closed with another size");
                assert!(self.closed_at.replace(living).is_none(), "closed twice");
            }
            Change::Left { member } | Change::Died { member } => {
                assert!(self.joined.contains(member) && self.ended.insert(*member), "ended twice");
            }
            Change::Elected { name, winner, .. } => {
                assert!(self.joined.contains(winner) && !self.ended.contains(winner), "a winner that is not there");
                assert!(self.winners.insert(name.clone(), *winner).is_none(), "two winners");
            }
            Change::Vacant { name } => {
                let gone = self.winners.remove(name).expect("it had a winner");
                assert!(
                    name != "master" && self.ended.contains(&gone),
                    "vacant though the winner is there, or for life"
                );
            }
            Change::Set { .. } | Change::Signal { .. } | Change::Terminated { .. } => {}
        }
    }
}

/// Total order equal at every member, never two winners, closed pools of exactly their size, each end told once.
#[test]
fn all_members_see_one_order_and_never_two_winners() {
    run(400, |seed| {
        let mut random = Random::new(seed);
        let size = [None, Some(3), Some(5)][random.below(3) as usize];
        let mut log: Vec<Record> = Vec::new();
        let mut daemons: Vec<Daemon> = (0..DAEMONS).map(|_| Daemon::default()).collect();
        let (mut judge, mut checked, mut history) = (Pool::default(), Checked::default(), Vec::new());
        for step in 0..300 {
            let (daemon, session) = (random.below(DAEMONS), random.below(4));
            if random.once_in(3) {
                let record = Record { daemon, session, request: step, entry: entry(&mut random, size) };
                let life = judge.is_empty();
                if life {
                    (checked, history) = (Checked::default(), Vec::new());
                }
                for (event, to) in judge.apply(&record).events {
                    checked.see(&event, size);
                    history.push((event, to));
                }
                log.push(record);
            } else if random.once_in(40) {
                // A daemon begins anew with a snapshot of a pool elsewhere; its programs died with it, in the log.
                let at = random.below(DAEMONS) as usize;
                log.push(Record { daemon, session: 0, request: 0, entry: Entry::Lost { daemon } });
                for (event, to) in judge.apply(log.last().expect("one")).events {
                    checked.see(&event, size);
                    history.push((event, to));
                }
                while daemons[at].at < log.len() {
                    let record = log[daemons[at].at].clone();
                    daemons[at].apply(at as u64, &record);
                }
                let (pool, position) = (daemons[at].pool.clone(), daemons[at].at);
                daemons[daemon as usize] = Daemon { at: position, pool, programs: BTreeMap::new() };
            } else if let Some(record) = log.get(daemons[daemon as usize].at).cloned() {
                daemons[daemon as usize].apply(daemon, &record);
            }
        }
        for (number, daemon) in (0..).zip(&mut daemons) {
            while let Some(record) = log.get(daemon.at) {
                daemon.apply(number, record);
            }
            assert_eq!(daemon.pool, judge, "two copies differ");
            for program in daemon.programs.values() {
                let mine = |to: &Option<Vec<MemberId>>| to.as_ref().is_none_or(|to| to.contains(&program.me));
                let since = history.iter().filter(|(event, to)| {
                    program.told.first().is_some_and(|first| event.number >= first.number) && mine(to)
                });
                let expected: Vec<&Event> = since.map(|(event, _)| event).collect();
                assert_eq!(program.told.iter().collect::<Vec<_>>(), expected, "another order");
            }
        }
    });
}

/// Nothing that members may send makes a pool larger than a snapshot may be.
#[test]
fn a_pool_keeps_its_bounds() {
    let mut pool = Pool::default();
    let join = |session| {
        let entry = Entry::Join { size: None, rank: None, location: String::new(), blob: vec![0; 4096] };
        Record { daemon: 1, session, request: 1, entry }
    };
    let joined = (0..1000).take_while(|session| pool.apply(&join(*session)).result.is_ok()).count();
    assert!((200..300).contains(&joined), "{joined}");
    let refused = pool.apply(&join(1000)).result;
    assert!(matches!(refused, Err(madrigal_pools::Refusal::Full(_))), "{refused:?}");
    // What a member had is free when it ends.
    pool.apply(&Record { daemon: 1, session: 0, request: 2, entry: Entry::Died });
    assert!(pool.apply(&join(1000)).result.is_ok());
    let set = |value| Entry::Set { own: true, key: "k".to_owned(), value };
    for value in [vec![0; 4097], vec![]] {
        let is_long = !value.is_empty();
        let record = Record { daemon: 1, session: 1, request: 3, entry: set(Some(value)) };
        assert_eq!(pool.apply(&record).result.is_err(), is_long);
    }
    for name in ["", "a b", "a/b", &"n".repeat(65)] {
        let entry = Entry::Elect { name: name.to_owned(), for_life: false };
        assert!(pool.apply(&Record { daemon: 1, session: 1, request: 4, entry }).result.is_err(), "{name}");
    }
    pool.apply(&Record { daemon: 2, session: 0, request: 0, entry: Entry::Lost { daemon: 1 } });
    assert_eq!(pool, Pool::default());
}

/// Ranks of a launcher: all members have one, each its own.
#[test]
fn ranks_are_had_once() {
    let mut pool = Pool::default();
    let mut join = |session, size, rank| {
        let entry = Entry::Join { size, rank, location: String::new(), blob: Vec::new() };
        pool.apply(&Record { daemon: 1, session, request: 1, entry }).result
    };
    assert!(join(1, Some(2), Some(2)).is_err());
    assert!(join(2, Some(2), Some(1)).is_ok());
    assert!(join(3, Some(2), Some(1)).is_err());
    assert!(join(4, Some(2), None).is_err());
    assert!(join(5, Some(3), Some(0)).is_err());
    assert!(join(6, Some(2), Some(0)).is_ok());
    assert!(join(7, Some(2), Some(0)).is_err());
    let ranks: Vec<_> = pool.view().members.values().map(|member| member.rank).collect();
    assert_eq!((pool.view().closed, ranks), (true, vec![Some(1), Some(0)]));
}

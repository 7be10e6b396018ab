//! Processes that join, fight for an election, leave, and are killed at random. A winner takes a lock that is a file: two winners would meet
//! there.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use madrigal_pools::client::Told;
use madrigal_pools::{Change, MemberId, Membership, PoolError, Refusal, Wish};
use madrigal_seeds::Random;

use crate::bed::{Bed, Kind, LONG, Process, Test, play, soon};

/// Over each store.
pub(crate) const TESTS: &[Test] = &[("never_two_winners_in_a_storm_of_processes", never_two_winners)];

/// Processes at one time, and in all.
const AT_ONCE: usize = 24;
const IN_ALL: usize = 200;

/// How a rival ends that met another winner.
const MET: i32 = 3;
/// How one ends that the store has given up, as it may when it is silent for long.
const LOST: i32 = 4;
/// How one ends to which a call gave another error.
const FAILED: i32 = 5;

/// One of them: joins, wants to be elected, and if it is, takes the lock for a moment. Then it leaves, dies, or begins anew.
pub(crate) fn rival(directory: &str, pool: &str, seed: u64) {
    let mut random = Random::new(seed);
    let directory = PathBuf::from(directory);
    let lock = directory.with_file_name("winner");
    let wish = Wish { pool: pool.to_owned(), blob: std::process::id().to_string().into_bytes(), ..Wish::default() };
    let member = or_end("join", Membership::join(std::slice::from_ref(&directory), wish, soon()));
    let own = member.id().unwrap();
    loop {
        let (winner, number) = or_end("elect", member.elect("master", false, soon()));
        if winner == own {
            take(&lock, &format!("{} member={own} election={number} {}", std::process::id(), directory.display()));
            std::thread::sleep(Duration::from_millis(random.below(20)));
            if random.once_in(3) {
                let own = rustix::process::getpid();
                rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
            }
            std::fs::remove_file(&lock).unwrap();
            return or_end("leave", member.leave(soon()));
        }
        if random.once_in(40) {
            return;
        }
        // Until something has changed.
        let _ = member.next_event(Some(madrigal_sys::time::now_ns() + 50_000_000));
    }
}

/// What a call gave; else the end of this process, which says why.
fn or_end<R>(call: &str, given: Result<R, PoolError>) -> R {
    given.unwrap_or_else(|error| {
        eprintln!("rival {}: {call}: {error}", std::process::id());
        let is_lost = matches!(error, PoolError::Lost(_) | PoolError::Refused(Refusal::Store(_)));
        std::process::exit(if is_lost { LOST } else { FAILED })
    })
}

/// Takes the lock, as `who`, which begins with the pid: nobody has it, or one that is dead.
fn take(lock: &std::path::Path, who: &str) {
    let own = lock.with_file_name(format!("winner-{}", std::process::id()));
    std::fs::write(&own, who).unwrap();
    if let Ok(holder) = std::fs::read_to_string(lock) {
        let pid = holder.split(' ').next().unwrap_or_default();
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // Its sockets are closed before it is a zombie: from PF_EXITING (4) on, it does nothing more (proc_pid_stat(5), `flags`).
        let rest: Vec<&str> = state.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let flags = rest.get(6).map_or(4, |flags| flags.parse::<u32>().unwrap_or(0));
        if flags & 4 == 0 {
            eprintln!("{who} met {holder}: {state}");
            std::process::exit(MET);
        }
    }
    std::fs::rename(own, lock).unwrap();
}

fn never_two_winners(kind: Kind) {
    let bed = Bed::new(kind, 3);
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(std::process::id().into());
    println!("{kind:?}: SEED={seed}");
    let mut random = Random::new(seed);
    let watch = bed.join(0, "storm");
    let mut running: Vec<Process> = Vec::new();
    let (mut begun, mut killed_at) = (0, BTreeMap::<u32, Instant>::new());
    let (mut seen, mut lost) = (Seen::default(), 0);
    let started = Instant::now();
    while begun < IN_ALL || !running.is_empty() {
        assert!(started.elapsed() < 5 * LONG, "{begun} begun, {} run", running.len());
        while begun < IN_ALL && running.len() < AT_ONCE {
            let host = random.below(3) as usize;
            let part = format!("rival {} storm {}", bed.directory(host).display(), random.any());
            running.push(Process(play(&part).stdin(Stdio::null()).spawn().unwrap()));
            begun += 1;
        }
        // One that has joined, or any.
        let members: Vec<u32> = seen.pids.values().copied().filter(|pid| *pid != 0).collect();
        let chosen = members.get(random.below(members.len() as u64) as usize).filter(|_| !random.once_in(8)).copied();
        let at = running.iter().position(|one| chosen == Some(one.0.id()) || (chosen.is_none() && random.once_in(8)));
        if let Some(at) = at {
            killed_at.insert(running[at].0.id(), Instant::now());
            running[at].kill();
        }
        running.retain_mut(|process| {
            let ended = process.0.try_wait().unwrap();
            // `None` of one that was killed.
            match ended.and_then(|status| status.code()) {
                None | Some(0) => {}
                Some(LOST) => lost += 1,
                Some(MET) => panic!("two winners at one time"),
                Some(code) => panic!("a rival failed: {code}"),
            }
            ended.is_none()
        });
        while let Some(told) = watch.next_event(Some(madrigal_sys::time::now_ns() + 10_000_000)).unwrap() {
            seen.see(told, &killed_at);
        }
    }
    // All are gone, and that is told.
    while watch.view(|view| view.members.len()) > 1 {
        assert!(started.elapsed() < 5 * LONG, "ghosts: {:?}", seen.pids);
        if let Some(told) = watch.next_event(soon()).unwrap() {
            seen.see(told, &killed_at);
        }
    }
    let most = seen.told_after.iter().max().copied().unwrap_or_default();
    println!(
        "{kind:?}: {} joined, {} left, {} died, {} elections, {lost} lost; the latest of {} deaths by kill -9 was told after {most:?}",
        seen.joined,
        seen.left,
        seen.died,
        seen.elected,
        seen.told_after.len()
    );
    // A store in the same daemons has no reason to give one up; etcd may, on a machine that is busy for seconds.
    let most_lost = if kind == Kind::Keeper { 0 } else { IN_ALL / 5 };
    assert!(lost <= most_lost, "{lost} rivals were lost");
    assert!(seen.elected > 10 && seen.died > 10 && seen.joined > IN_ALL / 2);
}

/// What the member that watches was told.
#[derive(Default)]
struct Seen {
    pids: BTreeMap<MemberId, u32>,
    winner: Option<MemberId>,
    next: Option<u64>,
    joined: usize,
    left: usize,
    died: usize,
    elected: usize,
    told_after: Vec<Duration>,
}

impl Seen {
    fn see(&mut self, told: Told, killed_at: &BTreeMap<u32, Instant>) {
        let Told::Event(event) = told else { panic!("it reads all: {told:?}") };
        assert!(self.next.is_none_or(|next| next == event.number), "a number is missing");
        self.next = Some(event.number + 1);
        match event.change {
            Change::Joined { member, details } => {
                self.joined += 1;
                let pid = String::from_utf8(details.blob).unwrap().parse().unwrap_or(0);
                assert!(self.pids.insert(member, pid).is_none());
            }
            Change::Left { member } => {
                self.left += 1;
                self.pids.remove(&member).unwrap();
            }
            Change::Died { member } => {
                self.died += 1;
                let pid = self.pids.remove(&member).unwrap();
                self.told_after.extend(killed_at.get(&pid).map(Instant::elapsed));
            }
            Change::Elected { winner, .. } => {
                self.elected += 1;
                assert!(self.winner.replace(winner).is_none() && self.pids.contains_key(&winner));
            }
            Change::Vacant { .. } => {
                let gone = self.winner.take().unwrap();
                assert!(!self.pids.contains_key(&gone));
            }
            _ => {}
        }
    }
}

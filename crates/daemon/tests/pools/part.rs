//! What the processes do that the tests start: each is this program, with a part in its environment.

use std::io::{BufRead as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use madrigal_daemon::grid::Grid;
use madrigal_daemon::{Daemon, Runtime};
use madrigal_pools::client::Told;
use madrigal_pools::{Change, Membership, Wish};

use crate::storm;

/// The variable that has the part.
pub(crate) const PART: &str = "POOLS_TEST_PART";

/// Plays the part of this process, if it has one.
pub(crate) fn play() -> Option<ExitCode> {
    let part = std::env::var(PART).ok()?;
    let words: Vec<&str> = part.split(' ').collect();
    match words[..] {
        ["daemon", grid, host, directory] => daemon(grid, host, directory),
        ["member", directory, pool] => member(directory, pool),
        ["rival", directory, pool, seed] => storm::rival(directory, pool, seed.parse().unwrap()),
        _ => panic!("no part: {part}"),
    }
    Some(ExitCode::SUCCESS)
}

fn daemon(grid: &str, host: &str, directory: &str) {
    let file = PathBuf::from(grid);
    let grid = Grid::read(grid, &std::fs::read_to_string(&file).unwrap()).unwrap();
    let runtime = Runtime::at(PathBuf::from(directory));
    let mut daemon = Daemon::new(grid, host, Err("a test has none".to_owned()), runtime).unwrap();
    daemon.reads(&file);
    daemon.run().unwrap();
}

/// A member that says what it is told, and does what its standard input says: `elect NAME`, `leave`, `fork`.
fn member(directory: &str, pool: &str) {
    let wish = Wish { pool: pool.to_owned(), blob: own_pid().to_string().into_bytes(), ..Wish::default() };
    let joined = Membership::join(&[PathBuf::from(directory)], wish, crate::bed::soon()).unwrap();
    say(&format!("joined {}", joined.id().unwrap()));
    for line in std::io::stdin().lock().lines() {
        match line.unwrap().split(' ').collect::<Vec<_>>()[..] {
            ["elect", name] => {
                let (winner, _) = joined.elect(name, false, crate::bed::soon()).unwrap();
                say(&format!("elected {winner}"));
            }
            ["leave"] => {
                joined.leave(crate::bed::soon()).unwrap();
                say("left");
            }
            ["await", "dead"] => {
                while joined.next_event(crate::bed::soon()).is_ok_and(|told| told.is_some()) {}
                say(&format!("dead {}", joined.dead().unwrap_or_default()));
            }
            ["await", "left", member] => {
                let is_it = |told| matches!(told, Told::Event(event) if matches!(event.change, Change::Left { member: m } if m.to_string() == member));
                while !joined.next_event(crate::bed::soon()).unwrap().is_some_and(is_it) {}
                say("seen");
            }
            ["fork"] => {
                // The child has the socket to the daemon, too, and outlives this process.
                let socket = joined.socket().try_clone_to_owned().unwrap();
                let command = "exec 3<&0; sleep 60 >&- 2>&- & echo $!";
                let shell = std::process::Command::new("sh").args(["-c", command]).stdin(socket).output().unwrap();
                say(&format!("child {}", String::from_utf8(shell.stdout).unwrap().trim()));
            }
            ref other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn own_pid() -> u32 {
    std::process::id()
}

fn say(line: &str) {
    println!("{line}");
    std::io::stdout().flush().unwrap();
}

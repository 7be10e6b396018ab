//! The launcher's standard input, and the ranks that get it.

use std::collections::BTreeSet;

use crate::command_line::Input;

/// Read at once; a rank that has not taken it gets no more.
const PIECE: usize = 32 << 10;

pub(super) struct Stdin {
    targets: Vec<u32>,
    others: Vec<u32>,
    /// Ranks that were sent something and have not taken it.
    busy: BTreeSet<u32>,
    over: bool,
}

impl Stdin {
    pub(super) fn new(whose: Input, size: usize) -> Self {
        let all = 0..size as u32;
        let wants = |rank: &u32| match whose {
            Input::First => *rank == 0,
            Input::Rank(wanted) => *rank == wanted,
            Input::All => true,
            Input::None => false,
        };
        let (targets, others) = all.partition(wants);
        Self { targets, others, busy: BTreeSet::new(), over: false }
    }

    /// Ranks that get nothing.
    pub(super) fn others(&self) -> Vec<u32> {
        self.others.clone()
    }

    /// Whether more must be read; never in the background, where that would stop the launcher (SIGTTIN).
    pub(super) fn is_wanted(&self) -> bool {
        !self.over && !self.targets.is_empty() && self.busy.is_empty() && is_in_front()
    }

    pub(super) fn taken(&mut self, rank: u32) {
        self.busy.remove(&rank);
    }

    /// What has come, and for which ranks; nothing: it has ended.
    pub(super) fn read(&mut self) -> (Vec<u32>, Vec<u8>) {
        let mut bytes = vec![0; PIECE];
        match rustix::io::read(rustix::stdio::stdin(), &mut bytes) {
            Ok(n @ 1..) => {
                bytes.truncate(n);
                self.busy = self.targets.iter().copied().collect();
            }
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => return (Vec::new(), Vec::new()),
            Ok(0) | Err(_) => {
                bytes.clear();
                self.over = true;
            }
        }
        (self.targets.clone(), bytes)
    }
}

fn is_in_front() -> bool {
    let stdin = rustix::stdio::stdin();
    !rustix::termios::isatty(stdin)
        || rustix::termios::tcgetpgrp(stdin).is_ok_and(|group| group == rustix::process::getpgrp())
}

//! The allowed differences between a plain run and a wrapped one, with reasons. There is no other tolerance anywhere.
//!
//! One thing is not tried: to stop and continue (`SIGSTOP`, `SIGCONT`) a process that sleeps in the middle of a blocking transfer. Linux
//! ends that transfer short, as if a handler had run; poll(2), in which ours sleeps, does not report it, and all of it is transferred.

use serde::{Deserialize, Serialize};

macro_rules! rules {
    ($($name:ident: $reason:literal;)*) => {
        /// A reason for which a difference is none.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
        pub enum Rule {
            $(#[doc = $reason] $name),*
        }

        impl Rule {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The reason.
            pub fn reason(self) -> &'static str {
                match self { $(Self::$name => $reason),* }
            }
        }
    };
}

rules! {
    BufferRoom: "how much fits into a connection that nobody reads is each implementation's own";
    HeldBack: "the kernel held bytes back for long (a full window, Nagle), so that nobody knows what has arrived when, and is answered";
    BufferSize: "the kernel tunes SO_SNDBUF and SO_RCVBUF by what passes through it, unless the program sets them";
    Unnoticed: "a peer killed in the tick in which it was found alive may have left a send in the ring, and a look may come too soon";
    ToldOnce: "the kernel tells an error once and says none before: a program that is not wrapped may find it told, or another one, or a killed peer's end for its reset";
    LeftBeside: "what a peer that is gone left in a ring, or in front of doorbells, is its holder's: a program executed beside it finds a reset, one that is spawned no descriptor";
    ForNothing: "a receive of no bytes ends with whatever wakes its thread, such as an acknowledgement, which comes as it happens to";
    LastBell: "the kernel resets a connection whose killed end had doorbells unread: a program executed by the other end's does not know of them, nor does a FILE";
    PortTaken: "a connection that is made anew for a program that is executed may find its ports with others, also those of connections that are over";
    EdgeAgain: "Linux tells of a registration anew whenever it is modified, as ours are when a connection enters or leaves a ring; of a one-shot one not again";
    KernelTurn: "while rings answer the kernel is asked every 50 us, or every 64 answers: what other descriptors have to tell comes with the next wait";
    Asleep: "the kernel sends no SIGIO for bytes that a receive is asleep for, as one may be or not while the other end sends";
    Tick: "the kernel rounds a socket's time-out to its ticks, so that a timer of about that time comes before or behind it";
    UrgentAlone: "the kernel calls a lone urgent byte readable, though no receive returns it, while its window is below a segment";
    FaultSplit: "how much of a transfer precedes a bad page depends on how the kernel cut the stream into segments";
}

/// How often each rule was used.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct Counts(Vec<u64>);

impl Counts {
    /// A rule was used.
    pub fn count(&mut self, rule: Rule) {
        self.0.resize(Rule::ALL.len(), 0);
        self.0[rule as usize] += 1;
    }

    /// Takes over what another one counted.
    pub fn add(&mut self, other: &Self) {
        self.0.resize(Rule::ALL.len(), 0);
        for (own, more) in self.0.iter_mut().zip(&other.0) {
            *own += more;
        }
    }

    /// Each rule and how often it was used.
    pub fn list(&self) -> impl Iterator<Item = (Rule, u64)> + '_ {
        Rule::ALL.iter().map(|rule| (*rule, self.0.get(*rule as usize).copied().unwrap_or(0)))
    }
}

//! A program as data: actors, descriptors, and the steps in order.

use serde::{Deserialize, Serialize};

use crate::op::{ActorId, Ctl, Data, Handler, Op, Slot, Time};
use crate::via::{CloseVia, EpollVia, PollVia, RecvVia, SendVia, StormVia};

/// Most actors a program may have.
pub const ACTORS: usize = 40;
/// Most steps a program may have.
pub const STEPS: usize = 320;
/// Most slots a program may have.
pub const SLOTS: usize = 160;
/// Most connections with streams of their own.
pub const CONNS: usize = 24;

/// What a seed is mostly about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[allow(missing_docs)] // each is named after what it prefers
pub enum Theme {
    Mixed,
    Data,
    Memory,
    Peek,
    Ready,
    Edge,
    Sets,
    HalfClose,
    Close,
    Descriptors,
    Fork,
    Exec,
    Passing,
    Kill,
    Signals,
    Cancel,
    Options,
    Stdio,
    Files,
    Aio,
    Urgent,
    Bulk,
    Threads,
    Connect,
    Churn,
    Loops,
    Share,
    Duplex,
    Relays,
    Crash,
}

impl Theme {
    /// Whether its programs run freely.
    pub fn is_free(self) -> bool {
        use Theme::{Churn, Crash, Duplex, Loops, Relays, Share};
        matches!(self, Churn | Loops | Share | Duplex | Relays | Crash)
    }
}

/// Which processes are wrapped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Serialize, Deserialize, clap::ValueEnum)]
pub enum Side {
    /// None: what the others are compared with.
    Plain,
    /// All.
    Both,
    /// Those that connect.
    Client,
    /// Those that accept.
    Server,
}

/// What a process does with connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Role {
    /// It accepts them.
    Server,
    /// It makes them.
    Client,
}

/// A process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Process {
    /// Its role, which a child has from its parent.
    pub role: Role,
    /// True: it is there from the start; else a step makes it.
    pub initial: bool,
}

/// A thread.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Actor {
    /// Its process.
    pub process: u8,
    /// True for the thread a process begins with.
    pub main: bool,
}

/// What a slot holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Kind {
    /// An end of a connection: which, and 0 for the connecting side, 1 for the accepting one.
    End(u8, u8),
    /// The same as a `FILE`.
    File(u8, u8),
    /// A listener.
    Listener,
    /// An epoll set.
    Set,
    /// A Unix socket.
    Unix,
}

/// One step.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Step {
    /// The actor that makes it.
    pub actor: ActorId,
    /// What it is.
    pub op: Op,
    /// It is made at the same time as the next one.
    #[serde(default, skip_serializing_if = "is_false")]
    pub together: bool,
    /// The kernel may hold back what it sends: nothing is checked before the next step is done.
    #[serde(default, skip_serializing_if = "is_false")]
    pub held: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde wants it
fn is_false(value: &bool) -> bool {
    !value
}

/// A program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Program {
    /// Where it comes from.
    pub seed: u64,
    /// What it is about.
    pub theme: Theme,
    /// Whether every actor goes through its own steps freely.
    pub free: bool,
    /// Whether all run on one processor.
    pub one_cpu: bool,
    /// Processes.
    pub processes: Vec<Process>,
    /// Threads.
    pub actors: Vec<Actor>,
    /// Descriptors.
    pub slots: Vec<Kind>,
    /// Steps.
    pub steps: Vec<Step>,
}

/// What a step needs for itself while it lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// It writes to this stream.
    Produce(u8),
    /// It reads from this stream.
    Consume(u8),
    /// It waits for what comes by this stream.
    Watch(u8),
    /// It takes from this listener or Unix socket.
    Take(Slot),
    /// It waits in this set.
    Wait(Slot),
}

/// The stream by which a side of a connection sends.
pub fn stream_out(conn: u8, side: u8) -> u8 {
    conn * 2 + side
}

/// The stream by which it receives.
pub fn stream_in(conn: u8, side: u8) -> u8 {
    conn * 2 + (1 - side)
}

impl Program {
    /// The connection and side of a slot, if it is one.
    pub fn end(&self, slot: Slot) -> Option<(u8, u8)> {
        match self.slots.get(slot as usize)? {
            Kind::End(conn, side) | Kind::File(conn, side) => Some((*conn, *side)),
            _ => None,
        }
    }

    /// The stream a slot sends by; 255 if it is no connection.
    pub fn out(&self, slot: Slot) -> u8 {
        self.end(slot).map_or(255, |(conn, side)| stream_out(conn, side))
    }

    /// The stream a slot receives by; 255 if it is no connection.
    pub fn incoming(&self, slot: Slot) -> u8 {
        self.end(slot).map_or(255, |(conn, side)| stream_in(conn, side))
    }

    /// Whether a signal handler ever sends by a stream.
    pub fn handlers_send_on(&self, stream: u8) -> bool {
        let sends = |op: &Op| matches!(op, Op::Handle(Handler::Send(slot, _)) if self.out(*slot) == stream);
        self.steps.iter().any(|step| sends(&step.op))
    }

    /// Whether an event set is ever asked for edges.
    pub fn has_edges(&self) -> bool {
        let edge = |op: &Op| matches!(op, Op::EpollCtl { events, .. } if events & libc::EPOLLET as u32 != 0);
        self.steps.iter().any(|step| edge(&step.op))
    }

    /// The main thread of a process.
    pub fn main_of(&self, process: u8) -> Option<ActorId> {
        self.actors.iter().position(|a| a.process == process && a.main).map(|at| at as ActorId)
    }

    /// Whether an actor ever begins.
    pub fn begins(&self, actor: ActorId) -> bool {
        let what = &self.actors[actor as usize];
        let initial = what.main && self.processes[what.process as usize].initial;
        initial || self.steps.iter().any(|step| step.op.starts() == Some(actor))
    }

    /// Whether processes are killed at any moment, so that their progress is unknown.
    pub fn is_violent(&self) -> bool {
        self.free && self.steps.iter().any(|step| matches!(step.op, Op::KillAfter { .. }))
    }

    /// What a step needs for itself.
    pub fn needs(&self, op: &Op) -> Vec<Need> {
        match op {
            Op::Send(data) => vec![Need::Produce(self.out(data.slot))],
            Op::SendAll { slot, .. } | Op::FileWrite { file: slot, .. } => vec![Need::Produce(self.out(*slot))],
            Op::Recv(data) => vec![Need::Consume(self.incoming(data.slot))],
            Op::RecvAll { slot, .. }
            | Op::RecvToEnd { slot, .. }
            | Op::Drain { slot, .. }
            | Op::Timed { slot, .. }
            | Op::FileRead { file: slot, .. } => vec![Need::Consume(self.incoming(*slot))],
            Op::Exchange { slot, .. } => vec![Need::Produce(self.out(*slot)), Need::Consume(self.incoming(*slot))],
            Op::Poll { entries, time, .. } if *time == Time::Forever => {
                entries.iter().flat_map(|(slot, _)| self.watched(*slot, 0)).collect()
            }
            Op::EpollWait { set, time, .. } if *time == Time::Forever => {
                let mut needs = self.watched(*set, 0);
                needs.push(Need::Wait(*set));
                needs
            }
            Op::Accept { from, .. } | Op::UnixAccept { from, .. } => vec![Need::Take(*from)],
            Op::Take { through, .. } => vec![Need::Take(*through)],
            _ => Vec::new(),
        }
    }

    /// What a wait for this slot depends on; a set depends on everything that is ever put into it.
    fn watched(&self, slot: Slot, depth: u8) -> Vec<Need> {
        match self.slots.get(slot as usize) {
            Some(Kind::End(conn, side)) => vec![Need::Watch(stream_in(*conn, *side))],
            Some(Kind::Set) if depth < 4 => {
                let added = self.steps.iter().filter_map(|step| match &step.op {
                    Op::EpollCtl { set, what: Ctl::Add, slot: member, .. } if *set == slot => Some(*member),
                    _ => None,
                });
                added.flat_map(|member| self.watched(member, depth + 1)).collect()
            }
            Some(Kind::Listener | Kind::Unix) => vec![Need::Take(slot)],
            _ => Vec::new(),
        }
    }
}

impl Op {
    /// Whether the sequencer does it itself.
    pub fn is_sequencers(&self) -> bool {
        matches!(
            self,
            Op::Kill { .. }
                | Op::Stop { .. }
                | Op::Continue { .. }
                | Op::Signal { .. }
                | Op::InterruptAll
                | Op::KillAfter { .. }
        )
    }

    /// Whether it may sleep until another step wakes it, by the call alone.
    pub fn may_block(&self) -> bool {
        match self {
            // The C library's threads make them, and the caller waits for those.
            Op::Send(Data { via: SendVia::Aio | SendVia::Lio, .. }) | Op::Recv(Data { via: RecvVia::Aio, .. }) => false,
            Op::Send(data) => data.flags & libc::MSG_DONTWAIT == 0,
            Op::Recv(data) => data.flags & libc::MSG_DONTWAIT == 0,
            Op::Accept { .. } | Op::UnixAccept { .. } | Op::Take { .. } | Op::FileRead { .. } => true,
            Op::Poll { time, .. } | Op::EpollWait { time, .. } => *time == Time::Forever,
            _ => false,
        }
    }

    /// Whether it blocks signals while its child ends: SIGCHLD is then pending for a moment, which may make another thread's call
    /// begin anew.
    pub fn blocks_signals(&self) -> bool {
        use StormVia::{Popen, Spawn, Spawnp, System};
        matches!(self, Op::Child { via: Spawn | Spawnp | System | Popen })
    }

    /// Whether a thread that sleeps in it can be cancelled.
    pub fn can_be_cancelled(&self) -> bool {
        match self {
            Op::Send(data) => {
                !matches!(data.via, SendVia::SysWrite | SendVia::SysSendto | SendVia::SysSendmsg | SendVia::SysWritev)
            }
            Op::Recv(data) => {
                !matches!(data.via, RecvVia::SysRead | RecvVia::SysRecvfrom | RecvVia::SysRecvmsg | RecvVia::SysReadv)
            }
            Op::Poll { via, .. } => *via != PollVia::SysPoll,
            Op::EpollWait { via, .. } => *via != EpollVia::SysWait,
            _ => true,
        }
    }

    /// The slots a step names.
    pub fn slots(&self) -> Vec<Slot> {
        match self {
            Op::Poll { entries, .. } => entries.iter().map(|(slot, _)| *slot).collect(),
            Op::Send(Data { slot, .. }) | Op::Recv(Data { slot, .. }) => vec![*slot],
            Op::Connect { slot, to, .. } | Op::UnixConnect { slot, to } => vec![*slot, *to],
            Op::Accept { slot, from, .. } | Op::UnixAccept { slot, from } => vec![*slot, *from],
            Op::EpollCtl { set, slot, .. } => vec![*set, *slot],
            Op::Dup { slot, new, .. } => vec![*slot, *new],
            Op::DupOver { slot, over, new } => vec![*slot, *over, *new],
            Op::Pass { through, slot } | Op::Take { through, slot } => vec![*through, *slot],
            Op::Fdopen { slot, file, .. } => vec![*slot, *file],
            Op::UnixPair { slot, other } => vec![*slot, *other],
            Op::EpollWait { set: slot, .. }
            | Op::FileWrite { file: slot, .. }
            | Op::FileRead { file: slot, .. }
            | Op::FileClose { file: slot }
            | Op::Handle(Handler::Send(slot, _) | Handler::Receive(slot, _))
            | Op::Listen { slot, .. }
            | Op::Shutdown { slot, .. }
            | Op::Close { slot, .. }
            | Op::Exchange { slot, .. }
            | Op::SendAll { slot, .. }
            | Op::RecvAll { slot, .. }
            | Op::RecvToEnd { slot, .. }
            | Op::Drain { slot, .. }
            | Op::Timed { slot, .. }
            | Op::EpollCreate { slot }
            | Op::SetOption { slot, .. }
            | Op::GetOption { slot, .. }
            | Op::Ioctl { slot, .. }
            | Op::AtMark { slot }
            | Op::NonBlocking { slot, .. }
            | Op::Flags { slot }
            | Op::Names { slot }
            | Op::Own { slot }
            | Op::UnixListen { slot }
            | Op::OddFiles { slot }
            | Op::Duplex { slot, .. }
            | Op::FileEcho { slot }
            | Op::Share { slot, .. } => vec![*slot],
            _ => Vec::new(),
        }
    }

    /// Whether it may change connections that it does not name.
    pub fn touches_all(&self) -> bool {
        matches!(
            self,
            Op::Exit { .. }
                | Op::Kill { .. }
                | Op::Exec { .. }
                | Op::Fork { .. }
                | Op::Spawn { .. }
                | Op::Child { .. }
                | Op::WaitChild { .. }
                | Op::Continue { .. }
                | Op::Signal { .. }
                | Op::InterruptAll
                | Op::Cancel { .. }
                | Op::Close { via: CloseVia::Closefrom, .. }
        )
    }

    /// Whether this process is gone, or another one, when it is done.
    pub fn ends_process(&self) -> bool {
        matches!(self, Op::Exit { .. })
    }

    /// The actor it starts, if any.
    pub fn starts(&self) -> Option<ActorId> {
        match self {
            Op::Thread { actor } | Op::Fork { actor, .. } | Op::Spawn { actor, .. } => Some(*actor),
            _ => None,
        }
    }
}

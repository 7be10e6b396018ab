//! The operation of a step: one call of the C library, or a loop of calls with the same sum however TCP cuts the stream.
//!
//! To add an operation: a variant here, how it is played (`play/`), how it is written in C (`c/`), and where the generator uses it.

use serde::{Deserialize, Serialize};

use crate::via::{
    AcceptVia, CloseVia, ConnectHow, DupVia, EpollVia, FileVia, ForkVia, FreeWait, PollVia, RecvVia, SendVia, Serve,
    StormVia,
};

/// A descriptor, by the name the steps of a program give it.
pub type Slot = u8;
/// The thread of a process that makes a step.
pub type ActorId = u8;

/// Addresses a listener takes and its clients use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Family {
    /// IPv4.
    Four,
    /// IPv6.
    Six,
    /// An IPv6 socket with IPv4 addresses in it.
    Mapped,
}

/// Memory that a call is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Memory {
    /// As much as the call says.
    Good,
    /// The null pointer.
    Null,
    /// An address near 0.
    Low,
    /// The last address there is.
    Last,
    /// A page that may not be touched.
    Guard,
    /// So many bytes are good, then comes a page that may not be touched.
    Half(u16),
    /// The memory is good, but the vector or header that names it is not.
    Header,
}

/// How many pieces the memory of a vector call has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Pieces {
    /// One.
    One,
    /// Three.
    Few,
    /// Some of them empty.
    Holes,
    /// As many as are allowed, most of them empty or short.
    Many,
    /// One more than is allowed.
    TooMany,
    /// None at all.
    None,
}

/// How long a wait may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Time {
    /// Not at all.
    Zero,
    /// Milliseconds.
    Ms(u16),
    /// Until something happens.
    Forever,
}

/// One call that moves bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Data<Via> {
    /// The socket.
    pub slot: Slot,
    /// Bytes asked for.
    pub len: u32,
    /// Which function.
    pub via: Via,
    /// `MSG_*`.
    pub flags: i32,
    /// Where the bytes are.
    pub memory: Memory,
    /// In how many pieces.
    pub pieces: Pieces,
}

/// Options of sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // named as in socket(7) and tcp(7)
pub enum Opt {
    NoDelay,
    Cork,
    QuickAck,
    KeepAlive,
    SndBuf,
    RcvBuf,
    OobInline,
    RcvLowat,
    /// Milliseconds.
    RcvTimeo,
    /// Milliseconds.
    SndTimeo,
    /// Seconds; -1 for none.
    Linger,
    ReuseAddr,
    ReusePort,
    Error,
    Type,
    Info,
    MaxSeg,
    BusyPoll,
    Priority,
    AcceptConn,
    Protocol,
    /// An option no kernel knows.
    Unknown,
}

/// The request of an ioctl(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // named as in tcp(7)
pub enum Request {
    FionRead,
    SiocOutq,
    AtMark,
    Fionbio(bool),
    FioAsync(bool),
}

/// What epoll_ctl(2) does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // named as in epoll_ctl(2)
pub enum Ctl {
    Add,
    Mod,
    Del,
}

/// How a process ends by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // named as the functions
pub enum ExitHow {
    Exit,
    UnderscoreExit,
    Abort,
    Quick,
}

/// What a program's signal handler does besides counting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Handler {
    /// Nothing.
    Count,
    /// Sends so many bytes.
    Send(Slot, u16),
    /// Receives at most so many bytes.
    Receive(Slot, u16),
}

/// What a step does. Fields are named alike in all: `slot` is the descriptor it is about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // of fields
pub enum Op {
    /// socket, bind to a port the kernel chooses, listen.
    Listen { slot: Slot, family: Family, nonblock: bool },
    /// socket and connect; `four`: by IPv4, where the listener takes both.
    Connect { slot: Slot, to: Slot, how: ConnectHow, four: bool },
    /// A connect to a port without a listener.
    Refused { nonblock: bool },
    /// accept.
    Accept { slot: Slot, from: Slot, via: AcceptVia },
    /// shutdown(2).
    Shutdown { slot: Slot, how: i32 },
    /// close, by one of its names.
    Close { slot: Slot, via: CloseVia },
    /// One sending call.
    Send(Data<SendVia>),
    /// One receiving call.
    Recv(Data<RecvVia>),
    /// Requests and answers of one size, against the same step of the other end.
    Exchange { slot: Slot, first: bool, rounds: u16, size: u32, send: SendVia, recv: RecvVia },
    /// Sends all of this, whatever it takes.
    SendAll { slot: Slot, len: u32, chunk: u32, via: SendVia, lane: u8 },
    /// Receives exactly this, or up to the end.
    RecvAll { slot: Slot, len: u32, chunk: u32, via: RecvVia },
    /// Receives until the end of the stream, however long it takes.
    RecvToEnd { slot: Slot, chunk: u32, via: RecvVia },
    /// Takes what is there without waiting.
    Drain { slot: Slot, via: RecvVia },
    /// poll or select.
    Poll { entries: Vec<(Slot, i16)>, via: PollVia, time: Time },
    /// epoll_create.
    EpollCreate { slot: Slot },
    /// epoll_ctl.
    EpollCtl { set: Slot, what: Ctl, slot: Slot, events: u32, data: u64 },
    /// epoll_wait.
    EpollWait { set: Slot, max: u8, via: EpollVia, time: Time },
    /// setsockopt.
    SetOption { slot: Slot, option: Opt, value: i32 },
    /// getsockopt.
    GetOption { slot: Slot, option: Opt },
    /// ioctl.
    Ioctl { slot: Slot, request: Request },
    /// sockatmark(3).
    AtMark { slot: Slot },
    /// `O_NONBLOCK` by fcntl.
    NonBlocking { slot: Slot, on: bool },
    /// `F_GETFL` and `F_GETFD`.
    Flags { slot: Slot },
    /// getsockname and getpeername.
    Names { slot: Slot },
    /// Makes this process the receiver of SIGIO and SIGURG.
    Own { slot: Slot },
    /// dup, by one of its names.
    Dup { slot: Slot, new: Slot, via: DupVia },
    /// dup2 over the descriptor of another slot, which is gone then.
    DupOver { slot: Slot, over: Slot, new: Slot },
    /// pthread_create.
    Thread { actor: ActorId },
    /// fork; the child goes on as this actor.
    Fork { actor: ActorId, via: ForkVia },
    /// A child that does nothing with the sockets, waited for.
    Child { via: StormVia },
    /// This process goes on as a new image of its program, wrapped or not.
    Exec { plain: bool },
    /// A child with a new image of the program, which goes on as this actor.
    Spawn { actor: ActorId, plain: bool, fork: bool },
    /// waitpid for the process of this actor.
    WaitChild { actor: ActorId },
    /// The process ends.
    Exit { how: ExitHow },
    /// pthread_cancel and pthread_join.
    Cancel { actor: ActorId },
    /// What the handler of SIGUSR1 does.
    Handle(Handler),
    /// Signals so far.
    Signals,
    /// A receive that a timer interrupts again and again.
    Timed { slot: Slot, len: u32, us: u32 },
    /// The sequencer kills the process of this actor.
    Kill { actor: ActorId, signal: i32 },
    /// The sequencer stops it.
    Stop { actor: ActorId },
    /// The sequencer lets it go on.
    Continue { actor: ActorId },
    /// The sequencer signals a thread; calls may restart or not.
    Signal { actor: ActorId, restart: bool },
    /// The sequencer interrupts threads that still wait.
    InterruptAll,
    /// socketpair(2) of Unix sockets.
    UnixPair { slot: Slot, other: Slot },
    /// A listener with a name of this run.
    UnixListen { slot: Slot },
    /// Connects to it.
    UnixConnect { slot: Slot, to: Slot },
    /// Accepts from it.
    UnixAccept { slot: Slot, from: Slot },
    /// Passes a descriptor on.
    Pass { through: Slot, slot: Slot },
    /// Takes one that was passed.
    Take { through: Slot, slot: Slot },
    /// fdopen.
    Fdopen { slot: Slot, file: Slot, mode: FileMode },
    /// Writes by stdio, and flushes.
    FileWrite { file: Slot, len: u32, via: FileVia },
    /// Reads by stdio.
    FileRead { file: Slot, len: u32, via: FileVia },
    /// fclose.
    FileClose { file: Slot },
    /// tee, sendfile and splice as sockets refuse them.
    OddFiles { slot: Slot },

    // --- for programs that run freely
    /// Sleeps.
    Sleep { us: u32 },
    /// Waits until another actor has made all its steps.
    Join { actor: ActorId },
    /// Accepts so many connections and serves each: what comes goes back.
    Server { from: Slot, conns: u16, serve: Serve, send: SendVia, recv: RecvVia },
    /// Connects, asks so often, checks each answer, closes, and again.
    Churn { to: Slot, conns: u16, requests: u16, size: u32, send: SendVia, recv: RecvVia },
    /// Children beside, so many times.
    Storm { via: StormVia, times: u16, gap_us: u32 },
    /// An event loop that serves so many connections: what comes goes back.
    Events { from: Slot, conns: u16, wait: FreeWait },
    /// An event loop with so many connections at a time that asks and checks.
    Crowd { to: Slot, conns: u16, requests: u16, size: u32, wait: FreeWait },
    /// Sends all of this and receives until the end at the same time, then half-closes; `echo`: what comes is what was sent.
    Duplex { slot: Slot, len: u32, wait: FreeWait, echo: bool },
    /// Carries bytes from one socket to the other until the end, then half-closes.
    Relay { from: Slot, to: Slot, via: RelayVia },
    /// Receives by a FILE and answers by a FILE, line by line, until the end.
    FileEcho { slot: Slot },
    /// Receives beside other threads until the end; only the sum of all counts.
    Share { slot: Slot, chunk: u32, sharers: u8 },
    /// A timer whose handler (`SA_RESTART`) interrupts this process all the time; 0: no more.
    Timer { us: u32 },
    /// The sequencer kills, stops or continues a process after a while.
    KillAfter { actor: ActorId, signal: i32, us: u32 },
}

/// Modes of fdopen(3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // named as in fopen(3)
pub enum FileMode {
    Read,
    Write,
    Both,
}

/// How a relay carries bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RelayVia {
    /// read and write.
    Copy,
    /// splice through a pipe.
    Splice,
    /// readv and writev.
    Vector,
}

//! Programs from seeds: the same seed gives the same program.
//!
//! The generator keeps a rough model of what its program does so far (`model`), so that most calls have something to do and few
//! sleep for nothing. It need not be exact: steps whose actor sleeps are skipped when the program runs.

mod build;
mod bulk;
mod data;
mod free;
mod life;
mod model;
mod names;
mod setup;
mod waits;

use crate::program::{Program, STEPS, Theme};
use crate::rng::Rng;
use build::Build;
use model::Model;
pub(crate) use model::UNREAD;

/// The program of a seed, about this theme if one is given.
pub fn program(seed: u64, theme: Option<Theme>) -> Program {
    let mut rng = Rng::new(seed);
    let drawn = rng.weighted(THEMES);
    let theme = theme.unwrap_or(drawn);
    let program = Program {
        seed,
        theme,
        free: theme.is_free(),
        one_cpu: !theme.is_free() && rng.percent(75),
        processes: Vec::new(),
        actors: Vec::new(),
        slots: Vec::new(),
        steps: Vec::new(),
    };
    let mut build = Build { rng, program, model: Model::default() };
    if theme.is_free() {
        build.free();
    } else {
        build.sequenced();
    }
    build.program
}

/// How often each theme is drawn; a third of all programs run freely.
const THEMES: &[(u32, Theme)] = &[
    (12, Theme::Mixed),
    (6, Theme::Data),
    (3, Theme::Memory),
    (3, Theme::Peek),
    (5, Theme::Ready),
    (6, Theme::Edge),
    (6, Theme::Sets),
    (6, Theme::HalfClose),
    (5, Theme::Close),
    (4, Theme::Descriptors),
    (6, Theme::Fork),
    (4, Theme::Exec),
    (5, Theme::Passing),
    (5, Theme::Kill),
    (5, Theme::Signals),
    (2, Theme::Cancel),
    (4, Theme::Options),
    (4, Theme::Stdio),
    (3, Theme::Files),
    (2, Theme::Aio),
    (4, Theme::Urgent),
    (4, Theme::Bulk),
    (4, Theme::Threads),
    (3, Theme::Connect),
    (12, Theme::Churn),
    (8, Theme::Loops),
    (5, Theme::Share),
    (8, Theme::Duplex),
    (5, Theme::Relays),
    (8, Theme::Crash),
];

/// Something that a program does next: some steps that belong together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Move {
    Send,
    Recv,
    Exchange,
    Bulk,
    BigSend,
    BadMemory,
    Held,
    Urgent,
    Poll,
    SetMake,
    SetChange,
    SetWait,
    Option,
    Ioctl,
    NonBlocking,
    Tell,
    Shutdown,
    Close,
    Dup,
    Connect,
    Refused,
    Thread,
    Fork,
    Child,
    Exec,
    Spawn,
    Exit,
    Kill,
    Stop,
    Signal,
    Handle,
    Timed,
    Cancel,
    Pass,
    Stdio,
    Odd,
    Wake,
    Drain,
}

/// A move, how often it is made, and how much more often where a theme is about it.
type Weight = (Move, u32, &'static [(Theme, u32)]);

const MOVES: &[Weight] = &[
    (Move::Send, 100, &[(Theme::Data, 80), (Theme::Aio, 150), (Theme::Files, 150)]),
    (Move::Recv, 100, &[(Theme::Data, 80), (Theme::Peek, 300), (Theme::Aio, 100), (Theme::Files, 100)]),
    (Move::Exchange, 25, &[(Theme::Fork, 40), (Theme::Exec, 40), (Theme::Passing, 30)]),
    (Move::Bulk, 6, &[(Theme::Bulk, 150), (Theme::HalfClose, 20)]),
    (Move::BigSend, 1, &[(Theme::Bulk, 20), (Theme::Signals, 10), (Theme::Kill, 10), (Theme::Cancel, 15)]),
    (Move::BadMemory, 2, &[(Theme::Memory, 150)]),
    (Move::Held, 4, &[(Theme::Options, 40), (Theme::Data, 15)]),
    (Move::Urgent, 1, &[(Theme::Urgent, 120)]),
    (Move::Poll, 25, &[(Theme::Ready, 200), (Theme::HalfClose, 60), (Theme::Close, 40), (Theme::Kill, 30)]),
    (Move::SetMake, 3, &[(Theme::Edge, 20), (Theme::Sets, 60), (Theme::Ready, 10)]),
    (Move::SetChange, 10, &[(Theme::Edge, 70), (Theme::Sets, 150), (Theme::Ready, 20)]),
    (Move::SetWait, 14, &[(Theme::Edge, 200), (Theme::Sets, 150), (Theme::Ready, 50), (Theme::HalfClose, 20)]),
    (Move::Option, 10, &[(Theme::Options, 200)]),
    (Move::Ioctl, 12, &[(Theme::Options, 60), (Theme::Urgent, 50), (Theme::Peek, 60), (Theme::Ready, 30)]),
    (Move::NonBlocking, 6, &[(Theme::Options, 30), (Theme::Threads, 30)]),
    (Move::Tell, 4, &[(Theme::Options, 40), (Theme::Connect, 40)]),
    (Move::Shutdown, 4, &[(Theme::HalfClose, 60), (Theme::Edge, 10)]),
    (Move::Close, 4, &[(Theme::Close, 60), (Theme::Descriptors, 20), (Theme::Sets, 15)]),
    (Move::Dup, 5, &[(Theme::Descriptors, 150), (Theme::Sets, 40)]),
    (Move::Connect, 4, &[(Theme::Connect, 120), (Theme::Close, 50), (Theme::Sets, 20)]),
    (Move::Refused, 1, &[(Theme::Connect, 40)]),
    (Move::Thread, 3, &[(Theme::Threads, 30)]),
    (Move::Fork, 2, &[(Theme::Fork, 50), (Theme::Exec, 10)]),
    (Move::Child, 1, &[(Theme::Fork, 40), (Theme::Exec, 20)]),
    (Move::Exec, 0, &[(Theme::Exec, 25)]),
    (Move::Spawn, 0, &[(Theme::Exec, 40)]),
    (Move::Exit, 0, &[(Theme::Fork, 25), (Theme::Exec, 15), (Theme::Kill, 20), (Theme::Close, 6)]),
    (Move::Kill, 0, &[(Theme::Kill, 30)]),
    (Move::Stop, 1, &[(Theme::Kill, 30), (Theme::Signals, 15)]),
    (Move::Signal, 2, &[(Theme::Signals, 200)]),
    (Move::Handle, 0, &[(Theme::Signals, 60)]),
    (Move::Timed, 0, &[(Theme::Signals, 20)]),
    (Move::Cancel, 0, &[(Theme::Cancel, 120)]),
    (Move::Pass, 1, &[(Theme::Passing, 90)]),
    (Move::Stdio, 1, &[(Theme::Stdio, 150)]),
    (Move::Odd, 0, &[(Theme::Files, 15)]),
    (Move::Wake, 40, &[(Theme::Signals, 100), (Theme::Cancel, 60)]),
    (Move::Drain, 8, &[(Theme::HalfClose, 30), (Theme::Edge, 60)]),
];

impl Build {
    fn sequenced(&mut self) {
        self.set_up();
        let moves = self.rng.within(10, 45);
        let weights: Vec<(u32, Move)> = MOVES
            .iter()
            .map(|(what, base, themes)| {
                let more =
                    themes.iter().find(|(theme, _)| *theme == self.program.theme).map_or(0, |(_, weight)| *weight);
                (base + more, *what)
            })
            .collect();
        for _ in 0..moves {
            if self.program.steps.len() + 90 > STEPS {
                break;
            }
            let what = self.rng.weighted(&weights);
            self.make(what);
        }
        self.wind_up();
        self.program.steps.truncate(STEPS);
    }

    /// Makes a move, or none if no actor is free for it.
    fn make(&mut self, what: Move) -> Option<()> {
        match what {
            Move::Send => self.send(),
            Move::Recv => self.recv(),
            Move::Exchange => self.exchange(),
            Move::Bulk => self.bulk(),
            Move::BigSend => self.big_send(),
            Move::BadMemory => self.bad_memory(),
            Move::Held => self.held(),
            Move::Urgent => self.urgent(),
            Move::Drain => self.drain(),
            Move::Poll => self.poll(),
            Move::SetMake => self.set_make(),
            Move::SetChange => self.set_change(),
            Move::SetWait => self.set_wait(),
            Move::Wake => self.wake(),
            Move::Option => self.option(),
            Move::Ioctl => self.ioctl(),
            Move::NonBlocking => self.nonblocking(),
            Move::Tell => self.tell(),
            Move::Shutdown => self.shutdown(),
            Move::Close => self.close(),
            Move::Dup => self.dup(),
            Move::Stdio => self.stdio(),
            Move::Odd => self.odd(),
            Move::Connect => self.connect(),
            Move::Refused => self.refused(),
            Move::Thread => self.thread(),
            Move::Fork => self.fork(),
            Move::Child => self.child(),
            Move::Exec => self.exec(),
            Move::Spawn => self.spawn(),
            Move::Exit => self.exit(),
            Move::Kill => self.kill(),
            Move::Stop => self.stop(),
            Move::Signal => self.signal(),
            Move::Handle => self.handle(),
            Move::Timed => self.timed(),
            Move::Cancel => self.cancel(),
            Move::Pass => self.pass(),
        }
    }
}

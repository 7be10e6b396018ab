//! Programs that run freely: all actors go through their own steps at once.

use super::build::Build;
use super::model::End;
use crate::op::{ActorId, Family, Op, RelayVia, Slot};
use crate::program::{Kind, Role, Theme};
use crate::via::{AcceptVia, ConnectHow, FreeWait, RecvVia, SendVia, Serve, StormVia};

/// Ways to send in a loop, with the ways to receive.
const SENDS: &[SendVia] = &[SendVia::Send, SendVia::Write, SendVia::Writev, SendVia::Sendmsg, SendVia::Sendfile];
const RECVS: &[RecvVia] = &[RecvVia::Recv, RecvVia::Read, RecvVia::Readv, RecvVia::Recvmsg];

impl Build {
    /// Makes one.
    pub(super) fn free(&mut self) {
        let (_, server) = self.process(Role::Server, true, Vec::new());
        let (_, client) = self.process(Role::Client, true, Vec::new());
        match self.program.theme {
            Theme::Churn => self.churn(server, client),
            Theme::Loops => self.loops(server, client),
            Theme::Share => self.share(server, client),
            Theme::Duplex => self.duplex(server, client),
            Theme::Relays => self.relays(server, client),
            _ => self.crash(server, client),
        }
    }

    fn free_listener(&mut self, server: ActorId) -> Slot {
        let family = self.rng.weighted(&[(80, Family::Four), (8, Family::Six), (12, Family::Mapped)]);
        let slot = self.slot(Kind::Listener);
        self.step(server, Op::Listen { slot, family, nonblock: false });
        slot
    }

    /// More threads of a process, begun by its first.
    fn threads(&mut self, by: ActorId, count: u64) -> Vec<ActorId> {
        let process = self.process_of(by);
        let threads: Vec<ActorId> = (0..count).map(|_| self.actor(process, false)).collect();
        for actor in &threads {
            self.step(by, Op::Thread { actor: *actor });
        }
        threads
    }

    fn serve_op(&mut self, from: Slot, conns: u16) -> Op {
        if self.rng.percent(40) {
            return Op::Events { from, conns, wait: self.rng.pick(FreeWait::ALL) };
        }
        let serve =
            self.rng.weighted(&[(50, Serve::Thread), (20, Serve::Fork), (15, Serve::Spread), (15, Serve::Inline)]);
        Op::Server { from, conns, serve, send: self.rng.pick(SENDS), recv: self.rng.pick(RECVS) }
    }

    fn storm(&mut self) -> Op {
        let via = self.rng.pick(StormVia::ALL);
        let times = match via {
            StormVia::Fork | StormVia::ForkClose | StormVia::ForkQuick | StormVia::Kill => self.rng.within(5, 30),
            _ => self.rng.within(2, 10),
        };
        Op::Storm { via, times: times as u16, gap_us: self.rng.within(0, 2000) as u32 }
    }

    fn maybe_timer(&mut self, actor: ActorId) {
        if self.rng.percent(12) {
            let us = self.rng.within(200, 3000) as u32;
            self.step(actor, Op::Timer { us });
        }
    }

    /// Connections that are opened, used and closed, often with children beside.
    fn churn(&mut self, server: ActorId, client: ActorId) {
        let from = self.free_listener(server);
        self.maybe_timer(server);
        let clients = self.rng.within(1, 6);
        let conns = self.rng.within(1, 5) as u16;
        let serve = self.serve_op(from, conns * clients as u16);
        let stormy = self.rng.percent(55);
        let at_server = stormy && self.rng.percent(35);
        if at_server {
            let beside = self.threads(server, 1)[0];
            let storm = self.storm();
            self.step(beside, storm);
        }
        self.step(server, serve);
        let mut actors = self.threads(client, clients - 1);
        if stormy && !at_server {
            let beside = self.threads(client, 1)[0];
            let storm = self.storm();
            self.step(beside, storm);
        }
        actors.push(client);
        for actor in actors {
            let requests = self.rng.within(10, 60) as u16;
            let size = self.rng.pick(&[1, 100, 1000, 5000, 20_000]);
            let (send, recv) = (self.rng.pick(SENDS), self.rng.pick(RECVS));
            self.step(actor, Op::Churn { to: from, conns, requests, size, send, recv });
        }
    }

    /// Event loops on both sides.
    fn loops(&mut self, server: ActorId, client: ActorId) {
        let from = self.free_listener(server);
        let crowds = self.rng.weighted(&[(70, 1), (30, 2)]);
        let conns = self.rng.within(2, 20) as u16;
        let serve = if self.rng.percent(80) {
            Op::Events { from, conns: conns * crowds, wait: self.rng.pick(FreeWait::ALL) }
        } else {
            self.serve_op(from, conns * crowds)
        };
        let serve = match serve {
            // A server that serves one at a time would let the others wait for ever.
            Op::Server { from, conns, serve: Serve::Inline | Serve::Spread, send, recv } => {
                Op::Server { from, conns, serve: Serve::Thread, send, recv }
            }
            other => other,
        };
        if self.rng.percent(20) {
            let beside = self.threads(server, 1)[0];
            let storm = self.storm();
            self.step(beside, storm);
        }
        self.step(server, serve);
        let mut actors = self.threads(client, u64::from(crowds) - 1);
        actors.push(client);
        self.maybe_timer(client);
        for actor in actors {
            let requests = self.rng.within(5, 40) as u16;
            let size = self.rng.pick(&[1, 200, 1000, 5000, 40_000]);
            let wait = self.rng.pick(FreeWait::ALL);
            self.step(actor, Op::Crowd { to: from, conns, requests, size, wait });
        }
    }

    /// A connection with streams of its own: the slots of both ends.
    fn pair(&mut self, server: ActorId, client: ActorId, from: Slot) -> (Slot, Slot) {
        let conn = self.model.ends.len() as u8;
        self.model.ends.push([End::default(), End::default()]);
        let (near, far) = (self.slot(Kind::End(conn, 0)), self.slot(Kind::End(conn, 1)));
        self.join_ends(server, client, from, (near, far));
        (near, far)
    }

    fn join_ends(&mut self, server: ActorId, client: ActorId, from: Slot, (near, far): (Slot, Slot)) {
        self.step(client, Op::Connect { slot: near, to: from, how: ConnectHow::Block, four: false });
        self.step(server, Op::Accept { slot: far, from, via: AcceptVia::Accept });
        for (actor, slot) in [(client, near), (server, far)] {
            self.step(actor, Op::SetOption { slot, option: crate::op::Opt::NoDelay, value: 1 });
        }
    }

    fn warm(&mut self, server: ActorId, client: ActorId, (near, far): (Slot, Slot)) {
        if self.rng.percent(70) {
            let (rounds, size) = (self.rng.within(10, 24) as u16, self.rng.within(1, 300) as u32);
            for (actor, slot, first) in [(client, near, true), (server, far, false)] {
                let (send, recv) = (self.rng.pick(SENDS), self.rng.pick(RECVS));
                self.step(actor, Op::Exchange { slot, first, rounds, size, send, recv });
            }
        }
    }

    /// Threads that share a socket.
    fn share(&mut self, server: ActorId, client: ActorId) {
        let from = self.free_listener(server);
        let (near, far) = self.pair(server, client, from);
        self.warm(server, client, (near, far));
        let (sender, out, receiver, into) =
            if self.rng.percent(50) { (client, near, server, far) } else { (server, far, client, near) };
        let writers = self.rng.within(1, 3);
        let mut lanes = self.threads(sender, writers - 1);
        let others = lanes.clone();
        lanes.push(sender);
        for (lane, actor) in lanes.into_iter().enumerate() {
            let (len, chunk) =
                (self.rng.within(1000, 700_000) as u32, self.rng.pick(&[1, 100, 700, 5000, 65536, 300_000]));
            let len = len.min(chunk * 2000);
            let via = self.rng.pick(SENDS);
            self.step(actor, Op::SendAll { slot: out, len, chunk, via, lane: if lane == 2 { 3 } else { lane as u8 } });
        }
        for actor in others {
            self.step(sender, Op::Join { actor });
        }
        self.step(sender, Op::Shutdown { slot: out, how: libc::SHUT_WR });
        let sharers = self.rng.within(1, 4) as u8;
        let chunk = self.rng.pick(&[1, 100, 1024, 20_000, 400_000]);
        let chunk = if chunk < 1000 && self.rng.percent(90) { 1024 } else { chunk };
        if sharers == 1 {
            self.step(receiver, Op::RecvToEnd { slot: into, chunk, via: self.rng.clone().pick(RECVS) });
        } else {
            let mut readers = self.threads(receiver, u64::from(sharers) - 1);
            readers.push(receiver);
            for actor in readers {
                self.step(actor, Op::Share { slot: into, chunk, sharers });
            }
        }
    }

    /// Both directions at once, to a half close each.
    fn duplex(&mut self, server: ActorId, client: ActorId) {
        let from = self.free_listener(server);
        let conns = self.rng.weighted(&[(50, 1), (25, 2), (15, 4), (10, 8)]);
        let pairs: Vec<(Slot, Slot)> = (0..conns).map(|_| self.pair(server, client, from)).collect();
        if conns == 1 {
            self.warm(server, client, pairs[0]);
        }
        let (mut near, mut far) = (self.threads(client, conns - 1), self.threads(server, conns - 1));
        near.push(client);
        far.push(server);
        let most = 4_000_000 / conns;
        for ((one, other), pair) in near.into_iter().zip(far).zip(pairs) {
            for (actor, slot) in [(one, pair.0), (other, pair.1)] {
                let len = if self.rng.percent(15) { 0 } else { self.rng.within(1, most) } as u32;
                if self.rng.percent(70) {
                    let wait = self.rng.pick(FreeWait::ALL);
                    self.step(actor, Op::Duplex { slot, len, wait, echo: false });
                } else {
                    self.straight(actor, slot, len.min(300_000));
                }
            }
        }
    }

    /// Sends all, half-closes, receives all, with blocking calls. What it sends must fit without a reader.
    fn straight(&mut self, actor: ActorId, slot: Slot, len: u32) {
        let chunk = self.rng.pick(&[1, 700, 20_000, 400_000]);
        let len = if chunk == 1 { len.min(3000) } else { len };
        let (via, by) = (self.rng.pick(SENDS), self.rng.pick(RECVS));
        self.step(actor, Op::SendAll { slot, len, chunk, via, lane: 0 });
        self.step(actor, Op::Shutdown { slot, how: libc::SHUT_WR });
        let chunk = self.rng.pick(&[700, 20_000, 400_000]);
        self.step(actor, Op::RecvToEnd { slot, chunk, via: by });
    }

    /// A relay between two actors; a FILE that echoes.
    fn relays(&mut self, server: ActorId, client: ActorId) {
        let from = self.free_listener(server);
        let len = self.rng.within(1, 2_000_000) as u32;
        let wait = self.rng.pick(FreeWait::ALL);
        if self.rng.percent(30) {
            let (near, far) = self.pair(server, client, from);
            self.warm(server, client, (near, far));
            self.step(client, Op::Duplex { slot: near, len, wait, echo: true });
            self.step(server, Op::FileEcho { slot: far });
            return;
        }
        let (_, sink) = self.process(Role::Server, true, Vec::new());
        let beyond = self.free_listener(sink);
        self.model.ends.push([End::default(), End::default()]);
        // The streams of the relay's own ends are not checked.
        let (near, far) = (self.slot(Kind::End(0, 0)), self.slot(Kind::End(0, 1)));
        let (left, right) = (self.slot(Kind::End(20, 1)), self.slot(Kind::End(21, 0)));
        self.join_ends(server, client, from, (near, left));
        self.join_ends(sink, server, beyond, (right, far));
        let back = self.threads(server, 1)[0];
        let via = |build: &mut Self| build.rng.pick(&[RelayVia::Copy, RelayVia::Splice, RelayVia::Vector]);
        let (there, home) = (via(self), via(self));
        self.step(server, Op::Relay { from: left, to: right, via: there });
        self.step(back, Op::Relay { from: right, to: left, via: home });
        self.step(client, Op::Duplex { slot: near, len, wait, echo: false });
        let (len, wait) = (self.rng.within(0, 1_000_000) as u32, self.rng.pick(FreeWait::ALL));
        self.step(sink, Op::Duplex { slot: far, len, wait, echo: false });
    }

    /// Any of the others, with a process that is killed, or stopped for a while.
    fn crash(&mut self, server: ActorId, client: ActorId) {
        match self.rng.below(4) {
            0 => self.churn(server, client),
            1 => self.loops(server, client),
            2 => self.share(server, client),
            _ => self.duplex(server, client),
        }
        let victim = if self.rng.percent(50) { server } else { client };
        let us = self.rng.within(3000, 25_000) as u32;
        if self.rng.percent(40) {
            self.step(0, Op::KillAfter { actor: victim, signal: libc::SIGSTOP, us });
            let us = us + self.rng.within(500, 30_000) as u32;
            self.step(0, Op::KillAfter { actor: victim, signal: libc::SIGCONT, us });
            return;
        }
        let signal = if self.rng.percent(70) { libc::SIGKILL } else { libc::SIGTERM };
        self.step(0, Op::KillAfter { actor: victim, signal, us });
    }
}

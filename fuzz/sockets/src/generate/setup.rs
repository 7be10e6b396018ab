//! The begin and the end of programs: processes, connections, warm-up; and the final state of every descriptor.

use super::build::Build;
use super::model::{End, Life};
use crate::op::{ActorId, ExitHow, Family, Op, Opt, Request, Slot, Time};
use crate::program::{Kind, Role, Theme};
use crate::via::{AcceptVia, ConnectHow, EpollVia, PollVia, RecvVia, SendVia};

/// All events of poll(2).
const ALL: i16 = libc::POLLIN | libc::POLLOUT | libc::POLLPRI | libc::POLLRDHUP;

impl Build {
    /// Processes, threads, and the first connections.
    pub(super) fn set_up(&mut self) {
        let processes = self.rng.weighted(&[(80, 2), (12, 3), (4, 4), (4, 1)]);
        for process in 0..processes {
            let role = if process == 0 && processes > 1 { Role::Server } else { Role::Client };
            self.process(role, true, Vec::new());
        }
        let threads = match self.program.theme {
            Theme::Threads | Theme::Cancel => self.rng.within(2, 4),
            Theme::Exec => self.rng.weighted(&[(80, 0), (20, 1)]),
            _ => self.rng.weighted(&[(35, 0), (35, 1), (20, 2), (10, 3)]),
        };
        for _ in 0..threads {
            let _ = self.thread();
        }
        let conns = self.rng.weighted(&[(60, 1), (28, 2), (12, 3)]);
        for _ in 0..conns {
            let made = self.connect();
            if made.is_some() && self.rng.percent(75) {
                self.warm_up();
            }
        }
    }

    /// A listener: a known one, or a new one of the first process.
    fn listener(&mut self, server: ActorId) -> (Slot, Family) {
        let process = self.process_of(server);
        let mut known = self
            .model
            .listeners
            .iter()
            .filter(|(slot, nonblock, _)| !nonblock && self.model.processes[process as usize].slots.contains(slot));
        if let Some((slot, _, family)) = known.next_back().copied()
            && self.rng.percent(85)
        {
            return (slot, family);
        }
        let family = self.rng.weighted(&[(70, Family::Four), (12, Family::Six), (18, Family::Mapped)]);
        let slot = self.slot(Kind::Listener);
        self.step(server, Op::Listen { slot, family, nonblock: false });
        self.gained(process, slot);
        self.model.listeners.push((slot, false, family));
        (slot, family)
    }

    /// A new connection between two processes, or within one.
    pub(super) fn connect(&mut self) -> Option<()> {
        if self.model.ends.len() >= 8 {
            return None;
        }
        let role = |build: &Self, process: u8| build.program.processes[process as usize].role;
        let ready = self.ready_processes();
        let servers: Vec<u8> = ready.iter().copied().filter(|process| role(self, *process) == Role::Server).collect();
        let clients: Vec<u8> = ready.iter().copied().filter(|process| role(self, *process) == Role::Client).collect();
        let client = if clients.is_empty() { return None } else { self.rng.pick(&clients) };
        let server = if servers.is_empty() { client } else { self.rng.pick(&servers) };
        let server_actor = self.somebody(server)?;
        // In one process the order decides the numbers of descriptors.
        let client_actor = if client == server { server_actor } else { self.somebody(client)? };
        let (from, family) = self.listener(server_actor);
        let conn = self.model.ends.len() as u8;
        self.model.ends.push([End::default(), End::default()]);
        let near = self.slot(Kind::End(conn, 0));
        let far = self.slot(Kind::End(conn, 1));
        let how = self.rng.weighted(&[
            (70, ConnectHow::Block),
            (12, ConnectHow::Nonblock),
            (9, ConnectHow::NonblockStays),
            (9, ConnectHow::SockNonblock),
        ]);
        let via = self.rng.weighted(&[
            (4, AcceptVia::Accept),
            (3, AcceptVia::Accept4),
            (2, AcceptVia::Nonblock),
            (1, AcceptVia::Cloexec),
        ]);
        let four = family == Family::Mapped && self.rng.percent(50);
        let connect = Op::Connect { slot: near, to: from, how, four };
        let accept = Op::Accept { slot: far, from, via };
        if client_actor == server_actor {
            self.step(client_actor, connect);
            self.step(server_actor, accept);
        } else {
            // Both or none: a connection that is not accepted would be taken for the next one.
            self.together(vec![(client_actor, connect), (server_actor, accept)]);
        }
        self.gained(client, near);
        self.gained(server, far);
        self.end_mut(conn, 0).nonblock = matches!(how, ConnectHow::NonblockStays | ConnectHow::SockNonblock);
        self.end_mut(conn, 1).nonblock = via == AcceptVia::Nonblock;
        // Without, a small write may wait 40 ms for an acknowledgement, and so does the sequencer.
        if self.rng.percent(99) {
            for (actor, slot) in [(client_actor, near), (server_actor, far)] {
                self.step(actor, Op::SetOption { slot, option: Opt::NoDelay, value: 1 });
            }
        }
        Some(())
    }

    /// So much traffic that the last connection earns its ring.
    fn warm_up(&mut self) {
        let conn = (self.model.ends.len() - 1) as u8;
        let Some((client, near)) = self.partner(conn, 0, ActorId::MAX) else { return };
        let Some((server, far)) = self.partner(conn, 1, client) else { return };
        if self.rng.percent(12) {
            let len = self.rng.within(260 << 10, 600 << 10) as u32;
            self.transfer((client, near), (server, far), len);
            self.model.ends[conn as usize].iter_mut().for_each(|end| end.grown = true);
            return;
        }
        let (rounds, size) = (self.rng.within(10, 24) as u16, self.rng.within(1, 400) as u32);
        self.exchange_between((client, near), (server, far), rounds, size);
    }

    /// Requests and answers between two ends.
    pub(super) fn exchange_between(&mut self, one: (ActorId, Slot), other: (ActorId, Slot), rounds: u16, size: u32) {
        let ways = [
            (SendVia::Send, RecvVia::Recv),
            (SendVia::Write, RecvVia::Read),
            (SendVia::Writev, RecvVia::Readv),
            (SendVia::Sendmsg, RecvVia::Recvmsg),
        ];
        let (near, far) = (self.rng.pick(&ways), self.rng.pick(&ways));
        let op = |slot, first, (send, recv)| Op::Exchange { slot, first, rounds, size, send, recv };
        self.together(vec![(one.0, op(one.1, true, near)), (other.0, op(other.1, false, far))]);
    }

    /// Many bytes from one end to the other.
    pub(super) fn transfer(&mut self, from: (ActorId, Slot), to: (ActorId, Slot), len: u32) {
        let chunks = [700, 4096, 16384, 65536, 262_144, 1 << 20, 4 << 20];
        // Many small calls for much would only take time.
        let least = len / 300;
        let (out, into) = (self.rng.pick(&chunks).max(least), self.rng.pick(&chunks).max(least));
        let (via, by) = (self.bulk_send_via(), self.bulk_recv_via());
        self.together(vec![
            (from.0, Op::SendAll { slot: from.1, len, chunk: out, via, lane: 0 }),
            (to.0, Op::RecvAll { slot: to.1, len, chunk: into, via: by }),
        ]);
    }

    /// The final checks, and the end of all processes.
    pub(super) fn wind_up(&mut self) {
        for process in self.alive() {
            if self.model.processes[process as usize].stopped
                && let Some(actor) = self.program.main_of(process)
            {
                self.step(0, Op::Continue { actor });
                self.model.processes[process as usize].stopped = false;
            }
        }
        self.step(0, Op::InterruptAll);
        for (actor, life) in self.model.actors.iter_mut().enumerate() {
            if matches!(life, Life::Asleep(..))
                && self.model.processes[self.program.actors[actor].process as usize].alive
            {
                *life = Life::Free;
            }
        }
        self.check_all();
        let mut alive = self.alive();
        if alive.len() > 1 && self.rng.percent(60) {
            let gone = self.rng.pick(&alive);
            if let Some(actor) = self.somebody(gone) {
                let how = self.rng.weighted(&[(4, ExitHow::Exit), (3, ExitHow::UnderscoreExit), (1, ExitHow::Quick)]);
                self.step(actor, Op::Exit { how });
                self.died(gone);
                alive.retain(|process| *process != gone);
                self.check_all();
            }
        }
    }

    /// Checks every descriptor: its events, and what is left in it.
    fn check_all(&mut self) {
        for process in self.alive() {
            let Some(actor) = self.somebody(process) else { continue };
            let slots = self.model.processes[process as usize].slots.clone();
            if let Some(main) = self.program.main_of(process)
                && self.free_actors(process).contains(&main)
            {
                // Signals to a process come to its main thread.
                self.step(main, Op::Signals);
            }
            for slot in &slots {
                match self.program.slots[*slot as usize] {
                    Kind::End(conn, side) => self.check_end(actor, *slot, conn, side),
                    Kind::Set => {
                        self.step(actor, Op::EpollWait { set: *slot, max: 16, via: EpollVia::Wait, time: Time::Zero });
                    }
                    _ => {}
                }
                if self.program.steps.len() + 24 > crate::program::STEPS {
                    return;
                }
            }
        }
    }

    fn check_end(&mut self, actor: ActorId, slot: Slot, conn: u8, side: u8) {
        let events = if self.end(conn, side).tiny { ALL & !libc::POLLOUT } else { ALL };
        let poll = |build: &mut Self| {
            build.step(actor, Op::Poll { entries: vec![(slot, events)], via: PollVia::Poll, time: Time::Zero });
        };
        poll(self);
        if self.end(conn, side).reads_file {
            return;
        }
        if !self.end(conn, side).tiny {
            self.step(actor, Op::Ioctl { slot, request: Request::FionRead });
        }
        self.step(actor, Op::Drain { slot, via: RecvVia::Recv });
        poll(self);
        self.step(actor, Op::GetOption { slot, option: Opt::Error });
        self.step(actor, Op::Flags { slot });
    }
}

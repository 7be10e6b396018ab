//! Moves that wait: poll, select, and sets.

use super::build::Build;
use super::model::{Life, Set};
use crate::op::{ActorId, Ctl, Data, Memory, Op, Pieces, Slot, Time};
use crate::program::{Kind, Theme};
use crate::via::{EpollVia, PollVia, SendVia};

impl Build {
    /// A wait for some descriptors of one process.
    pub(super) fn poll(&mut self) -> Option<()> {
        let (actor, slot, conn, side) = self.any_end()?;
        let process = self.process_of(actor);
        let mut entries = vec![(slot, self.poll_events(slot))];
        for other in self.model.processes[process as usize].slots.clone() {
            if other != slot && entries.len() < 6 && self.rng.percent(30) && self.is_pollable(other) {
                entries.push((other, self.poll_events(other)));
            }
        }
        let via = self.rng.weighted(&[
            (30, PollVia::Poll),
            (10, PollVia::Ppoll),
            (6, PollVia::PpollMask),
            (3, PollVia::PollChk),
            (2, PollVia::PpollChk),
            (20, PollVia::Select),
            (8, PollVia::Pselect),
            (3, PollVia::PselectMask),
            (2, PollVia::SysPoll),
        ]);
        let time = self.time(actor, (conn, side));
        let nests = self.has_set(&entries);
        let time = self.unless_raced(actor, nests, time);
        self.step(actor, Op::Poll { entries, via, time });
        Some(())
    }

    fn has_set(&self, entries: &[(Slot, i16)]) -> bool {
        entries.iter().any(|(slot, _)| matches!(self.program.slots[*slot as usize], Kind::Set))
    }

    /// The kernel wakes threads that poll a set and threads that wait for it. The first one takes the edge, and the order is random. So no
    /// other thread sleeps beside one that polls a set.
    fn unless_raced(&mut self, actor: ActorId, nests: bool, time: Time) -> Time {
        let raced = (0..self.model.actors.len()).filter(|other| *other != actor as usize).any(|other| {
            matches!(self.model.actors[other], Life::Asleep(..)) && (nests || self.polls_set(other as ActorId))
        });
        if time != Time::Forever || !raced {
            return time;
        }
        self.model.actors[actor as usize] = Life::Free;
        Time::Zero
    }

    /// Whether the last that this one did is a poll of a set.
    fn polls_set(&self, actor: ActorId) -> bool {
        let last = self.program.steps.iter().rev().find(|step| step.actor == actor);
        matches!(last.map(|step| &step.op), Some(Op::Poll { entries, .. }) if self.has_set(entries))
    }

    fn is_pollable(&self, slot: Slot) -> bool {
        match self.program.slots[slot as usize] {
            Kind::End(conn, side) => !self.end(conn, side).vague,
            Kind::Set | Kind::Listener => true,
            _ => false,
        }
    }

    fn poll_events(&mut self, slot: Slot) -> i16 {
        let events = self.rng.weighted(&[
            (30, libc::POLLIN),
            (20, libc::POLLIN | libc::POLLOUT),
            (10, libc::POLLOUT),
            (10, libc::POLLIN | libc::POLLRDHUP),
            (10, libc::POLLIN | libc::POLLPRI),
            (5, libc::POLLRDHUP),
            (5, libc::POLLPRI),
            (5, 0),
            (10, libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLPRI),
        ]);
        match self.program.slots[slot as usize] {
            Kind::End(conn, side) if self.end(conn, side).tiny => events & !libc::POLLOUT,
            _ => events,
        }
    }

    /// How long a wait may take. A thread that waits for ever most likely sleeps.
    fn time(&mut self, actor: ActorId, on: (u8, u8)) -> Time {
        let end = self.end(on.0, on.1);
        let ready = end.unread > 0 || end.ended;
        match self.rng.below(100) {
            0..55 => Time::Zero,
            55..70 if !ready => Time::Ms(self.rng.within(1, 8) as u16),
            _ if ready => Time::Forever,
            _ if self.may_sleep(actor) => {
                self.model.actors[actor as usize] = Life::Asleep(on.0, on.1);
                Time::Forever
            }
            _ => Time::Zero,
        }
    }

    /// A new set, now and then within another one.
    pub(super) fn set_make(&mut self) -> Option<()> {
        let most = if self.program.theme == Theme::Sets { 6 } else { 3 };
        if self.model.sets.len() >= most {
            return None;
        }
        let actor = self.anybody()?;
        let process = self.process_of(actor);
        let slot = self.slot(Kind::Set);
        self.step(actor, Op::EpollCreate { slot });
        self.gained(process, slot);
        let inner: Vec<Slot> = self.sets_of(process);
        self.model.sets.push(Set { slot, members: Vec::new() });
        if !inner.is_empty() && self.rng.percent(25) {
            let member = self.rng.pick(&inner);
            self.add(actor, slot, member);
        }
        Some(())
    }

    fn sets_of(&self, process: u8) -> Vec<Slot> {
        let held = &self.model.processes[process as usize].slots;
        self.model.sets.iter().map(|set| set.slot).filter(|slot| held.contains(slot)).collect()
    }

    fn add(&mut self, actor: ActorId, set: Slot, member: Slot) {
        self.model.next_data += 1;
        // Anything may be a program's data: small numbers, pointers, all ones.
        let shape = self.rng.pick(&[0, 0x7F00_0000_1000, u64::MAX << 32, 1 << 63]);
        let data = shape | self.model.next_data;
        let events = self.set_events(member);
        self.step(actor, Op::EpollCtl { set, what: Ctl::Add, slot: member, events, data });
        if let Some(known) = self.model.sets.iter_mut().find(|known| known.slot == set) {
            known.members.push((member, data));
        }
    }

    fn set_events(&mut self, member: Slot) -> u32 {
        let (into, out, hup) = (libc::EPOLLIN as u32, libc::EPOLLOUT as u32, libc::EPOLLRDHUP as u32);
        let mut events = self.rng.weighted(&[
            (35, into),
            (20, into | out),
            (15, into | hup),
            (10, into | out | hup),
            (6, out),
            (3, 0),
            (6, into | libc::EPOLLPRI as u32),
        ]);
        if let Kind::End(conn, side) = self.program.slots[member as usize]
            && self.end(conn, side).tiny
        {
            events &= !out;
        }
        let edge = if self.program.theme == Theme::Edge { 70 } else { 35 };
        if self.rng.percent(edge) {
            events |= libc::EPOLLET as u32;
        }
        if self.rng.percent(15) {
            events |= libc::EPOLLONESHOT as u32;
        }
        events
    }

    /// Something is put into a set, changed, or taken out.
    pub(super) fn set_change(&mut self) -> Option<()> {
        let actor = self.anybody()?;
        let process = self.process_of(actor);
        let sets = self.sets_of(process);
        if sets.is_empty() {
            return self.set_make();
        }
        let set = self.rng.pick(&sets);
        let at = self.model.sets.iter().position(|known| known.slot == set)?;
        let members = self.model.sets[at].members.clone();
        if members.is_empty() || self.rng.percent(50) {
            let held = self.model.processes[process as usize].slots.clone();
            let fit = |slot: &Slot| {
                *slot != set && self.is_pollable(*slot) && !matches!(self.program.slots[*slot as usize], Kind::Set)
            };
            let fit: Vec<Slot> = held.iter().copied().filter(fit).collect();
            let member = if fit.is_empty() { return None } else { self.rng.pick(&fit) };
            self.add(actor, set, member);
            return Some(());
        }
        let (member, data) = self.rng.pick(&members);
        if self.rng.percent(65) {
            let events = self.set_events(member);
            self.step(actor, Op::EpollCtl { set, what: Ctl::Mod, slot: member, events, data });
        } else {
            self.step(actor, Op::EpollCtl { set, what: Ctl::Del, slot: member, events: 0, data });
            self.model.sets[at].members.retain(|known| known.0 != member);
        }
        Some(())
    }

    /// A wait for a set.
    pub(super) fn set_wait(&mut self) -> Option<()> {
        let actor = self.anybody()?;
        let process = self.process_of(actor);
        let sets = self.sets_of(process);
        if sets.is_empty() {
            return self.set_make();
        }
        let set = self.rng.pick(&sets);
        let via = self.rng.weighted(&[
            (60, EpollVia::Wait),
            (15, EpollVia::Pwait),
            (8, EpollVia::PwaitMask),
            (12, EpollVia::Pwait2),
            (5, EpollVia::SysWait),
        ]);
        let max = self.rng.weighted(&[(80, 16), (10, 1), (10, 2)]);
        let time = match self.set_end(set) {
            Some(on) => self.time(actor, on),
            None => Time::Zero,
        };
        let time = self.unless_raced(actor, false, time);
        self.step(actor, Op::EpollWait { set, max, via, time });
        Some(())
    }

    /// An end of a connection in a set, if there is one.
    fn set_end(&mut self, set: Slot) -> Option<(u8, u8)> {
        let known = self.model.sets.iter().find(|known| known.slot == set)?;
        let ends: Vec<(u8, u8)> = known.members.iter().filter_map(|(slot, _)| self.program.end(*slot)).collect();
        if ends.is_empty() { None } else { Some(self.rng.pick(&ends)) }
    }

    /// Bytes come for a thread that sleeps.
    pub(super) fn wake(&mut self) -> Option<()> {
        let asleep: Vec<(u8, u8)> = self
            .model
            .actors
            .iter()
            .filter_map(|life| match life {
                Life::Asleep(conn, side) => Some((*conn, *side)),
                _ => None,
            })
            .collect();
        if asleep.is_empty() {
            return self.send();
        }
        let (conn, side) = self.rng.pick(&asleep);
        let (actor, slot) = self.partner(conn, 1 - side, ActorId::MAX)?;
        let end = self.end(conn, 1 - side);
        if end.shut || end.vague || end.tiny || end.writes_file {
            return None;
        }
        if self.rng.percent(12) {
            self.step(actor, Op::Shutdown { slot, how: libc::SHUT_WR });
            self.end_mut(conn, 1 - side).shut = true;
            self.end_mut(conn, side).ended = true;
            self.woken(conn, side);
            return Some(());
        }
        let len = self.size(2000).max(1);
        let via = self.rng.pick(&[SendVia::Send, SendVia::Write]);
        self.step(actor, Op::Send(Data { slot, len, via, flags: 0, memory: Memory::Good, pieces: Pieces::One }));
        self.sent(conn, 1 - side, u64::from(len));
        Some(())
    }
}

//! Moves of many bytes: requests and answers, much in one direction, one call for more than fits.

use super::build::Build;
use super::model::{Life, UNREAD};
use crate::op::{ActorId, Data, Memory, Op, Pieces, Slot};
use crate::via::{CloseVia, RecvVia, SendVia};

impl Build {
    /// Requests and answers.
    pub(super) fn exchange(&mut self) -> Option<()> {
        let (actor, slot, _, _) = self.end_where(|end| !end.shut && !end.ended)?;
        self.exchange_by(actor, slot)
    }

    /// The same by this actor.
    pub(super) fn exchange_by(&mut self, actor: ActorId, slot: Slot) -> Option<()> {
        let (conn, side) = self.program.end(slot)?;
        let other = self.partner(conn, 1 - side, actor)?;
        for side in [0, 1] {
            let end = self.end(conn, side);
            if end.shut
                || end.ended
                || end.reads_file
                || end.writes_file
                || end.unread > UNREAD
                || end.jammed
                || end.marked
            {
                return None;
            }
        }
        if self.sleeps_on(conn) {
            return None;
        }
        let most = if self.end(conn, side).tiny { 300 } else { 3000 };
        let (rounds, size) = (self.rng.within(1, 20) as u16, self.size(most).max(1));
        self.exchange_between((actor, slot), other, rounds, size);
        Some(())
    }

    pub(super) fn sleeps_on(&self, conn: u8) -> bool {
        self.model.actors.iter().any(|life| matches!(life, Life::Asleep(on, _) if *on == conn))
    }

    /// Much in one direction.
    pub(super) fn bulk(&mut self) -> Option<()> {
        let (actor, slot, conn, side) = self.end_where(|end| !end.shut)?;
        let other = self.partner(conn, 1 - side, actor)?;
        let (own, peer) = (self.end(conn, side).clone(), self.end(conn, 1 - side).clone());
        let unfit =
            own.shut || own.writes_file || own.ended || own.jammed || peer.reads_file || peer.ended || peer.marked;
        if unfit || self.sleeps_on(conn) {
            return None;
        }
        let len = match self.rng.below(10) {
            _ if own.tiny || peer.tiny => self.rng.within(1000, 8000),
            0..4 => self.rng.within(1000, 70_000),
            4..9 => self.rng.within(70_000, 400_000),
            _ => self.rng.within(400_000, 2_000_000),
        };
        self.transfer((actor, slot), other, len as u32);
        self.model.ends[conn as usize].iter_mut().for_each(|end| end.grown = true);
        Some(())
    }

    /// One call for more than fits, which sleeps until all is read.
    pub(super) fn big_send(&mut self) -> Option<()> {
        let (actor, slot, conn, side) = self.end_where(|end| !end.shut && !end.nonblock)?;
        let (own, peer) = (self.end(conn, side).clone(), self.end(conn, 1 - side).clone());
        let busy =
            own.writes_file || own.impatient || peer.reads_file || peer.vague || own.vague || own.tiny || peer.tiny;
        if own.shut || own.nonblock || own.ended || peer.ended || busy {
            return None;
        }
        if self.sleeps_on(conn) {
            return None;
        }
        let (reader, read_slot) = self.partner(conn, 1 - side, actor)?;
        let together = own.grown || self.rng.percent(60);
        // The kernel buffers at most 4 MiB, and what the reader's end has room for.
        let (len, flags) = (if together { 2 << 20 } else { 6 << 20 }, libc::MSG_NOSIGNAL);
        let via = self.rng.pick(&[SendVia::Send, SendVia::Write, SendVia::Writev]);
        let flags = if via.has_flags() { flags } else { 0 };
        let call = Op::Send(Data { slot, len, via, flags, memory: Memory::Good, pieces: Pieces::Few });
        if together {
            let chunk = self.rng.pick(&[4096, 65536, 1 << 20]);
            let by = self.bulk_recv_via();
            let reads = Op::RecvAll { slot: read_slot, len, chunk, via: by };
            self.together(vec![(actor, call), (reader, reads)]);
            self.model.ends[conn as usize].iter_mut().for_each(|end| end.grown = true);
            return Some(());
        }
        self.step(actor, call);
        self.model.actors[actor as usize] = Life::Asleep(conn, side);
        // How much it took will not be known, and until it ends no other actor may read: the result would be random.
        for end in &mut self.model.ends[conn as usize] {
            end.vague = true;
            end.tiny = true;
            end.jammed = true;
        }
        self.end_big_send(actor, (conn, side), (reader, read_slot))
    }

    /// Something else than reading ends a call that sleeps for room.
    fn end_big_send(&mut self, actor: ActorId, on: (u8, u8), peer: (ActorId, Slot)) -> Option<()> {
        let ((conn, side), (reader, slot)) = (on, peer);
        let by = self.somebody(self.process_of(actor));
        match self.rng.below(8) {
            0..2 => {
                self.step(0, Op::Signal { actor, restart: false });
                self.model.actors[actor as usize] = Life::Free;
            }
            2 | 3 => {
                self.step(reader, Op::Close { slot, via: CloseVia::Close });
                let process = self.process_of(reader);
                self.lost(process, slot);
            }
            4 if by.is_some() && !self.program.actors[actor as usize].main => {
                self.step(by?, Op::Cancel { actor });
                self.model.actors[actor as usize] = Life::Gone;
            }
            5 if self.process_of(actor) != self.process_of(reader) => {
                let victim = if self.rng.percent(50) { actor } else { reader };
                let process = self.process_of(victim);
                let main = self.program.main_of(process)?;
                self.step(0, Op::Kill { actor: main, signal: libc::SIGKILL });
                self.died(process);
            }
            6 => {
                let (other, own) = self.partner(conn, side, actor)?;
                self.step(other, Op::Shutdown { slot: own, how: libc::SHUT_WR });
                self.end_mut(conn, side).shut = true;
                self.model.actors[actor as usize] = Life::Free;
            }
            _ => {}
        }
        Some(())
    }

    /// A way to send much.
    pub(super) fn bulk_send_via(&mut self) -> SendVia {
        let ways = [
            (30, SendVia::Send),
            (30, SendVia::Write),
            (15, SendVia::Writev),
            (10, SendVia::Sendmsg),
            (8, SendVia::Sendfile),
            (4, SendVia::Splice),
            (2, SendVia::Pwritev2),
            (1, SendVia::Aio),
        ];
        self.rng.weighted(&ways)
    }

    /// A way to receive much.
    pub(super) fn bulk_recv_via(&mut self) -> RecvVia {
        let is_urgent = |op: &Op| matches!(op, Op::Send(data) if data.flags & libc::MSG_OOB != 0);
        // A splice(2) that meets the urgent mark takes nothing, as at the end. How much of the rest finds room then is random.
        let splices = if self.program.steps.iter().any(|step| is_urgent(&step.op)) { 0 } else { 5 };
        let ways = [
            (35, RecvVia::Recv),
            (30, RecvVia::Read),
            (12, RecvVia::Readv),
            (10, RecvVia::Recvmsg),
            (splices, RecvVia::Splice),
            (2, RecvVia::Preadv2),
        ];
        self.rng.weighted(&ways)
    }
}

//! Moves that send and receive a little.

use super::build::Build;
use super::model::{Life, UNREAD};
use crate::op::{ActorId, Data, Memory, Op, Opt, Pieces, Slot};
use crate::program::Theme;
use crate::via::{RecvVia, SendVia};

/// recvmmsg(2): wait for the first message only.
const MSG_WAITFORONE: i32 = 0x10000;

impl Build {
    /// A number of bytes: mostly few, often near a limit of rings.
    pub(super) fn size(&mut self, most: u64) -> u32 {
        let near = |build: &mut Self, n: u64| n - 3 + build.rng.below(7);
        let size = match self.rng.below(100) {
            0..4 => 0,
            4..16 => 1,
            16..45 => self.rng.within(2, 50),
            45..68 => self.rng.within(51, 1000),
            68..78 => near(self, 1024),
            78..84 => near(self, 512),
            84..92 => self.rng.within(1000, 5000),
            92..96 => near(self, 4096),
            96..98 => near(self, 16384),
            _ => self.rng.within(5000, 20_000),
        };
        size.min(most) as u32
    }

    fn send_via(&mut self) -> SendVia {
        match self.program.theme {
            Theme::Aio if self.rng.percent(50) => self.rng.pick(&[SendVia::Aio, SendVia::Lio]),
            Theme::Files if self.rng.percent(50) => self.rng.pick(&[SendVia::Sendfile, SendVia::Splice]),
            Theme::Stdio if self.rng.percent(20) => SendVia::Dprintf,
            _ => self.rng.weighted(&[
                (30, SendVia::Send),
                (6, SendVia::Sendto),
                (12, SendVia::Sendmsg),
                (5, SendVia::Sendmmsg),
                (25, SendVia::Write),
                (12, SendVia::Writev),
                (3, SendVia::Pwritev2),
                (2, SendVia::SysWrite),
                (2, SendVia::SysSendto),
                (2, SendVia::SysSendmsg),
                (2, SendVia::SysWritev),
                (1, SendVia::Aio),
                (1, SendVia::Lio),
                (1, SendVia::Dprintf),
                (3, SendVia::Sendfile),
                (1, SendVia::Splice),
            ]),
        }
    }

    fn recv_via(&mut self) -> RecvVia {
        match self.program.theme {
            Theme::Aio if self.rng.percent(50) => RecvVia::Aio,
            _ => self.rng.weighted(&[
                (30, RecvVia::Recv),
                (8, RecvVia::Recvfrom),
                (14, RecvVia::Recvmsg),
                (5, RecvVia::Recvmmsg),
                (25, RecvVia::Read),
                (10, RecvVia::Readv),
                (3, RecvVia::Preadv2),
                (2, RecvVia::RecvChk),
                (2, RecvVia::ReadChk),
                (1, RecvVia::RecvfromChk),
                (2, RecvVia::SysRead),
                (2, RecvVia::SysRecvfrom),
                (2, RecvVia::SysRecvmsg),
                (2, RecvVia::SysReadv),
                (1, RecvVia::Aio),
            ]),
        }
    }

    fn pieces(&mut self, has: bool) -> Pieces {
        if !has {
            return Pieces::One;
        }
        self.rng.weighted(&[
            (40, Pieces::One),
            (30, Pieces::Few),
            (16, Pieces::Holes),
            (8, Pieces::Many),
            (3, Pieces::TooMany),
            (3, Pieces::None),
        ])
    }

    /// Whether an actor is in a forked process: the C library's asynchronous calls are not made for those.
    fn is_childs(&self, actor: ActorId) -> bool {
        !self.program.processes[self.process_of(actor) as usize].initial
    }

    /// One sending call.
    pub(super) fn send(&mut self) -> Option<()> {
        let (actor, slot, conn, side) = self.end_where(|end| !end.shut && !end.tiny)?;
        let room = UNREAD.saturating_sub(self.end(conn, 1 - side).unread);
        if room < 100 || self.end(conn, side).tiny || self.end(conn, side).writes_file || self.end(conn, 1 - side).vague
        {
            return self.recv();
        }
        let via = self.send_via();
        let via = match via {
            SendVia::Aio | SendVia::Lio if self.is_childs(actor) => SendVia::Send,
            // Two sends: a thread that sleeps gets the bytes of the first one, or all.
            SendVia::Lio if self.sleeps_on(conn) => SendVia::Aio,
            via => via,
        };
        let mut flags = if self.rng.percent(30) { libc::MSG_NOSIGNAL } else { 0 };
        flags |= if self.rng.percent(15) { libc::MSG_DONTWAIT } else { 0 };
        let len = self.size(room);
        let len = match via {
            // These have one result for several calls, or none for an empty one.
            SendVia::Dprintf | SendVia::Sendfile | SendVia::Splice | SendVia::Aio | SendVia::Lio => len.clamp(2, 1000),
            _ => len,
        };
        let flags = if via.has_flags() { flags } else { 0 };
        let pieces = self.pieces(via.has_pieces());
        let none = matches!(pieces, Pieces::None | Pieces::TooMany);
        self.step(actor, Op::Send(Data { slot, len, via, flags, memory: Memory::Good, pieces }));
        if !self.end(conn, side).shut && !none {
            self.sent(conn, side, u64::from(len));
        }
        Some(())
    }

    /// One receiving call.
    pub(super) fn recv(&mut self) -> Option<()> {
        let (actor, slot, conn, side) = self.end_where(|end| end.unread > 0 || end.ended)?;
        if self.end(conn, side).reads_file || self.end(conn, side).jammed {
            return None;
        }
        if self.end(conn, side).vague || self.end(conn, side).tiny {
            self.step(actor, Op::Drain { slot, via: RecvVia::Recv });
            self.end_mut(conn, side).unread = 0;
            return Some(());
        }
        let via = self.recv_via();
        let via = if self.is_childs(actor) && via == RecvVia::Aio { RecvVia::Recv } else { via };
        let flags = self.recv_flags(via, conn, side);
        let unread = self.end(conn, side).unread;
        let len = match self.rng.below(100) {
            0..35 => self.size(1 << 20),
            35..55 => unread as u32,
            55..70 => (unread / 2) as u32 + 1,
            70..80 => unread as u32 + self.rng.within(1, 100) as u32,
            80..90 => 65536,
            _ => self.rng.within(1, 300_000) as u32,
        };
        self.recv_call(actor, slot, Data { slot, len, via, flags, memory: Memory::Good, pieces: Pieces::One })
    }

    fn recv_flags(&mut self, via: RecvVia, conn: u8, side: u8) -> i32 {
        if !via.has_flags() {
            return 0;
        }
        let peek = if self.program.theme == Theme::Peek { 50 } else { 15 };
        let mut flags = 0;
        let urgent = self.program.theme == Theme::Urgent;
        for (percent, flag) in [
            (peek, libc::MSG_PEEK),
            (12, libc::MSG_WAITALL),
            (25, libc::MSG_DONTWAIT),
            (if self.end(conn, side).mixed { 0 } else { 5 }, libc::MSG_TRUNC),
            (if urgent { 20 } else { 1 }, libc::MSG_OOB),
            (2, libc::MSG_ERRQUEUE),
            (2, libc::MSG_CMSG_CLOEXEC),
        ] {
            if self.rng.percent(percent) {
                flags |= flag;
            }
        }
        if via == RecvVia::Recvmmsg {
            // It would wait for each message anew.
            flags |= libc::MSG_DONTWAIT | if self.rng.percent(30) { MSG_WAITFORONE } else { 0 };
        }
        flags
    }

    /// Adds a receiving call, and remembers what it does.
    fn recv_call(&mut self, actor: ActorId, slot: Slot, mut data: Data<RecvVia>) -> Option<()> {
        let (conn, side) = self.program.end(slot)?;
        data.pieces = self.pieces(data.via.has_pieces());
        if data.pieces == Pieces::None && self.end(conn, side).unread == 0 {
            data.pieces = Pieces::One;
        }
        if data.via == RecvVia::Recvmmsg && data.pieces == Pieces::None {
            data.pieces = Pieces::One;
        }
        let waits = !self.end(conn, side).nonblock
            && data.flags & (libc::MSG_DONTWAIT | libc::MSG_OOB | libc::MSG_ERRQUEUE) == 0;
        let end = self.end(conn, side).clone();
        let short =
            if data.flags & libc::MSG_WAITALL != 0 { end.unread < u64::from(data.len) } else { end.unread == 0 };
        if short && data.len == 0 {
            // It is not defined when the kernel wakes a receive of no bytes.
            data.len = 1;
        }
        let sleeps = waits && short && !end.ended && !matches!(data.pieces, Pieces::TooMany | Pieces::None);
        if sleeps && data.via == RecvVia::Aio {
            return None;
        }
        if sleeps && !self.may_sleep(actor) {
            data.flags |= libc::MSG_DONTWAIT;
            if !data.via.has_flags() {
                return None;
            }
        } else if sleeps {
            self.model.actors[actor as usize] = Life::Asleep(conn, side);
        }
        let takes = data.flags & (libc::MSG_PEEK | libc::MSG_OOB | libc::MSG_ERRQUEUE) == 0;
        if takes && !matches!(data.pieces, Pieces::TooMany | Pieces::None) {
            let end = self.end_mut(conn, side);
            end.unread -= end.unread.min(u64::from(data.len));
        }
        self.step(actor, Op::Recv(data));
        Some(())
    }

    /// Whether this actor may sleep now: another one must be left to wake it.
    pub(super) fn may_sleep(&mut self, actor: ActorId) -> bool {
        let process = self.process_of(actor);
        let others = self.ready_processes().iter().filter(|ready| **ready != process).count();
        let here = self.free_actors(process).len();
        (here > 1 || others > 0)
            && self.rng.percent(if matches!(self.program.theme, Theme::Signals | Theme::Cancel) { 90 } else { 35 })
    }

    /// A call with memory that is not there.
    pub(super) fn bad_memory(&mut self) -> Option<()> {
        let half = Memory::Half(self.rng.within(1, 3000) as u16);
        let memory = self.rng.weighted(&[
            (2, Memory::Null),
            (2, Memory::Low),
            (2, Memory::Last),
            (3, Memory::Guard),
            (2, Memory::Header),
            (2, half),
        ]);
        let sends = self.rng.percent(50);
        let (actor, slot, conn, side) =
            if sends { self.end_where(|end| !end.shut)? } else { self.end_where(|end| end.unread > 0)? };
        if self.end(conn, side).vague || self.end(conn, 1 - side).vague || self.end(conn, side).tiny {
            return None;
        }
        let len = match memory {
            Memory::Half(good) => u32::from(good) + self.rng.within(1, 2000) as u32,
            _ => self.size(3000).max(1),
        };
        let via = self.send_via();
        let flat = !matches!(via, SendVia::Dprintf | SendVia::Sendfile | SendVia::Splice | SendVia::Aio | SendVia::Lio);
        if sends && (flat && !self.end(conn, side).writes_file) {
            let pieces = if via.has_pieces() { self.rng.pick(&[Pieces::One, Pieces::Few]) } else { Pieces::One };
            if memory == Memory::Header && !via.has_pieces() {
                return None;
            }
            // Pieces of a bad place that lies at the end of memory would wrap around.
            let memory = if memory == Memory::Last && via.has_pieces() { Memory::Guard } else { memory };
            self.step(actor, Op::Send(Data { slot, len, via, flags: 0, memory, pieces }));
            if matches!(memory, Memory::Half(_)) {
                self.end_mut(conn, 1 - side).vague = true;
            }
            return Some(());
        }
        self.bad_recv((actor, slot, conn, side), memory, len)
    }

    fn bad_recv(&mut self, end: (ActorId, Slot, u8, u8), memory: Memory, len: u32) -> Option<()> {
        let (actor, slot, conn, side) = end;
        let via = self.recv_via();
        let sleeps = self.end(conn, side).unread == 0 && !self.end(conn, side).ended;
        if via == RecvVia::Aio || self.end(conn, side).reads_file || memory == Memory::Header && !via.has_pieces() {
            return None;
        }
        let flags = if via.has_flags() && (sleeps || self.rng.percent(30)) { libc::MSG_DONTWAIT } else { 0 };
        if sleeps && flags == 0 && !self.end(conn, side).nonblock {
            return None;
        }
        let memory = if memory == Memory::Last && via.has_pieces() { Memory::Guard } else { memory };
        self.step(actor, Op::Recv(Data { slot, len, via, flags, memory, pieces: Pieces::One }));
        if matches!(memory, Memory::Half(_)) {
            self.end_mut(conn, side).vague = true;
        }
        Some(())
    }

    /// Bytes that the kernel holds back until more come, or the cork is pulled.
    pub(super) fn held(&mut self) -> Option<()> {
        let (actor, slot, conn, side) = self.end_where(|end| !end.shut && !end.ended)?;
        let (own, peer) = (self.end(conn, side), self.end(conn, 1 - side));
        if own.shut || own.ended || own.tiny || own.vague || own.writes_file || peer.unread > UNREAD / 2 || peer.vague {
            return None;
        }
        let begin = self.program.steps.len();
        let cork = self.rng.percent(50);
        if cork {
            self.step(actor, Op::SetOption { slot, option: Opt::Cork, value: 1 });
        }
        for _ in 0..self.rng.within(1, 3) {
            let len = self.size(2000).max(1);
            let flags = if cork { 0 } else { libc::MSG_MORE };
            let via = self.rng.pick(&[SendVia::Send, SendVia::Sendmsg]);
            self.step(actor, Op::Send(Data { slot, len, via, flags, memory: Memory::Good, pieces: Pieces::One }));
            self.sent(conn, side, u64::from(len));
        }
        if cork {
            self.step(actor, Op::SetOption { slot, option: Opt::Cork, value: 0 });
        } else {
            let len = self.size(500).max(1);
            let data = Data { slot, len, via: SendVia::Send, flags: 0, memory: Memory::Good, pieces: Pieces::One };
            self.step(actor, Op::Send(data));
            self.sent(conn, side, u64::from(len));
        }
        let end = self.program.steps.len() - 1;
        self.program.steps[begin..end].iter_mut().for_each(|step| step.held = true);
        Some(())
    }

    /// An urgent byte.
    pub(super) fn urgent(&mut self) -> Option<()> {
        let (actor, slot, conn, side) = self.end_where(|end| !end.shut && !end.ended)?;
        let (own, peer) = (self.end(conn, side), self.end(conn, 1 - side));
        if own.shut || own.ended || own.tiny || own.vague || own.writes_file || peer.unread > UNREAD / 2 || peer.vague {
            return None;
        }
        match self.rng.below(10) {
            0..4 => {
                let len = self.rng.within(1, 20) as u32;
                let via = self.rng.pick(&[SendVia::Send, SendVia::Sendmsg, SendVia::Sendto]);
                let flags = libc::MSG_OOB;
                self.step(actor, Op::Send(Data { slot, len, via, flags, memory: Memory::Good, pieces: Pieces::One }));
                self.end_mut(conn, 1 - side).mixed = true;
                self.sent(conn, side, u64::from(len));
            }
            4..7 => {
                let flags = libc::MSG_OOB | if self.rng.percent(30) { libc::MSG_PEEK } else { 0 };
                let via = self.rng.pick(&[RecvVia::Recv, RecvVia::Recvmsg]);
                self.step(
                    actor,
                    Op::Recv(Data { slot, len: 1, via, flags, memory: Memory::Good, pieces: Pieces::One }),
                );
            }
            7 => {
                let value = self.rng.below(2) as i32;
                self.step(actor, Op::SetOption { slot, option: Opt::OobInline, value });
            }
            8 => self.step(actor, Op::AtMark { slot }),
            _ => self.step(actor, Op::Own { slot }),
        }
        Some(())
    }

    /// Takes what is there.
    pub(super) fn drain(&mut self) -> Option<()> {
        let (actor, slot, conn, side) = self.end_where(|end| end.unread > 0)?;
        if self.end(conn, side).reads_file || self.end(conn, side).jammed {
            return None;
        }
        let ways = [
            (6, RecvVia::Recv),
            (3, RecvVia::Read),
            (2, RecvVia::Recvmsg),
            (2, RecvVia::Readv),
            (2, RecvVia::Splice),
            (1, RecvVia::Preadv2),
            (1, RecvVia::Aio),
        ];
        let via = self.rng.weighted(&ways);
        let via = if self.is_childs(actor) && via == RecvVia::Aio { RecvVia::Recv } else { via };
        self.step(actor, Op::Drain { slot, via });
        self.end_mut(conn, side).unread = 0;
        Some(())
    }
}

//! Moves about descriptors: options, requests, closing, duplicating, FILEs.

use super::build::Build;
use crate::op::{ActorId, FileMode, Op, Opt, Request, Slot};
use crate::program::{Kind, Theme};
use crate::via::{CloseVia, DupVia, FileVia};

/// A receive beside an option asks for no more.
const MOST_RECEIVED: u64 = 3000;

impl Build {
    /// Sets or gets an option.
    pub(super) fn option(&mut self) -> Option<()> {
        let (actor, slot, conn, side) = self.any_end()?;
        if self.rng.percent(35) {
            let option = self.rng.pick(&[
                Opt::NoDelay,
                Opt::Cork,
                Opt::KeepAlive,
                Opt::SndBuf,
                Opt::RcvBuf,
                Opt::OobInline,
                Opt::RcvLowat,
                Opt::RcvTimeo,
                Opt::SndTimeo,
                Opt::Linger,
                Opt::Error,
                Opt::Type,
                Opt::Priority,
                Opt::AcceptConn,
                Opt::Protocol,
                Opt::ReuseAddr,
                Opt::Unknown,
            ]);
            // The query waits until all is acknowledged, which takes 40 ms.
            let option = if self.rng.percent(2) { Opt::Info } else { option };
            self.step(actor, Op::GetOption { slot, option });
            return Some(());
        }
        let (option, value) = self.setting();
        let sizes = matches!(option, Opt::SndBuf | Opt::RcvBuf);
        // A handler may send there, and would wait for room.
        if sizes && self.model.ends[conn as usize].iter().any(|end| end.mixed) {
            return None;
        }
        // The peer's acknowledgement of the end wakes a thread that waits for more bytes than have come, and its delay is random.
        if option == Opt::RcvLowat && value > 1 && self.end(conn, side).shut {
            return None;
        }
        self.step(actor, Op::SetOption { slot, option, value });
        if option == Opt::SndTimeo {
            self.end_mut(conn, side).impatient = value > 0;
        }
        if sizes {
            self.model.ends[conn as usize].iter_mut().for_each(|end| end.tiny = true);
        }
        if option == Opt::RcvLowat && value > 1 {
            // It is reset soon, since a thread that waits for few bytes would sleep.
            let unread = self.end(conn, side).unread;
            if self.recv_from(actor, slot, conn, side).is_some() && unread < MOST_RECEIVED {
                // It may sleep; then its next step is skipped.
                self.end_mut(conn, side).marked = true;
            }
            self.step(actor, Op::SetOption { slot, option, value: 1 });
        }
        if option == Opt::RcvTimeo && value > 0 && self.rng.percent(60) {
            let _ = self.recv_from(actor, slot, conn, side);
            self.step(actor, Op::SetOption { slot, option, value: 0 });
        }
        Some(())
    }

    fn setting(&mut self) -> (Opt, i32) {
        let option = self.rng.weighted(&[
            (12, Opt::NoDelay),
            (4, Opt::QuickAck),
            (5, Opt::KeepAlive),
            (3, Opt::SndBuf),
            (3, Opt::RcvBuf),
            (5, Opt::OobInline),
            (8, Opt::RcvLowat),
            (10, Opt::RcvTimeo),
            (5, Opt::SndTimeo),
            (10, Opt::Linger),
            (3, Opt::ReuseAddr),
            (3, Opt::ReusePort),
            (3, Opt::Priority),
            (1, Opt::Unknown),
        ]);
        let value = match option {
            Opt::SndBuf | Opt::RcvBuf => self.rng.pick(&[1, 4096, 20_000, 100_000, 1 << 20]),
            Opt::RcvLowat => self.rng.pick(&[1, 2, 10, 100, 1000]),
            Opt::RcvTimeo | Opt::SndTimeo => self.rng.pick(&[0, 2, 5, 10]),
            Opt::Linger => self.rng.pick(&[-1, 0, 0, 1]),
            Opt::Priority => self.rng.within(0, 6) as i32,
            // Without it small writes wait 40 ms for an acknowledgement.
            Opt::NoDelay => i32::from(self.rng.percent(90)),
            _ => self.rng.below(2) as i32,
        };
        (option, value)
    }

    pub(super) fn recv_from(&mut self, actor: ActorId, slot: Slot, conn: u8, side: u8) -> Option<()> {
        use crate::op::{Data, Memory, Pieces};
        use crate::via::RecvVia;
        let end = self.end(conn, side);
        if end.reads_file || end.vague || end.tiny {
            return None;
        }
        let via = self.rng.pick(&[RecvVia::Recv, RecvVia::Read, RecvVia::Recvmsg]);
        let (len, unread) = (self.rng.within(1, MOST_RECEIVED), self.end(conn, side).unread);
        let waitall = if via.has_flags() && self.rng.percent(30) { libc::MSG_WAITALL } else { 0 };
        let flags = waitall | if via.has_flags() && self.rng.percent(30) { libc::MSG_PEEK } else { 0 };
        self.step(
            actor,
            Op::Recv(Data { slot, len: len as u32, via, flags, memory: Memory::Good, pieces: Pieces::One }),
        );
        if flags & libc::MSG_PEEK == 0 {
            self.end_mut(conn, side).unread -= unread.min(len);
        }
        Some(())
    }

    /// ioctl(2).
    pub(super) fn ioctl(&mut self) -> Option<()> {
        let (actor, slot, conn, side) = self.any_end()?;
        if self.end(conn, side).tiny {
            return None;
        }
        let request = self.rng.weighted(&[
            (50, Request::FionRead),
            (2, Request::SiocOutq),
            (10, Request::AtMark),
            (8, Request::Fionbio(true)),
            (10, Request::Fionbio(false)),
            (2, Request::FioAsync(true)),
            (2, Request::FioAsync(false)),
        ]);
        if let Request::Fionbio(on) = request {
            self.end_mut(conn, side).nonblock = on;
        }
        self.step(actor, Op::Ioctl { slot, request });
        Some(())
    }

    /// `O_NONBLOCK`.
    pub(super) fn nonblocking(&mut self) -> Option<()> {
        let (actor, slot, conn, side) = self.any_end()?;
        let on = self.rng.percent(50);
        self.end_mut(conn, side).nonblock = on;
        self.step(actor, Op::NonBlocking { slot, on });
        Some(())
    }

    /// Names and flags.
    pub(super) fn tell(&mut self) -> Option<()> {
        let (actor, slot, ..) = self.any_end()?;
        let op = match self.rng.below(4) {
            0 => Op::Flags { slot },
            1 if self.program.actors[actor as usize].main => Op::Signals,
            _ => Op::Names { slot },
        };
        self.step(actor, op);
        Some(())
    }

    /// shutdown(2).
    pub(super) fn shutdown(&mut self) -> Option<()> {
        let (actor, slot, conn, side) = self.any_end()?;
        let how = self.rng.weighted(&[(70, libc::SHUT_WR), (15, libc::SHUT_RDWR), (12, libc::SHUT_RD), (3, 7)]);
        self.step(actor, Op::Shutdown { slot, how });
        if matches!(how, libc::SHUT_WR | libc::SHUT_RDWR) {
            self.end_mut(conn, side).shut = true;
            self.end_mut(conn, 1 - side).ended = true;
            self.woken(conn, 1 - side);
        }
        if matches!(how, libc::SHUT_RD | libc::SHUT_RDWR) {
            self.end_mut(conn, side).ended = true;
            self.woken(conn, side);
        }
        Some(())
    }

    /// close(2).
    pub(super) fn close(&mut self) -> Option<()> {
        let (actor, slot, ..) = self.any_end()?;
        let process = self.process_of(actor);
        let via = self.rng.weighted(&[
            (60, CloseVia::Close),
            (15, CloseVia::Range),
            (15, CloseVia::Syscall),
            (2, CloseVia::Closefrom),
        ]);
        self.step(actor, Op::Close { slot, via });
        if via == CloseVia::Closefrom {
            // Those that were opened later mostly have higher numbers.
            let held = self.model.processes[process as usize].slots.clone();
            let from = held.iter().position(|known| *known == slot).unwrap_or(0);
            held[from..].iter().for_each(|slot| self.lost(process, *slot));
        } else {
            self.lost(process, slot);
        }
        Some(())
    }

    /// dup(2) and its like; often one of the two is closed then.
    pub(super) fn dup(&mut self) -> Option<()> {
        let (actor, slot, conn, side) = self.any_end()?;
        let process = self.process_of(actor);
        if self.program.slots.len() > 100 {
            return None;
        }
        if self.rng.percent(20) {
            return self.dup_over(actor, slot);
        }
        let via = self.rng.weighted(&[
            (25, DupVia::Dup),
            (15, DupVia::Dup2),
            (8, DupVia::Dup3),
            (8, DupVia::Fcntl),
            (8, DupVia::FcntlCloexec),
            (5, DupVia::Zero),
            (5, DupVia::One),
            (3, DupVia::Two),
            (5, DupVia::High),
            (3, DupVia::Syscall),
        ]);
        let new = self.slot(Kind::End(conn, side));
        self.step(actor, Op::Dup { slot, new, via });
        self.gained(process, new);
        match self.rng.below(10) {
            0..4 => {
                self.step(actor, Op::Close { slot, via: CloseVia::Close });
                self.lost(process, slot);
            }
            4..6 => {
                self.step(actor, Op::Close { slot: new, via: CloseVia::Close });
                self.lost(process, new);
            }
            _ => {}
        }
        Some(())
    }

    /// dup2 over another descriptor of this process.
    fn dup_over(&mut self, actor: ActorId, slot: Slot) -> Option<()> {
        let process = self.process_of(actor);
        let fit = |over: &&Slot| **over != slot && matches!(self.program.slots[**over as usize], Kind::End(..));
        let others: Vec<Slot> = self.model.processes[process as usize].slots.iter().filter(fit).copied().collect();
        let over = if others.is_empty() { return None } else { self.rng.pick(&others) };
        let (conn, side) = self.program.end(slot)?;
        let new = self.slot(Kind::End(conn, side));
        self.step(actor, Op::DupOver { slot, over, new });
        self.gained(process, new);
        self.lost(process, over);
        Some(())
    }

    /// FILEs: opened, written, read, closed.
    pub(super) fn stdio(&mut self) -> Option<()> {
        if self.model.files.is_empty() || self.rng.percent(15) {
            return self.open_file();
        }
        let (file, reads, writes) = self.rng.pick(&self.model.files.clone());
        let process =
            self.alive().into_iter().find(|process| self.model.processes[*process as usize].slots.contains(&file))?;
        let actor = self.somebody(process)?;
        let (conn, side) = self.program.end(file)?;
        let via = self.rng.pick(FileVia::ALL);
        let (unread, ended) = (self.end(conn, side).unread, self.end(conn, side).ended);
        if writes && !self.end(conn, side).shut && (!reads || self.rng.percent(50)) {
            let len = self.size(3000).max(1);
            self.step(actor, Op::FileWrite { file, len, via });
            self.sent(conn, side, u64::from(len));
        } else if reads && (unread > 0 || ended) {
            let len = if ended { self.size(3000).max(1) } else { self.rng.within(1, unread) as u32 };
            self.step(actor, Op::FileRead { file, len, via });
            self.end_mut(conn, side).unread -= unread.min(u64::from(len));
            // A write after this would have to give back what the FILE has read ahead, and sockets do not seek.
            self.model.files.iter_mut().filter(|known| known.0 == file).for_each(|known| known.2 = false);
        } else if self.rng.percent(30) {
            self.step(actor, Op::FileClose { file });
            self.model.files.retain(|known| known.0 != file);
            self.lost(process, file);
        }
        Some(())
    }

    fn open_file(&mut self) -> Option<()> {
        let (actor, slot, conn, side) = self.any_end()?;
        let (process, end) = (self.process_of(actor), self.end(conn, side).clone());
        if end.nonblock || end.reads_file || end.writes_file || end.vague || end.jammed || self.model.files.len() > 3 {
            return None;
        }
        let mode = self.rng.weighted(&[(40, FileMode::Read), (40, FileMode::Write), (20, FileMode::Both)]);
        let (reads, writes) = (mode != FileMode::Write, mode != FileMode::Read);
        let file = self.slot(Kind::File(conn, side));
        let mut slot = slot;
        if self.rng.percent(50) {
            let copy = self.slot(Kind::End(conn, side));
            self.step(actor, Op::Dup { slot, new: copy, via: DupVia::Dup });
            self.gained(process, copy);
            slot = copy;
        }
        self.step(actor, Op::Fdopen { slot, file, mode });
        self.gained(process, file);
        self.model.processes[process as usize].slots.retain(|held| *held != slot);
        let end = self.end_mut(conn, side);
        end.reads_file = reads;
        end.writes_file = writes;
        self.model.files.push((file, reads, writes));
        Some(())
    }

    /// What no socket can do.
    pub(super) fn odd(&mut self) -> Option<()> {
        let (actor, slot, ..) = self.any_end()?;
        self.step(actor, Op::OddFiles { slot });
        Some(())
    }

    /// A connect to a port without a listener.
    pub(super) fn refused(&mut self) -> Option<()> {
        let actor = self.anybody()?;
        let nonblock = self.rng.percent(50);
        self.step(actor, Op::Refused { nonblock });
        if self.program.theme == Theme::Connect && self.rng.percent(10) {
            return self.close_listener();
        }
        Some(())
    }

    fn close_listener(&mut self) -> Option<()> {
        let (slot, ..) = self.model.listeners.pop()?;
        let process =
            self.alive().into_iter().find(|process| self.model.processes[*process as usize].slots.contains(&slot))?;
        let actor = self.somebody(process)?;
        self.step(actor, Op::Close { slot, via: CloseVia::Close });
        self.lost(process, slot);
        Some(())
    }
}

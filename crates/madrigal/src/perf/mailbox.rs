//! The ping-pong of two mailboxes of two processes: messages of a header alone, and shared buffers, which are mapped and not copied; so one
//! of a mebibyte takes as long as one of a page.

use core::fmt;

use madrigal_message::mailbox::{Buffer, Data, Draft, Filter, Kind, Letter, Mailbox, Mailboxes, Policy, PortAddress};
use madrigal_sys::{process, time};

use super::circuit::{Way, worker};
use super::job::{Job, Peer, ROUNDS, START_NS};
use super::report::{PerfError, best, median, os, steady};

/// The argument of a started copy begins with this.
pub(super) const ASKED: &str = "mailbox ";
/// Bytes of the buffers that are compared.
const SMALL: usize = 4 << 10;
/// See [`SMALL`].
const LARGE: usize = 1 << 20;
/// The tag of the last question of a round.
const LAST: u64 = 1;

/// What was measured: one-way nanoseconds of a message, half of a ping-pong; one round each.
#[derive(Clone, PartialEq, Debug)]
pub struct MailboxReport {
    /// The driver.
    pub method: String,
    /// Ping-pongs a round, at most.
    pub iterations: u32,
    /// Of a header without data, found and dropped.
    pub header_ns: Vec<f64>,
    /// Of a shared buffer of 4 KiB, got and let go, its first byte read.
    pub small_ns: Vec<f64>,
    /// Of one of 1 MiB.
    pub large_ns: Vec<f64>,
}

impl MailboxReport {
    /// Median of headers.
    pub fn header(&self) -> f64 {
        median(&self.header_ns)
    }

    /// Median of buffers of 4 KiB.
    pub fn small(&self) -> f64 {
        median(&self.small_ns)
    }

    /// Median of buffers of 1 MiB.
    pub fn large(&self) -> f64 {
        median(&self.large_ns)
    }

    /// How many times as long a buffer of 1 MiB takes as one of 4 KiB.
    pub fn ratio(&self) -> f64 {
        self.large() / self.small()
    }
}

impl fmt::Display for MailboxReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {:.0} ns one way of a header (best {:.0}); of a shared buffer of 4 KiB {:.0} ns (best {:.0}), of 1 MiB {:.0} ns \
             (best {:.0}); ratio {:.2} ({} rounds of {})",
            self.method,
            self.header(),
            best(&self.header_ns),
            self.small(),
            best(&self.small_ns),
            self.large(),
            best(&self.large_ns),
            self.ratio(),
            self.header_ns.len(),
            self.iterations,
        )?;
        let is_quiet = [&self.header_ns, &self.small_ns, &self.large_ns].into_iter().all(|rounds| steady(rounds));
        if is_quiet { Ok(()) } else { f.write_str("; the machine was busy") }
    }
}

/// One end: its mailbox, the other one's address, what both put.
struct End {
    own: Mailbox,
    to: [PortAddress; 1],
    buffers: [Option<Buffer>; 3],
}

/// Measures ping-pongs between mailboxes by `method`, in turn. Blocks until done; starts this program once more meanwhile.
pub fn mailbox(method: &str, iterations: u32) -> Result<MailboxReport, PerfError> {
    Way::of(method)?;
    let job = Job { size: 0, iterations: iterations.max(1) };
    let all = Mailboxes::open(&worker(method)?)?;
    let own = all.mailbox("asks", 4)?;
    let asked =
        [process::own_pid().to_string(), job.iterations.to_string(), method.to_owned(), own.address().to_string()];
    let _peer = Peer::start(&format!("{ASKED}{}", asked.join(" ")))?;
    // The first message says where the questions go.
    let first = own.wait(&Filter::default(), soon())?.ok_or(PerfError::Gone)?;
    own.discard(first.id)?;
    let end = End::new(own, (*first.source).clone())?;
    let mut rounds = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (which, rounds) in rounds.iter_mut().enumerate() {
            rounds.push(job.timed(|last| {
                end.put(which, u64::from(last) * LAST)?;
                end.take().map(drop)
            })?);
        }
    }
    let [header_ns, small_ns, large_ns] = rounds;
    Ok(MailboxReport { method: method.to_owned(), iterations: job.iterations, header_ns, small_ns, large_ns })
}

/// The part of the started copy.
pub(super) fn peer(asked: &str) -> Result<(), PerfError> {
    let unclear = || PerfError::Unclear(asked.to_owned());
    let words: Vec<&str> = asked.split(' ').collect();
    let [_, _, method, to] = words[..] else { return Err(unclear()) };
    let all = Mailboxes::open(&worker(method)?)?;
    let end = End::new(all.mailbox("answers", 4)?, to.parse().map_err(|_| unclear())?)?;
    end.put(0, 0)?;
    for _ in 0..ROUNDS {
        for which in 0..end.buffers.len() {
            while {
                let tag = end.take()?;
                end.put(which, tag)?;
                tag != LAST
            } {}
        }
    }
    all.flush(soon());
    Ok(())
}

impl End {
    fn new(own: Mailbox, to: PortAddress) -> Result<Self, PerfError> {
        let shared = |len| Draft::new(len).and_then(Draft::seal).map(Buffer::from).map_err(os);
        Ok(Self { own, to: [to], buffers: [None, Some(shared(SMALL)?), Some(shared(LARGE)?)] })
    }

    #[inline]
    fn put(&self, which: usize, tag: u64) -> Result<(), PerfError> {
        let (data, policy) = match &self.buffers[which] {
            None => (Data::Bytes(&[]), Policy::Receiver),
            Some(buffer) => (Data::Buffer(buffer), Policy::Sender),
        };
        self.own.put(&self.to, Letter { tag, kind: Kind::Data, policy }, data, soon())?;
        Ok(())
    }

    /// The tag of the next message, whose data are got and let go.
    #[inline]
    fn take(&self) -> Result<u64, PerfError> {
        let header = self.own.wait(&Filter::default(), soon())?.ok_or(PerfError::Gone)?;
        if header.size == 0 {
            self.own.discard(header.id)?;
        } else {
            let buffer = self.own.get(header.id, soon())?;
            core::hint::black_box(buffer.first().copied());
        }
        Ok(header.tag)
    }
}

fn soon() -> Option<u64> {
    Some(time::now_ns() + START_NS)
}

//! The ping-pong of messages of which a part may be lost, and that over a VLink by the same driver.

use core::fmt;
use core::task::Poll;

use madrigal_base::config::Settings;
use madrigal_sys::time;
use madrigal_udp::lossy::{Arrived, LONGEST, LossyLink, Received};

use super::job::{Job, Peer, ROUNDS, START_NS};
use super::report::{PerfError, best, median, steady};
use crate::{Address, Runtime, grid_tls};

/// The argument of a started copy begins with this.
pub(super) const ASKED: &str = "lossy ";

/// What was measured: one-way nanoseconds of a message, half of a ping-pong; one round each.
#[derive(Clone, PartialEq, Debug)]
pub struct LossyReport {
    /// So many of a thousand bytes might be lost.
    pub tolerance: u32,
    /// Bytes of a message.
    pub size: usize,
    /// Ping-pongs a round, at most.
    pub iterations: u32,
    /// Of messages.
    pub message_ns: Vec<f64>,
    /// Over a VLink, `vrp/udp`.
    pub stream_ns: Vec<f64>,
    /// Bytes of the answers that were lost, and of all of them.
    pub lost: u64,
    /// See `lost`.
    pub sent: u64,
}

impl LossyReport {
    /// Median of messages.
    pub fn message(&self) -> f64 {
        median(&self.message_ns)
    }

    /// Median of the VLink.
    pub fn stream(&self) -> f64 {
        median(&self.stream_ns)
    }

    /// How many times as long a message takes as the same bytes over a VLink.
    pub fn ratio(&self) -> f64 {
        self.message() / self.stream()
    }
}

impl fmt::Display for LossyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "vrp({})/udp {} B: {:.0} ns one way by messages (best {:.0}), {} of {} bytes lost; by a VLink {:.0} ns (best {:.0}); ratio {:.2} ({} rounds of {})",
            self.tolerance,
            self.size,
            self.message(),
            best(&self.message_ns),
            self.lost,
            self.sent,
            self.stream(),
            best(&self.stream_ns),
            self.ratio(),
            self.message_ns.len(),
            self.iterations,
        )?;
        let is_quiet = steady(&self.message_ns) && steady(&self.stream_ns);
        if is_quiet { Ok(()) } else { f.write_str("; the machine was busy") }
    }
}

/// Measures a ping-pong of messages of `size` bytes (at least 1), of which `tolerance` of a thousand bytes may be lost, and of as many bytes
/// over a VLink by `vrp/udp`, in turn. Blocks until done; starts this program once more meanwhile.
pub fn lossy(tolerance: u32, size: usize, iterations: u32) -> Result<LossyReport, PerfError> {
    let runtime = runtime()?;
    let job = Job { size: size.clamp(1, LONGEST - 1), iterations: iterations.max(1) };
    let at = |tolerance| Address { stack: None, tolerance: Some(tolerance), locator: anywhere() };
    let (messages, streams) = (runtime.lossy_listen(&at(tolerance), &[])?, runtime.listen_at(&at(0))?);
    let asked = [
        tolerance.to_string(),
        job.size.to_string(),
        job.iterations.to_string(),
        messages.locator().to_string(),
        streams.locator().to_string(),
    ];
    let _peer = Peer::start(&format!("{ASKED}{}", asked.join(" ")))?;
    let link = messages.accept(soon())?.ok_or(PerfError::Gone)?;
    let Poll::Ready(stream) = streams.accept().wait_until(soon()) else { return Err(PerfError::Gone) };
    let stream = stream?;
    let (message_ns, stream_ns) = (Vec::new(), Vec::new());
    let mut report =
        LossyReport { tolerance, size: job.size, iterations: job.iterations, message_ns, stream_ns, lost: 0, sent: 0 };
    for _ in 0..ROUNDS {
        report.stream_ns.push(job.ask(&stream)?);
        let (took, lost, sent) = job.ask_message(&link)?;
        report.message_ns.push(took);
        report.lost += lost;
        report.sent += sent;
    }
    Ok(report)
}

/// The part of the started copy.
pub(super) fn peer(asked: &str) -> Result<(), PerfError> {
    let unclear = || PerfError::Unclear(asked.to_owned());
    let words: Vec<&str> = asked.split(' ').collect();
    let [tolerance, size, iterations, messages, streams] = words[..] else { return Err(unclear()) };
    let number = |text: &str| text.parse::<u32>().map_err(|_| unclear());
    let job = Job { size: (number(size)? as usize).clamp(1, LONGEST - 1), iterations: number(iterations)? };
    let to = |text: &str, tolerance| {
        let locator = text.parse().map_err(|_| unclear())?;
        Ok::<_, PerfError>(Address { stack: None, tolerance: Some(tolerance), locator })
    };
    let runtime = runtime()?;
    let begun = runtime.lossy_connect(&to(messages, number(tolerance)?)?, &[])?;
    let link = begun.wait(None)?.map_err(|_| PerfError::Gone)?;
    let stream = runtime.connect_at(&to(streams, 0)?).wait()?;
    for _ in 0..ROUNDS {
        job.answer(&stream)?;
        job.answer_message(&link)?;
    }
    // The last answer is on its way.
    link.flush(soon())?;
    Ok(())
}

impl Job {
    /// Nanoseconds one way; of the answers, how many bytes were lost, and of how many.
    fn ask_message(self, link: &LossyLink) -> Result<(f64, u64, u64), PerfError> {
        let (mut lost, mut sent) = (0, 0);
        let took = self.timed(|last| {
            // The class of the address has one tolerance for all bytes: whether it is the last one, its length says.
            link.send(0, vec![1; if last { self.size + 1 } else { self.size }], None)?;
            let answer = received(link)?;
            sent += answer.bytes.len() as u64;
            lost += answer.lost.iter().flatten().map(|(from, to)| u64::from(to - from)).sum::<u64>();
            Ok(())
        })?;
        Ok((took, lost, sent))
    }

    fn answer_message(self, link: &LossyLink) -> Result<(), PerfError> {
        loop {
            let question = received(link)?;
            link.send(0, vec![1; self.size], None)?;
            if question.bytes.len() > self.size {
                return Ok(());
            }
        }
    }
}

fn received(link: &LossyLink) -> Result<Arrived, PerfError> {
    match link.receive(soon())? {
        Received::Message(arrived) => Ok(arrived),
        Received::Nothing | Received::End => Err(PerfError::Gone),
    }
}

fn runtime() -> Result<Runtime, PerfError> {
    let mut runtime = Runtime::with_settings(&Settings::default())?;
    runtime.set_tls(grid_tls());
    Ok(runtime)
}

fn anywhere() -> madrigal_base::locator::Locator {
    madrigal_base::locator::Locator::inet("udp", core::net::SocketAddr::from(([127, 0, 0, 1], 0)))
}

fn soon() -> Option<u64> {
    Some(time::now_ns() + START_NS)
}

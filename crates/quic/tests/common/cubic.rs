//! A flow of TCP with CUBIC (RFC 9438) beside a connection: windows and losses of packets, no bytes. Its acknowledgements are never lost.

use std::collections::VecDeque;

const SECOND: u64 = 1_000_000_000;
/// Bytes of a packet.
pub(crate) const PACKET: u64 = 1500;
/// RFC 9438, section 4.1: how fast it grows, and what a loss leaves.
const C: f64 = 0.4;
const BETA: f64 = 0.7;

pub(crate) struct Cubic {
    /// In packets.
    window: f64,
    threshold: f64,
    /// The window before the last loss, and when that was.
    before: f64,
    since: u64,
    next: u64,
    /// The first packet that is neither acknowledged nor lost.
    first: u64,
    /// Losses before this packet belong to one event.
    recovered: u64,
    /// When acknowledgements come, and of which packet.
    coming: VecDeque<(u64, u64)>,
    last_ack: u64,
    /// Packets that arrived.
    pub(crate) delivered: u64,
}

impl Cubic {
    pub(crate) fn new(now: u64) -> Self {
        Self {
            window: 10.0,
            threshold: f64::MAX,
            before: 0.0,
            since: now,
            next: 0,
            first: 0,
            recovered: 0,
            coming: VecDeque::new(),
            last_ack: now,
            delivered: 0,
        }
    }

    /// A moment passes. `send` returns when the acknowledgement of a packet comes, if it is not lost.
    pub(crate) fn step(&mut self, now: u64, mut send: impl FnMut() -> Option<u64>) {
        while let Some((_, number)) = self.coming.pop_front_if(|(at, _)| *at <= now) {
            self.acknowledged(now, number);
        }
        if now > self.last_ack + SECOND {
            // RFC 6298: nothing came back.
            (self.threshold, self.window) = ((self.window / 2.0).max(2.0), 1.0);
            (self.first, self.recovered, self.last_ack) = (self.next, self.next, now);
        }
        while ((self.next - self.first) as f64) < self.window {
            if let Some(at) = send() {
                self.coming.push_back((at, self.next));
            }
            self.next += 1;
        }
    }

    fn acknowledged(&mut self, now: u64, number: u64) {
        self.delivered += 1;
        self.last_ack = now;
        if number < self.first {
            return;
        }
        // The line keeps the order: what was sent before is lost.
        if number > self.first && self.first >= self.recovered {
            (self.before, self.since) = (self.window, now);
            self.window = (self.window * BETA).max(2.0);
            (self.threshold, self.recovered) = (self.window, self.next);
        }
        self.first = number + 1;
        if self.first < self.recovered {
            return;
        }
        if self.window < self.threshold {
            self.window += 1.0;
            return;
        }
        let time = (now - self.since) as f64 / SECOND as f64;
        let back = (self.before * (1.0 - BETA) / C).cbrt();
        let wanted = C * (time - back).powi(3) + self.before;
        self.window += ((wanted - self.window) / self.window).clamp(0.01 / self.window, 0.5);
    }
}

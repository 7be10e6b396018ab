//! Trials of stacks, for `madrigal perf A B`: beside the link with a host a second one is made, with the stack in question, and padding is
//! sent on it. Programs' streams stay where they are: such a link is the last that is used (`Rank`).
//!
//! ```text
//!   question --> connect --> greet, with the stack --> up: bytes for so many seconds --> what went in the second half of them: the answer
//! ```

use std::net::SocketAddr;

use madrigal_adapters::stack::Stack;
use madrigal_proto::mux::Class;

use crate::control::status::TrialReport;
use crate::daemon::Daemon;
use crate::link::Link;
use crate::link::compressed::Compressed;
use crate::link::congestion::congestion;
use crate::link::trial::{Stage, Trial, fill};
use crate::poll::Token;
use crate::streams::egress::Requester;
use crate::streams::pipe::End;
use crate::streams::stream::{Stream, StreamOwner};
use crate::units::{MILLISECOND, SECOND};
use crate::wire::{ConnectReply, StreamHeader};

/// How long bytes may go.
const TIMES: std::ops::RangeInclusive<u64> = 2 * SECOND..=15 * SECOND;
/// The time that the link has to come up.
const BEGIN: u64 = 4 * SECOND;
/// Bytes of one write.
const WRITE: usize = 16 << 10;
/// Why its link ends.
const OVER: &str = "it was a trial";

impl Daemon {
    /// Begins a trial of a stack with a host. The requester gets a report.
    pub(crate) fn begin_trial(
        &mut self,
        requester: Requester,
        peer: usize,
        stack: &str,
        (text, milliseconds): (bool, u64),
    ) -> Result<(), String> {
        let stack = stack.parse::<Stack>().map_err(|error| error.to_string())?;
        let time = milliseconds.saturating_mul(MILLISECOND).clamp(*TIMES.start(), *TIMES.end());
        if !self.trials.is_empty() {
            return Err(format!("{} tries something already", self.own().name));
        }
        let address = self.trial_address(peer)?;
        let short = self.peers[peer].short_segments.contains(&address);
        let link = self.dial_at(peer, address, short, None).ok_or_else(|| format!("cannot connect to {address}"))?;
        let (id, end) = (self.new_token(), self.now + BEGIN);
        match requester {
            // The reply goes at once, before the answer: the requester waits for the reply only as long as for a connection.
            Requester::Stream(stream) => {
                self.send_reply(stream, ConnectReply::Connected, "");
                self.streams.insert(stream, StreamOwner::Trial(id));
            }
            Requester::Call(call) => {
                if let Some(call) = self.calls.get_mut(&call) {
                    call.end = end + time + SECOND;
                }
            }
        }
        self.trials.insert(id, Trial { requester, stack, text, time, link, stage: Stage::Begins { end } });
        Ok(())
    }

    /// The address to dial for a trial: that of the direct link with the host, or the host's first address.
    fn trial_address(&self, peer: usize) -> Result<SocketAddr, String> {
        let (own, name) = (&self.own().name, self.name(peer));
        let link = self.link_to(peer).and_then(|link| self.links.get(&link));
        let link = link.ok_or_else(|| format!("{own} has no link with {name}: {}", self.why_no_link(peer)))?;
        let of_link = link.address.filter(|_| link.method() == "direct" && !link.punched);
        let first = || self.grid.hosts[peer].addresses.first().copied();
        of_link.or_else(first).ok_or_else(|| format!("{own} cannot call {name}: try `madrigal perf {name} {own}`"))
    }

    /// The trial of a link, or of a connection that will be its link.
    pub(crate) fn trial_by(&self, link: Token) -> Option<Token> {
        self.trials.iter().find(|(_, trial)| trial.link == link).map(|(id, _)| *id)
    }

    /// The link of a trial is up: bytes go.
    pub(crate) fn trial_up(&mut self, id: Token) {
        let Some(token) = self.trials.get(&id).map(|trial| trial.link) else { return };
        let mux = self.links.get_mut(&token).and_then(Link::mux);
        match mux.map(|mux| mux.open(Class::Data, &StreamHeader::Discard.bytes())) {
            Some(Ok(stream)) => {
                self.streams.insert((token, stream), StreamOwner::Trial(id));
                if let Some(trial) = self.trials.get_mut(&id) {
                    trial.stage = Stage::Sends { stream, began: self.now, taken: 0, half: None };
                }
                self.feed_trial(id);
            }
            Some(Err(error)) => self.end_trial(id, Err(error.to_string())),
            None => self.end_trial(id, Err("the link broke".to_owned())),
        }
    }

    /// Writes what the link of a trial takes.
    pub(crate) fn feed_trial(&mut self, id: Token) {
        let Some(Trial { text, link, stage: Stage::Sends { stream, taken, .. }, .. }) = self.trials.get_mut(&id) else {
            return;
        };
        let (token, mut buffer) = (*link, [0; WRITE]);
        let Some(mux) = self.links.get_mut(&token).and_then(Link::mux) else { return };
        loop {
            fill(*text, *taken, &mut buffer);
            let count = mux.write(*stream, &buffer).unwrap_or(0);
            *taken += count as u64;
            if count < WRITE {
                break;
            }
        }
        self.unflushed.insert(token);
    }

    /// A deadline of a trial: half of its time is over, or all of it.
    pub(crate) fn trial_timer(&mut self, id: Token) {
        let Some(trial) = self.trials.get(&id) else { return };
        match trial.stage {
            Stage::Begins { .. } => self.end_trial(id, Err("no answer".to_owned())),
            Stage::Sends { half: Some(half), .. } => {
                let report = self.report_trial(trial, half);
                self.end_trial(id, Ok(report));
            }
            Stage::Sends { .. } => {
                let carried = self.carried_by(trial);
                if let Some(Trial { stage: Stage::Sends { half, .. }, .. }) = self.trials.get_mut(&id) {
                    *half = Some((self.now, carried));
                }
            }
        }
    }

    /// Bytes that have gone by the link of a trial.
    fn carried_by(&self, trial: &Trial) -> u64 {
        let Stage::Sends { taken, .. } = trial.stage else { return 0 };
        let held = self.links.get(&trial.link).and_then(Link::up).map_or(0, |up| up.mux.held());
        taken.saturating_sub(held)
    }

    fn report_trial(&self, trial: &Trial, (since, before): (u64, u64)) -> TrialReport {
        let link = self.links.get(&trial.link);
        let up = link.and_then(Link::up);
        let bytes = self.carried_by(trial).saturating_sub(before);
        let rate = u128::from(bytes) * u128::from(8 * SECOND) / u128::from(self.now.saturating_sub(since).max(1));
        TrialReport {
            stack: trial.stack.to_string(),
            text: trial.text,
            rate: u64::try_from(rate).unwrap_or(u64::MAX),
            connections: up.map_or(0, |up| up.connections()),
            congestion: link.and_then(|link| congestion(&link.channel)),
            compressed: up.and_then(|up| up.compressed()).map(Compressed::report),
            error: None,
        }
    }

    /// The connection or the link of a trial has ended before the trial was over.
    pub(crate) fn trial_lost(&mut self, link: Token, why: &str) {
        if let Some(id) = self.trial_by(link) {
            self.end_trial(id, Err(why.to_owned()));
        }
    }

    /// A stream of a trial was reset. If it was the requester's, the trial ends.
    pub(crate) fn trial_reset(&mut self, id: Token, stream: Stream) {
        let Some(trial) = self.trials.get(&id) else { return };
        if trial.requester == Requester::Stream(stream) {
            let link = trial.link;
            self.trials.remove(&id);
            self.drop_trial_link(link);
        }
    }

    /// Ends a trial, and its link.
    fn end_trial(&mut self, id: Token, found: Result<TrialReport, String>) {
        let Some(trial) = self.trials.remove(&id) else { return };
        let report = found.unwrap_or_else(|why| TrialReport::failed(trial.stack.to_string(), trial.text, why));
        self.drop_trial_link(trial.link);
        let answer = serde_json::to_vec(&report).unwrap_or_default();
        match trial.requester {
            Requester::Call(call) => self.call_connected(call, End::Null, answer),
            Requester::Stream(stream) => self.answer_on(stream, answer),
        }
    }

    fn drop_trial_link(&mut self, token: Token) {
        if self.dials.remove(&token).is_some() {
            self.descriptors.remove(&token);
        }
        self.drop_link(token, OVER);
    }
}

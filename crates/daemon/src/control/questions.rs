//! Questions about this daemon and its ways: `madrigal why A B`, `madrigal doctor`, `madrigal status --all`. They come from local clients, or
//! from other daemons as streams that end here. For some, addresses of the other host are tried, each with a deadline.

use crate::control::check::{AddressCheck, Check};
use crate::control::health;
use crate::control::status::{Examination, Health, Tried};
use crate::daemon::Daemon;
use crate::descriptor::Descriptor;
use crate::poll::Token;
use crate::socket;
use crate::streams::egress::Requester;
use crate::streams::pipe::{End, Side};
use crate::streams::stream::{Stream, StreamOwner};
use crate::units::SECOND;
use crate::wire::{ConnectReply, Question, VERSION};

/// The time that an address has to answer.
const ADDRESS_TIMEOUT: u64 = 3 * SECOND;
/// Checks at one time; more are refused.
const MOST_CHECKS: usize = 64;

impl Daemon {
    /// Answers a question, or begins the check that finds the answer.
    pub(crate) fn handle_question(&mut self, question: Question, requester: Requester) {
        let host = |name: &str| {
            let unknown = || format!("the grid of {} has no host `{name}`", self.own().name);
            self.grid.host(name).map(|(at, _)| at).ok_or_else(unknown)
        };
        match question {
            Question::Why { to, port } => match host(&to) {
                Ok(to) => {
                    self.answer_question(requester, &serde_json::to_vec(&self.explain(to, port)).unwrap_or_default())
                }
                Err(why) => self.refuse_question(requester, &why),
            },
            Question::Punch { .. } => self.refuse_question(requester, "only daemons ask that"),
            Question::Trial { to, stack, text, milliseconds } => {
                let begun = match host(&to) {
                    Ok(to) if to != self.own_index => self.begin_trial(requester, to, &stack, (text, milliseconds)),
                    Ok(_) => Err("give two different hosts".to_owned()),
                    Err(why) => Err(why),
                };
                if let Err(why) = begun {
                    self.refuse_question(requester, &why);
                }
            }
            Question::Status => self.answer_question(requester, &self.status()),
            Question::Check { to: Some(to) } => match host(&to) {
                Ok(to) if to != self.own_index => self.begin_check(to, requester),
                Ok(_) => self.refuse_question(requester, "give two different hosts"),
                Err(why) => self.refuse_question(requester, &why),
            },
            Question::Pools => {
                let own = self.own().name.clone();
                self.handle_pools_question(requester, &own);
            }
            Question::Datagrams { .. } => self.refuse_question(requester, "the port is one of this host: send there"),
            Question::Check { to: None } => {
                let health = Examination { health: self.health(), why: None, tried: Vec::new(), relays: self.relays() };
                self.answer_question(requester, &serde_json::to_vec(&health).unwrap_or_default());
            }
        }
    }

    /// Tries the addresses of a host.
    fn begin_check(&mut self, to: usize, requester: Requester) {
        if self.checks.len() >= MOST_CHECKS {
            return self.refuse_question(requester, "too many ask at once");
        }
        let (id, now) = (self.new_token(), self.now);
        let mut tries = Vec::new();
        for address in self.grid.hosts.get(to).map(|host| host.addresses.clone()).unwrap_or_default() {
            let token = self.new_token();
            let made = socket::dial(address).and_then(|socket| self.poll.add(&socket, token).map(|()| socket));
            let (socket, result) = match made {
                Ok(socket) => (Some((token, socket)), Err(format!("no answer in {} s", ADDRESS_TIMEOUT / SECOND))),
                Err(errno) => (None, Err(errno.to_string())),
            };
            if socket.is_some() {
                self.descriptors.insert(token, Descriptor::Check(id));
            }
            tries.push(AddressCheck { address, began: now, socket, result });
        }
        if let Requester::Stream(stream) = requester {
            self.streams.insert(stream, StreamOwner::Check(id));
        }
        self.checks.insert(id, Check { requester, to, tries, deadline: now + ADDRESS_TIMEOUT });
        self.poll_check(id);
    }

    /// The connection to one of the addresses changed.
    pub(crate) fn poll_check(&mut self, id: Token) {
        let now = self.now;
        let Some(check) = self.checks.get_mut(&id) else { return };
        for one in &mut check.tries {
            let Some((token, socket)) = &one.socket else { continue };
            one.result = match socket::is_connected(socket) {
                Ok(false) => continue,
                Ok(true) => Ok(now.saturating_sub(one.began) / 1000),
                Err(errno) => Err(errno.to_string()),
            };
            self.descriptors.remove(token);
            one.socket = None;
        }
        if check.tries.iter().all(|one| one.socket.is_none()) {
            self.end_check(id);
        }
    }

    /// Ends a check, and answers with the results so far.
    pub(crate) fn end_check(&mut self, id: Token) {
        let Some(check) = self.remove_check(id) else { return };
        let tried = check.tries.into_iter().map(|one| Tried {
            address: one.address.to_string(),
            us: one.result.as_ref().ok().copied(),
            error: one.result.err(),
        });
        let answer = Examination {
            health: self.health(),
            why: Some(self.explain(check.to, None)),
            tried: tried.collect(),
            relays: self.relays(),
        };
        self.answer_question(check.requester, &serde_json::to_vec(&answer).unwrap_or_default());
    }

    /// Removes a check, and closes its connections.
    pub(crate) fn remove_check(&mut self, id: Token) -> Option<Check> {
        let check = self.checks.remove(&id)?;
        for (token, _) in check.tries.iter().filter_map(|one| one.socket.as_ref()) {
            self.descriptors.remove(token);
        }
        Some(check)
    }

    fn answer_question(&mut self, requester: Requester, bytes: &[u8]) {
        match requester {
            Requester::Call(call) => self.call_connected(call, End::Null, bytes.to_vec()),
            Requester::Stream(stream) => {
                self.send_reply(stream, ConnectReply::Connected, "");
                self.answer_on(stream, bytes.to_vec());
            }
        }
    }

    /// The answer to a question follows, on the stream of another daemon.
    pub(crate) fn answer_on(&mut self, stream: Stream, answer: Vec<u8>) {
        let _ = self.join(Side::new(End::Stream(stream), Vec::new()), Side::new(End::Null, answer));
    }

    fn refuse_question(&mut self, requester: Requester, why: &str) {
        match requester {
            Requester::Call(call) => self.call_failed(call, why),
            Requester::Stream(stream) => self.send_reply(stream, ConnectReply::Refused, why),
        }
    }

    /// The state of this host.
    fn health(&self) -> Health {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let own = self.own();
        Health {
            host: own.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            links: VERSION,
            time_us: time.tv_sec.saturating_mul(1_000_000).saturating_add(time.tv_nsec / 1000),
            addresses: own.addresses.iter().map(ToString::to_string).collect(),
            shared_memory: health::shared_memory(),
            single_copy: health::single_copy(),
            certificates: health::certificates(),
            trusted: self.grid.trusted,
        }
    }

    /// All relays of the grid, and why there is no link with them.
    fn relays(&self) -> Vec<(String, Option<String>)> {
        let relays = self.grid.hosts.iter().enumerate().filter(|(at, host)| host.relay && *at != self.own_index);
        relays.map(|(at, host)| (host.name.clone(), self.link_to(at).is_none().then(|| self.why_no_link(at)))).collect()
    }
}

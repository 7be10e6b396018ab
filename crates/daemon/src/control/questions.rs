//! Questions about this daemon and its ways: `madrigal why A B`, `madrigal doctor`, `madrigal status --all`. They come from local clients, or
//! from other daemons as streams that end here. For some, addresses of the other host are tried, each with a deadline.

use crate::control::check::{Check, Try};
use crate::control::status::{Examination, Health, Tried};
use crate::daemon::Daemon;
use crate::descriptor::Thing;
use crate::poll::Token;
use crate::socket;
use crate::streams::egress::Answer;
use crate::streams::pipe::{End, Side};
use crate::streams::stream::Holder;
use crate::units::SECOND;
use crate::wire::{Question, VERSION, Verdict};

/// How long an address has to answer.
const PATIENCE: u64 = 3 * SECOND;
/// Questions that may wait for their answers; more are refused.
const MOST: usize = 64;

impl Daemon {
    /// Answers a question, or begins to find the answer.
    pub(crate) fn take_question(&mut self, question: Question, asker: Answer) {
        let host = |name: &str| {
            let unknown = || format!("the grid of {} has no host `{name}`", self.own().name);
            self.grid.host(name).map(|(at, _)| at).ok_or_else(unknown)
        };
        match question {
            Question::Why { to, port } => match host(&to) {
                Ok(to) => self.answer_with(asker, &serde_json::to_vec(&self.explain(to, port)).unwrap_or_default()),
                Err(why) => self.decline(asker, &why),
            },
            Question::Status => self.answer_with(asker, &self.status()),
            Question::Check { to: Some(to) } => match host(&to) {
                Ok(to) if to != self.me => self.check(to, asker),
                Ok(_) => self.decline(asker, "give two different hosts"),
                Err(why) => self.decline(asker, &why),
            },
            Question::Check { to: None } => {
                let health = Examination { health: self.health(), why: None, tried: Vec::new(), relays: self.relays() };
                self.answer_with(asker, &serde_json::to_vec(&health).unwrap_or_default());
            }
        }
    }

    fn check(&mut self, to: usize, asker: Answer) {
        if self.checks.len() >= MOST {
            return self.decline(asker, "too many ask at once");
        }
        let (id, now) = (self.token(), self.now);
        let mut tries = Vec::new();
        for address in self.grid.hosts.get(to).map(|host| host.addresses.clone()).unwrap_or_default() {
            let token = self.token();
            let made = socket::dial(address).and_then(|socket| self.poll.add(&socket, token).map(|()| socket));
            let (socket, result) = match made {
                Ok(socket) => (Some((token, socket)), Err(format!("no answer in {} s", PATIENCE / SECOND))),
                Err(errno) => (None, Err(errno.to_string())),
            };
            if socket.is_some() {
                self.things.insert(token, Thing::Check(id));
            }
            tries.push(Try { address, began: now, socket, result });
        }
        if let Answer::Stream(stream) = asker {
            self.streams.insert(stream, Holder::Check(id));
        }
        self.checks.insert(id, Check { asker, to, tries, deadline: now + PATIENCE });
        self.poll_check(id);
    }

    /// Something happened to one of the addresses that are tried.
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
            self.things.remove(token);
            one.socket = None;
        }
        if check.tries.iter().all(|one| one.socket.is_none()) {
            self.end_check(id);
        }
    }

    /// All that can be known by now is known.
    pub(crate) fn end_check(&mut self, id: Token) {
        let Some(check) = self.forget_check(id) else { return };
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
        self.answer_with(check.asker, &serde_json::to_vec(&answer).unwrap_or_default());
    }

    /// Nobody waits for it any more, or it is over.
    pub(crate) fn forget_check(&mut self, id: Token) -> Option<Check> {
        let check = self.checks.remove(&id)?;
        for (token, _) in check.tries.iter().filter_map(|one| one.socket.as_ref()) {
            self.things.remove(token);
        }
        Some(check)
    }

    fn answer_with(&mut self, asker: Answer, bytes: &[u8]) {
        match asker {
            Answer::Call(call) => self.connected(call, End::Nobody, bytes.to_vec()),
            Answer::Stream(stream) => {
                self.tell(stream, Verdict::Connected, "");
                let _ = self.join(Side::new(End::Stream(stream), Vec::new()), Side::new(End::Nobody, bytes.to_vec()));
            }
        }
    }

    fn decline(&mut self, asker: Answer, why: &str) {
        match asker {
            Answer::Call(call) => self.call_failed(call, why),
            Answer::Stream(stream) => self.tell(stream, Verdict::Never, why),
        }
    }

    /// How this host is, as far as others have to know when something does not work.
    fn health(&self) -> Health {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let own = self.own();
        Health {
            host: own.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            links: VERSION,
            time_us: time.tv_sec.saturating_mul(1_000_000).saturating_add(time.tv_nsec / 1000),
            addresses: own.addresses.iter().map(ToString::to_string).collect(),
            shared_memory: crate::control::health::shared_memory(),
            single_copy: crate::control::health::single_copy(),
            certificates: crate::control::health::certificates(),
            trusted: self.grid.trusted,
        }
    }

    /// All relays of the grid, and why there is no link with one.
    fn relays(&self) -> Vec<(String, Option<String>)> {
        let relays = self.grid.hosts.iter().enumerate().filter(|(at, host)| host.relay && *at != self.me);
        relays.map(|(at, host)| (host.name.clone(), self.link_to(at).is_none().then(|| self.why_no_link(at)))).collect()
    }
}

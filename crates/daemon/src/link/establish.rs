//! A link comes up: greeting, the multiplexer, and which of several links with a host is used.

use std::net::SocketAddr;

use madrigal_adapters::contract::ONLY;
use madrigal_adapters::stack::Agreed;
use madrigal_identity::Peer as Identity;
use madrigal_proto::mux::Mux;

use crate::daemon::Daemon;
use crate::link::adapters::Adapters;
use crate::link::close::RESTARTED;
use crate::link::enciphered::Enciphered;
use crate::link::measured::Measured;
use crate::link::stack::plain_offer;
use crate::link::{Link, Proved, Purpose, Rank, Stage, Up};
use crate::poll::Token;
use crate::streams::failover::keepalive_limits;
use crate::wire::{self, Hello, Joins, StackOffer, VERSION};

impl Daemon {
    /// This end's greeting on a connection that it accepted.
    pub(crate) fn answer(&self, link: &Link) -> Vec<u8> {
        let seen = link.address.map(|at| SocketAddr::new(at.ip().to_canonical(), at.port()).to_string());
        wire::greeting(&Hello { seen, ..self.hello(0, link.offered.clone(), None) })
    }

    /// Greets the host that a link was dialled to.
    pub(crate) fn greet(&mut self, token: Token) {
        let Some((peer, number)) = self.links.get(&token).and_then(|link| link.dialled) else { return };
        // What is offered hangs on it.
        self.choose_congestion(token, peer);
        let Some(link) = self.links.get(&token) else { return };
        if let Some(joining) = self.joining(link) {
            if let Some(link) = self.links.get_mut(&token) {
                link.channel.out().extend(joining);
            }
            return;
        }
        let trial = self.trial_by(token).and_then(|id| self.trials.get(&id));
        let urgent = self.is_urgent_dial(token);
        let offered =
            if urgent { Some(plain_offer(link)) } else { self.stack_offer(link, trial.map(|trial| &trial.stack)) };
        let hello = self.hello(number, offered.clone(), self.joins(link));
        let hello = Hello { trial: trial.is_some(), urgent, ..hello };
        let hello = wire::greeting(&hello);
        if let Some(link) = self.links.get_mut(&token) {
            link.offered = offered;
            link.channel.out().extend(hello);
        }
    }

    fn hello(&self, number: u64, stack: Option<StackOffer>, joins: Option<Joins>) -> Hello {
        let (host, instance) = (self.own().name.clone(), self.instance);
        Hello { version: VERSION, host, instance, number, stack, joins, seen: None, trial: false, urgent: false }
    }

    /// A link comes up with a host that has authenticated. `rest` came behind its greeting.
    pub(crate) fn link_up(
        &mut self,
        token: Token,
        (peer, shown): (usize, Option<&Identity>),
        agreed: Agreed,
        hello: &Hello,
        rest: &[u8],
    ) -> Result<(), String> {
        let Some(link) = self.links.get(&token) else { return Ok(()) };
        let mut adapters = self.adapters(link, peer, &agreed);
        let answer = self.answer(link);
        let proved = proved(link);
        let (now, own) = (self.now, self.own().name.clone());
        let purpose = self.purpose(token, hello);
        let recheck_at = shown.map_or(u64::MAX, |shown| self.next_recheck(shown));
        let Some(link) = self.links.get_mut(&token) else { return Ok(()) };
        let last = link.method() == "command" || purpose != Purpose::Streams;
        let rank = match link.dialled {
            Some((_, number)) => (last, own, number),
            None => {
                link.channel.out().extend(answer);
                (last, hello.host.clone(), hello.number)
            }
        };
        let is_above =
            adapters.as_ref().is_some_and(|adapters| adapters.striped.is_some()) && agreed.stack.is_enciphered_once();
        self.take_session(token, adapters.as_deref_mut().filter(|_| is_above), rest)?;
        let Some(link) = self.links.get_mut(&token) else { return Ok(()) };
        let mut mux = Mux::new(link.dialled.is_some(), keepalive_limits(), now);
        mux.ping(now);
        link.seen = hello.seen_here();
        let dialled = link.dialled.is_some() && link.address.is_some() && !link.punched;
        let way = if link.dialled.is_some() { "to" } else { "from" };
        let address = link.address_text();
        let (measured, instance, just_greeted) = (Measured::default(), hello.instance, link.dialled.is_none());
        let (spare, update, proof) = (None, None, Vec::new());
        let stack = agreed.stack.to_string();
        let mut up = Box::new(Up {
            peer,
            instance,
            rank,
            purpose,
            mux,
            agreed,
            adapters,
            spare,
            measured,
            update,
            recheck_at,
            just_greeted,
            proof,
            proved,
        });
        up.receive(now, ONLY, rest, &mut |_, _| 0)?;
        link.stage = Stage::Up(up);
        let how = shown.map_or_else(
            || "plain".to_owned(),
            |shown| format!("tls, {shown}, serial {}, until {}", shown.serial, shown.not_after),
        );
        let only = if purpose == Purpose::Urgent { ", for urgent streams" } else { "" };
        self.log_line(&format!("link with {}, {way} {address}, {how}, stack {stack}{only}", hello.host));
        self.unflushed.insert(token);
        self.choose_link(peer, hello.instance);
        self.peer_is_up(peer, dialled);
        self.begin_with(token, purpose);
        self.try_better_ways(peer);
        self.advertise_soon();
        Ok(())
    }

    /// Both ends have greeted. A session that is above all connections of the link is given to its adapters: no bytes of it may wait.
    fn take_session(&mut self, token: Token, above: Option<&mut Adapters>, rest: &[u8]) -> Result<(), String> {
        let Some(link) = self.links.get_mut(&token) else { return Ok(()) };
        let Some(adapters) = above else {
            link.channel.greeted();
            return Ok(());
        };
        if !rest.is_empty() {
            return Err("it sends on behind its greeting, by the connection alone".to_owned());
        }
        let credentials = self.credentials.as_ref().map_err(Clone::clone)?;
        let session = link.channel.take_session().ok_or("a session above its connections, and it has none")?;
        adapters.enciphered = Some(Enciphered::of(session, credentials));
        Ok(())
    }

    /// What a link is for, as the end that dialled it says.
    fn purpose(&self, token: Token, hello: &Hello) -> Purpose {
        match () {
            () if self.trial_by(token).is_some() || hello.trial => Purpose::Trial,
            () if self.is_urgent_dial(token) || hello.urgent => Purpose::Urgent,
            () => Purpose::Streams,
        }
    }

    /// A link is up: what it is for begins.
    fn begin_with(&mut self, token: Token, purpose: Purpose) {
        if let Some(trial) = self.trial_by(token) {
            return self.trial_up(trial);
        }
        if purpose != Purpose::Urgent {
            self.measure_new(token);
        }
        if purpose != Purpose::Trial {
            self.use_new_link(token);
        }
    }

    /// Ends the links with an earlier instance of a peer's daemon. Of the others the least is used, and one for urgent streams; the rest are
    /// spare.
    fn choose_link(&mut self, peer: usize, instance: u64) {
        let ups = |daemon: &Self| -> Vec<(Rank, u64, Token)> {
            let with = daemon.links.iter().filter_map(|(token, link)| Some((link.up()?, *token)));
            with.filter(|(up, _)| up.peer == peer).map(|(up, t)| (up.rank.clone(), up.instance, t)).collect()
        };
        for (_, old, token) in ups(self) {
            if old != instance {
                self.drop_link(token, RESTARTED);
            }
        }
        let mut left = ups(self);
        left.sort();
        let mut urgent = false;
        for (at, (_, _, token)) in left.into_iter().enumerate() {
            let Some(Link { stage: Stage::Up(up), .. }) = self.links.get_mut(&token) else { continue };
            let is_first_urgent = up.purpose == Purpose::Urgent && !std::mem::replace(&mut urgent, true);
            if at > 0 && !is_first_urgent {
                up.spare = up.spare.or(Some(self.now));
            }
        }
    }

    /// The link that is used for streams to a host.
    pub(crate) fn link_to(&self, peer: usize) -> Option<Token> {
        let with = self.links.iter().filter_map(|(token, link)| Some((&link.up()?.rank, link.up()?.peer, *token)));
        with.filter(|(_, host, _)| *host == peer).min_by_key(|(rank, ..)| *rank).map(|(.., token)| token)
    }
}

/// What the handshake of a link's first connection has proved; nothing if it is plain.
fn proved(link: &Link) -> Option<Proved> {
    let channel = &link.channel;
    let secrets = channel.secret(true).zip(channel.secret(false));
    let (chain, (ours, theirs)) = channel.chain().zip(secrets)?;
    Some(Proved { chain: chain.to_vec(), secrets: [ours, theirs] })
}

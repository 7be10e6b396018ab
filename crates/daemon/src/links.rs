//! Links: connections between this daemon and others, with the streams on them. One of two that know each other is enough; where both
//! dialled at once, the one with the least [`Rank`] stays, and the other ends when its last stream has.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use madrigal_identity::Peer as Identity;
use madrigal_proto::mux::{Event, Mux, StreamId};
use rustix::io::Errno;
use rustls::pki_types::CertificateDer;

use crate::channel::Channel;
use crate::command::Running;
use crate::daemon::{Daemon, Holder, MILLISECOND, SECOND, Thing};
use crate::measure::{Measured, VANISHED};
use crate::poll::Token;
use crate::socket::{self, Got};
use crate::wire::{self, Gone, Hello, VERSION};

/// How long a new connection has to say who it is, and to prove it.
const GREETING: u64 = 5 * SECOND;
/// Of ours, which began and was not answered: this long until another one is tried.
const DOUBTED: u64 = 500 * MILLISECOND;
/// And one by a command, which may have to log in first.
const LOGGING_IN: u64 = 20 * SECOND;
/// Connections that have not yet; of more one goes.
const MOST_UNAUTHENTICATED: usize = 128;
/// Connections that are taken in one pass.
const ACCEPTS: usize = 64;
/// How long a link that is not needed may be without a stream.
const GRACE: u64 = 5 * SECOND;
/// What goes over links is looked at after this time.
const LOOK: u64 = 200 * MILLISECOND;
/// Why a connection ends on which nothing was said.
const NO_GREETING: &str = "no greeting in time";
/// Why a link ends whose peer ended it, or is no more.
const CLOSED: &str = "the other end closed it";
const RESTARTED: &str = "its daemon was started again";
/// Reads in one pass.
const READS: usize = 8;
/// Less than this may be all there is: it is brought on before there is another look.
const FEW: usize = 16 << 10;
/// What is written at once needs room for a whole quantum of a stream.
const LEAST_ROOM: usize = 16 << 10;

/// Which of several links between the same two is used: whether it is by a command, who dialled it, and that one's count. The same at
/// both ends.
pub(crate) type Rank = (bool, String, u64);

/// A connection to a daemon.
pub(crate) struct Link {
    pub(crate) channel: Channel,
    /// For a connection of ours: whom we dialled, and its number.
    pub(crate) dialled: Option<(usize, u64)>,
    /// The address at the other end.
    pub(crate) address: Option<SocketAddr>,
    pub(crate) since: u64,
    /// The command whose input and output it is; or it came by a command, to this host's socket for clients.
    pub(crate) command: Option<Running>,
    pub(crate) by_command: bool,
    /// The serial number of what we had to show when it began, or proved since.
    pub(crate) shown: Option<String>,
    /// Another connection was tried beside it.
    doubted: bool,
    pub(crate) stage: Stage,
}

/// How far it is.
pub(crate) enum Stage {
    /// The peer has not said who it is.
    Greeting(Vec<u8>),
    /// It has.
    Up(Box<Up>),
}

/// A link that carries streams.
pub(crate) struct Up {
    /// The host at the other end.
    pub(crate) peer: usize,
    pub(crate) instance: u64,
    pub(crate) rank: Rank,
    pub(crate) mux: Mux,
    /// Another one is used; since when this one has no streams.
    pub(crate) spare: Option<u64>,
    /// What was measured of it.
    pub(crate) measured: Measured,
    /// The stream on which the other end tells where it leads, and what came of that.
    pub(crate) update: Option<(StreamId, Vec<u8>)>,
    /// When the peer's certificate is judged again; never on a plain link.
    pub(crate) judge: u64,
    /// The peer has sent nothing since it greeted.
    pub(crate) fresh: bool,
    /// What it has sent of a proof that it has another certificate.
    pub(crate) proof: Vec<u8>,
    /// The certificates that it proved to have since the handshake.
    pub(crate) renewed: Option<Vec<CertificateDer<'static>>>,
}

impl Link {
    /// When it is due.
    pub(crate) fn deadline(&self) -> u64 {
        match &self.stage {
            Stage::Greeting(_) if self.doubtful().is_some() => self.since + DOUBTED,
            Stage::Greeting(_) => self.since + if self.command.is_some() { LOGGING_IN } else { GREETING },
            Stage::Up(up) => up.mux.deadline().min(up.judge).min(up.spare.map_or(u64::MAX, |since| since + GRACE)),
        }
    }

    /// Whom we dialled, and where, if another connection is to be tried beside this one.
    fn doubtful(&self) -> Option<(usize, SocketAddr)> {
        let address = self.address.filter(|at| !at.ip().is_loopback() && !self.doubted)?;
        Some((self.dialled?.0, address))
    }

    pub(crate) fn up(&self) -> Option<&Up> {
        if let Stage::Up(up) = &self.stage { Some(up) } else { None }
    }

    /// Writes to a stream where nothing else waits to be sent, as long as the wire takes it; how much.
    pub(crate) fn write_at_once(&mut self, stream: StreamId, pieces: [&[u8]; 2]) -> usize {
        let Stage::Up(up) = &mut self.stage else { return 0 };
        let [mut first, mut second] = pieces;
        let mut taken = 0;
        while !(first.is_empty() && second.is_empty()) {
            if self.channel.room() < LEAST_ROOM && !self.channel.make_room() {
                break;
            }
            let room = self.channel.room();
            let count = up.mux.write_at_once(stream, [first, second], self.channel.out(), room);
            if count == 0 {
                break;
            }
            let whole = count.min(first.len());
            first = first.get(whole..).unwrap_or_default();
            second = second.get(count - whole..).unwrap_or_default();
            taken += count;
        }
        taken
    }

    pub(crate) fn mux(&mut self) -> Option<&mut Mux> {
        if let Stage::Up(up) = &mut self.stage { Some(&mut up.mux) } else { None }
    }
}

impl Daemon {
    /// Takes daemons that call.
    pub(crate) fn answer_port(&mut self, port: Token) {
        // Those who wait longer are told of again: links have their turn in between.
        for _ in 0..ACCEPTS {
            let Some(listener) = self.ports.get(&port) else { return };
            match socket::accept(listener) {
                Ok(Some(socket)) => {
                    let address = socket::peer(&socket);
                    let channel = self.channel_from(socket);
                    self.add_link(channel, None, address);
                }
                Ok(None) => return,
                Err(errno) => {
                    self.note_unauthenticated(&format!("cannot take a connection: {errno}"));
                    return self.make_room(1);
                }
            }
        }
    }

    /// A new connection: of our making, which speaks first and is registered already, or another's.
    pub(crate) fn add_link(
        &mut self,
        channel: Channel,
        dialled: Option<(usize, u64, Token)>,
        address: Option<SocketAddr>,
    ) -> Option<Token> {
        let token = match dialled {
            Some((.., token)) => token,
            None => {
                self.make_room(MOST_UNAUTHENTICATED);
                let token = self.token();
                self.poll.add(&channel, token).ok()?;
                token
            }
        };
        let dialled = dialled.map(|(peer, number, _)| (peer, number));
        let shown = self.credentials.as_ref().map(|credentials| credentials.own().serial).ok();
        let (since, stage) = (self.now, Stage::Greeting(Vec::new()));
        let (command, by_command, doubted) = (None, false, false);
        let mut link = Link { channel, dialled, address, since, command, by_command, shown, doubted, stage };
        // Where it is enciphered, the other end has to prove first that it is who was dialled.
        if let Some((_, number)) = dialled.filter(|_| !link.channel.is_enciphered()) {
            link.channel.out().extend(self.greeting(number));
        }
        self.things.insert(token, Thing::Link);
        self.links.insert(token, link);
        self.dirty.insert(token);
        self.measure_soon();
        Some(token)
    }

    /// A connection of another's making.
    pub(crate) fn channel_from(&self, socket: OwnedFd) -> Channel {
        Channel::accepted(socket, self.credentials.as_ref().ok())
    }

    /// A client leads to another daemon by a command: its connection becomes a link. The other end begins.
    pub(crate) fn add_command_link(&mut self, channel: Channel) {
        if let Some(link) = self.add_link(channel, None, None).and_then(|token| self.links.get_mut(&token)) {
            link.by_command = true;
        }
    }

    /// What this daemon says first on a link. It takes more than one packet: where long ones vanish no link comes up.
    pub(crate) fn greeting(&self, number: u64) -> Vec<u8> {
        wire::greeting(&Hello { version: VERSION, host: self.own().name.clone(), instance: self.instance, number })
    }

    /// Takes what came on a link.
    pub(crate) fn handle_link(&mut self, token: Token) {
        let mut buffer = std::mem::take(&mut self.scratch);
        let mut more = true;
        for _ in 0..READS {
            more = self.handle_once(token, &mut buffer);
            if !more {
                break;
            }
        }
        self.scratch = buffer;
        self.tell_all(token);
        if more {
            self.again.push_back(token);
        }
        // What could not be sent may be now.
        self.dirty.insert(token);
    }

    /// Reads once; whether there may be more.
    fn handle_once(&mut self, token: Token, buffer: &mut [u8]) -> bool {
        if !self.may_begin(token) {
            return false;
        }
        let Some(link) = self.links.get_mut(&token) else { return false };
        let got = link.channel.read(buffer);
        let met = if link.channel.is_newly_proven() { self.meet_peer(token) } else { Ok(()) };
        let count = match (got, met) {
            (_, Err(why)) => Err(why),
            (Ok(Got::Bytes(count)), _) => Ok(count),
            (Ok(Got::Nothing), _) => return false,
            (Ok(Got::End), _) => Err(CLOSED.to_owned()),
            (Err(broken), _) => Err(broken.to_string()),
        };
        let taken = count.and_then(|count| {
            self.take_bytes(token, buffer.get(..count).unwrap_or_default())?;
            Ok(count)
        });
        match taken {
            Ok(length) if length < FEW || self.batch.is_long() => self.tell_all(token),
            Ok(_) => {}
            Err(why) => {
                self.tell_all(token);
                self.drop_link(token, &why);
            }
        }
        self.links.contains_key(&token)
    }

    /// Brings on what came, and handles what the link's mux tells of it: once for several reads, for each may wake a program.
    fn tell_all(&mut self, token: Token) {
        let mut batch = std::mem::take(&mut self.batch);
        self.write_batch(&mut batch);
        self.batch = batch;
        self.listen_to(token);
    }

    fn take_bytes(&mut self, token: Token, bytes: &[u8]) -> Result<(), String> {
        let Some(link) = self.links.get_mut(&token) else { return Ok(()) };
        let up = match &mut link.stage {
            Stage::Greeting(inbox) => {
                inbox.extend_from_slice(bytes);
                return self.greet(token);
            }
            Stage::Up(up) => up,
        };
        // We greeted last, and are not believed.
        if std::mem::take(&mut up.fresh)
            && let Ok(Some((wire::REFUSED, body, _))) = wire::take(bytes, wire::LONGEST_HELLO)
        {
            return Err(format!("refused: {}", String::from_utf8_lossy(&body)));
        }
        // The other links are needed meanwhile.
        let Stage::Up(mut up) = std::mem::replace(&mut link.stage, Stage::Greeting(Vec::new())) else { return Ok(()) };
        let (mut batch, now) = (std::mem::take(&mut self.batch), self.now);
        let mut deliver = |stream, bytes: &[u8]| self.deliver((token, stream), bytes, &mut batch);
        let taken = up.mux.receive_with(now, bytes, &mut deliver).map_err(|broken| broken.to_string());
        self.batch = batch;
        if let Some(link) = self.links.get_mut(&token) {
            link.stage = Stage::Up(up);
        }
        taken
    }

    /// A link is up with a host that was judged; what came behind its greeting is `rest`.
    pub(crate) fn link_up(
        &mut self,
        token: Token,
        (peer, shown): (usize, Option<&Identity>),
        hello: &Hello,
        rest: &[u8],
    ) -> Result<(), String> {
        let answer = self.greeting(0);
        let (now, own) = (self.now, self.own().name.clone());
        let judge = shown.map_or(u64::MAX, |shown| self.next_judging(shown));
        let Some(link) = self.links.get_mut(&token) else { return Ok(()) };
        let by_command = link.method() == "command";
        let rank = match link.dialled {
            Some((_, number)) => (by_command, own, number),
            None => {
                link.channel.out().extend(answer);
                (by_command, hello.host.clone(), hello.number)
            }
        };
        let mut mux = Mux::new(link.dialled.is_some(), crate::failover::link_limits(), now);
        mux.ping(now);
        mux.receive(now, rest).map_err(|broken| broken.to_string())?;
        let dialled = link.dialled.is_some() && link.address.is_some();
        let way = if link.dialled.is_some() { "to" } else { "from" };
        let address = link.spoken_address();
        let (measured, instance, fresh) = (Measured::default(), hello.instance, link.dialled.is_none());
        let (spare, update, proof, renewed) = (None, None, Vec::new(), None);
        let up = Up { peer, instance, rank, mux, spare, measured, update, judge, fresh, proof, renewed };
        link.stage = Stage::Up(Box::new(up));
        let how = shown.map_or_else(
            || "plain".to_owned(),
            |shown| format!("tls, {shown}, serial {}, until {}", shown.serial, shown.not_after),
        );
        self.note(&format!("link with {}, {way} {address}, {how}", hello.host));
        self.dirty.insert(token);
        self.choose(peer, hello.instance);
        self.peer_is_up(peer, dialled);
        self.measure_new(token);
        self.move_all(peer);
        self.tell_soon();
        Ok(())
    }

    /// Of several links with a peer the least stays; those of an instance that is no more end.
    fn choose(&mut self, peer: usize, instance: u64) {
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
        for (_, _, token) in left.into_iter().skip(1) {
            if let Some(Link { stage: Stage::Up(up), .. }) = self.links.get_mut(&token) {
                up.spare = up.spare.or(Some(self.now));
            }
        }
    }

    /// The link to a host that streams go by.
    pub(crate) fn link_to(&self, peer: usize) -> Option<Token> {
        let with = self.links.iter().filter_map(|(token, link)| Some((&link.up()?.rank, link.up()?.peer, *token)));
        with.filter(|(_, host, _)| *host == peer).min_by_key(|(rank, ..)| *rank).map(|(.., token)| token)
    }

    /// Handles what a link's mux tells.
    fn listen_to(&mut self, token: Token) {
        while let Some(event) = self.links.get_mut(&token).and_then(Link::mux).and_then(Mux::event) {
            match event {
                Event::Opened { stream, about, .. } => self.take_order(token, stream, &about),
                Event::Readable(stream) | Event::Writable(stream) => {
                    match self.streams.get(&(token, stream)).copied() {
                        Some(Holder::Pipe(pipe)) => self.pump(pipe),
                        Some(Holder::Call(call)) => self.handle_verdict(call, token, stream),
                        Some(Holder::Move(pipe)) => self.handle_move(pipe, (token, stream)),
                        Some(Holder::Probe) => self.go_on_probing(token, stream),
                        Some(Holder::RouteUpdate) => self.handle_update(token, stream),
                        Some(Holder::Renewal) => self.handle_renewal(token, stream),
                        Some(Holder::Egress(_) | Holder::Check(_)) | None => {}
                    }
                }
                Event::Reset { stream, code } => self.stream_gone((token, stream), Gone::of(code)),
            }
        }
    }

    /// Sends what there is to send, and handles what that makes possible.
    pub(crate) fn tend(&mut self, token: Token) {
        loop {
            let Some(link) = self.links.get_mut(&token) else { return };
            let room = link.channel.room();
            if let Stage::Up(up) = &mut link.stage
                && room > 0
                && up.mux.has_output()
            {
                up.mux.transmit(link.channel.out(), room);
                self.next_look = self.next_look.min(self.now + LOOK);
            }
            match link.channel.flush() {
                Ok(all) => {
                    let more = link.mux().is_some_and(|mux| mux.has_output());
                    self.listen_to(token);
                    if !(all && more) {
                        return;
                    }
                }
                Err(broken) => return self.drop_link(token, &broken.to_string()),
            }
        }
    }

    /// A link is due.
    pub(crate) fn link_time(&mut self, token: Token) {
        let now = self.now;
        if let Err(why) = self.judge_again(token) {
            return self.part(token, &why);
        }
        let Some(link) = self.links.get_mut(&token) else { return };
        if let (Stage::Greeting(_), Some((peer, address))) = (&link.stage, link.doubtful()) {
            link.doubted = true;
            return self.dial_shortly(peer, address);
        }
        let why = match &mut link.stage {
            Stage::Greeting(_) => Some(NO_GREETING.to_owned()),
            Stage::Up(up) => {
                if let Some(since) = up.spare.filter(|_| !up.mux.is_empty()) {
                    up.spare = Some(since.max(now));
                }
                let spare = up.spare.is_some_and(|since| since + GRACE <= now);
                let broken = up.mux.handle_time(now).err().map(|broken| broken.to_string());
                broken.or(spare.then(|| "another one is used".to_owned()))
            }
        };
        match why {
            Some(why) => self.drop_link(token, &why),
            None => drop(self.dirty.insert(token)),
        }
    }

    /// Ends a link; streams on it may go on by other ways.
    pub(crate) fn drop_link(&mut self, token: Token, why: &str) {
        let ends = [Errno::CONNRESET, Errno::PIPE].map(|errno| errno.to_string());
        let closed = [CLOSED, RESTARTED].contains(&why) || ends.iter().any(|end| end == why);
        self.end_link(token, why, if closed { Gone::Lost } else { Gone::Silent });
    }

    /// Ends a link, and all streams on it: one of the two does not let the other in.
    pub(crate) fn shut_out(&mut self, token: Token, why: &str) {
        self.end_link(token, why, Gone::Ended);
    }

    fn end_link(&mut self, token: Token, why: &str, fate: Gone) {
        let Some(mut link) = self.links.remove(&token) else { return };
        self.things.remove(&token);
        if let (Some((peer, _)), Some(address)) = (link.dialled, link.address)
            && !address.ip().is_loopback()
            && ([VANISHED, NO_GREETING].contains(&why) || link.is_stuck())
        {
            self.shorten(peer, address);
        }
        let told = self.command_over(&mut link, why);
        let why = told.as_deref().unwrap_or(why);
        let address = link.spoken_address();
        let host = link.up().map(|up| up.peer).or(link.dialled.map(|(host, _)| host));
        let name = host.map_or_else(|| "an unauthenticated peer".to_owned(), |host| self.name(host).to_owned());
        let line = format!("no link with {name}, {address}: {why}");
        if host.is_some() {
            self.note(&line)
        } else if !link.address.is_some_and(|at| self.own_calls.remove(&(at.ip().to_canonical(), at.port()))) {
            self.note_unauthenticated(&line)
        }
        if let Some(host) = host {
            if told.is_some() {
                self.peers[host].command = Some(why.to_owned());
            }
            self.peer_lost(host, link.dialled.and(link.address), why, link.up().is_some());
            self.forget_routes(host);
        }
        let gone: Vec<_> = self.streams.keys().filter(|(link, _)| *link == token).copied().collect();
        for stream in gone {
            self.stream_gone(stream, fate);
        }
    }
}

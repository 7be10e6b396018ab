//! [`Runtime`]: engine, drivers and selector put together.

use core::sync::atomic::Ordering;
use core::task::Poll;
use std::sync::Arc;

use madrigal_base::config::{ConfigError, Settings};
use madrigal_base::error::{AcceptError, ConnectError, ListenError, Os};
use madrigal_base::ids::{HostId, ProcessId, UserId};
use madrigal_base::locator::Locator;
use madrigal_progress::driver::{Driver, Place};
use madrigal_progress::engine::Engine;
use madrigal_progress::wait::Waiter;
use madrigal_selector::{Candidate, Choice, NoPath, Pair, Preferences};
use madrigal_stream::{Acceptor, Attempting, Below, Handler, Op, StackRefused, Stacked, VLink};
use madrigal_sys::{process, time};
use madrigal_udp::lossy::{Class, Connecting, LossyAcceptor};
use madrigal_udp::{ClassError, Udp, What};

use crate::address::Address;
use crate::card::Card;
use crate::certificates::GridTls;
use crate::parallel::daemons;

/// Links wait for the other end for ten seconds in which it takes nothing (crate `stream`).
const MOST_LINGERING_NS: u64 = 12_000_000_000;
/// Of the engine, at the end.
const MOST_PASSES: u32 = 1000;

/// Why a runtime could not start.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The kernel gave no epoll or eventfd.
    #[error("cannot start the engine: {0}")]
    Engine(Os),
}

/// A driver, and whether it works here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Usable {
    /// Its name.
    pub driver: &'static str,
    /// `Err`: why not, in its own words.
    pub usable: Result<(), String>,
}

/// Engine, drivers and selector of a process. Several may live in one process; they share nothing but the loopback names.
pub struct Runtime {
    engine: Arc<Engine>,
    place: Place,
    preferences: Preferences,
    warnings: Vec<ConfigError>,
    tls: Option<GridTls>,
}

impl Runtime {
    /// A runtime configured by the environment's `MADRIGAL_*` keys; without `MADRIGAL_METHODS` every driver may be used. Keys that do not
    /// parse are ignored and reported by [`Runtime::warnings`].
    pub fn new() -> Result<Self, StartError> {
        let pairs: Vec<_> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let named = pairs.iter().any(|(name, _)| name == "MADRIGAL_METHODS");
        let (settings, warnings) = Settings::from_pairs(pairs);
        let mut runtime = Self::with_settings(&settings)?;
        if !named {
            runtime.preferences = Preferences::default();
        }
        runtime.warnings = warnings;
        Ok(runtime)
    }

    /// A runtime with these settings.
    pub fn with_settings(settings: &Settings) -> Result<Self, StartError> {
        let engine = Engine::new().map_err(|errno| StartError::Engine(Os(errno.raw_os_error())))?;
        engine.policy().set_max_spin_ns(u64::from(settings.spin_us) * 1_000);
        let directory = settings.directory(rustix::process::geteuid().as_raw());
        let place = Place { directory, network: settings.network.clone(), daemons: daemons(settings) };
        let preferences = Preferences { methods: settings.methods.clone() };
        Ok(Self { engine, place, preferences, warnings: Vec::new(), tls: None })
    }

    /// The certificates of links whose stacks have `tls`, and of those over UDP: see [`grid_tls`](crate::grid_tls). Without it there are none.
    pub fn set_tls(&mut self, tls: GridTls) {
        self.tls = Some(tls);
    }

    /// What was wrong with the environment's keys.
    pub fn warnings(&self) -> &[ConfigError] {
        &self.warnings
    }

    /// The engine, for its weights, its wait policy, and sources of one's own.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The place where drivers run.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Every driver, and whether it works here.
    pub fn drivers(&self) -> Vec<Usable> {
        let usable = |d: &'static dyn Driver| Usable { driver: d.name(), usable: d.usable(&self.place) };
        madrigal_drivers::drivers().map(usable).collect()
    }

    /// Listens at a place by the driver it names. Does not block.
    pub fn listen(&self, at: &Locator) -> Result<Acceptor, ListenError> {
        self.listen_at(&Address::from(at.clone()))
    }

    /// As [`Runtime::listen`]; links have the adapters of the address's stack. Both ends name the same stack.
    pub fn listen_at(&self, at: &Address) -> Result<Acceptor, ListenError> {
        let place = || at.locator.clone();
        let driver = self.driver_at(at).map_err(|unfit| match unfit {
            Unfit::NoDriver => ListenError::NoDriver { at: place() },
            unfit => ListenError::Unusable { at: place(), why: unfit.to_string() },
        })?;
        Acceptor::listen(&self.engine, driver.as_driver(), &at.locator, &self.place)
    }

    /// Posts a connect by the driver the locator names. An attempt that is not decided after 15 s fails.
    pub fn connect(&self, to: &Locator) -> Op<Result<VLink, ConnectError>> {
        self.connect_at(&Address::from(to.clone()))
    }

    /// As [`Runtime::connect`]; the link has the adapters of the address's stack. An end that has another one refuses, with the reason.
    pub fn connect_at(&self, to: &Address) -> Op<Result<VLink, ConnectError>> {
        match self.driver_to(to) {
            Ok(driver) => madrigal_stream::connect(&self.engine, driver.as_driver(), &to.locator, &self.place),
            Err(error) => Op::ready(&self.engine, Err(error)),
        }
    }

    /// As [`Runtime::connect_at`], completing by handler; the attempt can be taken back. Fails at once only for an address that names no
    /// driver, or a stack that no link can have.
    pub fn connect_with(
        &self,
        to: &Address,
        handler: Handler<(), Result<VLink, ConnectError>>,
    ) -> Result<Attempting, ConnectError> {
        let driver = self.driver_to(to)?;
        Ok(madrigal_stream::connect_with(&self.engine, driver.as_driver(), &to.locator, &self.place, handler))
    }

    fn driver_to(&self, to: &Address) -> Result<AnyDriver, ConnectError> {
        self.driver_at(to).map_err(|unfit| match unfit {
            Unfit::NoDriver => ConnectError::NoDriver { to: to.locator.clone() },
            unfit => ConnectError::NoPath { to: to.to_string(), why: unfit.to_string() },
        })
    }

    /// Listens for links of messages of which a part may be lost, at `vrp/udp://...`. The classes are those; none: there is one, with the
    /// tolerance of the address. Does not block.
    pub fn lossy_listen(&self, at: &Address, classes: &[Class]) -> Result<LossyAcceptor, ListenError> {
        let unusable = |why: Unfit| ListenError::Unusable { at: at.locator.clone(), why: why.to_string() };
        LossyAcceptor::listen(&self.lossy(at, classes).map_err(unusable)?, &at.locator)
    }

    /// Begins to connect to where somebody [listens](Runtime::lossy_listen) for links of the same classes. Does not block.
    pub fn lossy_connect(&self, to: &Address, classes: &[Class]) -> Result<Connecting, ConnectError> {
        let no_path = |why: Unfit| ConnectError::NoPath { to: to.to_string(), why: why.to_string() };
        Connecting::begin(&self.lossy(to, classes).map_err(no_path)?, &to.locator)
    }

    fn lossy(&self, at: &Address, classes: &[Class]) -> Result<Udp, Unfit> {
        let tolerance = at.tolerance.ok_or(Unfit::NoVrp)?;
        if at.stack.is_some() {
            return Err(Unfit::StackOfMessages);
        }
        let of_address = [Class { tolerance, ..Class::default() }];
        let classes = match (classes, tolerance) {
            ([], _) => &of_address[..],
            (given, 0) => given,
            _ => return Err(Unfit::Twice),
        };
        self.udp(What::messages(classes)?)
    }

    fn udp(&self, what: What) -> Result<Udp, Unfit> {
        let no_tls = || Err(NO_TLS.to_owned());
        let credentials = self.tls.as_ref().map_or_else(no_tls, GridTls::credentials).map_err(Unfit::NoCertificate)?;
        Ok(Udp::new(&self.engine, credentials, what))
    }

    /// The driver of an address, with its stack.
    fn driver_at(&self, at: &Address) -> Result<AnyDriver, Unfit> {
        let below = match at.tolerance {
            Some(0) => Below::Made(Arc::new(self.udp(What::stream())?)),
            Some(_) => return Err(Unfit::Tolerance),
            None if at.locator.scheme() == "udp" => return Err(Unfit::NoVrp),
            None => Below::Known(madrigal_drivers::driver(at.locator.scheme()).ok_or(Unfit::NoDriver)?),
        };
        let Some(stack) = &at.stack else { return Ok(AnyDriver::Bare(below)) };
        if at.tolerance.is_some() && stack.has("tls") {
            return Err(Unfit::Enciphered);
        }
        let tls = self.tls.as_ref().map(GridTls::ends);
        Ok(AnyDriver::Stacked(Stacked::new(&self.engine, below, stack.clone(), tls)?))
    }

    /// Listens as `name` by every driver that may be used and works here; on this host only. Does not block.
    pub fn serve(&self, name: &str) -> Result<Server, ListenError> {
        let allowed =
            |driver: &&dyn Driver| self.preferences.methods.allows(driver.name()) && driver.usable(&self.place).is_ok();
        let places = madrigal_drivers::drivers().filter(allowed).filter_map(|driver| driver.address_for(name));
        let acceptors = places.map(|at| self.listen(&at)).collect::<Result<Vec<_>, _>>()?;
        let locators = acceptors.iter().map(|acceptor| acceptor.locator().clone()).collect();
        Ok(Server { card: Card { locators, ..own_card() }, acceptors })
    }

    /// Which path would be taken to the process with that card, and why.
    pub fn choose(&self, card: &Card) -> Result<Choice, NoPath> {
        madrigal_selector::select(pair(card), &self.candidates(card), &self.preferences)
    }

    /// Posts a connect to the process with that card, by the best path. A path that is refused at once is rejected with that reason,
    /// and the next best is taken.
    pub fn dial(&self, card: &Card) -> Result<(Op<Result<VLink, ConnectError>>, Choice), NoPath> {
        let mut candidates = self.candidates(card);
        loop {
            let choice = madrigal_selector::select(pair(card), &candidates, &self.preferences)?;
            let driver = choice.path.driver();
            let chosen = candidates.iter_mut().find(|candidate| candidate.driver == driver);
            let to = card.locators.iter().find(|locator| locator.scheme() == driver);
            let (Some(chosen), Some(to)) = (chosen, to) else { return Err(NoPath { rejected: choice.rejected }) };
            let mut op = self.connect(to);
            match op.poll() {
                Poll::Ready(Err(error)) => chosen.unusable = Some(error.to_string()),
                Poll::Ready(done) => return Ok((Op::ready(&self.engine, done), choice)),
                Poll::Pending => return Ok((op, choice)),
            }
        }
    }

    /// Turns the engine once: bounded work, never blocks; returns how much was done.
    pub fn do_work(&self) -> usize {
        self.engine.do_work()
    }

    /// Runs the engine until `done` is true; spins as the wait policy allows, then sleeps. For handlers that leave their results somewhere
    /// `done` reads.
    pub fn wait_until(&self, done: impl FnMut() -> bool) {
        self.engine.wait_until(&Waiter::default(), None, done);
    }

    fn candidates(&self, card: &Card) -> Vec<Candidate> {
        let candidate = |driver: &'static dyn Driver| {
            let facts = driver.facts();
            // One that may not be used is not even asked: that would load it.
            let allowed = self.preferences.methods.allows(driver.name());
            Candidate {
                unusable: if allowed { driver.usable(&self.place).err() } else { None },
                offered: card.locators.iter().any(|locator| locator.scheme() == driver.name()),
                ..Candidate::new(driver.name(), facts.reach, facts.one_user)
            }
        };
        madrigal_drivers::drivers().map(candidate).collect()
    }
}

impl Drop for Runtime {
    /// Waits until links with a stack that were closed have given the other end all that was written, at most some ten seconds; other links
    /// need no wait.
    fn drop(&mut self) {
        let lingering = self.engine.lingering();
        if lingering.load(Ordering::Relaxed) > 0 {
            let deadline = Some(time::now_ns() + MOST_LINGERING_NS);
            self.engine.wait_until(&Waiter::default(), deadline, || lingering.load(Ordering::Relaxed) == 0);
            // What has ended ends what is below it.
            (0..MOST_PASSES).take_while(|_| self.engine.do_work() > 0).for_each(drop);
        }
    }
}

/// A driver, or one with a stack above it.
enum AnyDriver {
    Bare(Below),
    Stacked(Stacked),
}

impl AnyDriver {
    fn as_driver(&self) -> &dyn Driver {
        match self {
            Self::Bare(driver) => &**driver,
            Self::Stacked(stacked) => stacked,
        }
    }
}

/// A program that uses this library without certificates.
const NO_TLS: &str = "this program has no certificates";

/// Why an address has no driver.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error("there is no such driver")]
    NoDriver,
    #[error("`udp` carries no links alone: write `vrp/udp`")]
    NoVrp,
    #[error("a stream of bytes loses nothing: write `vrp/udp`, or open a link of messages")]
    Tolerance,
    #[error("a tolerance in the address, and classes beside it: leave one of them out")]
    Twice,
    #[error("a link of messages has no adapters: write `vrp/udp` alone")]
    StackOfMessages,
    #[error("`vrp/udp` is enciphered: leave `tls` out")]
    Enciphered,
    #[error("`vrp/udp` is enciphered: {0}")]
    NoCertificate(String),
    #[error(transparent)]
    Classes(#[from] ClassError),
    #[error(transparent)]
    Stack(#[from] StackRefused),
}

/// A process that listens by several drivers at once.
pub struct Server {
    card: Card,
    acceptors: Vec<Acceptor>,
}

impl Server {
    /// The card to hand to peers that will connect.
    pub fn card(&self) -> &Card {
        &self.card
    }

    /// One acceptor a driver.
    pub fn acceptors(&self) -> &[Acceptor] {
        &self.acceptors
    }

    /// Posts an accept on each acceptor; the handler posts the next one on the acceptor it is given.
    pub fn accept_with(&self, handler: &Handler<Acceptor, Result<VLink, AcceptError>>) {
        self.acceptors.iter().for_each(|acceptor| acceptor.accept_with(handler.clone()));
    }
}

fn pair(card: &Card) -> Pair {
    let own = own_card();
    let same_host = card.host == own.host;
    Pair { same_process: same_host && card.process == own.process, same_host, same_user: card.user == own.user }
}

/// Our own card, without locators.
fn own_card() -> Card {
    let mut buf = [0u8; 64];
    let boot = process::read_small(c"/proc/sys/kernel/random/boot_id", &mut buf).unwrap_or_default();
    // A host that does not report which one it is shares with no other: a random id.
    let unknown = || HostId(u128::from(process::random()) << 64 | u128::from(process::random()));
    let host = core::str::from_utf8(boot).ok().and_then(|text| HostId::parse(text.trim())).unwrap_or_else(unknown);
    let pid = process::own_pid();
    Card {
        host,
        user: UserId(rustix::process::geteuid().as_raw()),
        process: ProcessId { pid, start: process::start_time(pid).unwrap_or(0) },
        locators: Vec::new(),
    }
}

//! What a case of the suite gets.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use madrigal::config::Settings;
use madrigal::locator::Locator;
use madrigal::stack::Stack;
use madrigal::{Acceptor, Address, GridTls, Runtime, VLink, grid_tls_in};
use madrigal_identity::{Authority, DAY, Name, Validity};
use madrigal_progress::driver::Driver;
use madrigal_sys::process;

use crate::place;
use crate::udp::Vrp;

/// What a case gets: a driver and a runtime of its own.
pub struct Context {
    pub(super) driver: &'static dyn Driver,
    stack: Option<Stack>,
    /// Where it is `vrp/udp`.
    tolerance: Option<u32>,
    pub(super) runtime: Runtime,
}

/// Makes the context for a driver.
pub fn context(driver: &'static dyn Driver) -> Context {
    stacked(driver, None)
}

/// Makes the context for a driver with a stack above it.
pub fn stacked(driver: &'static dyn Driver, stack: Option<Stack>) -> Context {
    let settings = Settings { dir: place().directory, ..Settings::default() };
    let mut runtime = Runtime::with_settings(&settings).expect("starts");
    let tolerance = (driver.name() == Vrp.name()).then_some(0);
    if tolerance.is_some() || stack.as_ref().is_some_and(|stack| stack.has("tls")) {
        runtime.set_tls(certificates());
    }
    Context { driver, stack, tolerance, runtime }
}

/// Those of a host of a grid of their own, made once for this process.
pub(crate) fn certificates() -> GridTls {
    static MADE: OnceLock<GridTls> = OnceLock::new();
    let make = || {
        let dir = std::env::temp_dir().join(format!("madrigal-links-{}", process::own_pid()));
        let name = |text| Name::parse(text).expect("a name");
        let grid = Authority::create(&dir, &name("test"), Validity::seconds(DAY), false).expect("a CA");
        let host = grid.issue_host(&name("a1"), Validity::seconds(DAY)).expect("a certificate");
        host.install(&dir, false).expect("is installed");
        let made = grid_tls_in(&dir);
        // Read before the files go.
        drop(made.credentials().expect("a certificate"));
        std::fs::remove_dir_all(&dir).expect("removes what it made");
        made
    };
    MADE.get_or_init(make).clone()
}

impl Context {
    fn address(&self) -> Locator {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("links-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.driver.address_for(&name).expect("an address for every name")
    }

    pub(super) fn listen(&self) -> Acceptor {
        self.runtime.listen_at(&self.at(&self.address())).expect("listens")
    }

    pub(super) fn has_stack(&self) -> bool {
        self.stack.is_some() || self.tolerance.is_some()
    }

    /// That address, with the stack.
    pub(super) fn at(&self, locator: &Locator) -> Address {
        Address { stack: self.stack.clone(), tolerance: self.tolerance, locator: locator.clone() }
    }

    pub(super) fn pair_on(&self, acceptor: &Acceptor) -> (VLink, VLink) {
        let accept = acceptor.accept();
        let near = self.runtime.connect_at(&self.at(acceptor.locator())).wait().expect("connects");
        (near, accept.wait().expect("accepts"))
    }

    pub(crate) fn pair(&self) -> (VLink, VLink) {
        self.pair_on(&self.listen())
    }

    pub(super) fn until(&self, done: impl FnMut() -> bool) {
        self.runtime.wait_until(done);
    }
}

//! What a case of the suite gets.

use std::sync::atomic::{AtomicUsize, Ordering};

use madrigal::config::Settings;
use madrigal::locator::Locator;
use madrigal::stack::Stack;
use madrigal::{Acceptor, Address, Runtime, VLink};
use madrigal_progress::driver::Driver;

use crate::place;

/// What a case gets: a driver and a runtime of its own.
pub struct Context {
    pub(super) driver: &'static dyn Driver,
    stack: Option<Stack>,
    pub(super) runtime: Runtime,
}

/// Makes the context for a driver.
pub fn context(driver: &'static dyn Driver) -> Context {
    stacked(driver, None)
}

/// Makes the context for a driver with a stack above it.
pub fn stacked(driver: &'static dyn Driver, stack: Option<Stack>) -> Context {
    let settings = Settings { dir: place().directory, ..Settings::default() };
    Context { driver, stack, runtime: Runtime::with_settings(&settings).expect("starts") }
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
        self.stack.is_some()
    }

    /// That address, with the stack.
    pub(super) fn at(&self, locator: &Locator) -> Address {
        Address { stack: self.stack.clone(), locator: locator.clone() }
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

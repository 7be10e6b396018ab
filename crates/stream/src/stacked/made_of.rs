//! What an end wants its links to be made of, and makes them of.

use std::sync::Arc;

use madrigal_adapters::contract::Adapter;
use madrigal_adapters::stack::{Offer, Stack};
use madrigal_adapters::tls::Role;
use madrigal_adapters::{Parts, chain};
use madrigal_sys::time;

/// Both ends insist on a stack that has one.
const NO_ADAPTER: &str = "the stack has no adapter";
/// Makes an end of an enciphered link, with the certificate that this process shows; or says why not.
pub type MakeTls = Arc<dyn Fn(Role) -> Result<Box<dyn Adapter>, String> + Send + Sync>;

/// What this end wants its links to be made of.
#[derive(Clone)]
pub(super) struct MadeOf {
    pub(super) offer: Offer,
    pub(super) tls: Option<MakeTls>,
}

impl MadeOf {
    /// The adapters of one end.
    pub(super) fn adapters(&self, stack: &Stack, role: Role) -> Result<Box<dyn Adapter>, String> {
        let tls = self.tls.as_ref().filter(|_| stack.has("tls")).map(|tls| tls(role)).transpose()?;
        chain(stack, time::now_ns, Parts { tls }).ok_or_else(|| NO_ADAPTER.to_owned())
    }
}

//! What an end wants its links to be made of, and makes them of.

use std::sync::Arc;

use madrigal_adapters::contract::Adapter;
use madrigal_adapters::stack::{Offer, Stack};
use madrigal_adapters::tls::Role;
use madrigal_adapters::{Parts, chain, known};
use madrigal_sys::time;

/// Both ends insist on a stack that has one.
const NO_ADAPTER: &str = "the stack has no adapter";
/// Makes an end of an enciphered link, with the certificate that this process shows; or says why not.
pub type MakeTls = Arc<dyn Fn(Role) -> Result<Box<dyn Adapter>, String> + Send + Sync>;

/// A program that uses this library without certificates.
const NO_TLS: &str = "this program has no certificates";

/// Why there are no links with a stack.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StackRefused {
    /// Each of their connections would be enciphered for itself.
    #[error(
        "`tls` below `stripe` in `{0}`: a program's link has one handshake for all its connections; write `tls/stripe(N)`"
    )]
    TlsBelow(Stack),
    /// There is no certificate to be shown.
    #[error("`tls` in `{stack}`: {why}")]
    NoCertificate {
        /// The stack.
        stack: Stack,
        /// What is missing, and what to type.
        why: String,
    },
    /// It is the driver alone.
    #[error("`{0}` has no adapter: the driver alone needs no stack")]
    Bare(Stack),
}

/// What this end wants its links to be made of.
#[derive(Clone)]
pub(super) struct MadeOf {
    pub(super) offer: Offer,
    tls: Option<MakeTls>,
    /// How long the end of a link waits for the other end to take anything of what was written.
    pub(super) linger: u64,
}

impl MadeOf {
    /// All of a stack; `tls`, for one that has it, is asked for an end at once, to see that there is a certificate.
    pub(super) fn new(stack: Stack, tls: Option<MakeTls>, linger: u64) -> Result<Self, StackRefused> {
        if stack.has("tls") {
            if stack.has("stripe") && !stack.is_enciphered_once() {
                return Err(StackRefused::TlsBelow(stack));
            }
            let made = tls.as_ref().ok_or_else(|| NO_TLS.to_owned()).and_then(|tls| tls(Role::Accepting));
            if let Err(why) = made {
                return Err(StackRefused::NoCertificate { stack, why });
            }
        }
        if stack.elements().len() < 2 {
            return Err(StackRefused::Bare(stack));
        }
        Ok(Self { offer: Offer { stack, strict: true, known: known() }, tls, linger })
    }

    /// The adapters of one end.
    pub(super) fn adapters(&self, stack: &Stack, role: Role) -> Result<Box<dyn Adapter>, String> {
        let tls = self.tls.as_ref().filter(|_| stack.has("tls")).map(|tls| tls(role)).transpose()?;
        chain(stack, time::now_ns, Parts { tls }).ok_or_else(|| NO_ADAPTER.to_owned())
    }
}

//! Providers of libfabric below ours: those that the methods name, and those that exist here.

use madrigal::config::Methods;
use madrigal::fabric::{self, NAME, PREFIX};

/// The providers that must stay allowed where an MPI restricts libfabric to ours: those named, and that of a fabric that exists here.
pub(super) fn below(methods: &Methods) -> Vec<String> {
    let found = |driver: &str| fabric::chosen(driver).ok().map(|(provider, _)| provider);
    let named = methods.listed().iter().filter_map(|name| name.strip_prefix(PREFIX)).map(str::to_owned);
    let any = methods.allows(NAME).then(|| found(NAME)).flatten();
    let mut all: Vec<String> = named.chain(any).map(core_of).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The fabrics that the methods allow, in words: those named, and one that exists here.
pub(super) fn described(methods: &Methods) -> Vec<String> {
    let any = methods.allows(NAME).then_some(NAME).filter(|any| fabric::chosen(any).is_ok());
    let named = methods.listed().iter().map(String::as_str).filter(|name| name.starts_with(PREFIX));
    let tell = |driver: &str| match fabric::chosen(driver) {
        Ok((provider, domain)) => format!("{driver}: messages may go by libfabric's {provider} through {domain}"),
        Err(why) => format!("{driver}: the libfabric of this host has no way: {why}"),
    };
    any.into_iter().chain(named).map(tell).collect()
}

/// The provider below a layer: of `tcp;ofi_rxm` the first.
fn core_of(provider: String) -> String {
    provider.split(';').find(|part| !part.starts_with("ofi_")).map_or(provider.clone(), str::to_owned)
}

//! Which of libfabric's providers is meant, and whether it is available.

use rustix::fs::{Dir, Mode, OFlags};

use super::ffi::{self, Offer, Offers};

/// Providers of fabrics that are not the ones we can use better ourselves.
const REAL: [&str; 6] = ["cxi", "efa", "verbs", "opx", "psm2", "psm3"];
/// The layer that makes reliable datagrams of connections.
const LAYER: &str = ";ofi_rxm";
/// Where the kernel lists the devices of such fabrics.
const DEVICES: [&str; 3] = ["/sys/class/infiniband", "/sys/class/cxi", "/sys/class/hfi1"];
/// Our own name there.
const OURSELVES: &str = "madrigal";

/// Which provider is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// Any of [`REAL`].
    Real,
    /// That one.
    Named(&'static str),
}

/// An answer of libfabric's, and which of its offers is meant.
pub(super) struct Chosen {
    offers: Offers,
    at: usize,
}

impl Chosen {
    pub(super) fn offer(&self) -> Option<Offer<'_>> {
        self.offers.iter().nth(self.at)
    }
}

impl Wanted {
    /// The best offer. `Err`: why there is none.
    pub(super) fn find(self) -> Result<Chosen, String> {
        match self {
            Self::Real => real(),
            Self::Named(name) if is_ourselves(name) => Err("that would lead back to ourselves".to_owned()),
            Self::Named(name) => named(name),
        }
    }
}

fn real() -> Result<Chosen, String> {
    if !DEVICES.iter().any(|folder| has_entries(folder)) {
        return Err(format!("no device of a fabric is in {}", DEVICES.join(", ")));
    }
    let offers = ffi::ask(None)?;
    // psm3 offers itself over plain Ethernet too.
    let fits =
        |offer: Offer<'_>, name: &str| core_of(&offer.provider()) == name && (name != "psm3" || offer.has_device());
    let at = REAL.iter().find_map(|name| offers.iter().position(|offer| fits(offer, name)));
    match at {
        Some(at) => Ok(Chosen { offers, at }),
        None => {
            let filter = std::env::var("FI_PROVIDER").ok().filter(|filter| !filter.is_empty());
            let filter =
                filter.map_or_else(String::new, |filter| format!(" (FI_PROVIDER={filter} may keep it from them)"));
            Err(format!("libfabric offers none of {} with messages in order{filter}", REAL.join(", ")))
        }
    }
}

fn named(name: &str) -> Result<Chosen, String> {
    is_let(name, std::env::var("FI_PROVIDER").ok().as_deref())?;
    let layered = if name.contains(';') { None } else { Some(format!("{name}{LAYER}")) };
    let mut last = String::new();
    for name in core::iter::once(name).chain(layered.as_deref()) {
        match ffi::ask(Some(name)) {
            Ok(offers) => {
                if let Some(at) = best(&offers) {
                    return Ok(Chosen { offers, at });
                }
                last = "only offers that lead back to ourselves".to_owned();
            }
            Err(why) => last = why,
        }
    }
    Err(last)
}

/// The first offer that others can reach, else the first.
fn best(offers: &Offers) -> Option<usize> {
    let others = || offers.iter().enumerate().filter(|(_, offer)| !is_ourselves(&offer.provider()));
    let far = others().find(|(_, offer)| !offer.source().is_some_and(|source| is_near(&source)));
    far.or_else(|| others().next()).map(|(at, _)| at)
}

/// Whether bytes are a `sockaddr` that only this host reaches, or one of IPv6 that holds for one link.
fn is_near(source: &[u8]) -> bool {
    const INET: u16 = 2;
    const INET6: u16 = 10;
    let family = source.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes));
    match (family, source.get(4), source.get(8..24)) {
        (Some(INET), Some(127), _) => true,
        (Some(INET6), _, Some(v6)) => v6.starts_with(&[0xfe, 0x80]) || *v6 == core::net::Ipv6Addr::LOCALHOST.octets(),
        _ => false,
    }
}

/// Whether the user's `FI_PROVIDER`, which restricts all of libfabric, lets that provider through.
fn is_let(name: &str, filter: Option<&str>) -> Result<(), String> {
    let Some(filter) = filter.map(str::trim).filter(|filter| !filter.is_empty()) else { return Ok(()) };
    let (list, negated) = filter.strip_prefix('^').map_or((filter, false), |rest| (rest, true));
    let listed = list.split(',').any(|entry| core_of(entry.trim()) == core_of(name));
    if listed != negated {
        return Ok(());
    }
    Err(format!("FI_PROVIDER={filter} keeps libfabric from {}: add it there, or unset it", core_of(name)))
}

/// Whether a peer may be at an address. libfabric's `shm` (1.17) does not survive the name of memory that does not exist, so that is
/// checked first.
pub(super) fn may_be_there(provider: &str, name: &[u8]) -> Result<(), String> {
    if provider != "shm" {
        return Ok(());
    }
    let text = name.strip_suffix(b"\0").unwrap_or(name);
    let text = core::str::from_utf8(text).unwrap_or_default();
    let file = text.split_once("://").map_or(text, |(_, file)| file);
    let legal = !file.is_empty() && !file.starts_with('.') && !file.contains(['/', '\0']);
    let exists = legal && rustix::fs::access(format!("/dev/shm/{file}"), rustix::fs::Access::EXISTS).is_ok();
    if exists { Ok(()) } else { Err(format!("nobody is at {text:?} on this host")) }
}

/// The provider below a layer: of `tcp;ofi_rxm` the first.
fn core_of(name: &str) -> &str {
    name.split(';').find(|part| !part.starts_with("ofi_")).unwrap_or(name)
}

fn is_ourselves(name: &str) -> bool {
    name.split([';', ',']).any(|part| part == OURSELVES)
}

fn has_entries(folder: &str) -> bool {
    let opened = rustix::fs::open(folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let entries = opened.and_then(Dir::new);
    entries
        .is_ok_and(|mut entries| entries.any(|entry| entry.is_ok_and(|e| !e.file_name().to_bytes().starts_with(b"."))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_ourselves() {
        for name in ["madrigal", "madrigal;ofi_rxm", "ofi_rxd;madrigal"] {
            assert!(is_ourselves(name), "{name}");
        }
        assert!(!is_ourselves("tcp;ofi_rxm"));
        assert!(Wanted::Named("madrigal").find().is_err_and(|why| why.contains("ourselves")));
    }

    #[test]
    fn the_users_filter_is_named() {
        assert!(is_let("tcp", None).is_ok() && is_let("tcp", Some("")).is_ok());
        assert!(is_let("tcp", Some("madrigal,tcp")).is_ok() && is_let("tcp;ofi_rxm", Some("tcp;ofi_rxm")).is_ok());
        assert!(is_let("tcp", Some("madrigal")).is_err_and(|why| why.contains("FI_PROVIDER=madrigal")));
        assert!(is_let("tcp", Some("^tcp")).is_err() && is_let("shm", Some("^tcp")).is_ok());
    }

    #[test]
    fn names_of_shared_memory_are_looked_for() {
        assert!(may_be_there("tcp;ofi_rxm", b"anything").is_ok());
        for name in [&b"fi_shm://no:such:0\0"[..], b"fi_shm://../../etc/passwd\0", b"fi_shm://\0", b"", b"\xff"] {
            assert!(may_be_there("shm", name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn addresses_that_nobody_else_reaches_come_last() {
        let v4 = |octets: [u8; 4]| [&2u16.to_ne_bytes()[..], &[0, 0], &octets, &[0; 8]].concat();
        assert!(is_near(&v4([127, 0, 0, 1])) && !is_near(&v4([10, 0, 0, 1])));
        let v6 = |octets: [u8; 16]| [&10u16.to_ne_bytes()[..], &[0; 6], &octets, &[0; 4]].concat();
        assert!(is_near(&v6(core::net::Ipv6Addr::LOCALHOST.octets())));
        assert!(is_near(&v6("fe80::1".parse::<core::net::Ipv6Addr>().unwrap().octets())));
        assert!(!is_near(&v6("fd00::1".parse::<core::net::Ipv6Addr>().unwrap().octets())));
        assert!(!is_near(b"fi_shm://1") && !is_near(&[]));
    }
}

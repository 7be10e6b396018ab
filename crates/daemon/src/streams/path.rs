//! The hosts on a stream's way, and whether its first hop is encrypted.

use crate::daemon::Daemon;
use crate::streams::pipe::End;

impl Daemon {
    /// The way of a stream to a host, in words.
    pub(crate) fn path(&self, far: &End, way: &str, host: &str) -> String {
        let tls = if self.is_encrypted(far) { " (TLS)" } else { "" };
        format!("{}{tls}", self.hops(way, host).join(", "))
    }

    /// Whether the link of an end is encrypted.
    pub(crate) fn is_encrypted(&self, far: &End) -> bool {
        let link = if let End::Stream((link, _)) = far { self.links.get(link) } else { None };
        link.is_some_and(|link| link.is_enciphered())
    }

    /// The hosts on a way, from this one to the target.
    pub(crate) fn hops(&self, way: &str, host: &str) -> Vec<String> {
        let between: Vec<String> = way.strip_prefix("through ").map_or_else(Vec::new, |relays| {
            relays.split([',', ' ']).filter(|part| !part.is_empty()).map(str::to_owned).collect()
        });
        let mut hops: Vec<String> =
            [self.own().name.clone()].into_iter().chain(between).chain([host.to_owned()]).collect();
        hops.dedup();
        hops
    }
}

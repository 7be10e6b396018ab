//! The keys of pools in etcd, and what a key is of.

/// Where everything is.
#[derive(Clone)]
pub(super) struct Keys {
    prefix: String,
}

/// What a key is of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Key {
    /// A daemon, by its number.
    Daemon(u64),
    /// A record of this pool.
    Record(String),
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: format!("{}/", prefix.trim_end_matches('/')) }
    }

    pub(super) fn all(&self) -> &str {
        &self.prefix
    }

    pub(super) fn daemons(&self) -> String {
        format!("{}daemons/", self.prefix)
    }

    pub(super) fn daemon(&self, daemon: u64) -> String {
        format!("{}{daemon:016x}", self.daemons())
    }

    pub(super) fn snap(&self, pool: &str) -> String {
        format!("{}pools/{pool}/snap", self.prefix)
    }

    pub(super) fn log(&self, pool: &str) -> String {
        format!("{}pools/{pool}/log/", self.prefix)
    }

    /// The key of a daemon's record, by its count of them.
    pub(super) fn record(&self, pool: &str, daemon: u64, count: u64) -> String {
        format!("{}{daemon:016x}-{count:016x}", self.log(pool))
    }

    /// The key of the record that a daemon is lost.
    pub(super) fn lost(&self, pool: &str, daemon: u64) -> String {
        format!("{}lost-{daemon:016x}", self.log(pool))
    }

    /// What a key is of; `None` of one that means nothing here, or to nobody.
    pub(super) fn parse(&self, key: &str) -> Option<Key> {
        let rest = key.strip_prefix(&self.prefix)?;
        if let Some(daemon) = rest.strip_prefix("daemons/") {
            return u64::from_str_radix(daemon, 16).ok().map(Key::Daemon);
        }
        let (pool, _) = rest.strip_prefix("pools/")?.split_once("/log/")?;
        madrigal_pools::limits::is_name(pool).then(|| Key::Record(pool.to_owned()))
    }
}

/// The end of the range of all keys that begin so (etcd.io, "Data model").
pub(super) fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_again() {
        let keys = Keys::new("/m/");
        assert_eq!(keys.parse(&keys.daemon(0xAB)), Some(Key::Daemon(0xAB)));
        assert_eq!(keys.parse(&keys.record("p", 1, 2)), Some(Key::Record("p".to_owned())));
        assert_eq!(keys.parse(&keys.lost("p", 1)), Some(Key::Record("p".to_owned())));
        for other in [keys.snap("p").as_str(), "/m/pools/a b/log/x", "/n/daemons/1", "/m/daemons/x", ""] {
            assert_eq!(keys.parse(other), None, "{other}");
        }
        assert_eq!(range_end("/m/"), b"/m0");
    }
}

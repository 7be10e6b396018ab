//! The `MADRIGAL_*` keys in this process's environment.

use std::ffi::OsString;

use madrigal::config::{ConfigError, KEYS, Settings, lookup};
use madrigal_offers::Directory;

/// No settings, but known: what a host of a lab has in its environment, and what the package for Python reads.
const OTHERS: [&str; 3] = ["MADRIGAL_LAB", "MADRIGAL_LAB_HOST", "MADRIGAL_LIBRARY"];

/// The settings in an environment, and the errors in it. A key with an empty value is not set.
pub(crate) fn read(env: &[(OsString, OsString)]) -> (Settings, Vec<ConfigError>) {
    let pairs = env.iter().filter_map(|(name, value)| Some((name.to_str()?, value.to_string_lossy())));
    Settings::from_pairs(pairs.filter(|(name, value)| !value.is_empty() && !OTHERS.contains(name)))
}

/// The message of an error for the user: what happens now, and what to type.
pub(crate) fn advice(error: &ConfigError) -> String {
    match error {
        ConfigError::UnknownKey { name, suggestion: Some(key) } => {
            format!("{name} is not known and does nothing: did you mean {key}? (unset {name})")
        }
        ConfigError::UnknownKey { name, .. } => {
            let known: Vec<_> = KEYS.iter().map(|key| key.name).collect();
            format!("{name} is not known and does nothing: unset it, or use one of {}", known.join(", "))
        }
        ConfigError::BadValue { key, .. } => {
            format!(
                "{error}: unset {key}{}",
                lookup(key).map_or(String::new(), |k| format!("; {}", example(k.default, key)))
            )
        }
        other => other.to_string(),
    }
}

fn example(default: &str, key: &str) -> String {
    if default.is_empty() { "the default is empty".to_owned() } else { format!("the default is {key}={default}") }
}

/// The shared directory, as SysWrap finds it.
pub(crate) fn directory() -> Directory {
    Directory::named(std::env::var("MADRIGAL_DIR").ok().as_deref())
}

/// The network namespace of this process; 0 where the kernel does not report it.
pub(crate) fn netns() -> u64 {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    use std::os::fd::AsRawFd as _;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    socket.map_or(0, |fd| madrigal_sys::tcp::netns_cookie(fd.as_raw_fd()))
}

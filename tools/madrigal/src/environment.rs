//! What a program will find in its environment.

use std::ffi::{OsStr, OsString};

/// Variables in the order they were found.
pub(crate) struct Environment(pub(crate) Vec<(OsString, OsString)>);

impl Environment {
    pub(crate) fn get(&self, key: &str) -> Option<&OsStr> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_os_str())
    }

    /// Sets it, or with `None` unsets it.
    pub(crate) fn set(&mut self, key: &str, value: Option<OsString>) {
        match (self.0.iter().position(|(name, _)| name == key), value) {
            (Some(i), Some(value)) => self.0[i].1 = value,
            (Some(i), None) => drop(self.0.remove(i)),
            (None, Some(value)) => self.0.push((key.into(), value)),
            (None, None) => {}
        }
    }
}

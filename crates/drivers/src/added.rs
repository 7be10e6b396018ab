//! The drivers that the user adds: shared objects of a directory that `MADRIGAL_DRIVERS` names.

use std::path::Path;

use madrigal_plugin::Found;

/// The key.
const KEY: &str = "MADRIGAL_DRIVERS";
/// Names of methods that are no drivers of streams.
const OTHERS: [&str; 2] = ["fabric", "daemon"];

/// Reads the directory, if there is one; loads nothing. `taken`: names of drivers of our own.
pub(crate) fn find(taken: impl Fn(&str) -> bool) -> Found {
    let directory = std::env::var_os(KEY).filter(|directory| !directory.is_empty());
    let taken = |name: &str| OTHERS.contains(&name) || taken(name);
    directory.map(|directory| Found::read(Path::new(&directory), taken)).unwrap_or_default()
}

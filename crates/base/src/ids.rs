//! Names of hosts, users, processes and links that can be compared, printed and sent; and how far a method carries.

use core::fmt;

/// A host until its next boot (the kernel's boot id): equal on both sides exactly when they share a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HostId(pub u128);

impl HostId {
    /// Reads the text form, with or without dashes. `None`: not 32 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let digits: String = text.chars().filter(|&c| c != '-').collect();
        if digits.len() != 32 {
            return None;
        }
        u128::from_str_radix(&digits, 16).ok().map(Self)
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A user of a host (effective uid).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UserId(pub u32);

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A process of a host: its number and when it started, so that a number used again is another process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ProcessId {
    /// The kernel's number.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start: u64,
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.pid, self.start)
    }
}

/// A link of this process, counted from 1 in the order they were made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LinkId(pub u64);

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How far a method carries; a shorter reach is faster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reach {
    /// Inside one process.
    Process,
    /// Between processes of one host.
    Host,
    /// Between hosts.
    Network,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_id_survives_its_text() {
        let id = HostId::parse("0b8c4a2e-5d5b-4c8e-9b0e-3a1f00c0ffee\n".trim()).unwrap();
        assert_eq!(HostId::parse(&id.to_string()), Some(id));
        assert_eq!(HostId::parse("0b8c"), None);
        assert_eq!(HostId::parse(&"g".repeat(32)), None);
    }
}

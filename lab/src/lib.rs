//! A grid on one machine: hosts, sites, switches, NAT, firewalls and WAN links, from a file.
#![forbid(unsafe_code)]

pub mod file;
pub mod net;
pub mod plan;
pub mod wan;

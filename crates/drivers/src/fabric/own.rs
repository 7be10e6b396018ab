//! The identity of this process for others of its host.

use madrigal_sys::process;

/// What identifies a process of this host: its host and pid namespace, its number and its start time.
pub(super) struct Own {
    pub(super) place: u64,
    pub(super) pid: u32,
    pub(super) start: u64,
}

impl Own {
    pub(super) fn find() -> Self {
        let mut buf = [0u8; 64];
        let boot = process::read_small(c"/proc/sys/kernel/random/boot_id", &mut buf).unwrap_or_default();
        let mut target = [0u8; 64];
        let namespace = rustix::fs::readlinkat_raw(rustix::fs::CWD, "/proc/self/ns/pid", &mut target[..]);
        let namespace = namespace.ok().and_then(|len| target.get(..len)).unwrap_or_default();
        let pid = process::own_pid();
        let start = process::start_time(pid);
        let known = !boot.is_empty() && !namespace.is_empty() && start.is_some();
        // FNV-1a: it only has to differ between hosts.
        let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        let place = boot.iter().chain(namespace).fold(0xcbf2_9ce4_8422_2325, hash);
        Self { place, pid: if known { pid } else { 0 }, start: start.unwrap_or_default() }
    }
}

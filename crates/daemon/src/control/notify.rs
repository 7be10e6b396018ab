//! Notifies the service manager (sd_notify(3)) that the daemon is ready, alive, and stopping; if the environment names one.

use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendto};

/// The socket of the service manager, and the interval of its watchdog.
pub(crate) struct Notifier {
    to: Option<(OwnedFd, SocketAddrUnix)>,
    pause: Option<u64>,
    next: u64,
}

impl Notifier {
    /// Reads the environment.
    pub(crate) fn new(now: u64) -> Self {
        let text = |name: &str| std::env::var(name).ok();
        let ours = text("WATCHDOG_PID").is_none_or(|pid| pid == madrigal_sys::process::own_pid().to_string());
        let pause = text("WATCHDOG_USEC").and_then(|us| us.parse::<u64>().ok()).filter(|us| ours && *us > 0);
        let to = text("NOTIFY_SOCKET").and_then(|path| {
            let at = match path.strip_prefix('@') {
                Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes()),
                None => SocketAddrUnix::new(path.as_str()),
            };
            let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
            Some((socket.ok()?, at.ok()?))
        });
        // Half of the watchdog's time, so that one late message does no harm.
        let pause = pause.map(|us| us.saturating_mul(500)).filter(|_| to.is_some());
        Self { to, pause, next: pause.map_or(u64::MAX, |pause| now.saturating_add(pause)) }
    }

    /// The daemon is ready.
    pub(crate) fn begin(&self) {
        self.send(&format!("READY=1\nMAINPID={}", madrigal_sys::process::own_pid()));
    }

    /// The daemon is stopping.
    pub(crate) fn end(&self) {
        self.send("STOPPING=1");
    }

    /// When the next keep-alive is due.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Sends the keep-alive, if it is due.
    pub(crate) fn progress(&mut self, now: u64) {
        if let Some(pause) = self.pause.filter(|_| self.next <= now) {
            self.next = now.saturating_add(pause);
            self.send("WATCHDOG=1");
        }
    }

    fn send(&self, text: &str) {
        if let Some((socket, at)) = &self.to {
            let _ = sendto(socket, text.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL, at);
        }
    }
}

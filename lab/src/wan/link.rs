//! A WAN link: two TUN devices in the network namespaces of two routers, and the process between them that carries packets, each
//! direction as its [`Direction`] says.

use std::os::fd::{AsFd, AsRawFd as _, OwnedFd, RawFd};

use madrigal_sys::namespace;
use madrigal_sys::time::now_ns;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags};
use rustix::time::{Itimerspec, TimerfdFlags, TimerfdTimerFlags, Timespec};

use super::direction::Direction;
use super::settings::Settings;
use super::train::{HEADER, Train};
use crate::control::{LONGEST, LinkStatus, Reply, Request};

/// Packets taken from a device in one go, before anybody else has a turn.
const BATCH: usize = 128;
/// The MTU of the devices of a hole.
const HOLE_DEVICE_MTU: u32 = 1500;

/// One end of a link: its device, made in the namespace that this process is in at that moment.
#[derive(Debug)]
pub struct End {
    device: OwnedFd,
    /// Any socket in that namespace, to change the device by.
    socket: OwnedFd,
    name: String,
}

impl End {
    /// Makes the device `name` where this process is.
    pub fn new(name: &str) -> Result<Self, Errno> {
        use rustix::net::{AddressFamily, SocketType, socket_with};
        let device = namespace::tun(name)?;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Self { device, socket, name: name.to_owned() })
    }

    fn set_mtu(&self, settings: &Settings) -> Result<(), Errno> {
        let mtu = if settings.hole { HOLE_DEVICE_MTU.max(settings.mtu) } else { settings.mtu };
        namespace::set_mtu(&self.socket, &self.name, mtu)
    }
}

/// What woke us.
const DEVICES: [u64; 2] = [0, 1];
const TIMER: u64 = 2;
const LISTENER: u64 = 3;
/// The first of the numbers of clients: their descriptors are added.
const CLIENT: u64 = 16;

/// A link that carries packets for as long as its process lives.
pub struct WanLink {
    ends: [End; 2],
    /// From the first end to the second, and back.
    directions: [Direction<Train>; 2],
    poll: OwnedFd,
    timer: OwnedFd,
    armed: Option<u64>,
    listener: OwnedFd,
    clients: Vec<OwnedFd>,
    buffer: Vec<u8>,
}

impl WanLink {
    /// A link between two ends, controlled through `listener`. The directions lose different packets.
    pub fn new(ends: [End; 2], settings: Settings, seed: u64, listener: OwnedFd) -> Result<Self, Errno> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let clock = rustix::time::TimerfdClockId::Monotonic;
        let timer = rustix::time::timerfd_create(clock, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let watch =
            |fd: &OwnedFd, number| epoll::add(&poll, fd, epoll::EventData::new_u64(number), epoll::EventFlags::IN);
        for (end, number) in ends.iter().zip(DEVICES) {
            end.set_mtu(&settings)?;
            watch(&end.device, number)?;
        }
        watch(&timer, TIMER)?;
        watch(&listener, LISTENER)?;
        let directions = [Direction::new(settings, seed), Direction::new(settings, !seed)];
        let buffer = vec![0; (1 << 16) + HEADER];
        Ok(Self { ends, directions, poll, timer, armed: None, listener, clients: Vec::new(), buffer })
    }

    /// Carries packets; returns only when the kernel refuses something it never should.
    pub fn run(&mut self) -> Errno {
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 16];
        loop {
            let count = match epoll::wait(&self.poll, &mut events[..], None) {
                Ok(count) => count,
                Err(Errno::INTR) => 0,
                Err(errno) => return errno,
            };
            for event in events.iter().take(count) {
                match event.data.u64() {
                    TIMER => self.timer_rang(),
                    LISTENER => self.accept(),
                    number if number >= CLIENT => self.serve((number - CLIENT) as RawFd),
                    _ => {}
                }
            }
            self.carry();
            if let Err(errno) = self.arm() {
                return errno;
            }
        }
    }

    /// Takes packets that came, and delivers those that are due.
    fn carry(&mut self) {
        loop {
            let mut more = false;
            for (end, direction) in self.ends.iter().zip(&mut self.directions) {
                more |= take(&end.device, direction, &mut self.buffer);
            }
            let now = now_ns();
            for (end, direction) in self.ends.iter().rev().zip(&mut self.directions) {
                while let Some(packet) = direction.pop(now) {
                    // Refused when the device is down: packets then have nowhere to go.
                    let _ = rustix::io::write(&end.device, packet.bytes());
                }
            }
            if !more {
                return;
            }
        }
    }

    /// Sets the timer for the packet that is due next.
    fn arm(&mut self) -> Result<(), Errno> {
        let next = self.directions.iter().filter_map(Direction::next).min();
        if next == self.armed || next.is_none() {
            return Ok(());
        }
        let at = next.unwrap_or_default().max(1);
        let value = Timespec { tv_sec: (at / 1_000_000_000) as i64, tv_nsec: (at % 1_000_000_000) as i64 };
        let interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::time::timerfd_settime(
            &self.timer,
            TimerfdTimerFlags::ABSTIME,
            &Itimerspec { it_interval: interval, it_value: value },
        )?;
        self.armed = next;
        Ok(())
    }

    fn timer_rang(&mut self) {
        self.armed = None;
        // Whether or not it rang twice is all the same.
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(client) = rustix::net::accept_with(&self.listener, flags) else { return };
        let data = epoll::EventData::new_u64(CLIENT + client.as_raw_fd() as u64);
        if epoll::add(&self.poll, &client, data, epoll::EventFlags::IN).is_ok() {
            self.clients.push(client);
        }
    }

    /// Answers one client, and lets it go when it has gone.
    fn serve(&mut self, fd: RawFd) {
        let Some(place) = self.clients.iter().position(|client| client.as_raw_fd() == fd) else { return };
        let mut message = vec![0; LONGEST];
        let len = match rustix::net::recv(self.clients[place].as_fd(), &mut message, RecvFlags::DONTWAIT) {
            Ok((len, _)) if len > 0 => len,
            Err(Errno::AGAIN | Errno::INTR) => return,
            _ => return drop(self.clients.swap_remove(place)),
        };
        let request = serde_json::from_slice(message.get(..len).unwrap_or_default());
        let reply = request.map_err(|error| format!("no request: {error}")).and_then(|request| self.obey(&request));
        let text = serde_json::to_vec(&reply).unwrap_or_default();
        let sent = rustix::net::send(&self.clients[place], &text, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        if sent.is_err() {
            drop(self.clients.swap_remove(place));
        }
    }

    fn obey(&mut self, request: &Request) -> Reply {
        let now = now_ns();
        match request {
            Request::Status => {}
            Request::Set(assignments) => {
                let mut settings = *self.directions[0].settings();
                settings.apply(assignments.iter().map(String::as_str)).map_err(|error| error.to_string())?;
                for (end, direction) in self.ends.iter().zip(&mut self.directions) {
                    end.set_mtu(&settings).map_err(|error| format!("cannot set the MTU: {error}"))?;
                    direction.set(now, settings);
                }
            }
            Request::Cut(cut) => self.directions.iter_mut().for_each(|direction| direction.set_cut(now, *cut)),
        }
        let [there, back] = &self.directions;
        Ok(LinkStatus {
            settings: there.settings().texts(),
            cut: there.is_cut(),
            counts: [there.counts(), back.counts()],
        })
    }
}

/// Takes packets from a device, up to a batch; whether there may be more.
fn take(device: &OwnedFd, direction: &mut Direction<Train>, buffer: &mut [u8]) -> bool {
    let now = now_ns();
    for _ in 0..BATCH {
        let Ok(len) = rustix::io::read(device, &mut *buffer) else { return false };
        if let Some(train) = Train::new(buffer.get(..len).unwrap_or_default()) {
            // What is dropped is counted there.
            let _ = direction.push(now, train);
        }
    }
    true
}

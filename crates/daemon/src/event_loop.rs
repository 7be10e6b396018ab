//! The event loop: one epoll, the timers, and the queue of what has more to do. Nothing in it blocks but the epoll.

use madrigal_sys::process;
use madrigal_sys::time::now_ns;
use rustix::io::Errno;

use crate::daemon::Daemon;
use crate::datagrams::quic::Quic;
use crate::datagrams::tunnel::Tunnel;
use crate::descriptor::Descriptor;
use crate::link::Link;
use crate::link::punch::Punch;
use crate::link::trial::Trial;
use crate::local::hosts::without_daemon;
use crate::poll::Token;
use crate::streams::call::Call;
use crate::streams::migration::Migration;

impl Daemon {
    /// Runs the daemon until a client stops it.
    pub fn run(&mut self) -> Result<(), Errno> {
        let mut changed = Vec::new();
        self.notifier.begin();
        self.log_line(&format!("up on {}, process {}", self.own().name, process::own_pid()));
        while !self.stopping {
            let until = if self.runnable.is_empty() { self.next_deadline() } else { 0 };
            self.poll.wait(until, &mut changed)?;
            self.now = now_ns();
            for token in changed.drain(..) {
                self.dispatch(token);
            }
            for _ in 0..self.runnable.len() {
                let Some(token) = self.runnable.pop_front() else { break };
                if self.pipes.contains_key(&token) { self.pump(token) } else { self.dispatch(token) }
            }
            self.handle_timers();
            self.settle_quic();
            while let Some(link) = self.unflushed.pop_first() {
                self.flush_link(link);
            }
        }
        self.notifier.end();
        self.save_known(u64::MAX);
        self.log_line("down");
        // Without a daemon the file refuses connections that must be encrypted.
        let _ = self.runtime.write_hosts(&without_daemon(&self.grid, self.own_index));
        let _ = std::fs::remove_file(self.runtime.socket());
        Ok(())
    }

    /// Handles a change of a descriptor.
    fn dispatch(&mut self, token: Token) {
        match self.descriptors.get(&token).copied() {
            Some(Descriptor::Port) => self.accept_links(token),
            Some(Descriptor::Listener) => self.accept_clients(),
            Some(Descriptor::Link) => self.handle_link(token),
            Some(Descriptor::Dial) => self.poll_dial(token),
            Some(Descriptor::Punch) => self.poll_punch(token),
            Some(Descriptor::Client) => self.handle_client(token),
            Some(Descriptor::Forward) => self.accept_forwarded(token),
            Some(Descriptor::Caller(call)) => self.poll_caller(call),
            Some(Descriptor::Egress) => self.poll_egress(token),
            Some(Descriptor::Socket(pipe)) => self.pump(pipe),
            Some(Descriptor::Check(check)) => self.poll_check(check),
            Some(Descriptor::CommandErrors(link)) => self.read_command_errors(link),
            Some(Descriptor::Parked) => self.poll_parked(token),
            Some(Descriptor::NearSocket) => self.read_near(token),
            Some(Descriptor::TunnelStream(tunnel)) => self.handle_tunnel_stream(tunnel),
            Some(Descriptor::FarSocket(tunnel)) => self.read_far(tunnel, token),
            Some(Descriptor::Quic) => self.read_quic(token),
            Some(Descriptor::OwnAddresses) => self.read_address_changes(token),
            Some(Descriptor::Hangups) => self.handle_hangups(),
            // It was closed earlier in this pass.
            None => {}
        }
    }

    /// The next deadline.
    fn next_deadline(&self) -> u64 {
        let links = self.links.values().map(Link::deadline);
        let dials = self.dials.values().map(|dial| dial.deadline);
        let punches = self.punches.values().map(Punch::deadline);
        let trials = self.trials.values().map(Trial::deadline);
        let calls = self.calls.values().map(Call::deadline);
        let egresses = self.egresses.values().map(|egress| egress.deadline);
        let clients = self.clients.values().map(|client| client.deadline);
        let parked = self.parked.values().map(|parked| parked.next);
        let peers = self.next_dial();
        let checks = self.checks.values().map(|check| check.deadline);
        let migrations = self.migrations.values().map(Migration::deadline);
        let tunnels = self.datagrams.tunnels.values().map(Tunnel::deadline);
        let quic = self.datagrams.quic.iter().map(Quic::deadline);
        let own = [
            peers,
            self.handshakes.next(),
            self.advertisements.next,
            self.next_measurement,
            self.known_file.due,
            self.notifier.next(),
            self.source.due,
            self.caps.deadline(),
            self.own_addresses.due,
        ];
        links
            .chain(dials)
            .chain(punches)
            .chain(trials)
            .chain(calls)
            .chain(egresses)
            .chain(clients)
            .chain(checks)
            .chain(parked)
            .chain(migrations)
            .chain(tunnels)
            .chain(quic)
            .chain(own)
            .min()
            .unwrap_or(u64::MAX)
    }

    /// Handles every deadline that has passed.
    fn handle_timers(&mut self) {
        let now = self.now;
        let due: Vec<Token> = self.links.iter().filter(|(_, l)| l.deadline() <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.link_timer(token));
        let due: Vec<Token> = self.dials.iter().filter(|(_, d)| d.deadline <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.dial_failed(token, "no answer"));
        let due: Vec<Token> = self.punches.iter().filter(|(_, p)| p.deadline() <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.punch_timer(token));
        let due: Vec<Token> = self.trials.iter().filter(|(_, t)| t.deadline() <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.trial_timer(token));
        let due: Vec<Token> = self.egresses.iter().filter(|(_, l)| l.deadline <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.egress_failed(token, "no answer"));
        let due: Vec<Token> = self.clients.iter().filter(|(_, c)| c.deadline <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.drop_client(token));
        let due: Vec<Token> = self.checks.iter().filter(|(_, c)| c.deadline <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.end_check(token));
        let due: Vec<Token> = self.parked.iter().filter(|(_, b)| b.next <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.poll_parked(token));
        let due: Vec<Token> = self.migrations.iter().filter(|(_, a)| a.deadline() <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.migration_timer(token));
        let due: Vec<Token> =
            self.datagrams.tunnels.iter().filter(|(_, t)| t.deadline() <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.tunnel_timer(token));
        self.caps.due(now).into_iter().for_each(|pipe| self.pump(pipe));
        self.reload_after_hangups();
        self.resume_delayed_handshakes();
        self.follow_address_changes();
        self.dial_all();
        self.reap_commands();
        self.measure();
        self.advertise_routes();
        self.save_known(now);
        self.notifier.progress(now);
        let due: Vec<Token> = self.calls.iter().filter(|(_, c)| c.deadline() <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.call_timer(token));
    }
}

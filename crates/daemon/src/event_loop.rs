//! The event loop: one epoll, the timers, and the queue of what has more to do. Nothing in it blocks but the epoll.

use madrigal_sys::process;
use madrigal_sys::time::now_ns;
use rustix::io::Errno;

use crate::daemon::Daemon;
use crate::descriptor::Thing;
use crate::link::Link;
use crate::local::hosts::without_daemon;
use crate::poll::Token;
use crate::streams::call::Call;
use crate::streams::migration::FailingOver;

impl Daemon {
    /// Works until a client ends it.
    pub fn run(&mut self) -> Result<(), Errno> {
        let mut changed = Vec::new();
        self.notifier.begin();
        self.note(&format!("up on {}, process {}", self.own().name, process::own_pid()));
        while !self.ending {
            let until = if self.again.is_empty() { self.next_time() } else { 0 };
            self.poll.wait(until, &mut changed)?;
            self.now = now_ns();
            for token in changed.drain(..) {
                self.handle(token);
            }
            for _ in 0..self.again.len() {
                let Some(token) = self.again.pop_front() else { break };
                if self.pipes.contains_key(&token) { self.pump(token) } else { self.handle(token) }
            }
            self.handle_time();
            while let Some(link) = self.dirty.pop_first() {
                self.tend(link);
            }
        }
        self.notifier.end();
        self.write_known(u64::MAX);
        self.note("down");
        // What must be enciphered is to stay so.
        let _ = self.runtime.write_hosts(&without_daemon(&self.grid, self.me));
        let _ = std::fs::remove_file(self.runtime.socket());
        Ok(())
    }

    pub(crate) fn handle(&mut self, token: Token) {
        match self.things.get(&token).copied() {
            Some(Thing::Port) => self.answer_port(token),
            Some(Thing::Listener) => self.accept_clients(),
            Some(Thing::Link) => self.handle_link(token),
            Some(Thing::Dial) => self.poll_dial(token),
            Some(Thing::Client) => self.handle_client(token),
            Some(Thing::Forward) => self.answer_forward(token),
            Some(Thing::Caller(call)) => self.poll_caller(call),
            Some(Thing::Egress) => self.poll_egress(token),
            Some(Thing::Socket(pipe)) => self.pump(pipe),
            Some(Thing::Check(check)) => self.poll_check(check),
            Some(Thing::Errors(link)) => self.handle_errors(link),
            Some(Thing::Parked) => self.poll_parked(token),
            // It was closed by what happened before it in this pass.
            None => {}
        }
    }

    /// When something is due.
    fn next_time(&self) -> u64 {
        let links = self.links.values().map(Link::deadline);
        let dials = self.dials.values().map(|dial| dial.deadline);
        let calls = self.calls.values().map(Call::deadline);
        let egresses = self.egresses.values().map(|egress| egress.deadline);
        let clients = self.clients.values().map(|client| client.deadline);
        let parked = self.parked.values().map(|parked| parked.next);
        let peers = self.next_dial();
        let checks = self.checks.values().map(|check| check.deadline);
        let failing_over = self.failing_over.values().map(FailingOver::deadline);
        let own =
            [peers, self.handshakes.next(), self.ways.next, self.next_look, self.memory.due, self.notifier.next()];
        links
            .chain(dials)
            .chain(calls)
            .chain(egresses)
            .chain(clients)
            .chain(checks)
            .chain(parked)
            .chain(failing_over)
            .chain(own)
            .min()
            .unwrap_or(u64::MAX)
    }

    pub(crate) fn handle_time(&mut self) {
        let now = self.now;
        let due: Vec<Token> = self.links.iter().filter(|(_, l)| l.deadline() <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.link_time(token));
        let due: Vec<Token> = self.dials.iter().filter(|(_, d)| d.deadline <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.dial_failed(token, "no answer"));
        let due: Vec<Token> = self.egresses.iter().filter(|(_, l)| l.deadline <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.egress_failed(token, "no answer"));
        let due: Vec<Token> = self.clients.iter().filter(|(_, c)| c.deadline <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.drop_client(token));
        let due: Vec<Token> = self.checks.iter().filter(|(_, c)| c.deadline <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.end_check(token));
        let due: Vec<Token> = self.parked.iter().filter(|(_, b)| b.next <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.poll_parked(token));
        let due: Vec<Token> = self.failing_over.iter().filter(|(_, a)| a.deadline() <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.failover_due(token));
        self.begin_late();
        self.dial_all();
        self.reap();
        self.measure();
        self.tell_routes();
        self.write_known(now);
        self.notifier.progress(now);
        let due: Vec<Token> = self.calls.iter().filter(|(_, c)| c.deadline() <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.call_time(token));
    }
}

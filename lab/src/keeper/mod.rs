//! The process that builds a lab and keeps it: every host, router and link is a child of it and dies with it, and with them their
//! namespaces, devices and mounts. Nothing of a lab has a name in the system but its directory.

mod node;
mod tools;

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;

use madrigal_sys::namespace::{Forked, Signals, fork_into, unshare};
use madrigal_sys::process::own_pid;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process};
use rustix::thread::{CapabilitySet, UnshareFlags};

use crate::error::LabError;
use crate::file::Grid;
use crate::plan::{Cable, Plan, Plug};
use crate::state::{Directory, Lock, Node, Process, State, WanLink};
use crate::wan::link::{End, WanLink as Wan};
use crate::{control, file};
use tools::Network;

/// The report of a child of this process, one line: nothing, or what went wrong.
struct Report(OwnedFd);

impl Report {
    fn pair() -> Result<(BufReader<File>, Self), String> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| format!("cannot make a pipe: {errno}"))?;
        Ok((BufReader::new(File::from(read)), Self(write)))
    }

    fn send(self, done: Result<(), String>) {
        let text = done.err().unwrap_or_default().replace('\n', "; ") + "\n";
        // Without a reader the lab is being ended.
        let _ = File::from(self.0).write_all(text.as_bytes());
    }
}

/// Waits for a child's report.
fn read_report(from: &mut BufReader<File>) -> Result<(), String> {
    let mut line = String::new();
    match from.read_line(&mut line) {
        Ok(0) | Err(_) => Err("a process ended without a word".to_owned()),
        Ok(_) if line.trim().is_empty() => Ok(()),
        Ok(_) => Err(line.trim().to_owned()),
    }
}

/// Builds the lab in a new process that keeps it, and waits until it is up. The lock is that process's from now on.
pub(crate) fn start(directory: &Directory, lock: Lock, source: &str, grid: &Grid, plan: &Plan) -> Result<(), LabError> {
    let (mut reader, report) = Report::pair().map_err(LabError::Build)?;
    match fork_into(UnshareFlags::empty()).map_err(LabError::system("start a process"))? {
        Forked::Child => {
            let failed = Keeper::default().run(directory, source, (grid, plan), report);
            // Its children end with it. Not by exit(3): the exit handlers are the parent's.
            end_here(i32::from(failed))
        }
        Forked::Parent(pid) => {
            drop((lock, report));
            let reported = read_report(&mut reader);
            if reported.is_err() {
                let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
            }
            reported.map_err(LabError::Build)
        }
    }
}

/// Ends this process at once.
fn end_here(status: i32) -> ! {
    let _ = std::io::stdout().flush();
    madrigal_sys::raw::exit_group(status)
}

/// Whether this process may do everything without a user namespace.
pub(crate) fn is_privileged() -> bool {
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

/// What was built so far.
#[derive(Default)]
struct Keeper {
    nodes: Vec<Pid>,
    links: Vec<Pid>,
}

fn raw(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get() as u32
}

impl Keeper {
    /// Builds everything and waits for the end; whether it failed.
    fn run(mut self, directory: &Directory, source: &str, (grid, plan): (&Grid, &Plan), report: Report) -> bool {
        let signals = [Signal::TERM, Signal::INT, Signal::HUP, Signal::CHILD].map(Signal::as_raw);
        let ready = Signals::of(&signals).block().map_err(|errno| errno.to_string()).and_then(|_| {
            let mut state = self.settle(directory, source)?;
            self.build(directory, grid, plan)?;
            self.describe(&mut state, grid, plan);
            directory.write(&state).map_err(|error| error.to_string())
        });
        let failed = ready.is_err();
        report.send(ready);
        if !failed {
            self.wait(Signals::of(&signals));
        }
        for pid in self.links.iter().chain(&self.nodes) {
            let _ = kill_process(*pid, Signal::KILL);
        }
        while rustix::process::wait(WaitOptions::empty()).is_ok() {}
        failed
    }

    /// Leaves the terminal and the network of the calling shell, and records the process that keeps the lab.
    fn settle(&self, directory: &Directory, source: &str) -> Result<State, String> {
        let failed = |what: &str| {
            let what = what.to_owned();
            move |error: rustix::io::Errno| format!("cannot {what}: {error}")
        };
        rustix::process::setsid().map_err(failed("leave the session"))?;
        let null =
            File::options().read(true).write(true).open("/dev/null").map_err(|error| format!("/dev/null: {error}"))?;
        rustix::stdio::dup2_stdin(&null).map_err(failed("close standard input"))?;
        rustix::stdio::dup2_stdout(&null).map_err(failed("close standard output"))?;
        rustix::stdio::dup2_stderr(&null).map_err(failed("close standard error"))?;
        let name = std::ffi::CString::new(format!("lab {}", directory.name)).unwrap_or_default();
        let _ = rustix::thread::set_name(&name);
        let unprivileged = !is_privileged();
        let keeper = Process::of(own_pid());
        let (name, file) = (directory.name.clone(), source.to_owned());
        let state = State { name, file, keeper, unprivileged, nodes: Vec::new(), links: Vec::new(), config: None };
        directory.write(&state).map_err(|error| error.to_string())?;
        if unprivileged {
            become_root_of_our_own()?;
        }
        unshare(UnshareFlags::NEWNET).map_err(failed("make a network namespace"))?;
        Ok(state)
    }

    fn build(&mut self, directory: &Directory, grid: &Grid, plan: &Plan) -> Result<(), String> {
        tools::check(plan.nodes.iter().any(|node| !node.nft.is_empty()))?;
        for node in &plan.nodes {
            self.add_node(node, &plan.hosts).map_err(|wrong| format!("{}: {wrong}", node.name))?;
        }
        tools::ip(&plan.cables.iter().map(|cable| self.lay(cable)).collect::<Vec<_>>())?;
        tools::ip(&plan.keeper)?;
        for link in &grid.links {
            self.add_link(directory, grid, link).map_err(|wrong| format!("link {}: {wrong}", link.name))?;
        }
        let home = Network::of(own_pid()).map_err(|errno| format!("cannot open our own network: {errno}"))?;
        // Routers first, so that cards of hosts have a carrier when they come up.
        for (node, pid) in plan.nodes.iter().zip(&self.nodes).rev() {
            let network = Network::of(raw(*pid)).and_then(|network| network.enter());
            network.map_err(|errno| format!("{}: cannot enter its network: {errno}", node.name))?;
            tools::ip(&node.ip)
                .and_then(|()| tools::nft(&node.nft))
                .map_err(|wrong| format!("{}: {wrong}", node.name))?;
        }
        home.enter().map_err(|errno| format!("cannot return to our own network: {errno}"))
    }

    /// Starts the first process of a host or router.
    fn add_node(&mut self, node: &crate::plan::Node, hosts: &str) -> Result<(), String> {
        let (mut reader, report) = Report::pair()?;
        let kinds = UnshareFlags::NEWNET
            | UnshareFlags::NEWPID
            | UnshareFlags::NEWNS
            | UnshareFlags::NEWUTS
            | UnshareFlags::NEWIPC;
        let (alive, keep) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| errno.to_string())?;
        match fork_into(kinds).map_err(|errno| format!("cannot start a process in new namespaces: {errno}"))? {
            Forked::Child => {
                drop(keep);
                die_with_parent();
                // The parent may have died before `die_with_parent`: then this byte is never written.
                if !matches!(rustix::io::read(&alive, &mut [0]), Ok(1)) {
                    end_here(1);
                }
                let name = std::ffi::CString::new(format!("host {}", node.name)).unwrap_or_default();
                let _ = rustix::thread::set_name(&name);
                let done = node::furnish(node, hosts).map_err(|(what, error)| format!("cannot {what}: {error}"));
                let failed = done.is_err();
                report.send(done);
                if !failed {
                    let _ = node::wait_for_children();
                }
                end_here(1)
            }
            Forked::Parent(pid) => {
                self.nodes.push(pid);
                drop(report);
                rustix::io::write(&keep, &[1]).map_err(|errno| errno.to_string())?;
                read_report(&mut reader)
            }
        }
    }

    fn plug(&self, plug: &Plug) -> String {
        let pid = plug.node.and_then(|node| self.nodes.get(node)).map_or_else(own_pid, |pid| raw(*pid));
        format!("name {} netns {pid}", plug.device)
    }

    /// The command that connects two devices.
    fn lay(&self, Cable([from, to]): &Cable) -> String {
        format!("link add {} type veth peer {}", self.plug(from), self.plug(to))
    }

    /// Starts the process of a WAN link.
    fn add_link(&mut self, directory: &Directory, grid: &Grid, link: &file::WanLink) -> Result<(), String> {
        let (mut reader, report) = Report::pair()?;
        let keeper = own_pid();
        match fork_into(UnshareFlags::empty()).map_err(|errno| format!("cannot start a process: {errno}"))? {
            Forked::Child => {
                die_with_parent();
                if rustix::process::getppid().map(raw) != Some(keeper) {
                    end_here(1);
                }
                let made = self.make_link(directory, grid, link);
                match made {
                    Ok(mut wan) => {
                        report.send(Ok(()));
                        let _ = wan.run();
                    }
                    Err(wrong) => report.send(Err(wrong)),
                }
                end_here(1)
            }
            Forked::Parent(pid) => {
                self.links.push(pid);
                drop(report);
                read_report(&mut reader)
            }
        }
    }

    fn make_link(&self, directory: &Directory, grid: &Grid, link: &file::WanLink) -> Result<Wan, String> {
        let name = std::ffi::CString::new(format!("link {}", link.name)).unwrap_or_default();
        let _ = rustix::thread::set_name(&name);
        let home = Network::of(own_pid()).map_err(|errno| errno.to_string())?;
        let end = |site: usize| {
            let router = self.nodes.get(grid.hosts.len() + site).map_or(0, |pid| raw(*pid));
            Network::of(router)
                .and_then(|network| network.enter())
                .map_err(|errno| format!("cannot enter a router: {errno}"))?;
            End::new(&link.name).map_err(|errno| match errno {
                rustix::io::Errno::ACCESS | rustix::io::Errno::PERM => {
                    format!("cannot open /dev/net/tun: {errno}: type: chmod 666 /dev/net/tun (as root)")
                }
                errno => format!("cannot make a TUN device: {errno}"),
            })
        };
        let ends = [end(link.between[0])?, end(link.between[1])?];
        home.enter().map_err(|errno| errno.to_string())?;
        let listener = control::listen(directory.path(), &socket_name(&link.name))
            .map_err(|errno| format!("cannot listen: {errno}"))?;
        Wan::new(ends, link.settings, link.seed, listener).map_err(|errno| errno.to_string())
    }

    fn describe(&self, state: &mut State, grid: &Grid, plan: &Plan) {
        let node = |(node, pid): (&crate::plan::Node, &Pid)| Node {
            name: node.name.clone(),
            router: node.router,
            process: Process::of(raw(*pid)),
            addresses: node.addresses.clone(),
        };
        let link = |(link, pid): (&file::WanLink, &Pid)| WanLink {
            name: link.name.clone(),
            between: link.between.map(|site| grid.sites[site].name.clone()),
            process: Process::of(raw(*pid)),
        };
        state.nodes = plan.nodes.iter().zip(&self.nodes).map(node).collect();
        state.links = grid.links.iter().zip(&self.links).map(link).collect();
    }

    /// Waits for the request to end the lab. Children that end are not started again: `lab status` shows this.
    fn wait(&mut self, signals: Signals) {
        while let Ok(caught) = signals.wait() {
            if caught.signal != Signal::CHILD.as_raw() {
                return;
            }
            while let Ok(Some((pid, _))) = rustix::process::wait(WaitOptions::NOHANG) {
                self.nodes.retain(|known| *known != pid);
                self.links.retain(|known| *known != pid);
            }
        }
    }
}

/// The control socket of a link.
pub(crate) fn socket_name(link: &str) -> String {
    format!("{link}.sock")
}

fn die_with_parent() {
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
}

/// Moves this process into a user namespace where it is root.
fn become_root_of_our_own() -> Result<(), String> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let refused = |why: String| {
        format!(
            "this kernel gives users no namespaces ({why}): run as root, or type as root: sysctl user.max_user_namespaces=10000 \
             kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0 (those there are)"
        )
    };
    unshare(UnshareFlags::NEWUSER).map_err(|errno| refused(errno.to_string()))?;
    for (file, text) in
        [("setgroups", "deny".to_owned()), ("uid_map", format!("0 {uid} 1")), ("gid_map", format!("0 {gid} 1"))]
    {
        std::fs::write(format!("/proc/self/{file}"), text).map_err(|error| refused(format!("{file}: {error}")))?;
    }
    if is_privileged() { Ok(()) } else { Err(refused("no capabilities".to_owned())) }
}

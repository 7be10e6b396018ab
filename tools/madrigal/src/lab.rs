//! `madrigal lab`: a grid on this machine.

mod daemons;

use madrigal_lab::control::{LinkStatus, Request};
use madrigal_lab::state::{Process, State};
use madrigal_lab::{LabError, wan::direction::Counts};
use serde::Serialize;

use crate::cli::lab::{Exec, Lab, LabDoes, Up};
use crate::out;

/// Runs the command.
pub(crate) fn run(args: &Lab) -> i32 {
    let name = args.name.as_deref();
    let link =
        |link: &str, request: Request| madrigal_lab::ask(name, link, &request).map(|status| print(link, &status));
    let done = match &args.what {
        LabDoes::Up(up) => madrigal_lab::up(&up.file, name).map(|state| build(&state, up)),
        LabDoes::Exec(exec) => run_command(name, exec),
        LabDoes::Set(set) => link(&set.link, Request::Set(set.settings.clone())),
        LabDoes::Cut(cut) => link(&cut.link, Request::Cut(true)),
        LabDoes::Heal(heal) => link(&heal.link, Request::Cut(false)),
        LabDoes::Status(status) => madrigal_lab::state(name).map(|state| show(&state, status.json)),
        LabDoes::Down => madrigal_lab::down(name).map(|was| {
            out::print(&was.map_or_else(|| "no lab was up\n".to_owned(), |name| format!("lab `{name}` is down\n")));
            out::FOUND
        }),
    };
    match done {
        Ok(status) => status,
        Err(error @ (LabError::File(_) | LabError::Setting(_) | LabError::Name(_))) => out::usage(&error.to_string()),
        Err(error) => out::fail(&error.to_string()),
    }
}

/// Shows a lab that was just built, with daemons if they are wanted.
fn build(state: &State, up: &Up) -> i32 {
    if !up.with_daemons {
        return show(state, up.json);
    }
    match daemons::start(&up.file, state) {
        Ok(links) => {
            let status = show(state, up.json);
            if !up.json {
                out::print(&links);
            }
            status
        }
        Err(why) => {
            // Half of what was asked for is of no use.
            let _ = madrigal_lab::down(Some(&state.name));
            out::fail(&why)
        }
    }
}

fn run_command(name: Option<&str>, exec: &Exec) -> Result<i32, LabError> {
    let shell = || std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".into());
    let command = if exec.command.is_empty() { vec![shell()] } else { exec.command.clone() };
    madrigal_lab::exec(name, &exec.host, &command)
}

fn print(link: &str, status: &LinkStatus) -> i32 {
    let cut = if status.cut { " (cut)" } else { "" };
    out::print(&format!("{link}: {}{cut}\n", status.settings.join(" ")));
    out::FOUND
}

/// A lab as `lab status` shows it.
#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    file: &'a str,
    keeper: u32,
    up: bool,
    unprivileged: bool,
    hosts: Vec<Host<'a>>,
    links: Vec<WanLink<'a>>,
}

#[derive(Serialize)]
struct Host<'a> {
    name: &'a str,
    router: bool,
    pid: u32,
    up: bool,
    addresses: &'a [String],
}

#[derive(Serialize)]
struct WanLink<'a> {
    name: &'a str,
    between: &'a [String; 2],
    pid: u32,
    up: bool,
    /// Null where the link has ended.
    now: Option<LinkStatus>,
}

fn show(state: &State, json: bool) -> i32 {
    let alive = |process: &Process| process.alive();
    let shown = Shown {
        name: &state.name,
        file: &state.file,
        keeper: state.keeper.pid,
        up: alive(&state.keeper),
        unprivileged: state.unprivileged,
        hosts: state
            .nodes
            .iter()
            .map(|n| Host {
                name: &n.name,
                router: n.router,
                pid: n.process.pid,
                up: alive(&n.process),
                addresses: &n.addresses,
            })
            .collect(),
        links: state
            .links
            .iter()
            .map(|l| {
                let now = madrigal_lab::ask(Some(&state.name), &l.name, &Request::Status).ok();
                WanLink { name: &l.name, between: &l.between, pid: l.process.pid, up: alive(&l.process), now }
            })
            .collect(),
    };
    if json {
        return out::print_json(&shown);
    }
    out::print(&describe(&shown));
    out::FOUND
}

fn describe(shown: &Shown<'_>) -> String {
    let mut text = format!("lab {} ({})\n\n", shown.name, shown.file);
    let mark = |up: bool| if up { "" } else { "ENDED  " };
    let mut rows = vec![["host", "pid", "addresses"].map(str::to_owned).to_vec()];
    for host in &shown.hosts {
        rows.push(vec![
            host.name.to_owned(),
            host.pid.to_string(),
            mark(host.up).to_owned() + &host.addresses.join("  "),
        ]);
    }
    text += &out::table(&rows, &[1]);
    if shown.links.is_empty() {
        return text;
    }
    let mut rows = vec![["link", "between", "packets", "lost", "full", "cut", "settings"].map(str::to_owned).to_vec()];
    for link in &shown.links {
        let [from, to] = link.between;
        let counts = link.now.as_ref().map(|now| now.counts).unwrap_or_default();
        for (way, counts) in [format!("{from} -> {to}"), format!("{to} -> {from}")].into_iter().zip(counts) {
            let Counts { packets, lost, full, cut, .. } = counts;
            let settings = match &link.now {
                Some(now) if now.cut => "CUT  ".to_owned() + &now.settings.join(" "),
                Some(now) => now.settings.join(" "),
                None => "ENDED".to_owned(),
            };
            let mut row = vec![link.name.to_owned(), way];
            row.extend([packets, lost, full, cut].map(|n| n.to_string()));
            row.push(settings);
            rows.push(row);
        }
    }
    text + "\n" + &out::table(&rows, &[2, 3, 4, 5])
}

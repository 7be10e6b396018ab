//! The `madrigal` command: runs unmodified programs over Madrigal, and reports the paths of their connections.
//!
//! ```text
//!  cli        what can be typed, and its help: the one definition that completions and manual pages come from
//!  exec       program (which file, may it be wrapped?)  library (what is preloaded)  settings (MADRIGAL_* keys)
//!  run        a parallel job: the launcher, and the agent on each host
//!  why        processes and connections, from the report of each wrapped process and /proc
//!  info perf  what works here, and how fast
//!  daemon     links to other hosts: up, down, status, connect, forward, link
//!  doctor     checks between hosts, and what to type
//!  remote     runs in place of ssh for launchers of MPI, and wraps what they start elsewhere
//!  grid       a grid's hosts: its making, those that are added, what is wrong in its description
//!  identity   certificates: of a grid, of hosts, of users
//!  lab        a grid on one machine
//! ```
#![cfg_attr(not(test), no_main)]
#![allow(unsafe_code)]

mod cli;
mod daemon;
mod doctor;
mod environment;
mod exec;
mod grid;
mod identity;
mod info;
mod lab;
mod library;
mod local_grid;
mod mpi;
mod out;
mod perf;
mod program;
mod remote;
mod run;
mod settings;
mod status;
mod why;

use clap::Parser as _;
use cli::{Cli, Command};

/// Not Rust's own start-up, which changes signals and descriptors that the program we become has a right to.
// SAFETY: the C library calls `main`, once, and there is no other function of that name in this program.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
extern "C" fn main() -> core::ffi::c_int {
    let done = std::panic::catch_unwind(run).unwrap_or(out::FAILED);
    out::flush();
    done
}

fn run() -> i32 {
    match madrigal::perf::peer() {
        Ok(false) => {}
        Ok(true) => return out::FOUND,
        Err(error) => return out::fail(&error.to_string()),
    }
    if remote::is_called() {
        return remote::run(&std::env::args_os().skip(1).collect::<Vec<_>>());
    }
    match Cli::try_parse() {
        Ok(cli) => match cli.command {
            Command::Exec(args) => exec::run(&args),
            Command::Run(args) => run::run(&args),
            Command::Agent => run::agent(),
            Command::Why(args) => why::run(&args),
            Command::Info(args) => info::run(&args),
            Command::Perf(args) => perf::run(&args),
            Command::Up(args) => daemon::up(&args),
            Command::Down => daemon::down(),
            Command::Status(args) => status::run(&args),
            Command::Connect(args) => daemon::connect(&args),
            Command::Forward(args) => daemon::forward(&args),
            Command::Doctor(args) => doctor::run(&args),
            Command::Link => daemon::link(),
            Command::Grid(args) => grid::run(&args),
            Command::Ca(args) => identity::ca(&args),
            Command::Login(args) => identity::log_in(&args),
            Command::Lab(args) => lab::run(&args),
            Command::Peek(args) => info::peek(&args),
            Command::Man(args) => cli::man(&args.directory),
            Command::Completions(args) => cli::completions(args.shell),
        },
        Err(error) => {
            let _ = error.print();
            error.exit_code()
        }
    }
}

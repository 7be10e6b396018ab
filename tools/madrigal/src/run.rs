//! `madrigal run`, and the agent that it starts on each host.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use madrigal_launch::{Found, Programs, TypedError};

use crate::program::{self, NotFound};
use crate::{cli, exec, out};

/// Exit status: the job was not started.
const NOT_STARTED: i32 = 125;

/// Runs a job; its exit status.
pub(crate) fn run(args: &cli::run::Run) -> i32 {
    let typed = match madrigal_launch::parse(&args.words) {
        Ok(typed) => typed,
        Err(error @ (TypedError::HostFile { .. } | TypedError::File(..))) => return out::fail(&error.to_string()),
        Err(error) => return out::usage(&error.to_string()),
    };
    if typed.help || args.words.is_empty() {
        return help();
    }
    let own = match std::env::current_exe() {
        Ok(own) => own,
        Err(error) => return fail_with(&format!("/proc/self/exe: {error}"), NOT_STARTED),
    };
    match madrigal_launch::run_job(&typed, own, out::report) {
        Ok(status) => status,
        Err(error @ madrigal_launch::LaunchError::Job(_)) => out::usage(&error.to_string()),
        Err(error) => fail_with(&error.to_string(), NOT_STARTED),
    }
}

/// Works for a launcher, until its job is over.
pub(crate) fn agent() -> i32 {
    let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("madrigal"));
    match madrigal_launch::run_agent(own, Programs { find, loader }) {
        Ok(()) => out::FOUND,
        Err(error) => out::fail(&error.to_string()),
    }
}

fn help() -> i32 {
    let mut command = cli::Cli::command();
    match command.find_subcommand_mut("run").map(|run| run.clone().bin_name("madrigal run").render_help()) {
        Some(text) => out::print(&text.to_string()),
        None => return out::FAILED,
    }
    out::FOUND
}

fn find(name: &OsStr, path: Option<&OsStr>) -> Found {
    program::find(name, path).map_err(|error| match error {
        NotFound::Missing(text) => (text, exec::MISSING),
        NotFound::Forbidden(text) => (text, exec::FORBIDDEN),
    })
}

fn loader(file: &Path) -> Option<PathBuf> {
    program::loader(file).map(PathBuf::from)
}

fn fail_with(text: &str, status: i32) -> i32 {
    out::report(text);
    status
}

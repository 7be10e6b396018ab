//! `madrigal up`, `down`, `connect`, `forward`.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use madrigal_daemon::grid::{self, Grid};
use madrigal_daemon::{Daemon, Runtime, Stack, StartError, client};
use madrigal_identity::{self as identity, Credentials, HOST, IdentityError, Kind, LOGIN_SECONDS, Name, Validity};
use madrigal_sys::namespace::ignore_signal;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

use crate::cli::daemon::{Connect, Forward, Up};
use crate::environment::Environment;
use crate::local_grid::this_host;
use crate::{exec, library, out};

/// A log longer than this begins anew.
const LONGEST_LOG: u64 = 4 << 20;
/// ld.so(8)
const PRELOAD: &str = "LD_PRELOAD";
/// What links are made of.
const STACK: &str = "MADRIGAL_STACK";
/// Set for the daemon that this command becomes.
const WRAPPED: &str = "MADRIGAL_UP";

/// `madrigal up`.
pub(crate) fn up(args: &Up) -> i32 {
    if let Err(status) = wrap() {
        return status;
    }
    let dir = match identity::directory(|name| std::env::var(name).ok()) {
        Ok(dir) => dir,
        Err(error) => return out::fail(&error.to_string()),
    };
    let file = args.grid.clone().unwrap_or_else(|| dir.join("grid.toml"));
    let text = match grid::read_text(&file) {
        Ok(text) => text,
        Err(error) => return out::usage(&format!("cannot read {}: {error}", file.display())),
    };
    let grid = match Grid::read(&file.display().to_string(), &text) {
        Ok(grid) => grid,
        Err(error) => return out::usage(&error.to_string()),
    };
    let stack = match stack(args) {
        Ok(stack) => stack,
        Err(why) => return out::usage(&why),
    };
    let host = args.host.clone().unwrap_or_else(|| this_host(&grid, &dir));
    let runtime = Runtime::find();
    allow_descriptors();
    let _ = ignore_signal(Signal::PIPE.as_raw(), true);
    match Daemon::new(grid, &host, credentials(&dir, &host), runtime.clone()) {
        Ok(mut daemon) => {
            daemon.reads(&file);
            if let Some(stack) = stack {
                daemon.makes_links_of(stack);
            }
            if args.foreground { ended(daemon.run()) } else { detach(daemon, &runtime, &host) }
        }
        Err(error @ (StartError::Host { .. } | StartError::Untrusted { .. })) => out::usage(&error.to_string()),
        Err(error) => out::fail(&error.to_string()),
    }
}

/// The stack of links: as typed, or from the environment.
fn stack(args: &Up) -> Result<Option<Stack>, String> {
    match (&args.stack, std::env::var(STACK).unwrap_or_default()) {
        (Some(typed), _) => Ok(Some(typed.clone())),
        (None, text) if text.is_empty() => Ok(None),
        (None, text) => text.parse::<Stack>().map(Some).map_err(|error| format!("{STACK}={text}: {error}")),
    }
}

/// The daemon runs under the library, like the programs that it serves: its connections with them go through shared memory then. Without
/// the library they go through the kernel.
fn wrap() -> Result<(), i32> {
    let library = match library::find() {
        Ok(library) => library,
        Err(why) => {
            out::report(&format!("{why}; until then what programs and the daemon have for each other goes by TCP"));
            return Ok(());
        }
    };
    let mut env = Environment(std::env::vars_os().collect());
    // Only once, since the loader may drop the preload, for example from a program with capabilities.
    if env.get(WRAPPED).is_none() {
        env.set(PRELOAD, Some(library::preload(&library, env.get(PRELOAD))));
        env.set(WRAPPED, Some("1".into()));
        // The user's settings for programs' connections do not apply to those of the daemon.
        ["MADRIGAL_DAEMON", "MADRIGAL_ONLY"].into_iter().for_each(|key| env.set(key, None));
        let args: Vec<OsString> = std::env::args_os().collect();
        let (name, rest) = args.split_first().ok_or(out::USAGE)?;
        let own = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
        return Err(exec::start(&own, name, rest, &env));
    }
    // Commands that lead to other hosts get the user's own preload.
    env.set(PRELOAD, library::no_preload(env.get(PRELOAD)));
    // SAFETY: there is no other thread yet.
    unsafe { std::env::remove_var(WRAPPED) };
    match env.get(PRELOAD) {
        // SAFETY: as above.
        Some(users) => unsafe { std::env::set_var(PRELOAD, users) },
        // SAFETY: as above.
        None => unsafe { std::env::remove_var(PRELOAD) },
    }
    Ok(())
}

/// The certificates that this host shows, or why there are none. If the host has no good certificate and there is a login, the login issues
/// one.
fn credentials(dir: &Path, host: &str) -> Result<Credentials, String> {
    let lack = match Credentials::load_as(dir, Kind::Host) {
        Ok(Some(good)) => return Ok(good),
        Ok(None) => format!(
            "there is no {HOST} in {}: type madrigal login, or get this host one with madrigal ca issue --host {host}",
            dir.display()
        ),
        Err(ended @ IdentityError::Unusable { .. }) => ended.to_string(),
        Err(wrong) => return Err(wrong.to_string()),
    };
    let given = Name::parse(host).map_err(IdentityError::from).and_then(|name| {
        identity::issue_host(dir, &name, Validity::seconds(LOGIN_SECONDS))?.install(dir, true)?;
        Credentials::load_as(dir, Kind::Host)
    });
    given.ok().flatten().ok_or(lack)
}

fn ended(done: Result<(), rustix::io::Errno>) -> i32 {
    done.map_or_else(|errno| out::fail(&format!("the daemon cannot go on: {errno}")), |()| out::FOUND)
}

/// As many descriptors as this process may have: each connection takes one.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// The daemon, which listens already, goes on in a process of its own, without terminal; this one ends.
fn detach(mut daemon: Daemon, runtime: &Runtime, host: &str) -> i32 {
    let path = runtime.log();
    let long = std::fs::symlink_metadata(&path).is_ok_and(|data| data.len() > LONGEST_LOG);
    let no_follow = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    let mut how = File::options();
    how.create(true).write(true).append(!long).truncate(long).mode(0o600).custom_flags(no_follow);
    let log = match how.open(&path) {
        Ok(log) => log,
        Err(error) => return out::fail(&format!("cannot write {}: {error}", path.display())),
    };
    let null = match File::open("/dev/null") {
        Ok(null) => null,
        Err(error) => return out::fail(&format!("/dev/null: {error}")),
    };
    // SAFETY: there is no other thread. By the C library, so that preloaded libraries notice the fork.
    match unsafe { libc::fork() } {
        0 => {
            let _ = rustix::process::setsid();
            let _ = rustix::process::chdir("/");
            let _ = rustix::stdio::dup2_stdin(&null);
            let _ = rustix::stdio::dup2_stdout(&log);
            let _ = rustix::stdio::dup2_stderr(&log);
            ended(daemon.run())
        }
        pid if pid > 0 => {
            out::print(&format!("up on {host}, process {pid}; log: {}\n", path.display()));
            out::FOUND
        }
        _ => out::fail(&format!("cannot start a process: {}", std::io::Error::last_os_error())),
    }
}

/// `madrigal down`.
pub(crate) fn down() -> i32 {
    match client::stop(&Runtime::find()) {
        Ok(()) => {
            out::print("down\n");
            out::FOUND
        }
        Err(client::ClientError::Down) => {
            out::print("no daemon was up\n");
            out::FOUND
        }
        Err(error) => out::fail(&error.to_string()),
    }
}

/// `madrigal connect`.
pub(crate) fn connect(args: &Connect) -> i32 {
    let (host, port) = &args.to;
    match client::connect(&Runtime::find(), host, *port) {
        Ok(socket) => match client::carry(&socket) {
            Ok(()) => out::FOUND,
            Err(errno) => out::fail(&format!("{host}:{port}: {errno}")),
        },
        Err(error) => out::fail(&error.to_string()),
    }
}

/// `madrigal link`: what comes on standard input is a daemon's of another host, and goes to the one of this host.
pub(crate) fn link() -> i32 {
    match client::link(&Runtime::find()) {
        Ok(socket) => match client::carry(&socket) {
            Ok(()) => out::FOUND,
            Err(errno) => out::fail(&errno.to_string()),
        },
        Err(error) => out::fail(&error.to_string()),
    }
}

/// `madrigal forward`.
pub(crate) fn forward(args: &Forward) -> i32 {
    let (host, port) = &args.to;
    let runtime = Runtime::find();
    let begun = if args.udp {
        client::forward_datagrams(&runtime, args.from, (host, *port), args.tolerance, args.within)
    } else {
        client::forward(&runtime, args.from, host, *port)
    };
    match begun {
        Ok((socket, local)) => {
            let kind = if args.udp { " by UDP" } else { "" };
            out::print(&format!("127.0.0.1:{local} leads to {host}:{port}{kind}\n"));
            out::flush();
            // Nothing comes: the end is the daemon's.
            let _ = rustix::io::read(&socket, &mut [0]);
            out::fail("the daemon has ended")
        }
        Err(error) => out::fail(&error.to_string()),
    }
}

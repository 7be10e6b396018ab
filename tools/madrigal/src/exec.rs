//! `madrigal exec`: prepares the environment and becomes the program.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use madrigal::config::{ConfigError, KEYS, Settings};
use madrigal_daemon::Runtime;
use madrigal_sys::Errno;
use madrigal_sys::process::become_program;

use crate::environment::Environment;
use crate::program::{Fitness, NotFound};
use crate::remote::Caller;
use crate::{cli, library, local_grid, mpi, out, program, settings};

/// Exit status: no such program.
pub(crate) const MISSING: i32 = 127;
/// Exit status: it cannot be executed.
pub(crate) const FORBIDDEN: i32 = 126;
/// What runs a script without a first line, as in execvp(3).
const SHELL: &CStr = c"/bin/sh";

/// Runs the program; returns, with the exit status, only if that cannot be done.
pub(crate) fn run(args: &cli::Exec) -> i32 {
    let Some((name, rest)) = args.program.split_first() else {
        return out::usage("no program to run: type the program and its arguments: madrigal exec -- PROGRAM ARGUMENTS");
    };
    let mut env = Environment(std::env::vars_os().collect());
    apply(&mut env, args);
    let Ok(found) = complain(&env) else { return out::USAGE };
    let path = std::env::var_os("PATH");
    let file = match program::find(name, path.as_deref()) {
        Ok(file) => file,
        Err(NotFound::Missing(text)) => return fail_with(&text, MISSING),
        Err(NotFound::Forbidden(text)) => return fail_with(&text, FORBIDDEN),
    };
    let library = match library::find() {
        Ok(library) => library,
        Err(text) => return out::fail(&text),
    };
    match program::judge(&file, path.as_deref()) {
        Fitness::Unfit(remark) => {
            out::report(&remark.to_string());
            set_preload(&mut env, None);
        }
        Fitness::Partly(remark) => {
            out::report(&remark.to_string());
            set_preload(&mut env, Some(&library));
        }
        Fitness::Fit => set_preload(&mut env, Some(&library)),
    }
    if found.methods.allows("shm") {
        meet();
    }
    if found.methods.allows("daemon") && env.get("MADRIGAL_DAEMON").is_none() {
        local_grid::describe_for_programs();
        env.set("MADRIGAL_DAEMON", local_grid::directory());
    }
    let provider = library::find_provider();
    let mut prepared = if args.rank {
        mpi::prepare_rank(provider.as_deref(), &mut env)
    } else {
        mpi::rank_alone(&env, provider.as_deref()).iter().for_each(|text| out::report(text));
        mpi::prepare(&file, rest, provider.as_deref(), &mut env)
    };
    prepared.extend(mpi::reach_out(&file, remote(&env).as_deref(), &mut env));
    if args.verbose {
        describe(&file, &env);
        prepared.extend(mpi::fabrics(&file, &env));
        prepared.iter().for_each(|text| out::report(text));
    }
    let rest = match &args.caller {
        Some(caller) if found.methods.allows("daemon") => found_back(caller, rest, &env),
        _ => rest.to_vec(),
    };
    start(&file, name, &rest, &env)
}

/// Puts what was typed into the environment; a key set to nothing is a key not set.
fn apply(env: &mut Environment, args: &cli::Exec) {
    for (key, value) in [("MADRIGAL_ONLY", &args.only), ("MADRIGAL_METHODS", &args.methods)] {
        if let Some(value) = value {
            env.set(key, Some(value.into()));
        }
    }
    env.0.retain(|(key, value)| !value.is_empty() || !KEYS.iter().any(|known| key == known.name));
}

/// The directory where programs find a daemon.
fn runtime(env: &Environment) -> Option<Runtime> {
    let directory = env.get("MADRIGAL_DAEMON").filter(|directory| *directory != "none")?;
    Some(Runtime::at(directory.into()))
}

/// The file that launchers run instead of ssh: only where there may be a daemon.
fn remote(env: &Environment) -> Option<PathBuf> {
    crate::remote::file(&runtime(env)?)
}

/// The command of a launcher on another host, with addresses by which the launcher is reached from here; unchanged if no daemon is up.
fn found_back(caller: &Caller, words: &[OsString], env: &Environment) -> Vec<OsString> {
    match runtime(env).and_then(|runtime| runtime.hosts_file()) {
        Some(hosts_file) => caller.found_back(words, &hosts_file),
        None => words.to_vec(),
    }
}

/// Reports what is wrong with the `MADRIGAL_*` keys; a value that does not parse is an error, an unknown name is not.
fn complain(env: &Environment) -> Result<Settings, ()> {
    let (found, errors) = settings::read(&env.0);
    errors.iter().for_each(|error| out::report(&settings::advice(error)));
    let fatal = errors.iter().any(|error| !matches!(error, ConfigError::UnknownKey { .. }));
    if fatal { Err(()) } else { Ok(found) }
}

fn set_preload(env: &mut Environment, library: Option<&Path>) {
    let users = env.get("LD_PRELOAD");
    let value = match library {
        Some(library) => Some(library::preload(library, users)),
        None => library::no_preload(users),
    };
    env.set("LD_PRELOAD", value);
    if library.is_some() {
        let options = library::asan_options(env.get("ASAN_OPTIONS"));
        env.set("ASAN_OPTIONS", Some(options));
    }
}

/// Removes files of dead processes from the shared directory, and reports if connections cannot use it.
fn meet() {
    let directory = settings::directory();
    directory.tidy();
    if let Err(reason) = directory.check(settings::netns()) {
        let path = directory.path().to_string_lossy();
        out::report(&format!("{path}: {}; until then connections stay with TCP", reason.text()));
    }
}

fn describe(file: &Path, env: &Environment) {
    let ours = |key: &OsStr| key == "LD_PRELOAD" || key.as_bytes().starts_with(b"MADRIGAL_");
    let set = env.0.iter().filter(|(key, _)| ours(key));
    let set: Vec<_> = set.map(|(key, value)| format!("{}={}", key.display(), value.display())).collect();
    out::report(&format!(
        "running {} with {}",
        file.display(),
        if set.is_empty() { "nothing set".into() } else { set.join(" ") }
    ));
}

/// Becomes the program; returns, with the exit status, only if that cannot be done.
pub(crate) fn start(file: &Path, name: &OsStr, rest: &[OsString], env: &Environment) -> i32 {
    let env: Option<Vec<CString>> = env.0.iter().map(|(key, value)| assignment(key, value)).collect();
    let args: Option<Vec<CString>> = [name].into_iter().chain(rest.iter().map(OsString::as_os_str)).map(text).collect();
    let (Some(env), Some(args), Some(path)) = (env, args, text(file.as_os_str())) else {
        return out::usage("an argument contains a null byte");
    };
    let env: Vec<&CStr> = env.iter().map(CString::as_c_str).collect();
    let mut args: Vec<&CStr> = args.iter().map(CString::as_c_str).collect();
    let mut errno = become_program(&path, &args, &env);
    if errno == Errno::NOEXEC && is_text(file) {
        args.splice(..1, [SHELL, &path]);
        errno = become_program(SHELL, &args, &env);
    }
    match errno {
        Errno::NOENT => {
            fail_with(&format!("cannot execute {}: its interpreter or loader does not exist", file.display()), MISSING)
        }
        errno => fail_with(&program::refusal(file, errno), FORBIDDEN),
    }
}

/// Whether a file the kernel does not know may be a shell's script: its first line is text.
fn is_text(file: &Path) -> bool {
    use std::io::Read as _;
    let mut head = Vec::new();
    let read = std::fs::File::open(file).and_then(|file| file.take(128).read_to_end(&mut head));
    read.is_ok() && !head.split(|&b| b == b'\n').next().is_some_and(|line| line.contains(&0))
}

fn text(text: &OsStr) -> Option<CString> {
    CString::new(text.as_bytes()).ok()
}

fn assignment(key: &OsStr, value: &OsStr) -> Option<CString> {
    let mut bytes = key.to_owned().into_vec();
    bytes.push(b'=');
    bytes.extend_from_slice(value.as_bytes());
    CString::new(bytes).ok()
}

fn fail_with(text: &str, status: i32) -> i32 {
    out::report(text);
    status
}

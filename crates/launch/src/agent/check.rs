//! Whether the job's part can be started here: every host checks this before anything runs on one of them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::words::{App, Part};

/// The file of a program; or why there is none, and the status that a shell would give.
pub type Found = Result<PathBuf, (String, i32)>;

/// What the command knows of programs.
#[derive(Clone, Copy)]
pub struct Programs {
    /// The file a shell would run, by a `PATH`.
    pub find: fn(&OsStr, Option<&OsStr>) -> Found,
    /// The loader of a program that has one.
    pub loader: fn(&Path) -> Option<PathBuf>,
}

/// Exit status: the job was not started.
pub(crate) const NOT_STARTED: i32 = 125;

/// What is missing, in words for the user, and the status that a shell would give.
pub(super) fn check(part: &Part, programs: &Programs) -> Result<(), (String, i32)> {
    let other = |text| (text, NOT_STARTED);
    part.apps.iter().zip(0..).filter(|(_, a)| part.ranks.iter().any(|rank| rank.app == *a)).try_for_each(|(app, _)| {
        let folder = folder(app).map_err(other)?;
        let name = app.argv.first().map(OsStr::new).unwrap_or_default();
        let file = (programs.find)(&beside(name, &folder), path(app).as_deref())?;
        let found = libraries(&file, programs, app).map_err(other)?;
        unspoken(&file, &found).map_err(other)
    })
}

/// Where the program runs, made sure that it is there.
fn folder(app: &App) -> Result<PathBuf, String> {
    let Some(folder) = &app.folder else { return Ok(PathBuf::from(".")) };
    match std::fs::metadata(folder) {
        Ok(data) if data.is_dir() => Ok(PathBuf::from(folder)),
        Ok(_) => Err(format!("{folder} is no folder: name another one with --wdir")),
        Err(error) => Err(format!("{folder}: {error}: name another folder with --wdir")),
    }
}

/// A name with a slash in it is looked up from the folder.
fn beside(name: &OsStr, folder: &Path) -> std::ffi::OsString {
    let has_slash = name.to_string_lossy().contains('/');
    if has_slash { folder.join(name).into_os_string() } else { name.to_owned() }
}

fn path(app: &App) -> Option<std::ffi::OsString> {
    let given = app.env.iter().rev().find(|(name, _)| name == "PATH").map(|(_, value)| value.into());
    given.or_else(|| std::env::var_os("PATH"))
}

/// The libraries that the loader finds for a program; an error names those that it does not find.
fn libraries(file: &Path, programs: &Programs, app: &App) -> Result<String, String> {
    let Some(loader) = (programs.loader)(file) else { return Ok(String::new()) };
    let mut command = Command::new(loader);
    // ld.so(8): what `--list` shows, with nothing of the program run.
    command.arg("--list").arg(file).envs(app.env.iter().cloned()).env_remove("LD_PRELOAD");
    let Ok(shown) = command.stdin(Stdio::null()).stderr(Stdio::null()).output() else { return Ok(String::new()) };
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    let missing: Vec<_> = text
        .lines()
        .filter(|line| line.ends_with("=> not found"))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    match missing.is_empty() {
        true => Ok(text),
        false => Err(format!("{} needs {}, which the loader does not find", file.display(), missing.join(" "))),
    }
}

/// An MPI whose processes would not find each other here: each would be a job of its own.
fn unspoken(file: &Path, libraries: &str) -> Result<(), String> {
    if !libraries.contains("libmpi.so.40 ") && !libraries.contains("libopen-rte.so") {
        return Ok(());
    }
    Err(format!(
        "{} is built for Open MPI, whose processes meet by PMIx, which is not spoken here yet: type madrigal exec -- mpirun ...",
        file.display()
    ))
}

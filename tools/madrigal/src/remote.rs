//! `madrigal remote`: what launchers of MPI run instead of ssh, so that what they start on another host is under `madrigal exec` there and
//! finds its way back by that host's daemon.
//!
//! Launchers take one file for it: this command, called `madrigal-remote` (a link in the daemon's directory).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use madrigal_daemon::Runtime;

use crate::out;

/// The name by which it is called.
const NAME: &str = "madrigal-remote";
/// What it runs, if `MADRIGAL_AGENT` says nothing else.
const AGENT: &str = "ssh";
/// Exit status: the agent cannot be run.
const MISSING: i32 = 127;
/// Options of ssh(1) that are followed by an argument.
const WITH_ARGUMENT: &[u8] = b"BbcDEeFIiJLlmOopQRSWw";
/// What runs on the other host: the command, under `madrigal exec` where that is at the same place.
const SCRIPT: &str = r#"[ -x "$1" ] && exec "$1" exec -- /bin/sh -c "$0"; exec /bin/sh -c "$0""#;

/// Whether this command was called by that name.
pub(crate) fn is_called() -> bool {
    std::env::args_os().next().is_some_and(|name| Path::new(&name).file_name() == Some(OsStr::new(NAME)))
}

/// The file that a launcher is to run; it is made if need be. `None`: there is no place for it.
pub(crate) fn file(runtime: &Runtime) -> Option<PathBuf> {
    runtime.judge().ok()?;
    let own = std::env::current_exe().ok()?;
    let file = runtime.path().join(NAME);
    if std::fs::read_link(&file).is_ok_and(|to| to == own) {
        return Some(file);
    }
    let fresh = runtime.path().join(format!("{NAME}.{}", std::process::id()));
    symlink(&own, &fresh).ok()?;
    let renamed = std::fs::rename(&fresh, &file);
    if renamed.is_err() {
        let _ = std::fs::remove_file(&fresh);
    }
    renamed.ok().map(|()| file)
}

/// Becomes the agent; returns, with the exit status, only if that cannot be done.
pub(crate) fn run(words: &[OsString]) -> i32 {
    let agent = std::env::var_os("MADRIGAL_AGENT").filter(|agent| !agent.is_empty()).unwrap_or_else(|| AGENT.into());
    let mut agent = agent.as_bytes().split(|&b| b == b' ').filter(|word| !word.is_empty()).map(OsStr::from_bytes);
    let Some(program) = agent.next() else { return out::usage("MADRIGAL_AGENT is no command") };
    let own = match std::env::current_exe() {
        Ok(own) => own,
        Err(error) => return out::fail(&format!("cannot find out where this program is: {error}")),
    };
    let error = Command::new(program).args(agent).args(wrapped(words, own.as_os_str())).exec();
    out::say(&format!("cannot run {}: {error}", program.display()));
    MISSING
}

/// The words for ssh, with the command behind the host's name wrapped.
fn wrapped(words: &[OsString], own: &OsStr) -> Vec<OsString> {
    let mut all = words.iter();
    let mut told = Vec::new();
    let mut host = false;
    while let Some(word) = all.next().filter(|_| !host) {
        told.push(word.clone());
        match word.as_bytes() {
            [b'-', letter] if WITH_ARGUMENT.contains(letter) => told.extend(all.next().cloned()),
            [b'-', ..] => {}
            _ => host = true,
        }
        if host {
            break;
        }
    }
    let command: Vec<&[u8]> = all.map(|word| word.as_bytes()).collect();
    if !command.is_empty() {
        let words =
            [b"/bin/sh -c".to_vec(), quoted(SCRIPT.as_bytes()), quoted(&command.join(&b' ')), quoted(own.as_bytes())];
        told.push(OsString::from_vec(words.join(&b' ')));
    }
    told
}

/// A word of a shell.
fn quoted(text: &[u8]) -> Vec<u8> {
    let mut word = vec![b'\''];
    for &byte in text {
        match byte {
            b'\'' => word.extend(br"'\''"),
            byte => word.push(byte),
        }
    }
    word.push(b'\'');
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(words: &[&str]) -> Vec<String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        wrapped(&words, OsStr::new("/opt/it's/madrigal")).into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    #[test]
    fn the_command_is_wrapped_and_nothing_else() {
        let all = told(&["-x", "-p", "2222", "-oBatchMode=yes", "b1", "\"/bin/proxy\"", "--port", "a1:7", "'-v'"]);
        assert_eq!(all[..5], ["-x", "-p", "2222", "-oBatchMode=yes", "b1"]);
        let script =
            format!("/bin/sh -c '{SCRIPT}' '\"/bin/proxy\" --port a1:7 '\\''-v'\\''' '/opt/it'\\''s/madrigal'");
        assert_eq!(all[5..], [script]);
        assert_eq!(told(&["-l", "me", "b1"]), ["-l", "me", "b1"]);
        assert_eq!(told(&["-V"]), ["-V"]);
    }

    #[test]
    fn a_shell_runs_the_command_with_its_words_as_they_were() {
        let all = told(&["b1", "printf '%s,' \"a b\" 'c'\\''d' $((1+1))"]);
        let done = Command::new("/bin/sh").args(["-c", &all[1]]).output().unwrap();
        assert_eq!(String::from_utf8(done.stdout).unwrap(), "a b,c'd,2,", "{}", String::from_utf8_lossy(&done.stderr));
    }
}

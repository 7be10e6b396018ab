//! `madrigal remote`: launchers of MPI run it instead of ssh. The command that they start on another host then runs under `madrigal exec`
//! there, and connects back by that host's daemon.
//!
//! Launchers take one file for it: this command, called `madrigal-remote` (a link in the daemon's directory).
//!
//! A launcher passes its own addresses, which may not lead back: networks overlap, and on the other host an address may be a third host's.
//! So the name of the calling host is passed, too ([`Caller`]), and the other host substitutes addresses that lead back.

mod uri;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use madrigal_daemon::{HostsFile, Runtime};

use crate::out;

/// The name by which it is called.
const NAME: &str = "madrigal-remote";
/// The program that it runs, if `MADRIGAL_AGENT` is not set.
const AGENT: &str = "ssh";
/// Exit status: the agent cannot be run.
const MISSING: i32 = 127;
/// Options of ssh(1) that are followed by an argument.
const WITH_ARGUMENT: &[u8] = b"BbcDEeFIiJLlmOopQRSWw";
/// What runs on the other host: the command, under `madrigal exec` where that is at the same place.
const SCRIPT: &str = r#"[ -x "$1" ] && exec "$@" -- /bin/sh -c "$0"; exec /bin/sh -c "$0""#;

/// The host where a launcher runs: its name in the grid, and the addresses by which the launcher's command calls it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Caller {
    host: String,
    addresses: Vec<Ipv4Addr>,
}

impl Caller {
    /// This host, if the launcher's command has an address of it, and a daemon is up.
    fn of(command: &[u8]) -> Option<Self> {
        let mut addresses = uri::addresses(command);
        addresses.sort();
        addresses.dedup();
        addresses.retain(|ip| is_here(*ip));
        let directory = std::env::var_os("MADRIGAL_DAEMON").filter(|it| !addresses.is_empty() && it != "none")?;
        let host = Runtime::at(directory.into()).hosts_file()?.own()?.to_owned();
        Some(Self { host, addresses })
    }

    /// The words of its command for this host, with the addresses by which the caller is reached from here.
    pub(crate) fn found_back(&self, words: &[OsString], hosts_file: &HostsFile) -> Vec<OsString> {
        let found = hosts_file.found_by(&self.host, &self.addresses, is_here);
        let other = |ip: Ipv4Addr| self.addresses.iter().zip(&found).find(|(own, _)| **own == ip).map(|(_, by)| *by);
        words.iter().map(|word| OsString::from_vec(uri::replaced(word.as_bytes(), other))).collect()
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<String> = self.addresses.iter().map(Ipv4Addr::to_string).collect();
        write!(f, "{}={}", self.host, addresses.join(","))
    }
}

impl FromStr for Caller {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (host, list) = text.split_once('=').ok_or("no HOST=ADDRESSES")?;
        let addresses = list.split(',').map(|ip| ip.parse().map_err(|_| format!("{ip}: no address")));
        Ok(Self { host: host.to_owned(), addresses: addresses.collect::<Result<_, _>>()? })
    }
}

/// Whether an address is one of this host's that other hosts may use. Nothing is sent: the kernel chooses the source address for it, which
/// is the address itself if it is this host's.
fn is_here(ip: Ipv4Addr) -> bool {
    let from = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect((ip, 9))?;
        socket.local_addr()
    };
    !ip.is_loopback() && from().is_ok_and(|from| from.ip() == ip)
}

/// Whether this command was called by that name.
pub(crate) fn is_called() -> bool {
    std::env::args_os().next().is_some_and(|name| Path::new(&name).file_name() == Some(OsStr::new(NAME)))
}

/// The file for a launcher to run; it is made if it does not exist. `None`: there is no place for it.
pub(crate) fn file(runtime: &Runtime) -> Option<PathBuf> {
    runtime.check().ok()?;
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
    let error = Command::new(program).args(agent).args(wrapped(words, own.as_os_str(), Caller::of)).exec();
    out::report(&format!("cannot run {}: {error}", program.display()));
    MISSING
}

/// The words for ssh, with the command behind the host's name wrapped; `caller` finds the calling host in the command.
fn wrapped(words: &[OsString], own: &OsStr, caller: impl Fn(&[u8]) -> Option<Caller>) -> Vec<OsString> {
    let mut all = words.iter();
    let mut changed = Vec::new();
    let mut host = false;
    while let Some(word) = all.next().filter(|_| !host) {
        changed.push(word.clone());
        match word.as_bytes() {
            [b'-', letter] if WITH_ARGUMENT.contains(letter) => changed.extend(all.next().cloned()),
            [b'-', ..] => {}
            _ => host = true,
        }
        if host {
            break;
        }
    }
    let command: Vec<&[u8]> = all.map(|word| word.as_bytes()).collect();
    if !command.is_empty() {
        let command = command.join(&b' ');
        let shell = [b"/bin/sh -c".to_vec(), quoted(SCRIPT.as_bytes()), quoted(&command)];
        let exec = [quoted(own.as_bytes()), b"exec".to_vec()];
        let caller = caller(&command).map(|caller| quoted(format!("--caller={caller}").as_bytes()));
        let words: Vec<_> = shell.into_iter().chain(exec).chain(caller).collect();
        changed.push(OsString::from_vec(words.join(&b' ')));
    }
    changed
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

    fn wrapped_by(words: &[&str], own: &str, caller: Option<&str>) -> Vec<String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let caller = |_: &[u8]| caller.map(|caller| caller.parse().unwrap());
        wrapped(&words, OsStr::new(own), caller).into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    fn wrapped_words(words: &[&str]) -> Vec<String> {
        wrapped_by(words, "/opt/it's/madrigal", None)
    }

    #[test]
    fn the_command_is_wrapped_and_nothing_else() {
        let all =
            wrapped_words(&["-x", "-p", "2222", "-oBatchMode=yes", "b1", "\"/bin/proxy\"", "--port", "a1:7", "'-v'"]);
        assert_eq!(all[..5], ["-x", "-p", "2222", "-oBatchMode=yes", "b1"]);
        let script =
            format!("/bin/sh -c '{SCRIPT}' '\"/bin/proxy\" --port a1:7 '\\''-v'\\''' '/opt/it'\\''s/madrigal' exec");
        assert_eq!(all[5..], [script]);
        assert_eq!(wrapped_words(&["-l", "me", "b1"]), ["-l", "me", "b1"]);
        assert_eq!(wrapped_words(&["-V"]), ["-V"]);
    }

    #[test]
    fn a_shell_runs_the_command_with_its_words_as_they_were() {
        let all = wrapped_words(&["b1", "printf '%s,' \"a b\" 'c'\\''d' $((1+1))"]);
        let done = Command::new("/bin/sh").args(["-c", &all[1]]).output().unwrap();
        assert_eq!(String::from_utf8(done.stdout).unwrap(), "a b,c'd,2,", "{}", String::from_utf8_lossy(&done.stderr));
    }

    #[test]
    fn where_it_is_installed_the_other_hosts_command_is_told_who_calls() {
        let ran = |own: &str, caller: Option<&str>| {
            let all = wrapped_by(&["b1", "echo 'a  b'"], own, caller);
            let done = Command::new("/bin/sh").args(["-c", &all[1]]).output().unwrap();
            String::from_utf8(done.stdout).unwrap()
        };
        assert_eq!(ran("/bin/echo", None), "exec -- /bin/sh -c echo 'a  b'\n");
        let by = ran("/bin/echo", Some("a1=10.0.0.2,10.3.0.2"));
        assert_eq!(by, "exec --caller=a1=10.0.0.2,10.3.0.2 -- /bin/sh -c echo 'a  b'\n");
        assert_eq!(ran("/nowhere/madrigal", Some("a1=10.0.0.2")), "a  b\n");
    }

    #[test]
    fn a_caller_is_read_as_it_is_written() {
        for text in ["a1=10.0.0.2", "a_1.x-y=10.0.0.2,172.17.0.1"] {
            assert_eq!(text.parse::<Caller>().unwrap().to_string(), text);
        }
        for text in ["", "a1", "a1=", "a1=10.0.0.2,", "a1=b1", "a1=fd00::2"] {
            assert!(text.parse::<Caller>().is_err(), "{text}");
        }
    }

    #[test]
    fn nobody_calls_by_addresses_that_are_not_this_hosts() {
        let not_here = ["127.0.0.1", "127.77.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "192.0.2.77"];
        assert!(not_here.iter().all(|ip| !is_here(ip.parse().unwrap())));
        for command in ["orted", "orted -mca orte_hnp_uri \"1.0;tcp://192.0.2.77,127.0.0.1:5\""] {
            assert_eq!(Caller::of(command.as_bytes()), None);
        }
    }
}

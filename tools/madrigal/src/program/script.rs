//! Scripts: the line that names the interpreter.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::find::find;

/// As much of a first line as the kernel reads (linux/binfmts.h).
const LINE: u64 = 256;

/// The program that runs the script `file`: the one after `#!`, or, where that is `env`, the one `env` runs. `None`: no script.
pub(super) fn interpreter(file: &Path, path: Option<&OsStr>) -> Option<PathBuf> {
    let mut head = Vec::new();
    std::fs::File::open(file).ok()?.take(LINE).read_to_end(&mut head).ok()?;
    let (interpreter, argument) = parse(&head)?;
    if interpreter.file_name() != Some(OsStr::new("env")) {
        return Some(interpreter);
    }
    // Without a program of its own to run, env itself is what counts.
    let named = argument.and_then(|words| run_by_env(&words));
    Some(named.and_then(|name| find(&name, path).ok()).unwrap_or(interpreter))
}

/// The interpreter and the rest of the line, of a file that begins so.
fn parse(head: &[u8]) -> Option<(PathBuf, Option<OsString>)> {
    let line = head.strip_prefix(b"#!")?.split(|&b| b == b'\n' || b == 0).next()?.trim_ascii();
    let end = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
    let (interpreter, rest) = line.split_at(end);
    let rest = rest.trim_ascii();
    let argument = (!rest.is_empty()).then(|| OsStr::from_bytes(rest).to_owned());
    (!interpreter.is_empty()).then(|| (PathBuf::from(OsStr::from_bytes(interpreter)), argument))
}

/// The program's name among the arguments of env(1): after options and assignments.
fn run_by_env(words: &OsStr) -> Option<OsString> {
    let is_name = |word: &&[u8]| !word.is_empty() && !word.starts_with(b"-") && !word.contains(&b'=');
    // `-S` glued to the first word is what splits the line at all.
    let words = words.as_bytes();
    let words = words.strip_prefix(b"-S").or(words.strip_prefix(b"-vS")).unwrap_or(words);
    words.split(u8::is_ascii_whitespace).find(is_name).map(|name| OsStr::from_bytes(name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_lines_read_as_the_kernel_and_env_read_them() {
        let parsed = |line: &str| parse(line.as_bytes()).map(|(i, a)| (i.to_str().unwrap().to_owned(), a));
        assert_eq!(parsed("#!/bin/sh\necho"), Some(("/bin/sh".into(), None)));
        assert_eq!(parsed("#! /bin/sh -e -u \n"), Some(("/bin/sh".into(), Some("-e -u".into()))));
        assert_eq!(parsed("#!\n/bin/sh"), None);
        assert_eq!(parsed("\x7fELF"), None);
        let env = |words: &str| run_by_env(OsStr::new(words));
        assert_eq!(env("python3"), Some("python3".into()));
        assert_eq!(env("-S node --flag"), Some("node".into()));
        assert_eq!(env("-S -i A=1 perl -w"), Some("perl".into()));
        assert_eq!(env("-Sbash -e"), Some("bash".into()));
        assert_eq!(env("-i"), None);
    }
}

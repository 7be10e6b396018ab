//! Hosts, as they are typed and as they stand in files.

use super::error::{TypedError, number, wrong};
use crate::job::Host;

/// A file of hosts is not longer.
const MOST: u64 = 1 << 20;

/// `A:2,B`.
pub(super) fn list(option: &str, text: &str) -> Result<Vec<Host>, TypedError> {
    text.split(',').map(|word| one(option, word)).collect()
}

fn one(option: &str, word: &str) -> Result<Host, TypedError> {
    let (name, slots) = match word.rsplit_once(':') {
        // An address of version 6 has colons of its own, and stands in brackets where slots follow.
        Some((name, _)) if name.contains(':') && !name.ends_with(']') => (word, None),
        Some((name, slots)) => (name, Some(number(option, slots)?)),
        None => (word, None),
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    if !is_name(name) {
        return Err(wrong(option, word, "this is no name of a host"));
    }
    Ok(Host { name: name.to_owned(), slots })
}

/// What may be given to ssh: never an option, and nothing that a shell or a terminal obeys.
fn is_name(name: &str) -> bool {
    let fine = |c: char| c.is_ascii_alphanumeric() || ".-_@:%".contains(c);
    !name.is_empty() && name.len() <= 255 && !name.starts_with('-') && name.chars().all(fine)
}

/// A line is `A`, `A:2`, or `A slots=2`; `#` begins a remark.
pub(super) fn file(path: &str) -> Result<Vec<Host>, TypedError> {
    use std::io::Read as _;
    let failed = |error: std::io::Error| TypedError::File(path.to_owned(), error.to_string());
    let mut text = String::new();
    std::fs::File::open(path).map_err(failed)?.take(MOST).read_to_string(&mut text).map_err(failed)?;
    let mut hosts = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        let refused = |why: String| TypedError::HostFile { file: path.to_owned(), line: number, why };
        let mut host = one("host", first).map_err(|error| refused(error.to_string()))?;
        for word in words {
            match word.split_once('=') {
                Some(("slots", slots)) => {
                    host.slots = Some(slots.parse().map_err(|_| refused(format!("{word}: a number is wanted")))?);
                }
                Some(("max_slots" | "max-slots", _)) => {}
                _ => return Err(refused(format!("`{word}` is not understood: write HOST, HOST:2 or HOST slots=2"))),
            }
        }
        hosts.push(host);
    }
    Ok(hosts)
}

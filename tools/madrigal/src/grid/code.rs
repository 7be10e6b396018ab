//! Reads the code of a line: from the terminal, which does not show it, or from the first line of standard input.
//!
//! While a code is typed the terminal sends neither SIGINT nor SIGTSTP: a process that they end or stop would leave it silent. Control-C is
//! a byte then, which is read here.

use std::io::{BufRead as _, IsTerminal as _, Read as _};

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};

use super::failure::Failure;
use crate::out;

/// No code is longer, however it is typed.
const LONGEST: usize = 256;

/// What was typed.
pub(super) fn ask() -> Result<String, Failure> {
    let input = std::io::stdin();
    let silent = if input.is_terminal() { Silence::begin() } else { None };
    let read = if silent.is_some() { typed(input.lock().bytes()) } else { first_line(input.lock()) };
    drop(silent);
    match read {
        Ok(Some(code)) => Ok(code),
        Ok(None) => Err(Failure::Usage("type the code that madrigal grid add showed with the line".to_owned())),
        Err(error) => Err(Failure::Failed(format!("cannot read the code: {error}"))),
    }
}

fn first_line(input: impl std::io::BufRead) -> std::io::Result<Option<String>> {
    let mut line = String::new();
    let count = input.take(LONGEST as u64).read_line(&mut line)?;
    Ok((count > 0).then_some(line))
}

/// The bytes that a terminal sends, key by key, up to the end of the line; `None`: the user interrupts.
fn typed(keys: impl Iterator<Item = std::io::Result<u8>>) -> std::io::Result<Option<String>> {
    let mut line = String::new();
    for key in keys {
        match key? {
            b'\r' | b'\n' => return Ok(Some(line)),
            INTERRUPT | QUIT => return Ok(None),
            END if line.is_empty() => return Ok(None),
            END => return Ok(Some(line)),
            ERASE | BACKSPACE => drop(line.pop()),
            KILL => line.clear(),
            key if line.len() < LONGEST => line.push(char::from(key)),
            _ => {}
        }
    }
    Ok(None)
}

const INTERRUPT: u8 = 0x03;
const END: u8 = 0x04;
const BACKSPACE: u8 = 0x08;
const KILL: u8 = 0x15;
const QUIT: u8 = 0x1c;
const ERASE: u8 = 0x7f;

/// What is typed is not shown until this is dropped.
struct Silence(Termios);

impl Silence {
    fn begin() -> Option<Self> {
        let input = rustix::stdio::stdin();
        let before = tcgetattr(input).ok()?;
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        quiet.special_codes[SpecialCodeIndex::VMIN] = 1;
        quiet.special_codes[SpecialCodeIndex::VTIME] = 0;
        out::report("the code that was shown with this line:");
        tcsetattr(input, OptionalActions::Now, &quiet).ok()?;
        Some(Self(before))
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_a_terminal_would() {
        let typed = |keys: &[u8]| typed(keys.iter().map(|key| Ok(*key))).unwrap();
        assert_eq!(typed(b"K3Y-\x7f\x08Z\rmore").as_deref(), Some("K3Z"));
        assert_eq!(typed(b"wrong\x15right\n").as_deref(), Some("right"));
        assert_eq!(typed(b"K3Y\x04").as_deref(), Some("K3Y"));
        for stopped in [&b"K3Y\x03"[..], b"\x1c", b"\x04", b"K3Y"] {
            assert_eq!(typed(stopped), None);
        }
        let long = [&[b'x'; 5000][..], b"\n"].concat();
        assert_eq!(typed(&long).map(|line| line.len()), Some(LONGEST));
        assert_eq!(first_line(&b"K3Y\nmore"[..]).unwrap().as_deref(), Some("K3Y\n"));
        assert_eq!(
            (first_line(&b""[..]).unwrap(), first_line(&long[..]).unwrap().map(|line| line.len())),
            (None, Some(LONGEST))
        );
    }
}

//! Output of ranks: whole lines, with the rank in front if that is wanted, to the terminal or to files.
//!
//! A thread of its own writes, so that a reader that does not read holds back the ranks and not the handling of signals.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use crate::command_line::Typed;
use crate::frame::Channel;

/// A line that is longer goes out in pieces.
const LONGEST: usize = 64 << 10;
/// What waits to be written, at most; then agents wait.
const WAITING: usize = 4 << 20;
/// How the launcher's own lines begin: a rank's that begins so has the rank in front.
const OURS: &[u8] = b"madrigal:";

type Piece = (Channel, Vec<u8>);

pub(super) struct Output {
    tagged: bool,
    /// One process: what it writes goes out as it comes, a prompt too.
    alone: bool,
    /// Whether a terminal shows it.
    shown: [bool; 2],
    files: Option<String>,
    open: BTreeMap<u32, File>,
    lines: BTreeMap<(u32, bool), Vec<u8>>,
    last: BTreeMap<u32, String>,
    waiting: Arc<AtomicUsize>,
    unread: Arc<AtomicBool>,
    writer: Option<(Sender<Piece>, JoinHandle<()>)>,
}

impl Output {
    pub(super) fn new(typed: &Typed, size: usize) -> Self {
        let waiting = Arc::new(AtomicUsize::new(0));
        let (sender, pieces) = channel::<Piece>();
        let (count, unread) = (Arc::clone(&waiting), Arc::new(AtomicBool::new(false)));
        let gone = Arc::clone(&unread);
        let writer = std::thread::spawn(move || {
            for (channel, bytes) in pieces {
                if !write(channel, &bytes) {
                    gone.store(true, Ordering::Relaxed);
                }
                count.fetch_sub(bytes.len(), Ordering::Relaxed);
            }
        });
        Self {
            tagged: typed.tagged,
            alone: size == 1 && !typed.tagged,
            shown: [rustix::termios::isatty(rustix::stdio::stdout()), rustix::termios::isatty(rustix::stdio::stderr())],
            files: typed.files.clone(),
            open: BTreeMap::new(),
            lines: BTreeMap::new(),
            last: BTreeMap::new(),
            waiting,
            unread,
            writer: Some((sender, writer)),
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) < WAITING
    }

    /// Whether the reader is gone.
    pub(super) fn is_unread(&self) -> bool {
        self.unread.load(Ordering::Relaxed)
    }

    /// What a rank has written.
    pub(super) fn take(&mut self, rank: u32, channel: Channel, bytes: &[u8]) {
        if channel == Channel::Output && self.files.is_some() {
            return self.write_file(rank, bytes);
        }
        let is_error = channel == Channel::Error;
        let mut line = self.lines.remove(&(rank, is_error)).unwrap_or_default();
        line.extend_from_slice(bytes);
        let whole = match line.iter().rposition(|&b| b == b'\n') {
            Some(end) => end + 1,
            None if self.alone || line.len() >= LONGEST => line.len(),
            None => 0,
        };
        let rest = line.split_off(whole);
        if is_error {
            self.remember(rank, &line);
        }
        let whole = self.dressed(rank, is_error, line);
        self.lines.insert((rank, is_error), rest);
        self.print(channel, whole);
    }

    /// The last line of its errors that is not blank.
    fn remember(&mut self, rank: u32, lines: &[u8]) {
        if let Some(last) = lines.split(|&b| b == b'\n').rfind(|line| !line.trim_ascii().is_empty()) {
            self.last.insert(rank, String::from_utf8_lossy(last).into_owned());
        }
    }

    /// Lines as they are printed.
    fn dressed(&self, rank: u32, is_error: bool, lines: Vec<u8>) -> Vec<u8> {
        let forged = |line: &[u8]| is_error && line.starts_with(OURS);
        let tag = |line: &[u8]| !line.is_empty() && (self.tagged || forged(line));
        let any = lines.split_inclusive(|&b| b == b'\n').any(tag);
        let mut out = if any { Vec::with_capacity(lines.len() * 2) } else { lines.clone() };
        if any {
            for line in lines.split_inclusive(|&b| b == b'\n') {
                if tag(line) {
                    let _ = write!(out, "[{rank}] ");
                }
                out.extend_from_slice(line);
            }
        }
        if self.shown[usize::from(is_error)] { tamed(&out) } else { out }
    }

    /// A rank has ended: what it wrote without an end of line goes out.
    pub(super) fn finish(&mut self, rank: u32) {
        for (is_error, channel) in [(false, Channel::Output), (true, Channel::Error)] {
            let rest = self.lines.remove(&(rank, is_error)).unwrap_or_default();
            if rest.is_empty() {
                continue;
            }
            if is_error {
                self.remember(rank, &rest);
            }
            let mut rest = self.dressed(rank, is_error, rest);
            if self.tagged {
                rest.push(b'\n');
            }
            self.print(channel, rest);
        }
    }

    pub(super) fn last_words(&self, rank: u32) -> Option<&str> {
        self.last.get(&rank).map(String::as_str)
    }

    fn print(&self, channel: Channel, bytes: Vec<u8>) {
        if let Some((sender, _)) = &self.writer
            && !bytes.is_empty()
        {
            self.waiting.fetch_add(bytes.len(), Ordering::Relaxed);
            let _ = sender.send((channel, bytes));
        }
    }

    /// One file per rank; if one cannot be written, that is printed once, and the output follows on the terminal.
    fn write_file(&mut self, rank: u32, bytes: &[u8]) {
        let pattern = self.files.clone().unwrap_or_default();
        let name =
            if pattern.contains("%r") { pattern.replace("%r", &rank.to_string()) } else { format!("{pattern}.{rank}") };
        let file = match self.open.remove(&rank) {
            Some(file) => Ok(file),
            None => File::create(&name),
        };
        match file.and_then(|mut file| file.write_all(bytes).map(|()| file)) {
            Ok(file) => drop(self.open.insert(rank, file)),
            Err(error) => {
                self.files = None;
                self.print(Channel::Error, format!("madrigal: {name}: {error}: output follows here\n").into_bytes());
                self.take(rank, Channel::Output, bytes);
            }
        }
    }

    /// Writes what waits.
    pub(super) fn close(&mut self) {
        if let Some((sender, writer)) = self.writer.take() {
            drop(sender);
            let _ = writer.join();
        }
    }
}

/// Writes all of it. False: the reader is gone.
fn write(channel: Channel, mut bytes: &[u8]) -> bool {
    let to: BorrowedFd<'_> = if channel == Channel::Error { rustix::stdio::stderr() } else { rustix::stdio::stdout() };
    while !bytes.is_empty() {
        match rustix::io::write(to, bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(rustix::io::Errno::INTR) => {}
            // Somebody else has made it so.
            Err(rustix::io::Errno::AGAIN) => std::thread::sleep(std::time::Duration::from_millis(1)),
            Err(_) => return false,
        }
    }
    true
}

/// Without what a terminal obeys, but for line ends, tabs and backspaces.
fn tamed(bytes: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    let obeyed = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t' | '\x08');
    text.chars().map(|c| if obeyed(c) { '\u{fffd}' } else { c }).collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(tagged: bool, size: usize) -> Output {
        let mut output = Output::new(&Typed { tagged, ..Typed::default() }, size);
        output.shown = [false, false];
        output
    }

    #[test]
    fn lines_are_whole_and_have_their_rank() {
        let output = output(true, 2);
        assert_eq!(output.dressed(1, false, b"one\ntwo\n".to_vec()), b"[1] one\n[1] two\n");
    }

    #[test]
    fn nobody_speaks_in_the_launchers_name() {
        let output = output(false, 2);
        assert_eq!(output.dressed(1, true, b"x\nmadrigal: rank 0 died\n".to_vec()), b"x\n[1] madrigal: rank 0 died\n");
        assert_eq!(output.dressed(1, false, b"x\n".to_vec()), b"x\n");
    }

    #[test]
    fn a_terminal_obeys_nothing_of_it() {
        assert_eq!(tamed(b"a\x1b[31m\tb\n"), "a\u{fffd}[31m\tb\n".as_bytes());
    }

    #[test]
    fn what_has_no_end_waits_for_it() {
        let mut output = output(false, 2);
        output.take(0, Channel::Error, b"half");
        assert_eq!(output.lines[&(0, true)], b"half");
        output.take(0, Channel::Error, b" a line\nand");
        assert_eq!(output.lines[&(0, true)], b"and");
        assert_eq!(output.last_words(0), Some("half a line"));
        output.close();
    }
}

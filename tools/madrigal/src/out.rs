//! What is printed: results on standard output, everything else on standard error, one line each. A reader that went away ends the
//! command quietly.

use std::io::Write as _;

/// Exit status: done, or found.
pub(crate) const FOUND: i32 = 0;
/// Exit status: an error of ours.
pub(crate) const FAILED: i32 = 1;
/// Exit status: what was typed cannot be meant.
pub(crate) const USAGE: i32 = 2;

/// Writes to standard output.
pub(crate) fn print(text: &str) {
    let _ = std::io::stdout().write_all(tamed(text).as_bytes());
}

/// One line on standard error, also for untrusted text from another host or a file.
pub(crate) fn report(text: &str) {
    // In one write: other processes write there, too.
    let _ = std::io::stderr().write_all(format!("madrigal: {}\n", one_line(text)).as_bytes());
}

/// One line on standard error, and the exit status for an error.
pub(crate) fn fail(text: &str) -> i32 {
    report(text);
    FAILED
}

/// One line on standard error, and the exit status for wrong usage.
pub(crate) fn usage(text: &str) -> i32 {
    report(text);
    USAGE
}

/// Writes a value as JSON.
pub(crate) fn print_json(value: &impl serde::Serialize) -> i32 {
    match serde_json::to_string_pretty(value) {
        Ok(text) => {
            print(&json_of_plain_characters(&text));
            print("\n");
            FOUND
        }
        Err(error) => fail(&format!("cannot write JSON: {error}")),
    }
}

/// An untrusted name, on one line, without characters that control a terminal; a `\` of its own is doubled.
pub(crate) fn escaped(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            c if is_obeyed(c) => push_escaped(&mut text, c),
            c => text.push(c),
        }
    }
    text
}

/// A printable text: line breaks and tabs stay, other characters that control a terminal are escaped.
fn tamed(text: &str) -> std::borrow::Cow<'_, str> {
    let harmless = |c: char| matches!(c, '\n' | '\t') || !is_obeyed(c);
    if text.chars().all(harmless) {
        return text.into();
    }
    let mut tame = String::with_capacity(text.len());
    for c in text.chars() {
        if harmless(c) { tame.push(c) } else { push_escaped(&mut tame, c) }
    }
    tame.into()
}

/// A text without line breaks, and without characters that control a terminal.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if is_obeyed(c) { push_escaped(&mut line, c) } else { line.push(c) }
    }
    line
}

/// The same JSON with every such character in its strings written as a number (RFC 8259, 7).
fn json_of_plain_characters(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if c != '\n' && is_obeyed(c) {
            text.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            text.push(c);
        }
    }
    text
}

/// Control characters, and those that change the order of others or cannot be seen. None lies beyond U+FFFF.
fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

fn push_escaped(text: &mut String, c: char) {
    match (c, u32::from(c)) {
        ('\n' | '\r' | '\t', _) => text.extend(c.escape_default()),
        (_, code @ ..0x100) => text.push_str(&format!("\\x{code:02x}")),
        (_, code) => text.push_str(&format!("\\u{{{code:x}}}")),
    }
}

/// To be called before the process ends.
pub(crate) fn flush() {
    let _ = std::io::stdout().flush();
}

/// Lays rows out in columns, the first row being the heading; columns in `right` are set to the right, the last one is not filled. A cell
/// stays on its line: its text may come from another host.
pub(crate) fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| one_line(cell)).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (c, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            line += &if right.contains(&c) { format!("{cell:>width$}  ") } else { format!("{cell:<width$}  ") };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_printed() {
        let name = "a\x1b[31m\n\u{9b}\u{202e}\\x";
        assert_eq!(escaped(name), r"a\x1b[31m\n\x9b\u{202e}\\x");
        assert_eq!(tamed("two\nlines\t\x1b[0m"), "two\nlines\t\\x1b[0m");
        let json = json_of_plain_characters(&serde_json::to_string_pretty(&[name]).unwrap());
        assert!(json.chars().all(|c| c == '\n' || !is_obeyed(c)), "{json}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&json).unwrap(), [name]);
    }

    #[test]
    fn a_cell_forges_no_row() {
        let rows = [vec!["b1".to_owned(), "lost\nok  all is well\u{2028}\t\x1b[1A".to_owned()]];
        assert_eq!(table(&rows, &[]), "b1  lost\\nok  all is well\\u{2028}\\t\\x1b[1A\n");
    }

    #[test]
    fn columns_are_aligned() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let text =
            table(&[row(["fd", "path", "why"]), row(["7", "shm", ""]), row(["1042", "tcp", "too little"])], &[0]);
        assert_eq!(text, "  fd  path  why\n   7  shm\n1042  tcp   too little\n");
    }
}

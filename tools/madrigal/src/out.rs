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
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// One line on standard error.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "madrigal: {text}");
}

/// One line on standard error, and the exit status for an error.
pub(crate) fn fail(text: &str) -> i32 {
    say(text);
    FAILED
}

/// One line on standard error, and the exit status for wrong usage.
pub(crate) fn usage(text: &str) -> i32 {
    say(text);
    USAGE
}

/// Writes a value as JSON.
pub(crate) fn print_json(value: &impl serde::Serialize) -> i32 {
    match serde_json::to_string_pretty(value) {
        Ok(text) => {
            print(&text);
            print("\n");
            FOUND
        }
        Err(error) => fail(&format!("cannot write JSON: {error}")),
    }
}

/// To be called before the process ends.
pub(crate) fn flush() {
    let _ = std::io::stdout().flush();
}

/// Lays rows out in columns, the first row being the heading; columns in `right` are set to the right, the last one is not filled.
pub(crate) fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
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
    fn columns_are_aligned() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let text =
            table(&[row(["fd", "path", "why"]), row(["7", "shm", ""]), row(["1042", "tcp", "too little"])], &[0]);
        assert_eq!(text, "  fd  path  why\n   7  shm\n1042  tcp   too little\n");
    }
}

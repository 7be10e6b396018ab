//! What the pages print to be typed: their lines of code, and the commands between backticks in their text.

use std::path::{Path, PathBuf};

/// Pages that tell of other times, or of tests, and show nothing to type.
const OTHERS: [&str; 3] = ["CHANGELOG.md", "docs/notebook", "docs/features.md"];
/// Languages whose blocks are whole programs, which tests of their own run.
const PROGRAMS: [&str; 2] = ["c", "python"];
/// With these words a command begins. A file of the tree, and `./PROGRAM`, is one, too.
const COMMANDS: [&str; 21] = [
    "madrigal",
    "make",
    "cargo",
    "python3",
    "python",
    "pip",
    "cc",
    "sh",
    "bash",
    "ssh",
    "scp",
    "rsync",
    "git",
    "curl",
    "export",
    "redis-cli",
    "redis-server",
    "mpirun",
    "mpiexec",
    "systemctl",
    "loginctl",
];

/// A line of code of a page.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) page: String,
    pub(crate) at: usize,
    /// Lines of one block are together.
    pub(crate) block: usize,
    /// As it is printed.
    pub(crate) whole: String,
}

impl Line {
    /// Without what the page says of it, behind two spaces.
    pub(crate) fn text(&self) -> &str {
        self.whole.trim_start().split("  ").next().unwrap_or_default()
    }

    /// What is typed: without the prompt, too.
    pub(crate) fn typed(&self) -> &str {
        prompt(self.text()).map_or(self.text(), |(_, typed)| typed)
    }

    /// Whether something is to be typed.
    pub(crate) fn is_command(&self) -> bool {
        prompt(self.text()).is_some() || begins_a_command(self.text())
    }

    /// Whether the page marks the typed lines of the block by a prompt, so that the other lines are their output.
    pub(crate) fn has_prompt(&self) -> bool {
        prompt(self.text()).is_some()
    }

    /// Where it stands.
    pub(crate) fn place(&self) -> String {
        format!("{}:{}: `{}`", self.page, self.at, self.text())
    }
}

/// `$ ` or `HOST$ `, and what follows.
fn prompt(text: &str) -> Option<(&str, &str)> {
    text.split_once("$ ").filter(|(host, _)| host.chars().all(char::is_alphanumeric))
}

/// A word such as `NAME=value`.
pub(crate) fn is_setting(word: &str) -> bool {
    let name =
        |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    word.split_once('=').is_some_and(|(before, _)| name(before))
}

/// Whether a text begins with the name of a program.
pub(crate) fn begins_a_command(text: &str) -> bool {
    let mut words = text.split_whitespace().skip_while(|word| is_setting(word) || *word == "sudo");
    words.next().is_some_and(|word| {
        COMMANDS.contains(&word) || word.starts_with("./") || (word.contains('/') && root().join(word).is_file())
    })
}

/// The folder of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace").to_path_buf()
}

/// All pages, by their paths from the folder of the workspace.
pub(crate) fn pages() -> Vec<String> {
    let mut found = Vec::new();
    walk(&root(), "", &mut found);
    found.sort();
    found
}

fn walk(folder: &Path, inside: &str, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("UTF-8");
        let path = format!("{inside}{name}");
        let kind = entry.file_type().expect("a kind");
        if OTHERS.contains(&path.as_str()) || name == "target" || name == ".git" {
            continue;
        }
        if kind.is_dir() {
            walk(&entry.path(), &format!("{path}/"), found);
        } else if kind.is_file() && name.ends_with(".md") {
            found.push(path);
        }
    }
}

fn read(page: &str) -> String {
    std::fs::read_to_string(root().join(page)).expect("a page")
}

/// The lines of code of a page: those indented behind an empty line, and those of fences that hold no program.
pub(crate) fn lines(page: &str) -> Vec<Line> {
    let (mut all, mut block, mut inside, mut empty) = (Vec::new(), 0, false, true);
    let mut fence: Option<bool> = None;
    for (at, whole) in (1..).zip(read(page).lines()) {
        if let Some(language) = whole.strip_prefix("```") {
            fence = if fence.is_some() { None } else { Some(!PROGRAMS.contains(&language)) };
            block += 1;
            continue;
        }
        let indented = fence.is_none() && whole.starts_with("    ") && (inside || empty);
        empty = whole.trim().is_empty();
        if empty {
            continue;
        }
        if indented || fence == Some(true) {
            block += usize::from(indented && !inside);
            all.push(Line { page: page.to_owned(), at, block, whole: whole.to_owned() });
        }
        inside = indented;
    }
    all.retain(|line| !line.text().starts_with('#'));
    all
}

/// The commands between backticks in the text of a page.
pub(crate) fn inline(page: &str) -> Vec<Line> {
    let text = read(page);
    let code: Vec<usize> = lines(page).iter().map(|line| line.at).collect();
    let mut paragraphs = vec![(1, String::new())];
    for (at, line) in (1..).zip(text.lines()) {
        if line.trim().is_empty() || line.starts_with(['|', '*', '`']) {
            paragraphs.push((at, String::new()));
        }
        if !code.contains(&at) && !line.starts_with("```") {
            let last = &mut paragraphs.last_mut().expect("one is there").1;
            last.push_str(line);
            last.push(' ');
        }
    }
    let spans = paragraphs.iter().flat_map(|(at, text)| text.split('`').skip(1).step_by(2).map(move |span| (at, span)));
    let found = spans.filter(|(_, span)| begins_a_command(span) && span.contains(' '));
    found.map(|(at, span)| Line { page: page.to_owned(), at: *at, block: 0, whole: span.to_owned() }).collect()
}

//! The checks of a line that is not run: its program is there, and accepts its words.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use super::cargo;
use super::common;
use super::lines::{is_setting, root};

/// Nothing, or what is wrong.
pub(crate) type Checked = Result<(), String>;

/// Checks a line: each command of it.
pub(crate) fn line(text: &str) -> Checked {
    text.trim_end_matches('&').split(" && ").try_for_each(command)
}

fn command(text: &str) -> Checked {
    let words: Vec<&str> = text.split_whitespace().filter(|word| *word != "sudo").collect();
    let begin = words.iter().position(|word| !is_setting(word)).ok_or("no command")?;
    let (settings, words) = words.split_at(begin);
    match words[0] {
        "make" => make(words),
        "madrigal" => madrigal(settings, &words[1..]),
        "cargo" => cargo::check(settings, &words[1..]),
        "pip" => package(words),
        "python3" => tests(words),
        "semantics" => cargo::check(settings, &["test", "-p", "madrigal-tests", "--bin", "semantics", words[1]]),
        "systemctl" | "loginctl" => service(words),
        script if script.contains('/') => self::script(script, &words[1..]),
        other => Err(format!("nothing is known of `{other}`")),
    }
}

/// Stands for something of the reader's: `NAME`, `DIR`, `<pid>`, `'ab -n 1000'`.
pub(crate) fn is_placeholder(word: &str) -> bool {
    let word = word.trim_end_matches("...");
    word.chars().all(|c| c.is_ascii_uppercase() || ":,|%_".contains(c)) || word.starts_with(['\'', '[', '"', '<'])
}

/// `make -n`, and variables that are read somewhere.
fn make(words: &[&str]) -> Checked {
    let file = std::fs::read_to_string(root().join("Makefile")).map_err(|e| e.to_string())?;
    for (name, _) in words.iter().filter(|word| is_setting(word)).filter_map(|word| word.split_once('=')) {
        if !file.contains(&format!("$({name})"))
            && !file.contains(&format!("({name}="))
            && !file.contains(&format!("(or $({name})"))
        {
            return Err(format!("nothing in the Makefile reads {name}"));
        }
    }
    let line = format!("exec {}", words.join(" ").replacen("make", "make -n", 1));
    let mut shell = Command::new("sh");
    shell.args(["-c", &line]).current_dir(root()).env_remove("MAKEFLAGS").env_remove("MFLAGS").env_remove("MAKELEVEL");
    let done = shell.stdin(Stdio::null()).output().map_err(|e| e.to_string())?;
    done.status.success().then_some(()).ok_or_else(|| String::from_utf8_lossy(&done.stderr).into_owned())
}

/// A package for pip.
fn package(words: &[&str]) -> Checked {
    let folder = words.last().filter(|_| words[1] == "install").ok_or("only `pip install FOLDER` is known")?;
    let file = root().join(folder).join("pyproject.toml");
    file.exists().then_some(()).ok_or_else(|| format!("no {}", file.display()))
}

/// `python3 -m unittest discover FOLDER`.
fn tests(words: &[&str]) -> Checked {
    let ["python3", "-m", "unittest", "discover", folder] = words else {
        return Err("only `python3 -m unittest discover FOLDER` is known".to_owned());
    };
    let entries = std::fs::read_dir(root().join(folder)).map_err(|e| format!("{folder}: {e}"))?;
    let found = entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("test"));
    found.then_some(()).ok_or_else(|| format!("no tests in {folder}"))
}

/// The unit that `make install` installs.
fn service(words: &[&str]) -> Checked {
    let file = root().join("tools/madrigal/madrigal.service");
    match words {
        ["systemctl", "--user", verbs @ .., "madrigal"] if file.exists() => {
            let known = |word: &&str| ["enable", "--now", "reload"].contains(word);
            verbs.iter().all(known).then_some(()).ok_or_else(|| format!("{verbs:?} is not known"))
        }
        ["loginctl", "enable-linger"] => Ok(()),
        _ => Err("no such unit".to_owned()),
    }
}

/// A script of the tree: it may be executed, its help has the options, and its folder knows the values.
fn script(name: &str, words: &[&str]) -> Checked {
    let path = root().join(name);
    let data = std::fs::metadata(&path).map_err(|e| format!("{name}: {e}"))?;
    if !data.is_file() || data.permissions().mode() & 0o111 == 0 {
        return Err(format!("{name} cannot be executed"));
    }
    let text = std::fs::read_to_string(&path).map_err(|e| e.to_string())?;
    let python = text.starts_with("#!/usr/bin/env python3") || text.starts_with("#!/usr/bin/python3");
    let help = if python { says(&mut Command::new(&path), name, "--help")? } else { text };
    let mut known = if python { sources(path.parent().expect("a folder")) } else { help.clone() };
    if python && has_word(&help, "--list") {
        known += &says(&mut Command::new(&path), name, "--list")?;
    }
    // A quoted text is the reader's own command.
    let words = words.iter().take_while(|word| !word.starts_with('\''));
    for word in words.map(|word| word.trim_matches(['[', ']'])) {
        if word.starts_with('-') {
            options(name, &help, word)?;
            continue;
        }
        let values = word.split(',').filter(|value| !is_placeholder(value) && value.parse::<f64>().is_err());
        for value in values {
            if !has_word(&known, value) && !has_word(&help, value) {
                return Err(format!("{name} knows no `{value}`"));
            }
        }
    }
    Ok(())
}

/// An option stands in a help.
fn options(name: &str, help: &str, word: &str) -> Checked {
    has_word(help, word).then_some(()).ok_or_else(|| format!("the help of {name} has no {word}"))
}

/// Whether a text has a word that neither letters nor hyphens touch.
pub(crate) fn has_word(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (text[..at].chars().next_back(), text[at + word.len()..].chars().next());
        !before.is_some_and(part) && !after.is_some_and(part)
    })
}

/// The output of a program for an option, run once.
fn says(command: &mut Command, name: &str, option: &str) -> Result<String, String> {
    static KNOWN: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
    let asked = format!("{name} {option}");
    if let Some(known) = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).get(&asked) {
        return Ok(known.clone());
    }
    let done = command.arg(option).current_dir(root()).stdin(Stdio::null()).output().map_err(|e| e.to_string())?;
    if !done.status.success() {
        return Err(format!("{asked}: {}", String::from_utf8_lossy(&done.stderr)));
    }
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner).insert(asked, text.clone());
    Ok(text)
}

/// All of the Python of a folder, and the names of its files.
fn sources(folder: &Path) -> String {
    let mut all = String::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let _ = writeln!(all, "{}", Path::new(&name).file_stem().unwrap_or_default().display());
        if path.is_dir() {
            all += &sources(&path);
        } else if path.extension().is_some_and(|kind| kind == "py" || kind == "c") {
            all += &std::fs::read_to_string(path).unwrap_or_default();
        }
    }
    all
}

/// `madrigal` and what follows: its commands, and their options.
fn madrigal(settings: &[&str], words: &[&str]) -> Checked {
    let known = std::fs::read_to_string(root().join("README.md")).map_err(|e| e.to_string())?;
    for name in settings.iter().filter_map(|setting| setting.split('=').next()) {
        if name.starts_with("MADRIGAL_") && !has_word(&known, name) {
            return Err(format!("README.md has no {name}"));
        }
    }
    let mut path: Vec<&str> = Vec::new();
    let ours = |path: &[&str]| says(common::command().args(path), &format!("madrigal {}", path.join(" ")), "--help");
    let mut said = ours(&path)?;
    for word in words.iter().copied().take_while(|word| *word != "--") {
        let word = word.trim_start_matches('[').trim_end_matches(']');
        if word.starts_with('-') {
            options("madrigal", &said, word.split('=').next().unwrap_or(word))?;
        } else if let Some(commands) = said.split("\nCommands:\n").nth(1).filter(|_| !is_placeholder(word)) {
            let list = commands.split("\n\n").next().unwrap_or_default();
            if !list.lines().any(|line| line.split_whitespace().next() == Some(word)) {
                return Err(format!("`madrigal {}` has no command `{word}`", path.join(" ")));
            }
            path.push(word);
            said = ours(&path)?;
        }
    }
    Ok(())
}

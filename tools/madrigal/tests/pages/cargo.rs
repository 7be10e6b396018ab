//! What is checked of a line of cargo's: packages, targets and filters are there. Cargo is not asked, which would take long.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::checked::{Checked, has_word, is_placeholder};
use super::lines::root;

/// The folder of each package.
fn packages() -> BTreeMap<String, PathBuf> {
    let groups = ["crates", "personalities", "tools", "fuzz", "examples", "."].map(|group| root().join(group));
    let folders = groups.iter().flat_map(|group| std::fs::read_dir(group).into_iter().flatten().flatten());
    let named = folders.filter_map(|entry| {
        let text = std::fs::read_to_string(entry.path().join("Cargo.toml")).ok()?;
        let name = text.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))?;
        Some((name.to_owned(), entry.path()))
    });
    named.collect()
}

/// What a line of cargo's names.
#[derive(Default)]
struct Asked<'a> {
    package: Option<PathBuf>,
    /// The file or the folder of a target.
    target: Option<PathBuf>,
    filters: Vec<&'a str>,
}

/// Checks `cargo` and what follows.
pub(crate) fn check(settings: &[&str], words: &[&str]) -> Checked {
    let (verb, words) = words.split_first().ok_or("no command of cargo's")?;
    if !["test", "build", "run", "fmt", "clippy"].contains(verb) {
        return Err(format!("nothing is known of `cargo {verb}`"));
    }
    let asked = parse(words)?;
    let place = asked.target.or(asked.package).unwrap_or_else(root);
    let text = sources(&place);
    for name in settings.iter().filter_map(|setting| setting.split('=').next()) {
        if !text.contains(&format!("\"{name}\"")) {
            return Err(format!("{} does not read {name}", place.display()));
        }
    }
    let parts = asked.filters.iter().flat_map(|filter| filter.split("::")).filter(|part| !is_placeholder(part));
    let mut lost = parts.filter(|part| !has_word(&text, part));
    lost.next().map_or(Ok(()), |part| Err(format!("{} has no test `{part}`", place.display())))
}

fn parse<'a>(words: &[&'a str]) -> Result<Asked<'a>, String> {
    let mut asked = Asked::default();
    let mut words = words.iter().copied();
    while let Some(word) = words.next() {
        match word {
            "-p" => {
                let name = words.next().ok_or("no package")?;
                asked.package = Some(packages().remove(name).ok_or_else(|| format!("no package {name}"))?);
            }
            "--test" | "--bin" | "--example" => {
                let (name, package) = (words.next().ok_or("no target")?, asked.package.as_ref().ok_or("no package")?);
                asked.target = if is_placeholder(name) { None } else { Some(target(package, word, name)?) };
            }
            "--features" => {
                let (name, package) = (words.next().ok_or("no feature")?, asked.package.as_ref().ok_or("no package")?);
                let text = std::fs::read_to_string(package.join("Cargo.toml")).map_err(|e| e.to_string())?;
                has_word(&text, name).then_some(()).ok_or_else(|| format!("no feature {name}"))?;
            }
            "-D" => drop(words.next()),
            "--release" | "--lib" | "--" | "--nocapture" | "--workspace" | "--all" | "--all-targets" | "--check" => {}
            _ if word.starts_with('-') => return Err(format!("nothing is known of {word}")),
            _ => asked.filters.push(word),
        }
    }
    Ok(asked)
}

/// The file, or the folder, of a target.
fn target(package: &Path, kind: &str, name: &str) -> Result<PathBuf, String> {
    let text = std::fs::read_to_string(package.join("Cargo.toml")).map_err(|e| e.to_string())?;
    let named = text.contains(&format!("[[bin]]\nname = \"{name}\"\npath = \"src/main.rs\""));
    let files = match kind {
        "--test" => vec![format!("tests/{name}.rs"), format!("tests/{name}/main.rs")],
        "--example" => vec![format!("examples/{name}.rs"), format!("examples/{name}/main.rs")],
        _ if named => vec!["src/main.rs".to_owned()],
        _ => vec![format!("src/bin/{name}.rs"), format!("src/bin/{name}/main.rs")],
    };
    let found = files.iter().map(|file| package.join(file)).find(|file| file.exists());
    let found = found.ok_or_else(|| format!("no {name} in {}", package.display()))?;
    let folder = found.parent().expect("a folder").to_path_buf();
    Ok(if found.ends_with("main.rs") { folder } else { found })
}

/// All of the Rust of a file or a folder, with the names of its files.
fn sources(place: &Path) -> String {
    if place.is_file() {
        return std::fs::read_to_string(place).unwrap_or_default();
    }
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path());
    let wanted = entries.filter(|path| {
        !path.ends_with("target") && (path.is_dir() || path.extension().is_some_and(|kind| kind == "rs"))
    });
    wanted.map(|path| format!("{}\n{}", path.file_stem().unwrap_or_default().display(), sources(&path))).collect()
}

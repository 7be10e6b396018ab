//! Draws which source file takes names from which, and fails on a circle: files that need each other can be read, tested and changed only
//! together (ARCHITECTURE.md, layers).
//!
//! A name counts where it is defined, by whichever module it is handed on. What a macro's tokens name is not seen, nor are methods.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

mod graph;
mod names;

use graph::circles;
use names::Crate;

/// The imports: the names, by the importing and the exporting file.
type Arrows = BTreeMap<(PathBuf, PathBuf), BTreeSet<String>>;

#[test]
fn no_circles() {
    let arrows = draw(&crates(&root()));
    assert!(arrows.len() > 500, "only {} imports were found", arrows.len());
    let trouble: String = circles(&arrows).iter().map(|circle| report(circle, &arrows)).collect();
    assert!(trouble.is_empty(), "\n{trouble}");
}

/// The layers of SysWrap, the uppermost first: none takes anything from one above it.
const LAYERS: [&str; 6] = ["hooks", "io", "lifecycle", "remote", "outcome", "state"];

#[test]
fn layers_of_syswrap() {
    let arrows = draw(&[root().join("personalities/syswrap/src")]);
    let layer = |file: &Path| {
        let part = Path::new(file.iter().skip_while(|part| *part != "src").nth(1)?);
        LAYERS.iter().position(|layer| part.file_stem().is_some_and(|stem| stem == *layer))
    };
    let places: Vec<_> = arrows.keys().filter_map(|(from, to)| Some(((from, to), layer(from)?, layer(to)?))).collect();
    assert!(places.len() > 100, "only {} imports were found", places.len());
    let upward: Vec<_> = places.iter().filter(|(_, from, to)| from > to).map(|(arrow, ..)| arrow).collect();
    assert!(upward.is_empty(), "{upward:#?}");
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder above the tests").to_owned()
}

/// What these source folders take from each other.
fn draw(folders: &[PathBuf]) -> Arrows {
    let mut arrows = Arrows::new();
    for folder in folders {
        let read = Crate::read(&root(), folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        read.draw(&mut arrows);
    }
    arrows
}

/// The source folders of the workspace's crates.
fn crates(root: &Path) -> Vec<PathBuf> {
    let folders = ["crates", "personalities", "tools", "fuzz", "."].map(|group| root.join(group));
    let entries = folders.iter().flat_map(|folder| std::fs::read_dir(folder).expect("a folder of crates"));
    let mut found: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path().join("src"))
        .filter(|src| src.join("lib.rs").exists() || src.join("main.rs").exists())
        .collect();
    found.sort();
    found
}

/// A circle in words: its files, and what ties them.
fn report(circle: &BTreeSet<PathBuf>, arrows: &Arrows) -> String {
    let files: Vec<_> = circle.iter().map(|file| file.display().to_string()).collect();
    let mut text = format!("circle: {}\n", files.join(" "));
    for ((from, to), names) in arrows.iter().filter(|((from, to), _)| circle.contains(from) && circle.contains(to)) {
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let _ = writeln!(text, "    {} takes from {}: {}", from.display(), to.display(), names.join(", "));
    }
    text
}

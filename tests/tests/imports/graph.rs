//! Circles of a graph (Tarjan 1972: strongly connected components).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::Arrows;

/// The sets of files of which each needs each other one.
pub(crate) fn circles(arrows: &Arrows) -> Vec<BTreeSet<PathBuf>> {
    let mut to: BTreeMap<&PathBuf, Vec<&PathBuf>> = BTreeMap::new();
    for (from, target) in arrows.keys() {
        to.entry(from).or_default().push(target);
    }
    let mut search = Search { to, seen: BTreeMap::new(), stack: Vec::new(), found: Vec::new() };
    for (file, _) in arrows.keys() {
        if !search.seen.contains_key(file) {
            search.visit(file);
        }
    }
    search.found
}

struct Search<'a> {
    to: BTreeMap<&'a PathBuf, Vec<&'a PathBuf>>,
    /// When a file was met, and the earliest on the stack that it leads to; `None`: its component is complete.
    seen: BTreeMap<&'a PathBuf, (usize, Option<usize>)>,
    stack: Vec<&'a PathBuf>,
    found: Vec<BTreeSet<PathBuf>>,
}

impl<'a> Search<'a> {
    fn visit(&mut self, file: &'a PathBuf) -> Option<usize> {
        let index = self.seen.len();
        self.seen.insert(file, (index, Some(index)));
        self.stack.push(file);
        let mut least = index;
        for next in self.to.get(file).cloned().unwrap_or_default() {
            let reached = match self.seen.get(next) {
                Some((_, low)) => *low,
                None => self.visit(next),
            };
            least = reached.map_or(least, |low| least.min(low));
        }
        self.seen.insert(file, (index, Some(least)));
        if least < index {
            return Some(least);
        }
        let at = self.stack.iter().position(|other| *other == file).expect("on the stack");
        let component = self.stack.split_off(at);
        for member in &component {
            self.seen.entry(member).and_modify(|seen| seen.1 = None);
        }
        if component.len() > 1 {
            self.found.push(component.into_iter().cloned().collect());
        }
        None
    }
}

//! The modules of a crate, what each defines and hands on, and which paths its files use.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, UseTree};

use super::Arrows;

/// A module's path from the root of its crate.
type Place = Vec<String>;

/// How often a name may be handed on.
const DEEPEST: usize = 16;

/// The modules of a crate.
pub(crate) struct Crate {
    modules: BTreeMap<Place, Module>,
}

#[derive(Default)]
struct Module {
    file: PathBuf,
    /// Names that it defines, other than modules.
    defined: Vec<String>,
    /// Names that it takes from elsewhere, by the path as it is written.
    taken: BTreeMap<String, Vec<String>>,
    /// Modules of which it takes all names.
    all_of: Vec<Vec<String>>,
    /// Paths that its own text names.
    used: Vec<Vec<String>>,
}

impl Crate {
    /// Reads a crate's files, `root` being the folder that their names begin at.
    pub(crate) fn read(root: &Path, src: &Path) -> Result<Self, String> {
        let mut this = Self { modules: BTreeMap::new() };
        for (name, dir) in [("lib.rs", src), ("main.rs", src)] {
            if dir.join(name).exists() {
                this.read_file(root, &dir.join(name), dir, Vec::new())?;
                break;
            }
        }
        Ok(this)
    }

    /// Reads the file of a module whose children lie in `dir`.
    fn read_file(&mut self, root: &Path, file: &Path, dir: &Path, place: Place) -> Result<(), String> {
        let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let parsed = syn::parse_file(&text).map_err(|e| format!("{}: {e}", file.display()))?;
        let name = file.strip_prefix(root).unwrap_or(file).components().collect();
        self.read_items(root, name, dir, place, &parsed.items)
    }

    fn read_items(
        &mut self,
        root: &Path,
        file: PathBuf,
        dir: &Path,
        place: Place,
        items: &[Item],
    ) -> Result<(), String> {
        let mut module = Module { file: file.clone(), ..Module::default() };
        let mut children = Vec::new();
        for item in items {
            match item {
                Item::Mod(child) if is_for_tests(&child.attrs) => {}
                Item::Mod(child) => children.push(child),
                Item::Use(item) if is_for_tests(&item.attrs) => {}
                Item::Use(item) => module.take(item),
                other => module.define(other),
            }
        }
        self.modules.insert(place.clone(), module);
        for child in children {
            self.read_child(root, &file, dir, &place, child)?;
        }
        Ok(())
    }

    fn read_child(
        &mut self,
        root: &Path,
        file: &Path,
        dir: &Path,
        place: &Place,
        child: &ItemMod,
    ) -> Result<(), String> {
        let name = child.ident.to_string();
        let inner: Place = place.iter().cloned().chain([name.clone()]).collect();
        let below = dir.join(&name);
        match &child.content {
            Some((_, items)) => self.read_items(root, file.to_owned(), &below, inner, items),
            None => {
                let flat = dir.join(format!("{name}.rs"));
                let file = if flat.exists() { flat } else { below.join("mod.rs") };
                self.read_file(root, &file, &below, inner)
            }
        }
    }

    /// Adds which file takes which names from which.
    pub(crate) fn draw(&self, arrows: &mut Arrows) {
        for (place, module) in &self.modules {
            // What a module hands on only is no need of its own.
            for path in &module.used {
                let Some((file, name)) = self.find(place, path, DEEPEST) else { continue };
                if file != module.file {
                    arrows.entry((module.file.clone(), file)).or_default().insert(name);
                }
            }
        }
    }

    /// The file in which what a path names from a module is defined.
    fn find(&self, place: &Place, path: &[String], deep: usize) -> Option<(PathBuf, String)> {
        let (first, rest) = path.split_first()?;
        let deep = deep.checked_sub(1)?;
        let mut at = place.clone();
        match first.as_str() {
            "crate" => self.find_in(&Vec::new(), rest, deep),
            "self" => self.find_in(place, rest, deep),
            "super" => {
                at.pop()?;
                let mut rest = rest;
                while let Some(("super", more)) = rest.split_first().map(|(name, more)| (name.as_str(), more)) {
                    at.pop()?;
                    rest = more;
                }
                self.find_in(&at, rest, deep)
            }
            _ => self.find_in(place, path, deep),
        }
    }

    /// The same of a path below a module.
    fn find_in(&self, place: &Place, path: &[String], deep: usize) -> Option<(PathBuf, String)> {
        let module = self.modules.get(place)?;
        let (first, rest) = path.split_first()?;
        let deep = deep.checked_sub(1)?;
        let inner: Place = place.iter().cloned().chain([first.clone()]).collect();
        if self.modules.contains_key(&inner) {
            return self.find_in(&inner, rest, deep);
        }
        if module.defined.contains(first) {
            return Some((module.file.clone(), first.clone()));
        }
        if let Some(from) = module.taken.get(first) {
            let whole: Vec<String> = from.iter().chain(rest).cloned().collect();
            return self.find(place, &whole, deep);
        }
        module.all_of.iter().find_map(|from| {
            let whole: Vec<String> = from.iter().chain(path).cloned().collect();
            self.find(place, &whole, deep)
        })
    }
}

impl Module {
    fn define(&mut self, item: &Item) {
        let name = match item {
            Item::Const(item) => Some(&item.ident),
            Item::Enum(item) => Some(&item.ident),
            Item::Fn(item) => Some(&item.sig.ident),
            Item::Macro(item) => item.ident.as_ref(),
            Item::Static(item) => Some(&item.ident),
            Item::Struct(item) => Some(&item.ident),
            Item::Trait(item) => Some(&item.ident),
            Item::Type(item) => Some(&item.ident),
            Item::Union(item) => Some(&item.ident),
            _ => None,
        };
        self.defined.extend(name.map(ToString::to_string));
        Paths(&mut self.used).visit_item(item);
    }

    fn take(&mut self, item: &ItemUse) {
        let mut list = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut list);
        for (name, path) in list {
            match name.as_str() {
                "*" => self.all_of.push(path),
                _ => {
                    self.taken.insert(name, path);
                }
            }
        }
    }
}

/// The names that a `use` brings, each with its path.
fn flatten(tree: &UseTree, before: &mut Vec<String>, list: &mut Vec<(String, Vec<String>)>) {
    let with = |name: &syn::Ident| before.iter().cloned().chain([name.to_string()]).collect::<Vec<_>>();
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, list);
            before.pop();
        }
        UseTree::Name(name) if name.ident == "self" => {
            list.extend(before.last().map(|last| (last.clone(), before.clone())));
        }
        UseTree::Name(name) => list.push((name.ident.to_string(), with(&name.ident))),
        UseTree::Rename(name) => list.push((name.rename.to_string(), with(&name.ident))),
        UseTree::Glob(_) => list.push(("*".to_owned(), before.clone())),
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, before, list)),
    }
}

/// Whether it is there for tests or models only.
fn is_for_tests(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| {
        let tokens = match &attr.meta {
            syn::Meta::List(list) if attr.path().is_ident("cfg") => list.tokens.to_string(),
            _ => String::new(),
        };
        tokens.contains("test") || tokens.contains("shuttle") && !tokens.contains("not")
    })
}

/// Collects the paths of a text.
struct Paths<'a>(&'a mut Vec<Vec<String>>);

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.0.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        // One inside a function.
        let mut list = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut list);
        self.0.extend(list.into_iter().map(|(_, path)| path));
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        // The arguments of most macros are expressions.
        let parser = syn::punctuated::Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated;
        if let Ok(arguments) = item.parse_body_with(parser) {
            arguments.iter().for_each(|argument| self.visit_expr(argument));
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }
}

//! The text of one module: the names that it defines and imports, and every path in it.

use std::collections::BTreeSet;
use syn::{
    Attribute, Item, ItemMod, ItemUse, Macro, Meta, UseTree, Visibility,
    buffer::{Cursor, TokenBuffer},
    visit::{self, Visit},
};

/// A module's path below its crate's root, or a path as it is written.
pub(crate) type Path = Vec<String>;

/// An import: the path, and the name by which the module has it; `None` for all names (`*`).
pub(crate) struct Import {
    pub(crate) path: Path,
    pub(crate) name: Option<String>,
    pub(crate) is_public: bool,
}

#[derive(Default)]
pub(crate) struct Source {
    /// The names of the items that the module defines itself.
    pub(crate) items: BTreeSet<String>,
    pub(crate) imports: Vec<Import>,
    /// Every path, those of imports too.
    pub(crate) paths: BTreeSet<Path>,
}

impl Source {
    /// Reads a module, and answers the modules that it declares, without those of tests.
    pub(crate) fn read(items: &[Item]) -> (Source, Vec<&ItemMod>) {
        let mut source = Source::default();
        let mut children = Vec::new();
        for item in items {
            match item {
                Item::Mod(child) if is_for_tests(&child.attrs) || child.ident == "tests" => {}
                Item::Mod(child) => children.push(child),
                Item::Use(import) if !is_for_tests(&import.attrs) => {
                    let is_public = !matches!(import.vis, Visibility::Inherited);
                    let imports = leaves(import).into_iter();
                    source.imports.extend(imports.map(|(path, name)| Import { path, name, is_public }));
                }
                _ => source.items.extend(name_of(item)),
            }
            source.visit_item(item);
        }
        (source, children)
    }
}

fn name_of(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// Whether there is a `#[cfg(test)]` or `#[cfg(all(test, …))]`.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).any(|attribute| {
        let Meta::List(list) = &attribute.meta else { return false };
        let tokens = TokenBuffer::new2(list.tokens.clone());
        let Some((first, rest)) = tokens.begin().ident() else { return false };
        let inner = if first == "all" { rest.any_group().and_then(|(inner, ..)| inner.ident()) } else { None };
        first == "test" || inner.is_some_and(|(first, _)| first == "test")
    })
}

/// The paths of a `use`, each with the name that it brings in. One from the root of all crates (`::`) leads out of this one.
fn leaves(import: &ItemUse) -> Vec<(Path, Option<String>)> {
    fn walk(tree: &UseTree, prefix: &[String], found: &mut Vec<(Path, Option<String>)>) {
        let joined = |last: &dyn ToString| -> Path { [prefix, &[last.to_string()]].concat() };
        match tree {
            UseTree::Path(path) => walk(&path.tree, &joined(&path.ident), found),
            UseTree::Name(name) if name.ident == "self" => found.push((prefix.to_vec(), prefix.last().cloned())),
            UseTree::Name(name) => found.push((joined(&name.ident), Some(name.ident.to_string()))),
            UseTree::Rename(name) if name.ident == "self" => {
                found.push((prefix.to_vec(), Some(name.rename.to_string())));
            }
            UseTree::Rename(name) => found.push((joined(&name.ident), Some(name.rename.to_string()))),
            UseTree::Glob(_) => found.push((prefix.to_vec(), None)),
            UseTree::Group(group) => group.items.iter().for_each(|tree| walk(tree, prefix, found)),
        }
    }
    let mut found = Vec::new();
    if import.leading_colon.is_none() {
        walk(&import.tree, &[], &mut found);
    }
    found
}

/// Leaves out what is compiled for tests only.
macro_rules! unless_for_tests {
    ($($visit:ident: $node:ident),*) => {
        $(fn $visit(&mut self, node: &'ast syn::$node) {
            if !is_for_tests(&node.attrs) {
                visit::$visit(self, node);
            }
        })*
    };
}

impl<'ast> Visit<'ast> for Source {
    unless_for_tests!(
        visit_item_const: ItemConst,
        visit_item_fn: ItemFn,
        visit_item_impl: ItemImpl,
        visit_item_struct: ItemStruct,
        visit_impl_item_fn: ImplItemFn
    );

    /// The paths in a declared module are its own.
    fn visit_item_mod(&mut self, _: &'ast ItemMod) {}

    fn visit_item_use(&mut self, node: &'ast ItemUse) {
        if !is_for_tests(&node.attrs) {
            self.paths.extend(leaves(node).into_iter().map(|(path, _)| path));
        }
    }

    fn visit_path(&mut self, node: &'ast syn::Path) {
        if node.leading_colon.is_none() {
            self.paths.insert(node.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, node);
    }

    fn visit_macro(&mut self, node: &'ast Macro) {
        self.add_tokens(TokenBuffer::new2(node.tokens.clone()).begin(), false);
        visit::visit_macro(self, node);
    }

    fn visit_attribute(&mut self, node: &'ast Attribute) {
        if let Meta::List(list) = &node.meta {
            self.add_tokens(TokenBuffer::new2(list.tokens.clone()).begin(), true);
        }
        visit::visit_attribute(self, node);
    }
}

impl Source {
    /// Adds the paths among the tokens of a macro or an attribute, as far as their first name shows that they are paths of this
    /// crate. `quoted`: those in strings too, as in `#[serde(with = "super::hex")]`.
    fn add_tokens(&mut self, mut cursor: Cursor<'_>, quoted: bool) {
        while !cursor.eof() {
            if let Some((inner, _, _, after)) = cursor.any_group() {
                self.add_tokens(inner, quoted);
                cursor = after;
            } else if let Some((first, mut after)) = cursor.ident() {
                let mut path = vec![first.to_string()];
                while let Some((name, next)) = after_colons(after).and_then(Cursor::ident) {
                    path.push(name.to_string());
                    after = next;
                }
                if path.len() > 1 && is_keyword(&path[0]) {
                    self.paths.insert(path);
                }
                cursor = after;
            } else if let Some((literal, after)) = cursor.literal() {
                let text = literal.to_string();
                let path: Path = text.trim_matches('"').split("::").map(str::to_owned).collect();
                let is_path = path.iter().all(|name| syn::parse_str::<syn::Ident>(name).is_ok() || is_keyword(name));
                if quoted && path.len() > 1 && is_path && is_keyword(&path[0]) {
                    self.paths.insert(path);
                }
                cursor = after;
            } else {
                let Some((_, after)) = cursor.token_tree() else { return };
                cursor = after;
            }
        }
    }
}

/// Whether a path with this first name begins in a module of this crate.
pub(crate) fn is_keyword(name: &str) -> bool {
    ["crate", "self", "super"].contains(&name)
}

fn after_colons(cursor: Cursor<'_>) -> Option<Cursor<'_>> {
    let (first, next) = cursor.punct()?;
    let (second, next) = next.punct()?;
    (first.as_char() == ':' && second.as_char() == ':').then_some(next)
}

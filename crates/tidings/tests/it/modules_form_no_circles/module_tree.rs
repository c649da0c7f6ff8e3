//! The modules of a crate, read from its files, and where the paths in them lead to.

use super::source::{Import, Path, Source, is_keyword};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path as FilePath, PathBuf},
};
use syn::ItemMod;

/// So many imports of imports are followed. A path that needs more leads to itself.
const IMPORTS_FOLLOWED_MAX: usize = 8;

struct Module {
    source: Source,
    /// The file, below the folder of the sources.
    file: String,
    /// Of the module's path, so many names are those of files; the names behind them are of `mod … { }` in the file.
    file_depth: usize,
}

/// One crate: all that is compiled from one root file.
pub(crate) struct ModuleTree {
    modules: BTreeMap<Path, Module>,
}

/// Where a path leads to.
struct Target {
    /// The module, or that of the item.
    module: Path,
    is_item: bool,
}

/// What a name stands for in a module.
enum Meaning {
    Child(Path),
    /// An item of the module itself.
    Own,
    /// An import; `None`: of another crate.
    Import(Option<Target>),
    Unknown,
}

/// An import of one module from another that has the same parent.
pub(crate) struct Edge {
    /// The path of the parent.
    pub(crate) folder: Path,
    pub(crate) from: String,
    pub(crate) to: String,
    /// A file that imports, and the path by which it does.
    pub(crate) file: String,
    pub(crate) import: String,
}

impl ModuleTree {
    /// Reads the root file (`lib.rs`, `main.rs`) and all modules that are declared from there on.
    pub(crate) fn read(sources: &FilePath, root: &str) -> ModuleTree {
        let mut tree = ModuleTree { modules: BTreeMap::new() };
        tree.read_file(sources, root.into(), PathBuf::new(), Vec::new());
        tree
    }

    /// `folder`: where the files of the module's children are.
    fn read_file(&mut self, sources: &FilePath, file: PathBuf, folder: PathBuf, path: Path) {
        let text = fs::read_to_string(sources.join(&file)).unwrap();
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let depth = path.len();
        self.add(sources, &file, &folder, path, depth, &parsed.items);
    }

    fn add(
        &mut self,
        sources: &FilePath,
        file: &FilePath,
        folder: &FilePath,
        path: Path,
        file_depth: usize,
        items: &[syn::Item],
    ) {
        let (source, children) = Source::read(items);
        for child in children {
            let ItemMod { ident, content, .. } = child;
            let name = ident.to_string();
            let (below, path) = (folder.join(&name), [&path[..], &[name]].concat());
            match content {
                Some((_, items)) => self.add(sources, file, &below, path, file_depth, items),
                None => {
                    let names = [below.with_extension("rs"), below.join("mod.rs")];
                    let found = names.into_iter().find(|name| sources.join(name).is_file());
                    let found = found.unwrap_or_else(|| panic!("{} declares {ident}: no file", file.display()));
                    self.read_file(sources, found, below, path);
                }
            }
        }
        self.modules.insert(path, Module { source, file: file.display().to_string(), file_depth });
    }

    pub(crate) fn len(&self) -> usize {
        self.modules.len()
    }

    /// Every import among siblings, once with the first file and path that make it.
    pub(crate) fn edges(&self) -> Vec<Edge> {
        let mut known = BTreeSet::new();
        let mut edges = Vec::new();
        for (path, module) in &self.modules {
            // Those that tell by themselves where they lead to come first: an edge is told by its first path.
            let (telling, others): (Vec<&Path>, Vec<&Path>) =
                module.source.paths.iter().partition(|path| is_keyword(&path[0]));
            for import in telling.into_iter().chain(others) {
                let Some(target) = self.resolve(path, import, IMPORTS_FOLLOWED_MAX) else { continue };
                let (from, to) = (&path[..module.file_depth], self.file_of(&target.module));
                let same = from.iter().zip(to).take_while(|(from, to)| from == to).count();
                // Otherwise one is the other, or its parent.
                if let (Some(from), Some(to)) = (from.get(same), to.get(same))
                    && known.insert((&path[..same], from, to.clone()))
                {
                    let (file, import) = (module.file.clone(), import.join("::"));
                    edges.push(Edge {
                        folder: path[..same].to_vec(),
                        from: from.clone(),
                        to: to.clone(),
                        file,
                        import,
                    });
                }
            }
        }
        edges
    }

    fn file_of<'a>(&self, path: &'a [String]) -> &'a [String] {
        &path[..self.modules[path].file_depth]
    }

    /// Where a path leads to that stands in the module `from`; `None`: out of the crate, or it is no path of a module.
    fn resolve(&self, from: &[String], path: &[String], left: usize) -> Option<Target> {
        let own = usize::from(path.first()? == "self");
        let up = path[own..].iter().take_while(|name| *name == "super").count();
        match path[0].as_str() {
            "crate" => self.descend(from, &[], &path[1..], left),
            "self" | "super" => self.descend(from, &from[..from.len().checked_sub(up)?], &path[own + up..], left),
            // The first name may be that of another crate.
            first if matches!(self.meaning(from, from, first, left), Meaning::Unknown) => None,
            _ => self.descend(from, from, path, left),
        }
    }

    /// Where a path leads to that begins in the module `at`, for a reader in the module `from`.
    fn descend(&self, from: &[String], at: &[String], path: &[String], left: usize) -> Option<Target> {
        let Some((name, rest)) = path.split_first() else {
            return Some(Target { module: at.to_vec(), is_item: false });
        };
        match self.meaning(from, at, name, left) {
            Meaning::Child(child) => self.descend(from, &child, rest, left),
            Meaning::Import(target) => match target? {
                Target { module, is_item: false } => self.descend(from, &module, rest, left),
                item => Some(item),
            },
            // A name that a macro has made is where the macro was called.
            Meaning::Own | Meaning::Unknown => Some(Target { module: at.to_vec(), is_item: true }),
        }
    }

    /// What a name stands for in the module `at`, for a reader in the module `from`.
    fn meaning(&self, from: &[String], at: &[String], name: &str, left: usize) -> Meaning {
        match self.named(from, at, name, left) {
            Meaning::Unknown => {}
            meaning => return meaning,
        }
        for glob in self.imports_seen(from, at).filter(|import| import.name.is_none()) {
            // The first name of an import with `*` comes by no other `*`.
            let is_known = glob
                .path
                .first()
                .is_some_and(|first| is_keyword(first) || !matches!(self.named(at, at, first, left), Meaning::Unknown));
            let target = if is_known && left > 0 { self.resolve(at, &glob.path, left - 1) } else { None };
            let Some(Target { module, is_item: false }) = target.filter(|target| target.module != at) else { continue };
            match self.meaning(at, &module, name, left - 1) {
                Meaning::Unknown => {}
                Meaning::Own => return Meaning::Import(Some(Target { module, is_item: true })),
                Meaning::Child(module) => return Meaning::Import(Some(Target { module, is_item: false })),
                import @ Meaning::Import(_) => return import,
            }
        }
        Meaning::Unknown
    }

    /// The same without imports of all names.
    fn named(&self, from: &[String], at: &[String], name: &str, left: usize) -> Meaning {
        let child = [at, &[name.to_owned()]].concat();
        if self.modules.contains_key(&child) {
            return Meaning::Child(child);
        }
        if self.modules[at].source.items.contains(name) {
            return Meaning::Own;
        }
        match self.imports_seen(from, at).find(|import| import.name.as_deref() == Some(name)) {
            Some(import) if left > 0 => Meaning::Import(self.resolve(at, &import.path, left - 1)),
            Some(_) => Meaning::Import(None),
            None => Meaning::Unknown,
        }
    }

    /// The imports of a module that a reader sees: what a module imports for itself, its children see too.
    fn imports_seen(&self, from: &[String], at: &[String]) -> impl Iterator<Item = &Import> {
        let is_inside = from.starts_with(at);
        self.modules[at].source.imports.iter().filter(move |import| import.is_public || is_inside)
    }
}

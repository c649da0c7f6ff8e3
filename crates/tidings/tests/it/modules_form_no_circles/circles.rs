//! Circles among the imports of siblings.

use super::module_tree::{Edge, ModuleTree};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path,
};

/// Modules of one folder each of which imports the others, directly or by way of the others.
pub(crate) struct Circle {
    /// The module whose children they are; empty: the crate itself.
    pub(crate) folder: String,
    pub(crate) modules: BTreeSet<String>,
    imports: Vec<String>,
}

impl fmt::Display for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let modules: Vec<&str> = self.modules.iter().map(String::as_str).collect();
        let folder = if self.folder.is_empty() { "the crate" } else { &self.folder };
        writeln!(f, "{} modules of {folder} import each other in a circle: {}", modules.len(), modules.join(", "))?;
        self.imports.iter().try_for_each(|import| writeln!(f, "    {import}"))
    }
}

/// The circles of all crates of a folder of sources, at every level.
pub(crate) fn circles(sources: &Path) -> Vec<Circle> {
    let roots = ["lib.rs", "main.rs"].into_iter().filter(|root| sources.join(root).is_file());
    let trees: Vec<ModuleTree> = roots.map(|root| ModuleTree::read(sources, root)).collect();
    assert!(trees.iter().any(|tree| tree.len() > 0), "{}: no crate", sources.display());
    trees.iter().flat_map(|tree| circles_of(tree.edges())).collect()
}

fn circles_of(edges: Vec<Edge>) -> Vec<Circle> {
    let mut folders: BTreeMap<Vec<String>, Vec<Edge>> = BTreeMap::new();
    for edge in edges {
        folders.entry(edge.folder.clone()).or_default().push(edge);
    }
    let mut found = Vec::new();
    for (folder, edges) in folders {
        let mut known: BTreeSet<&str> = BTreeSet::new();
        for edge in &edges {
            if known.contains(&*edge.from) {
                continue;
            }
            let after = reachable(&edge.from, &edges);
            let modules: BTreeSet<&str> =
                after.into_iter().filter(|module| reachable(module, &edges).contains(&*edge.from)).collect();
            if modules.is_empty() {
                continue;
            }
            known.extend(&modules);
            let is_inside = |edge: &&Edge| modules.contains(&*edge.from) && modules.contains(&*edge.to);
            let describe =
                |Edge { from, to, file, import, .. }: &Edge| format!("{from} -> {to}: {file} imports {import}");
            let imports = edges.iter().filter(is_inside).map(describe).collect();
            let modules = modules.into_iter().map(str::to_owned).collect();
            found.push(Circle { folder: folder.join("::"), modules, imports });
        }
    }
    found
}

/// The modules that `start` imports, directly or by way of others.
fn reachable<'a>(start: &'a str, edges: &'a [Edge]) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open = vec![start];
    while let Some(from) = open.pop() {
        open.extend(edges.iter().filter(|edge| edge.from == from).map(|edge| &*edge.to).filter(|to| found.insert(*to)));
    }
    found
}

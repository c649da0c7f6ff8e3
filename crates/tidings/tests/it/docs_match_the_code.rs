//! The pages and the sample settings match the code.

use serde_json::Value;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn read(path: &str) -> String {
    std::fs::read_to_string(format!("{ROOT}/{path}")).unwrap()
}

#[test]
fn architecture_md_lists_every_crate_and_its_dependencies() {
    let page = read("ARCHITECTURE.md");
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(ROOT)
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        let row = page.lines().find(|line| line.starts_with(&format!("| [`{name}`]")));
        let row = row.unwrap_or_else(|| panic!("ARCHITECTURE.md does not list the crate {name}"));
        let may_use = row.trim_end_matches('|').rsplit('|').next().unwrap().trim();
        let uses: BTreeSet<&str> = package["dependencies"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|dependency| dependency["kind"].is_null())
            .filter_map(|dependency| dependency["name"].as_str()?.strip_prefix("tidings-"))
            .collect();
        let allowed: BTreeSet<&str> = match may_use {
            "all" => continue,
            "nothing of ours" => BTreeSet::new(),
            list => list.split(", ").collect(),
        };
        assert!(uses.is_subset(&allowed), "{name} uses {uses:?}, the page allows {allowed:?}");
    }
}

/// The walks of the page: each one's heading, and the files that it links to, in order.
fn walks(page: &str) -> Vec<(&str, Vec<&str>)> {
    let (_, section) = page.split_once("\n## Five walks through the files\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let links = |text| str::split(text, "](").skip(1).map(|link| link.split(')').next().unwrap());
    let walks = section.split("\n### ").skip(1).map(|walk| walk.split_once('\n').unwrap());
    walks.map(|(heading, text)| (heading, links(text).collect())).collect()
}

#[test]
fn every_file_of_the_walks_through_the_architecture_exists() {
    let page = read("ARCHITECTURE.md");
    let walks = walks(&page);
    let headings: Vec<&str> = walks.iter().map(|(heading, _)| *heading).collect();
    assert_eq!(headings, ["A message", "A notification", "A push", "A popup decision", "Another node's commit"]);
    for (heading, files) in walks {
        assert!(files.len() > 8, "{heading}: only {} files, the walk is read wrongly", files.len());
        for file in files {
            assert!(Path::new(ROOT).join(file).is_file(), "the walk of {heading:?} names {file}, which is not there");
            let link = format!("[{file}]({file})");
            assert!(page.contains(&link), "the walk of {heading:?} calls {file} by another name");
        }
    }
}

/// Whether a source defines a type of this name.
fn defines(source: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    ["struct", "enum", "trait", "type"].iter().any(|kind| {
        let definition = format!("{kind} {name}");
        source.match_indices(&definition).any(|(at, _)| !source[at + definition.len()..].starts_with(is_word))
    })
}

#[test]
fn every_type_of_the_glossary_is_defined_where_it_says() {
    let page = read("docs/glossary.md");
    let mut terms = BTreeSet::new();
    for row in page.lines().filter(|line| line.starts_with("| **")) {
        let term = row.split("**").nth(1).unwrap();
        assert!(terms.insert(term), "the glossary has {term:?} twice");
        // The last cell: [`Type`](../file)
        let link = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        let (name, file) = link.split_once("](../").unwrap();
        let (name, file) = (name.trim_matches(['[', '`']), file.trim_end_matches(')'));
        assert!(defines(&read(file), name), "{term}: {file} defines no {name}");
    }
    assert!(terms.len() > 80, "only {}: the glossary is read wrongly", terms.len());
}

/// Every page of documentation, in all folders.
fn pages() -> Vec<PathBuf> {
    let mut folders = vec![PathBuf::from(format!("{ROOT}/docs"))];
    let of_root = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"];
    let mut pages: Vec<PathBuf> = of_root.map(|page| format!("{ROOT}/{page}").into()).into();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension().and_then(|extension| extension.to_str()) {
                _ if path.is_dir() => folders.push(path),
                Some("md") => pages.push(path),
                _ => {}
            }
        }
    }
    pages
}

/// Whether a path begins with this text, for patterns such as `interop/ws/*`.
fn begins(path: &str) -> bool {
    let (folder, start) = path.rsplit_once('/').unwrap();
    let mut entries = std::fs::read_dir(format!("{ROOT}/{folder}")).into_iter().flatten().flatten();
    entries.any(|entry| entry.file_name().to_string_lossy().starts_with(start))
}

#[test]
fn every_file_that_the_docs_name_exists() {
    // Files that operators write themselves.
    const OWN: [&str; 1] = ["deploy/.env"];
    let mut named = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for folder in ["crates/", "deploy/", "docs/", "fixtures/", "interop/", "scripts/"] {
            for (at, _) in text.match_indices(folder) {
                let is_path = |c: char| c.is_ascii_alphanumeric() || "/_.-".contains(c);
                // Part of a longer path: a link such as `../../fixtures`, which is checked below, or another site's address.
                if text[..at].chars().next_back().is_some_and(is_path) {
                    continue;
                }
                let end = text[at..].find(|c| !is_path(c)).map_or(text.len(), |length| at + length);
                let path = &text[at..end];
                let is_there = if text[end..].starts_with('*') {
                    begins(path)
                } else {
                    let path = path.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
                    Path::new(ROOT).join(path).exists() || OWN.contains(&path)
                };
                assert!(is_there, "{} names {path}, which is not there", page.display());
                named += 1;
            }
        }
        for (at, _) in text.match_indices("](") {
            let link = text[at + 2..].split([')', '#']).next().unwrap();
            if link.is_empty() || link.contains("://") || link.contains(char::is_whitespace) {
                continue;
            }
            let target = page.parent().unwrap().join(link);
            assert!(target.exists(), "{} links to {link}, which is not there", page.display());
            named += 1;
        }
    }
    assert!(named > 100, "only {named}: the pages are read wrongly");
}

#[test]
fn the_sample_settings_match_the_printed_ones() {
    let output = Command::new(env!("CARGO_BIN_EXE_tidings")).arg("config").output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed == read("tidings.sample.toml"), "run `make docs` and look at the diff");
}

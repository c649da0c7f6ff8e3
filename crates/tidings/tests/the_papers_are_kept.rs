//! What is written about the code is what the code says.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::{collections::BTreeSet, process::Command};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn read(path: &str) -> String {
    std::fs::read_to_string(format!("{ROOT}/{path}")).unwrap()
}

#[test]
fn the_architecture_names_every_crate_and_what_it_may_use() {
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

#[test]
fn the_sample_settings_are_what_the_program_prints() {
    let output = Command::new(env!("CARGO_BIN_EXE_tidings")).arg("config").output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed == read("tidings.sample.toml"), "run `make docs` and look at the diff");
}

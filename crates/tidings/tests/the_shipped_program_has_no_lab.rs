//! The program that ships holds neither the load lab nor what only tests use, and says so where a user calls the lab. A program
//! of its own, since `.ci/run` builds it once more with the features of what ships.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "it/support/mod.rs"]
mod support;

use std::{collections::BTreeSet, process::Command};
use support::*;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The options of the image's `cargo build` that choose features.
fn shipped_features() -> Vec<String> {
    let image = std::fs::read_to_string(format!("{ROOT}/deploy/Dockerfile")).unwrap();
    let build = image.lines().find_map(|line| line.trim().strip_prefix("cargo build ")).unwrap();
    let build = build.split("&&").next().unwrap();
    assert!(build.contains("--release ") && build.contains("--locked ") && build.contains("-p tidings "), "{build}");
    let options: Vec<String> = build.split_whitespace().map(str::to_owned).collect();
    let begin = options.iter().position(|option| option == "--no-default-features").unwrap();
    options[begin..].to_vec()
}

#[test]
fn what_ships_depends_on_no_lab_and_no_testkit() {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "-e", "normal", "-p", "tidings", "--prefix", "none"])
        .args(shipped_features())
        .current_dir(ROOT)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let tree = text(&output.stdout);
    let crates: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(crates.contains("tidings-engine") && crates.contains("rustls"), "the tree is read wrongly: {tree}");
    for unwanted in ["tidings-lab", "tidings-testkit", "proptest", "rcgen", "console"] {
        assert!(!crates.contains(unwanted), "the shipped program depends on {unwanted}");
    }
}

/// Run by `.ci/run` with the features of what ships.
#[cfg(not(feature = "lab"))]
#[test]
fn the_labs_commands_say_that_the_lab_is_missing() {
    let folder = Folder::new();
    let calls: [&[&str]; 4] =
        [&["bench"], &["bench", "--help"], &["bench", "group", "--members", "300"], &["cluster", "--nodes", "3"]];
    for call in calls {
        let output = folder.run(call);
        assert_eq!(output.status.code(), Some(2), "{call:?}");
        let told = text(&output.stderr);
        assert!(told.contains("built without the lab") && told.contains(&format!("`{}`", call[0])), "{call:?}: {told}");
    }
    let help = text(&folder.run(&["--help"]).stdout);
    assert!(help.contains("  serve ") && !help.contains("  bench") && !help.contains("  cluster"), "{help}");
}

//! A file of tests that no `main.rs` names would be compiled by nobody, and its tests would seem to pass.

use std::{
    fs,
    path::{Path, PathBuf},
};

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn every_file_beside_a_main_is_one_of_its_modules() {
    let crates = files_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    let mut modules = 0;
    for folder in crates.iter().map(|package| package.join("tests/it")).filter(|folder| folder.exists()) {
        let main = fs::read_to_string(folder.join("main.rs")).unwrap();
        for file in files_in(&folder) {
            let is_rust = file.is_dir() || file.extension().is_some_and(|end| end == "rs");
            let name = file.file_stem().unwrap().to_str().unwrap();
            if is_rust && name != "main" {
                let lines = [format!("mod {name};"), format!("mod {name} {{")];
                let is_named = main.lines().any(|line| lines.iter().any(|named| named == line));
                assert!(is_named, "{} has no line in main.rs", file.display());
                modules += 1;
            }
        }
    }
    assert!(modules > 150, "the folders are read wrongly: {modules} modules");
}

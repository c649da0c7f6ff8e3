//! Sibling modules do not import each other in a circle, at any level of any crate.
//!
//! A module is a file of a folder, or a folder together with the file of its name. A child may use its parent, and a
//! parent its children: an edge joins only modules with the same parent. A re-export counts as what it leads to.
//! In reading order: `source`, what the text of a module says; `module_tree`, where its paths lead to; `circles`.

mod circles;
mod module_tree;
mod source;

use circles::{Circle, circles};
use std::{fs, path::Path};

const CRATES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A circle that is known.
struct Exception {
    name: &'static str,
    /// The module whose children they are; empty: the crate itself.
    folder: &'static str,
    modules: &'static [&'static str],
}

/// Circles that are older than this test, each until it is ended: the test fails when one is not there any more.
const EXCEPTIONS: &[Exception] = &[];

/// What is wrong with a crate: circles that are no exceptions, and exceptions that are no circles any more.
fn faults<'a>(name: &str, found: &[Circle], exceptions: impl Iterator<Item = &'a Exception>) -> Vec<String> {
    let mut faults = Vec::new();
    let mut excepted = vec![false; found.len()];
    for exception in exceptions.filter(|exception| exception.name == name) {
        let mut exists = false;
        for (circle, excepted) in found.iter().zip(&mut excepted) {
            let is_listed = circle.modules.iter().all(|module| exception.modules.contains(&&**module));
            let applies = circle.folder == exception.folder && is_listed;
            exists |= applies;
            *excepted |= applies;
        }
        if !exists {
            let Exception { folder, modules, .. } = exception;
            faults.push(format!("{name}: no circle any more, remove the exception: {folder} {modules:?}"));
        }
    }
    let circles = found.iter().zip(excepted).filter(|(_, excepted)| !excepted);
    faults.extend(circles.map(|(circle, _)| format!("{name}: {circle}")));
    faults
}

#[test]
fn no_crate_has_circles_of_modules() {
    let mut faults = Vec::new();
    let mut names = Vec::new();
    for entry in fs::read_dir(CRATES).unwrap() {
        let folder = entry.unwrap().path();
        if folder.join("Cargo.toml").is_file() {
            let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
            faults.extend(self::faults(&name, &circles(&folder.join("src")), EXCEPTIONS.iter()));
            names.push(name);
        }
    }
    assert!(names.len() > 10, "only {names:?}: the crates are read wrongly");
    faults.extend(
        EXCEPTIONS
            .iter()
            .filter(|exception| !names.iter().any(|name| name == exception.name))
            .map(|exception| format!("an exception is for {}, which is no crate", exception.name)),
    );
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// The circles of a crate with these files.
fn circles_of(files: &[(&str, &str)]) -> Vec<Circle> {
    let folder = tempfile::tempdir().unwrap();
    for (file, text) in files {
        let file = folder.path().join(file);
        fs::create_dir_all(file.parent().unwrap_or(Path::new(""))).unwrap();
        fs::write(file, text).unwrap();
    }
    circles(folder.path())
}

/// Checks that the only circle of a crate is that of these modules, and that the text that tells it has these lines.
#[track_caller]
fn check(files: &[(&str, &str)], folder: &str, modules: &[&str], lines: &[&str]) {
    let found = circles_of(files);
    assert_eq!(found.len(), 1, "{} circles", found.len());
    assert_eq!(found[0].folder, folder);
    assert_eq!(found[0].modules.iter().map(String::as_str).collect::<Vec<_>>(), modules);
    let text = found[0].to_string();
    for line in lines {
        assert!(text.lines().any(|found| found.trim() == *line), "{line:?} is not in:\n{text}");
    }
}

#[test]
fn a_circle_is_told_with_an_import_of_each_edge() {
    check(
        &[
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b::B; use crate::d::D; pub struct A(B, D);"),
            ("b.rs", "use super::{c::{self, C as Renamed}}; pub struct B;"),
            ("c/mod.rs", "mod below; pub struct C;"),
            ("c/below.rs", "use super::super::a::A; use super::C;"),
            ("d.rs", "pub struct D;"),
        ],
        "",
        &["a", "b", "c"],
        &[
            "a -> b: a.rs imports crate::b::B",
            "b -> c: b.rs imports super::c",
            "c -> a: c/below.rs imports super::super::a::A",
        ],
    );
}

#[test]
fn a_circle_below_the_top_level_is_found() {
    check(
        &[
            ("main.rs", "mod top;"),
            ("top.rs", "mod one; mod two; use one::One;"),
            ("top/one.rs", "use super::two; pub struct One;"),
            ("top/two.rs", "pub fn two() -> crate::top::one::One { crate::top::one::One }"),
        ],
        "top",
        &["one", "two"],
        &["one -> two: top/one.rs imports super::two", "two -> one: top/two.rs imports crate::top::one::One"],
    );
}

#[test]
fn a_re_export_hides_no_edge() {
    // By name, by `*`, under another name, and by what the parent imports for itself.
    for (root, import) in [
        ("pub use b::B;", "use crate::B;"),
        ("pub use b::*;", "use crate::B;"),
        ("pub use b::B as Other;", "use super::Other;"),
        ("pub use b as other;", "use super::other::B;"),
        ("use b::B;", "use super::*; fn make() -> B { B }"),
        ("use c::B; mod c { pub use crate::b::B; }", "use crate::B;"),
    ] {
        let root = format!("mod a; mod b; {root}");
        let a = format!("{import} pub struct A;");
        let files = [("lib.rs", &*root), ("a.rs", &a), ("b.rs", "use crate::a::A; pub struct B;")];
        check(&files, "", &["a", "b"], &["b -> a: b.rs imports crate::a::A"]);
    }
}

#[test]
fn paths_outside_of_imports_count() {
    for text in [
        "fn f() { crate::b::g() }",
        "fn f() { super::b::g() }",
        "type T = Vec<super::b::B>;",
        "impl super::b::Trait for () {}",
        "fn f() { println!(\"{}\", super::b::g()); }",
        "fn f() { if true { use super::b::g; g() } }",
        "#[serde(with = \"super::b\")] struct S;",
        "mod inner { fn f() { super::super::b::g() } }",
    ] {
        let files = [("lib.rs", "mod a; mod b;"), ("a.rs", text), ("b.rs", "use super::a;")];
        check(&files, "", &["a", "b"], &["b -> a: b.rs imports super::a"]);
    }
}

#[test]
fn parents_children_tests_and_other_crates_make_no_circle() {
    let found = circles_of(&[
        ("lib.rs", "mod a; mod b; use a::A; use b::B; pub struct Root(A, B); fn root() { a::below::f() }"),
        ("a.rs", "pub mod below; use crate::Root; use serde::b::X; use ::b::Y; pub struct A; #[cfg(test)] mod tests;"),
        ("a/below.rs", "use super::A; use crate::Root; pub fn f() { println!(\"super::b::B\") } // super::b::B"),
        ("a/tests.rs", "use crate::b::B;"),
        (
            "b.rs",
            "use crate::a::A; pub struct B; #[cfg(test)] mod more { use crate::b; }
             #[cfg(test)] fn only_tests() { super::a::f() }",
        ),
    ]);
    assert!(found.is_empty(), "{}", found[0]);
    let found = circles_of(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "#[cfg(test)] mod check { use crate::b; } #[cfg(test)] use crate::b::B;"),
        ("b.rs", "use super::a;"),
    ]);
    assert!(found.is_empty(), "{}", found[0]);
}

#[test]
fn an_exception_holds_for_its_circle_only_and_as_long_as_that_exists() {
    let found = circles_of(&[("lib.rs", "mod a; mod b;"), ("a.rs", "use super::b;"), ("b.rs", "use super::a;")]);
    let exception = |folder, modules| Exception { name: "some", folder, modules };
    let faults = |name: &str, exception: Exception| faults(name, &found, [exception].iter()).len();
    assert_eq!(faults("some", exception("", &["a", "b"])), 0);
    assert_eq!(faults("some", exception("", &["a", "c"])), 2, "another circle");
    assert_eq!(faults("some", exception("a", &["a", "b"])), 2, "another folder");
    assert_eq!(faults("other", exception("", &["a", "b"])), 1, "another crate");
    assert_eq!(self::faults("some", &[], [exception("", &["a", "b"])].iter()).len(), 1, "no circle any more");
}

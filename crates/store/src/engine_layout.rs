//! The layout of the engine's folder, byte for byte as far as this crate reads it. A new version of the engine that lays its files out in
//! another way fails here first: docs/decisions/0061-reading-the-engines-files.md says what to do then.
#![allow(clippy::unwrap_used)]

use crate::{fjall_kv::*, journal::*, kv::*, tables::*};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::Path,
};

const SIZES: Sizes = Sizes { memtable_bytes: 1 << 20, journal_bytes: 96 << 20, cache_bytes: 1 << 20 };
/// The versions whose sources were read when `journal` and `tables` were written, or were last compared with them.
const READ_VERSIONS: [(&str, &str); 2] = [("fjall", "3.1.13"), ("lsm-tree", "3.1.10")];

/// The sections that every table has.
const TABLE_SECTIONS: [&str; 4] = ["data", "tli", "table_version", "meta"];
/// Those that only some have, by level and settings: an index in parts, and a filter, whole or in parts.
const TABLE_SECTIONS_OF_SOME: [&str; 3] = ["index", "filter", "filter_tli"];

/// Rows in each space, half of them in tables and half of them in the journal alone.
fn write(folder: &Path) -> FjallKv {
    let kv = FjallKv::open(folder, SIZES).unwrap();
    for half in 0..2_u8 {
        for space in Space::ALL {
            let mut batch = Batch::default();
            for row in 0..100_u8 {
                batch.put(space, vec![half, row], vec![row; 1_000]);
            }
            kv.commit(batch).unwrap();
        }
        if half == 0 {
            kv.flush_memtables().unwrap();
        }
    }
    kv
}

/// Every file below a folder, numbers replaced by `N`.
fn shapes(root: &Path, folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            shapes(root, &path, found);
            continue;
        }
        let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        let mut shape = String::new();
        for letter in name.chars() {
            match letter {
                '0'..='9' if shape.ends_with('N') => {}
                '0'..='9' => shape.push('N'),
                other => shape.push(other),
            }
        }
        found.insert(shape);
    }
}

fn names(sections: &[Section]) -> Vec<&str> {
    sections.iter().map(|section| std::str::from_utf8(&section.name).unwrap()).collect()
}

#[test]
fn the_engine_lays_out_its_folder_as_it_is_read() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path();
    let kv = write(folder);
    let (space_ids, last_batch) = (kv.space_ids(), kv.last_batch());
    drop(kv);

    let mut found = BTreeSet::new();
    shapes(folder, folder, &mut found);
    let known = ["N.jnl", "keyspaces/N/current", "keyspaces/N/tables/N", "keyspaces/N/vN", "lock", "version"];
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), known);
    assert_eq!(fs::read(folder.join(ENGINE_VERSION)).unwrap(), ENGINE_VERSION_BYTES);

    let mut previous = PreviousBatch::default();
    for journal in journals(folder).unwrap() {
        let scan = scan(&read_written(&journal).unwrap(), &mut previous);
        assert!(!scan.is_damaged() && scan.whole_bytes == scan.length, "{}: {scan:?}", journal.display());
    }
    assert_eq!(previous.ordinal, Some(last_batch), "the last batch is in the journals");

    // Beside ours, the engine has a space of its own.
    assert!(space_ids.iter().all(|id| spaces(folder).unwrap().contains(id)));
    for space in spaces(folder).unwrap() {
        let space_folder = spaces_folder(folder).join(space.to_string());
        let (version, _) = read_current(&space_folder).unwrap();
        let mut file = File::open(space_folder.join(format!("v{version}"))).unwrap();
        let found = sections(&mut file).unwrap().unwrap();
        let known = [
            "format_version",
            "crate_version",
            "tree_type",
            "level_count",
            "filter_hash_type",
            "tables",
            "blob_files",
            "blob_gc_stats",
        ];
        assert_eq!(names(&found), known, "a version of space {space}");
        let mut value = |name: &str| section(&mut file, &found, name.as_bytes()).unwrap().unwrap();
        assert_eq!(value("format_version"), [3]);
        assert_eq!(value("tree_type"), [0], "values lie in tables, not in files of their own");

        let tables = version_tables(folder, space).unwrap();
        assert!(!tables.is_empty() || !space_ids.contains(&space), "no table of space {space}");
        for table in tables {
            verify(&table).unwrap();
            let mut file = File::open(&table.path).unwrap();
            let found = sections(&mut file).unwrap().unwrap();
            let names = names(&found);
            let is_known = |name: &&str| TABLE_SECTIONS.contains(name) || TABLE_SECTIONS_OF_SOME.contains(name);
            assert!(names.iter().all(is_known), "{}: {names:?}", table.path.display());
            assert!(TABLE_SECTIONS.iter().all(|name| names.contains(name)), "{}: {names:?}", table.path.display());
            assert_eq!(section(&mut file, &found, b"table_version").unwrap().unwrap(), [3]);
        }
        let (mut faults, mut strays) = (Vec::new(), Vec::new());
        let files = inspect_space(folder, space, &mut faults, &mut strays);
        assert!(faults.is_empty() && strays.is_empty(), "{faults:?} {strays:?}");
        assert!(files.newest_seqno.is_some() || files.tables.is_empty(), "space {space} has no newest seqno");
    }
}

#[test]
fn the_engine_is_one_whose_files_were_compared_with_the_readers() {
    let lock = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock")).unwrap();
    for (name, version) in READ_VERSIONS {
        assert!(
            lock.contains(&format!("name = \"{name}\"\nversion = \"{version}\"\n")),
            "{name} is not {version} any more: docs/decisions/0061-reading-the-engines-files.md says what to compare"
        );
    }
}

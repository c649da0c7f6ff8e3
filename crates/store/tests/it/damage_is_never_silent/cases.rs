//! The cases: which file is damaged in which way, and what must follow.

// All functions that damage a file have one signature, whether they change its length or not.
#![allow(clippy::ptr_arg)]

use super::{Files, States};
use Expected::{Refused, Whole};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// The folder opens with all acknowledged messages.
    Whole,
    Refused,
}

pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) damage: fn(&mut Files, &States),
    pub(crate) after_crash: Expected,
    pub(crate) after_stop: Expected,
    /// The file name that a refusal must contain.
    pub(crate) names: &'static str,
}

const fn case(name: &'static str, damage: fn(&mut Files, &States), expected: Expected, names: &'static str) -> Case {
    Case { name, damage, after_crash: expected, after_stop: expected, names }
}

// Ways to damage the bytes of a file.

fn empty(bytes: &mut Vec<u8>) {
    bytes.clear();
}

fn halve(bytes: &mut Vec<u8>) {
    bytes.truncate(bytes.len() / 2);
}

fn shorten(bytes: &mut Vec<u8>) {
    bytes.truncate(bytes.len() - 1);
}

fn flip_middle(bytes: &mut Vec<u8>) {
    let at = bytes.len() / 2;
    bytes[at] ^= 0x10;
}

fn flip_end(bytes: &mut Vec<u8>) {
    let at = bytes.len() - 10;
    bytes[at] ^= 0x10;
}

fn flip_start(bytes: &mut Vec<u8>) {
    bytes[0] ^= 0x10;
}

fn zero(bytes: &mut Vec<u8>) {
    bytes.fill(0);
}

fn zero_page(bytes: &mut Vec<u8>) {
    let at = bytes.len() / 2;
    let end = bytes.len().min(at + 4_096);
    bytes[at..end].fill(0);
}

fn double(bytes: &mut Vec<u8>) {
    bytes.extend_from_within(..);
}

/// Where the batches of a journal end. Independent of the store's own reader: each batch ends with these bytes, and the next
/// one begins with 1.
fn batch_ends(bytes: &[u8]) -> Vec<usize> {
    let end = |at: &usize| bytes[..*at].ends_with(b"FJL\x03") && bytes.get(*at).is_none_or(|byte| *byte == 1);
    (4..=bytes.len()).filter(end).collect()
}

fn cut_last_batch(bytes: &mut Vec<u8>) {
    let ends = batch_ends(bytes);
    bytes.truncate(ends[ends.len() - 2]);
}

fn cut_three_batches(bytes: &mut Vec<u8>) {
    let ends = batch_ends(bytes);
    bytes.truncate(ends[ends.len() - 4]);
}

/// Removes one whole batch from the midst.
fn take_one_out(bytes: &mut Vec<u8>) {
    let ends = batch_ends(bytes);
    bytes.drain(ends[ends.len() - 4]..ends[ends.len() - 3]);
}

fn say_last_batch_twice(bytes: &mut Vec<u8>) {
    let ends = batch_ends(bytes);
    bytes.extend_from_within(ends[ends.len() - 2]..);
}

fn seqno_leaps(bytes: &mut Vec<u8>) {
    let ends = batch_ends(bytes);
    bytes[ends[ends.len() - 3] + 5 + 6] ^= 0x40;
}

// Ways to find the file to damage.

fn file<'a>(files: &'a mut Files, path: &str) -> &'a mut Vec<u8> {
    files.get_mut(Path::new(path)).unwrap_or_else(|| panic!("there is no {path}"))
}

pub(crate) const SEALED: &str = "store/0.jnl";
pub(crate) const NEWEST: &str = "store/1.jnl";
/// The folders of spaces, by the engine's ids.
const META: &str = "store/keyspaces/1";
const TIMELINE: &str = "store/keyspaces/2";

/// The largest file in a folder.
fn largest(files: &Files, folder: &str) -> PathBuf {
    let within = files.iter().filter(|(path, _)| path.starts_with(folder));
    within.max_by_key(|(_, bytes)| bytes.len()).unwrap_or_else(|| panic!("nothing in {folder}")).0.clone()
}

fn version_of(files: &Files, space: &str) -> PathBuf {
    // `current` begins with its number.
    let number =
        files[&Path::new(space).join("current")].iter().take(8).rev().fold(0_u64, |n, b| n << 8 | u64::from(*b));
    Path::new(space).join(format!("v{number}"))
}

fn change(files: &mut Files, path: &Path, damage: fn(&mut Vec<u8>)) {
    damage(files.get_mut(path).unwrap());
}

fn table(files: &mut Files, damage: fn(&mut Vec<u8>)) {
    let path = largest(files, &format!("{TIMELINE}/tables"));
    change(files, &path, damage);
}

fn version(files: &mut Files, damage: fn(&mut Vec<u8>)) {
    let path = version_of(files, TIMELINE);
    change(files, &path, damage);
}

fn remove_folder(files: &mut Files, folder: &str) {
    files.retain(|path, _| !path.starts_with(folder));
}

fn put(files: &mut Files, path: &str, bytes: Vec<u8>) {
    files.insert(path.into(), bytes);
}

fn copy(files: &mut Files, from: &str, to: &str) {
    let bytes = file(files, from).clone();
    put(files, to, bytes);
}

/// Asserts that the files that the cases damage are there.
pub(crate) fn expect_variety(files: &Files, journals: &[&str]) {
    for path in journals.iter().copied().chain(["manifest", "acknowledged-0", "notes-a"]) {
        assert!(files.contains_key(Path::new(path)), "{path} is not there: {:?}", files.keys());
    }
    for space in [META, TIMELINE] {
        assert!(!files[&largest(files, &format!("{space}/tables"))].is_empty());
    }
    assert!(batch_ends(&files[Path::new(journals[journals.len() - 1])]).len() > 5);
}

/// Cases for a store with two journals.
pub(crate) const JOURNALS: &[Case] = &[
    case("nothing", |_, _| {}, Whole, ""),
    case("older journal deleted", |f, _| drop(f.remove(Path::new(SEALED))), Refused, SEALED),
    case("older journal emptied", |f, _| empty(file(f, SEALED)), Refused, SEALED),
    case("older journal cut in half", |f, _| halve(file(f, SEALED)), Refused, SEALED),
    case("older journal lacks its last byte", |f, _| shorten(file(f, SEALED)), Refused, SEALED),
    case("older journal lacks its last batch", |f, _| cut_last_batch(file(f, SEALED)), Refused, ".jnl"),
    case("older journal: a bit flipped in its midst", |f, _| flip_middle(file(f, SEALED)), Refused, SEALED),
    case("older journal: a bit flipped in its last batch", |f, _| flip_end(file(f, SEALED)), Refused, SEALED),
    case("older journal zeroed", |f, _| zero(file(f, SEALED)), Refused, SEALED),
    case("older journal: a page zeroed", |f, _| zero_page(file(f, SEALED)), Refused, SEALED),
    case("older journal doubled", |f, _| double(file(f, SEALED)), Refused, SEALED),
    case("newest journal deleted", |f, _| drop(f.remove(Path::new(NEWEST))), Refused, NEWEST),
    case("newest journal emptied", |f, _| empty(file(f, NEWEST)), Refused, NEWEST),
    case("newest journal cut in half", |f, _| halve(file(f, NEWEST)), Refused, NEWEST),
    case("newest journal lacks its last byte", |f, _| shorten(file(f, NEWEST)), Refused, NEWEST),
    case("newest journal lacks its last batch", |f, _| cut_last_batch(file(f, NEWEST)), Refused, NEWEST),
    case("newest journal lacks its last three batches", |f, _| cut_three_batches(file(f, NEWEST)), Refused, NEWEST),
    case("newest journal lacks a batch of its midst", |f, _| take_one_out(file(f, NEWEST)), Refused, NEWEST),
    case("newest journal: its last batch twice", |f, _| say_last_batch_twice(file(f, NEWEST)), Refused, NEWEST),
    case("newest journal: a batch's seqno leaps", |f, _| seqno_leaps(file(f, NEWEST)), Refused, NEWEST),
    case("newest journal: a bit flipped at its start", |f, _| flip_start(file(f, NEWEST)), Refused, NEWEST),
    case("newest journal: a bit flipped in its midst", |f, _| flip_middle(file(f, NEWEST)), Refused, NEWEST),
    case("newest journal: a bit flipped in its last batch", |f, _| flip_end(file(f, NEWEST)), Refused, NEWEST),
    case("newest journal zeroed", |f, _| zero(file(f, NEWEST)), Refused, NEWEST),
    case("newest journal: a page zeroed", |f, _| zero_page(file(f, NEWEST)), Refused, NEWEST),
    case("newest journal doubled", |f, _| double(file(f, NEWEST)), Refused, NEWEST),
    case(
        "both journals deleted",
        |f, _| {
            f.remove(Path::new(SEALED));
            f.remove(Path::new(NEWEST));
        },
        Refused,
        ".jnl",
    ),
    case(
        "newest journal and its acknowledgement log deleted",
        |f, _| {
            f.remove(Path::new(NEWEST));
            f.remove(Path::new("acknowledged-1"));
        },
        Refused,
        NEWEST,
    ),
    case("older journal copied as the next one", |f, _| copy(f, SEALED, "store/2.jnl"), Refused, "store/2.jnl"),
    case("newest journal copied as the next one", |f, _| copy(f, NEWEST, "store/2.jnl"), Refused, "store/2.jnl"),
    case("newest journal copied far ahead", |f, _| copy(f, NEWEST, "store/90.jnl"), Refused, "store/90.jnl"),
    case("newest journal copied beside itself", |f, _| copy(f, NEWEST, "store/1 (copy).jnl"), Refused, "(copy)"),
    case("older journal copied over the newest", |f, _| copy(f, SEALED, NEWEST), Refused, NEWEST),
    case("newest journal copied over the older", |f, _| copy(f, NEWEST, SEALED), Refused, ".jnl"),
    case(
        "journals swapped",
        |f, _| {
            let older = file(f, SEALED).clone();
            copy(f, NEWEST, SEALED);
            put(f, NEWEST, older);
        },
        Refused,
        ".jnl",
    ),
    case(
        "an earlier state of all journals put back",
        |f, states| {
            f.retain(|path, _| path.extension().is_none_or(|extension| extension != "jnl"));
            let journals = states.earlier.iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "jnl"));
            f.extend(journals.map(|(path, bytes)| (path.clone(), bytes.clone())));
        },
        Refused,
        ".jnl",
    ),
];

/// Cases for the other files, of a store with one journal.
pub(crate) const OTHERS: &[Case] = &[
    case("nothing else", |_, _| {}, Whole, ""),
    // Tables.
    case(
        "a table deleted",
        |f, _| {
            let path = largest(f, &format!("{TIMELINE}/tables"));
            f.remove(&path);
        },
        Refused,
        "keyspaces/2/tables",
    ),
    case("a table emptied", |f, _| table(f, empty), Refused, "keyspaces/2/tables"),
    case("a table cut in half", |f, _| table(f, halve), Refused, "keyspaces/2/tables"),
    case("a table lacks its last byte", |f, _| table(f, shorten), Refused, "keyspaces/2/tables"),
    case("a table: a bit flipped at its start", |f, _| table(f, flip_start), Refused, "keyspaces/2/tables"),
    case("a table: a bit flipped in its midst", |f, _| table(f, flip_middle), Refused, "keyspaces/2/tables"),
    case("a table: a bit flipped at its end", |f, _| table(f, flip_end), Refused, "keyspaces/2/tables"),
    case("a table zeroed", |f, _| table(f, zero), Refused, "keyspaces/2/tables"),
    case("a table: a page zeroed", |f, _| table(f, zero_page), Refused, "keyspaces/2/tables"),
    case("a table doubled", |f, _| table(f, double), Refused, "keyspaces/2/tables"),
    case(
        "a table copied under a number of its own",
        |f, _| {
            let from = largest(f, &format!("{TIMELINE}/tables"));
            copy(f, from.to_str().unwrap(), &format!("{TIMELINE}/tables/900"));
        },
        Whole,
        "",
    ),
    case(
        "a table copied beside itself",
        |f, _| {
            let from = largest(f, &format!("{TIMELINE}/tables"));
            copy(f, from.to_str().unwrap(), &format!("{TIMELINE}/tables/3 (copy)"));
        },
        Refused,
        "(copy)",
    ),
    case(
        "a table of another space in its place",
        |f, _| {
            let (from, to) = (largest(f, &format!("{META}/tables")), largest(f, &format!("{TIMELINE}/tables")));
            copy(f, from.to_str().unwrap(), to.to_str().unwrap());
        },
        Refused,
        "keyspaces/2/tables",
    ),
    case(
        "all tables of a space deleted",
        |f, _| remove_folder(f, &format!("{TIMELINE}/tables")),
        Refused,
        "keyspaces/2",
    ),
    // The files that name the tables.
    case(
        "`current` deleted",
        |f, _| drop(f.remove(&Path::new(TIMELINE).join("current"))),
        Refused,
        "keyspaces/2/current",
    ),
    case("`current` emptied", |f, _| empty(file(f, "store/keyspaces/2/current")), Refused, "keyspaces/2/current"),
    case("`current` cut", |f, _| shorten(file(f, "store/keyspaces/2/current")), Refused, "keyspaces/2/current"),
    case("`current`: a bit flipped", |f, _| flip_start(file(f, "store/keyspaces/2/current")), Refused, "keyspaces/2/v"),
    case(
        "`current`: its checksum flipped",
        |f, _| flip_end(file(f, "store/keyspaces/2/current")),
        Refused,
        "keyspaces/2/v",
    ),
    case("`current` zeroed", |f, _| zero(file(f, "store/keyspaces/2/current")), Refused, "keyspaces/2/v"),
    case("`current` doubled", |f, _| double(file(f, "store/keyspaces/2/current")), Refused, "keyspaces/2/current"),
    case(
        "`current` of the engine's own space deleted",
        |f, _| drop(f.remove(Path::new("store/keyspaces/0/current"))),
        Refused,
        "keyspaces/0/current",
    ),
    case(
        "a version deleted",
        |f, _| {
            let path = version_of(f, TIMELINE);
            f.remove(&path);
        },
        Refused,
        "keyspaces/2/v",
    ),
    case("a version cut in half", |f, _| version(f, halve), Refused, "keyspaces/2/v"),
    case("a version: a bit flipped", |f, _| version(f, flip_middle), Refused, "keyspaces/2/v"),
    case("a version zeroed", |f, _| version(f, zero), Refused, "keyspaces/2/v"),
    case("a version doubled", |f, _| version(f, double), Refused, "keyspaces/2/v"),
    case(
        "a version copied as the next one",
        |f, _| {
            let from = version_of(f, TIMELINE);
            copy(f, from.to_str().unwrap(), &format!("{TIMELINE}/v90000"));
        },
        Whole,
        "",
    ),
    // Folders.
    case("a space's folder deleted", |f, _| remove_folder(f, TIMELINE), Refused, "keyspaces/2"),
    case("the engine's own space deleted", |f, _| remove_folder(f, "store/keyspaces/0"), Refused, "keyspaces/0"),
    case("all spaces deleted", |f, _| remove_folder(f, "store/keyspaces"), Refused, "keyspaces/0"),
    case("the engine's folder deleted", |f, _| remove_folder(f, "store"), Refused, "store"),
    case(
        "a space's folder copied beside itself",
        |f, _| {
            let copies: Vec<_> = f.iter().filter(|(path, _)| path.starts_with(TIMELINE)).collect();
            let moved = |path: &Path| Path::new("store/keyspaces/2 (copy)").join(path.strip_prefix(TIMELINE).unwrap());
            let copies: Files = copies.into_iter().map(|(path, bytes)| (moved(path), bytes.clone())).collect();
            f.extend(copies);
        },
        Refused,
        "(copy)",
    ),
    case(
        "an earlier state of one space put back",
        |f, states| {
            remove_folder(f, TIMELINE);
            let earlier = states.earlier.iter().filter(|(path, _)| path.starts_with(TIMELINE));
            f.extend(earlier.map(|(path, bytes)| (path.clone(), bytes.clone())));
        },
        Whole,
        "",
    ),
    case(
        "an earlier state of the engine put back",
        |f, states| {
            remove_folder(f, "store");
            let earlier = states.earlier.iter().filter(|(path, _)| path.starts_with("store"));
            f.extend(earlier.map(|(path, bytes)| (path.clone(), bytes.clone())));
        },
        Refused,
        ".jnl",
    ),
    case("the engine's `version` deleted", |f, _| drop(f.remove(Path::new("store/version"))), Refused, "store/version"),
    case(
        "the engine's `version`: a bit flipped",
        |f, _| flip_start(file(f, "store/version")),
        Refused,
        "store/version",
    ),
    case("the engine's `lock` deleted", |f, _| drop(f.remove(Path::new("store/lock"))), Whole, ""),
    // Our own files.
    case("`manifest` deleted", |f, _| drop(f.remove(Path::new("manifest"))), Refused, "manifest"),
    case("`manifest` emptied", |f, _| empty(file(f, "manifest")), Refused, "manifest"),
    case("`manifest`: a bit flipped", |f, _| flip_middle(file(f, "manifest")), Refused, "manifest"),
    case("`manifest` zeroed", |f, _| zero(file(f, "manifest")), Refused, "manifest"),
    case("`format` deleted", |f, _| drop(f.remove(Path::new("format"))), Refused, "format"),
    case("`format` emptied", |f, _| empty(file(f, "format")), Refused, "format"),
    case("`format` says 1", |f, _| put(f, "format", b"1\n".to_vec()), Whole, ""),
    case("`format` says 9", |f, _| put(f, "format", b"9\n".to_vec()), Refused, "format 9"),
    case("the acknowledgement log deleted", |f, _| drop(f.remove(Path::new("acknowledged-0"))), Whole, ""),
    case("the acknowledgement log: a bit flipped", |f, _| flip_middle(file(f, "acknowledged-0")), Whole, ""),
    case("the acknowledgement log zeroed", |f, _| zero(file(f, "acknowledged-0")), Whole, ""),
    case("the acknowledgement log doubled", |f, _| double(file(f, "acknowledged-0")), Whole, ""),
    case("`closed` deleted", |f, _| drop(f.remove(Path::new("closed"))), Whole, ""),
    case(
        "`closed` flipped",
        |f, _| {
            if let Some(closed) = f.get_mut(Path::new("closed")) {
                flip_middle(closed);
            }
        },
        Whole,
        "",
    ),
    case("`notes-a` is noise", |f, _| put(f, "notes-a", vec![0xA5; 5_000]), Whole, ""),
    case("`notes-b` is noise", |f, _| put(f, "notes-b", vec![0xA5; 5_000]), Whole, ""),
    case("`lock` deleted", |f, _| drop(f.remove(Path::new("lock"))), Whole, ""),
];

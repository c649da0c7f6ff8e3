//! Journals as an engine leaves them that has ended after a write that failed.
#![allow(clippy::unwrap_used)]
use super::*;
use crate::{fjall_kv::*, kv::*};

const SIZES: Sizes = Sizes { memtable_bytes: 1 << 20, journal_bytes: 96 << 20, cache_bytes: 1 << 20 };

fn open(folder: &Path) -> FjallKv {
    FjallKv::open(&folder.join("store"), SIZES).unwrap()
}

fn put(kv: &FjallKv, key: u8) {
    let mut batch = Batch::default();
    batch.put(Space::Meta, vec![key], vec![key; 100]);
    kv.commit(batch).unwrap();
}

fn kept(folder: &Path) -> Vec<u8> {
    let mut keys = Vec::new();
    // Without the row in which the engine counts batches.
    let all = &mut |key: &[u8], _: &[u8]| {
        keys.extend_from_slice(key);
        true
    };
    open(folder).scan(Space::Meta, &[], LAST_KEY, Order::Up, all).unwrap();
    keys
}

/// Rows 1 to 3, of which the first two were acknowledged, in a journal that the engine then closed with another. Answers
/// the number that what was refused begins with.
fn refused_before_a_rotation(folder: &Path) -> u64 {
    let kv = open(folder);
    put(&kv, 1);
    put(&kv, 2);
    let refused_from = kv.next_number();
    put(&kv, 3);
    drop(kv);
    File::create_new(folder.join("store/1.jnl")).unwrap();
    refused_from
}

#[test]
fn what_was_refused_goes_from_a_journal_that_is_no_longer_the_newest() {
    for torn in [0, 1, 60] {
        let scratch = tempfile::tempdir().unwrap();
        let folder = Folder::take(scratch.path()).unwrap();
        let refused_from = refused_before_a_rotation(scratch.path());
        let journal = scratch.path().join("store/0.jnl");
        let written = read_written(&journal).unwrap();
        fs::write(&journal, &written[..written.len() - torn]).unwrap();
        cut_refused(&folder, refused_from).unwrap();
        assert_eq!(kept(scratch.path()), [1, 2], "{torn} bytes were never written");
        cut_refused(&folder, refused_from).unwrap();
        assert_eq!(kept(scratch.path()), [1, 2], "a fresh start that failed is tried again");
    }
}

#[test]
fn what_the_engine_writes_late_is_written_to_a_file_that_is_gone() {
    use std::io::Write;
    for rotated in [true, false] {
        let scratch = tempfile::tempdir().unwrap();
        let folder = Folder::take(scratch.path()).unwrap();
        let refused_from = refused_before_a_rotation(scratch.path());
        if !rotated {
            fs::remove_file(scratch.path().join("store/1.jnl")).unwrap();
        }
        let journal = scratch.path().join("store/0.jnl");
        let mut written = read_written(&journal).unwrap();
        let held_back = written.split_off(written.len() - 60);
        fs::write(&journal, &written).unwrap();
        let mut held_open = File::options().append(true).open(&journal).unwrap();
        cut_refused(&folder, refused_from).unwrap();
        put(&open(scratch.path()), 4);
        held_open.write_all(&held_back).unwrap();
        assert_eq!(kept(scratch.path()), [1, 2, 4]);
    }
}

#[test]
fn damage_before_what_was_refused_is_not_cut() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = Folder::take(scratch.path()).unwrap();
    let refused_from = refused_before_a_rotation(scratch.path());
    let journal = scratch.path().join("store/0.jnl");
    let mut written = read_written(&journal).unwrap();
    written[60] ^= 1;
    fs::write(&journal, &written).unwrap();
    let error = cut_refused(&folder, refused_from).unwrap_err().to_string();
    assert!(error.contains("at byte 0 and 1 whole batches follow"), "{error}");
    assert_eq!(read_written(&journal).unwrap(), written);
}

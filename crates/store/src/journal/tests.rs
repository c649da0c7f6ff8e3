//! Journals as the engine leaves them when it has closed after a failed write.
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

fn keys(folder: &Path) -> Vec<u8> {
    let mut keys = Vec::new();
    // `LAST_KEY` excludes the row under `BATCH_KEY`.
    let all = &mut |key: &[u8], _: &[u8]| {
        keys.extend_from_slice(key);
        true
    };
    open(folder).scan(Space::Meta, &[], LAST_KEY, Order::Ascending, all).unwrap();
    keys
}

/// Writes rows 1 to 3, of which the third is refused, and then begins another journal. Answers the seqno from which on
/// batches are refused.
fn refused_before_a_rotation(folder: &Path) -> u64 {
    let kv = open(folder);
    put(&kv, 1);
    put(&kv, 2);
    let refused_from_seqno = kv.next_seqno();
    put(&kv, 3);
    drop(kv);
    File::create_new(folder.join("store/1.jnl")).unwrap();
    refused_from_seqno
}

#[test]
fn a_refused_batch_is_cut_from_a_journal_that_is_not_the_newest() {
    for torn in [0, 1, 60] {
        let scratch = tempfile::tempdir().unwrap();
        let folder = Folder::lock(scratch.path()).unwrap();
        let refused_from_seqno = refused_before_a_rotation(scratch.path());
        let journal = scratch.path().join("store/0.jnl");
        let written = read_written(&journal).unwrap();
        fs::write(&journal, &written[..written.len() - torn]).unwrap();
        cut_refused(&folder, refused_from_seqno).unwrap();
        assert_eq!(keys(scratch.path()), [1, 2], "{torn} bytes were never written");
        cut_refused(&folder, refused_from_seqno).unwrap();
        assert_eq!(keys(scratch.path()), [1, 2], "a failed restart is tried again");
    }
}

#[test]
fn bytes_that_the_engine_writes_after_the_cut_do_not_reach_the_store() {
    use std::io::Write;
    for rotated in [true, false] {
        let scratch = tempfile::tempdir().unwrap();
        let folder = Folder::lock(scratch.path()).unwrap();
        let refused_from_seqno = refused_before_a_rotation(scratch.path());
        if !rotated {
            fs::remove_file(scratch.path().join("store/1.jnl")).unwrap();
        }
        let journal = scratch.path().join("store/0.jnl");
        let mut written = read_written(&journal).unwrap();
        let held_back = written.split_off(written.len() - 60);
        fs::write(&journal, &written).unwrap();
        let mut held_open = File::options().append(true).open(&journal).unwrap();
        cut_refused(&folder, refused_from_seqno).unwrap();
        put(&open(scratch.path()), 4);
        held_open.write_all(&held_back).unwrap();
        assert_eq!(keys(scratch.path()), [1, 2, 4]);
    }
}

#[test]
fn damage_before_a_refused_batch_is_not_cut() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = Folder::lock(scratch.path()).unwrap();
    let refused_from_seqno = refused_before_a_rotation(scratch.path());
    let journal = scratch.path().join("store/0.jnl");
    let mut written = read_written(&journal).unwrap();
    written[60] ^= 1;
    fs::write(&journal, &written).unwrap();
    let error = cut_refused(&folder, refused_from_seqno).unwrap_err().to_string();
    assert!(error.contains("at byte 0 and 1 whole batches follow"), "{error}");
    assert_eq!(read_written(&journal).unwrap(), written);
}

#[test]
fn what_was_written_is_read_whatever_holes_lie_in_it_and_behind_it() {
    use std::os::unix::fs::FileExt;
    const MIB: usize = 1 << 20;
    let scratch = tempfile::tempdir().unwrap();
    let journal = scratch.path().join("0.jnl");
    let written = |parts: &[(usize, usize)], length: usize| {
        let file = File::create(&journal).unwrap();
        file.set_len(length as u64).unwrap();
        for (from, to) in parts {
            file.write_all_at(&vec![7; to - from], *from as u64).unwrap();
        }
        let mut expected = vec![0; parts.last().map_or(0, |(_, to)| *to)];
        parts.iter().for_each(|(from, to)| expected[*from..*to].fill(7));
        assert!(read_written(&journal).unwrap() == expected, "{parts:?} of {length}");
    };
    for length in [9 * MIB, 9 * MIB + 1] {
        written(&[], length);
        written(&[(0, 1)], length);
        written(&[(0, 64 * 1024)], length);
        written(&[(0, 3 * MIB + 5)], length);
        written(&[(0, 10), (5 * MIB - 1, 5 * MIB + 1)], length);
        written(&[(0, 10), (2 * MIB, 3 * MIB), (length - 1, length)], length);
    }
    written(&[], 0);
    // Zeros that were written are no hole.
    let file = File::create(&journal).unwrap();
    file.write_all_at(&vec![0; 3 * MIB], 0).unwrap();
    file.write_all_at(&[7], 5).unwrap();
    assert_eq!(read_written(&journal).unwrap(), [0, 0, 0, 0, 0, 7]);
}

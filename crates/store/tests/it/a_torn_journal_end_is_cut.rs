//! A torn batch that a crash leaves at the journal's end is cut. Damage to acknowledged batches is refused until an operator
//! repairs the folder.
// Slow: left out by `make test-quick`.

use crate::support::*;
use std::{
    fs,
    path::{Path, PathBuf},
};
use tidings_domain::{model::*, store::*};
use tidings_store::{EmbeddedStore, OpenError, RepairReport, repair};

const ROOM: ConversationNo = ConversationNo(1);

/// A folder as a crash leaves it.
struct Crashed {
    folder: tempfile::TempDir,
    journal: String,
    bytes: Vec<u8>,
    /// Where each batch of messages ends.
    ends: Vec<usize>,
}

fn newest_journal(folder: &Path) -> PathBuf {
    let entries = fs::read_dir(folder.join("store")).unwrap().map(|entry| entry.unwrap().path());
    let number = |path: &PathBuf| path.file_stem()?.to_str()?.parse::<u64>().ok();
    entries.filter(|path| path.extension().is_some_and(|e| e == "jnl")).max_by_key(number).unwrap()
}

/// Four batches of three messages, then a copy of the open folder as it was before the fourth was acknowledged.
fn crashed() -> Crashed {
    let served = scratch();
    let store = open(served.path());
    populate(&store);
    let path = newest_journal(served.path());
    let mut ends = Vec::new();
    let notes = served.path().join(format!("acknowledged-{}", path.file_stem().unwrap().to_str().unwrap()));
    let mut acknowledged = Vec::new();
    for batch in 0..4 {
        acknowledged = fs::read(&notes).unwrap();
        say(&store, ROOM, (0..3).map(|n| format!("{batch}-{n}")), NOON);
        ends.push(written(&fs::read(&path).unwrap()));
    }
    let folder = scratch();
    copy_folder(served.path(), folder.path());
    let bytes = fs::read(&path).unwrap()[..ends[3]].to_vec();
    let journal = path.file_name().unwrap().to_str().unwrap().to_owned();
    fs::write(folder.path().join(notes.file_name().unwrap()), acknowledged).unwrap();
    // The preallocated rest of tens of MiB is not copied again for each case.
    fs::write(folder.path().join("store").join(&journal), &bytes).unwrap();
    Crashed { folder, journal, bytes, ends }
}

impl Crashed {
    /// A fresh copy with this journal in it.
    fn with_journal(&self, bytes: &[u8]) -> tempfile::TempDir {
        let copy = scratch();
        copy_folder(self.folder.path(), copy.path());
        fs::write(copy.path().join("store").join(&self.journal), bytes).unwrap();
        copy
    }

    fn flipped(&self, at: usize) -> tempfile::TempDir {
        let mut bytes = self.bytes.clone();
        bytes[at] ^= 0x10;
        self.with_journal(&bytes)
    }
}

fn ids(batches: usize) -> Vec<String> {
    (0..batches).flat_map(|batch| (0..3).map(move |n| format!("{batch}-{n}"))).collect()
}

/// Asserts that the folder opens with exactly these batches, accepts another one, and is sound.
fn holds(folder: &Path, batches: usize) {
    let store = open(folder);
    assert_eq!(stored_ids(&store, ROOM), ids(batches));
    assert_eq!(store.head(ROOM).unwrap().last_seq, batches as u64 * 3);
    say(&store, ROOM, ["after"], NOON);
    assert_eq!(store.head(ROOM).unwrap().last_seq, batches as u64 * 3 + 1);
    let report = store.check(tidings_popups::check_popups).unwrap();
    assert!(report.is_sound(), "{report}");
}

fn refusal(folder: &Path) -> String {
    match EmbeddedStore::open(options(folder)) {
        Err(error @ OpenError::Damaged(_)) => error.to_string(),
        Err(other) => panic!("refused for another reason: {other}"),
        Ok(_) => panic!("opened"),
    }
}

#[test]
fn a_whole_journal_opens_after_a_crash() {
    let crashed = crashed();
    holds(crashed.folder.path(), 4);
}

#[test]
fn only_the_last_batch_is_dropped_when_it_is_cut_at_any_byte() {
    let crashed = crashed();
    for length in crashed.ends[2]..crashed.ends[3] {
        let copy = crashed.with_journal(&crashed.bytes[..length]);
        let store = open(copy.path());
        assert_eq!(stored_ids(&store, ROOM), ids(3), "cut to {length}");
    }
    holds(crashed.with_journal(&crashed.bytes[..crashed.ends[3] - 1]).path(), 3);
}

#[test]
fn a_last_batch_with_an_unwritten_page_is_dropped() {
    let crashed = crashed();
    let mut bytes = crashed.bytes.clone();
    let middle = (crashed.ends[2] + crashed.ends[3]) / 2;
    bytes[crashed.ends[2] + 20..middle].fill(0);
    holds(crashed.with_journal(&bytes).path(), 3);
    bytes[crashed.ends[2]..].fill(0);
    holds(crashed.with_journal(&bytes).path(), 3);
    bytes.extend_from_slice(&[0xA5; 5_000]);
    holds(crashed.with_journal(&bytes).path(), 3);
}

#[test]
fn a_flipped_byte_in_the_last_batch_drops_it() {
    let crashed = crashed();
    for at in (crashed.ends[2]..crashed.ends[3]).step_by(11) {
        // The checksum does not cover a batch's seqno: see below.
        if (5..13).contains(&(at - crashed.ends[2])) {
            continue;
        }
        let copy = crashed.flipped(at);
        let store = open(copy.path());
        assert_eq!(stored_ids(&store, ROOM), ids(3), "flipped at {at}");
    }
}

#[test]
fn a_last_batch_whose_seqno_falls_or_leaps_is_dropped() {
    let crashed = crashed();
    let number_at = crashed.ends[2] + 5;
    for number in [0_u64, 1, u64::MAX, 1 << 63, 1 << 40] {
        let mut bytes = crashed.bytes.clone();
        bytes[number_at..][..8].copy_from_slice(&number.to_le_bytes());
        holds(crashed.with_journal(&bytes).path(), 3);
    }
    // A small step forward does no harm: later seqnos go on from there.
    holds(crashed.flipped(number_at + 1).path(), 4);
}

#[test]
fn cut_bytes_are_saved_in_the_data_folder() {
    let crashed = crashed();
    let torn = crashed.bytes.len() - 1;
    let copy = crashed.with_journal(&crashed.bytes[..torn]);
    drop(open(copy.path()));
    let kept = copy.path().join(format!("damaged-{}.bin", crashed.journal.trim_end_matches(".jnl")));
    assert_eq!(fs::read(kept).unwrap(), crashed.bytes[crashed.ends[2]..torn]);
}

#[test]
fn only_a_repair_with_losses_gives_a_new_epoch() {
    let crashed = crashed();
    let epoch = open(crashed.with_journal(&crashed.bytes).path()).epoch();
    let sound = crashed.with_journal(&crashed.bytes);
    assert_eq!(repair(sound.path()).unwrap(), RepairReport::default());
    assert_eq!(open(sound.path()).epoch(), epoch);

    let mended = crashed.with_journal(&crashed.bytes[..crashed.bytes.len() - 1]);
    assert_eq!(open(mended.path()).epoch(), epoch, "the positions of the cut batch were never given out");

    let repaired = crashed.flipped((crashed.ends[0] + crashed.ends[1]) / 2);
    repair(repaired.path()).unwrap();
    let renewed = open(repaired.path()).epoch();
    assert_ne!(renewed, epoch, "positions that cursors name are given out again");
    assert_eq!(open(repaired.path()).epoch(), renewed);
}

#[test]
fn a_flipped_byte_in_an_earlier_batch_is_refused_until_repaired() {
    let crashed = crashed();
    let at = (crashed.ends[0] + crashed.ends[1]) / 2;
    let copy = crashed.flipped(at);
    let refusal = refusal(copy.path());
    assert!(refusal.contains("`tidings check --repair`") && refusal.contains("2 whole batches"), "{refusal}");
    let repair = repair(copy.path()).unwrap();
    assert_eq!(repair.repaired.len(), 1);
    assert_eq!((repair.repaired[0].at, repair.repaired[0].batches_dropped), (crashed.ends[0] as u64, 2));
    // The fourth batch was never acknowledged.
    assert_eq!((repair.lost[0].conversation.as_deref(), &repair.lost[0].seqs[..]), (Some("g"), &[(4, 9)][..]));
    holds(copy.path(), 1);
}

#[test]
fn after_a_clean_shutdown_a_damaged_journal_end_is_refused() {
    let served = scratch();
    let store = open(served.path());
    populate(&store);
    say(&store, ROOM, ids(2), NOON);
    drop(store);
    assert!(served.path().join("closed").exists());
    let journal = newest_journal(served.path());
    let bytes = fs::read(&journal).unwrap();
    let end = written(&bytes);

    let mut flipped = bytes.clone();
    flipped[end - 20] ^= 1;
    fs::write(&journal, &flipped).unwrap();
    assert!(refusal(served.path()).contains("shut down cleanly"));
    fs::write(&journal, &bytes[..end - 1]).unwrap();
    assert!(refusal(served.path()).contains("tidings check --repair"));
    fs::remove_file(&journal).unwrap();
    assert!(refusal(served.path()).contains("has 0 of the"));

    fs::write(&journal, &bytes).unwrap();
    assert_eq!(stored_ids(&open(served.path()), ROOM), ids(2), "a refusal changes nothing");

    fs::write(&journal, &bytes[..end / 2]).unwrap();
    let repaired = repair(served.path()).unwrap();
    assert_eq!(repaired.repaired.len(), 1, "the journal is named once, though it is both shorter and torn");
    assert_eq!(stored_ids(&open(served.path()), ROOM), Vec::<String>::new());
}

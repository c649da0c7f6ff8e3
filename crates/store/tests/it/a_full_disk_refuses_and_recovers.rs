//! A full disk: commits are refused, reads go on, and once there is room commits go on. No acknowledged message is missing.

use crate::support::*;
use std::{
    fs,
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use tidings_domain::{model::*, store::*};
use tidings_store::{EmbeddedOptions, EmbeddedStore};

fn try_to_say(store: &EmbeddedStore, room: ConversationNo, id: &str) -> StoreResult<()> {
    let entry = NewEntry { body: format!("\"{:a>2000}\"", 1).into(), ..message(id) };
    store.commit(&[Proposal::Append { conversation: room, entry }], NOON).map(drop)
}

#[test]
fn below_the_reserve_commits_are_refused_and_reads_go_on() {
    let folder = scratch();
    let room = {
        let store = open(folder.path());
        let room = populate(&store);
        say(&store, room, ["a"], NOON);
        room
    };
    let store =
        EmbeddedStore::open(EmbeddedOptions { disk_reserve_bytes: u64::MAX, ..options(folder.path()) }).unwrap();
    assert!(matches!(try_to_say(&store, room, "b"), Err(StoreError::DiskFull)));
    assert_eq!(stored_ids(&store, room), ["a"]);
    assert_eq!(store.head(room).unwrap().last_seq, 1);
    drop(store);
    let store = open(folder.path());
    say(&store, room, ["b"], NOON);
    assert_eq!(stored_ids(&store, room), ["a", "b"]);
}

/// A small file system of its own.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// `None` if the process may not mount a file system.
    fn mount(mib: u32) -> Option<SmallDisk> {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={mib}m");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(folder.path()).output();
        mounted.is_ok_and(|out| out.status.success()).then_some(SmallDisk(folder))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Takes all free space but `left` bytes.
    fn fill(&self, left: u64) {
        let stat = rustix::fs::statvfs(self.path()).unwrap();
        let taken = (stat.f_bavail * stat.f_frsize).saturating_sub(left);
        let file = fs::File::create(self.path().join("filler")).unwrap();
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, taken).unwrap();
    }

    fn empty(&self) {
        fs::remove_file(self.path().join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(self.0.path()).status().ok();
    }
}

/// Commits until one is accepted: the store checks the free space only now and then.
fn say_when_there_is_room(store: &EmbeddedStore, room: ConversationNo, id: &str) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while let Err(error) = try_to_say(store, room, id) {
        assert!(Instant::now() < deadline, "{error}");
        std::thread::yield_now();
    }
}

/// Twice: commits, fills the disk, commits until refused, makes room, and then commits another message and the refused
/// one. Answers the acknowledged ids.
fn two_rounds(
    disk: &SmallDisk,
    store: &EmbeddedStore,
    room: ConversationNo,
    left: u64,
    is_expected: impl Fn(&StoreError) -> bool,
) -> Vec<String> {
    let mut acknowledged = Vec::new();
    for round in 0..2 {
        for n in 0..50 {
            let id = format!("{round}-before-{n}");
            say_when_there_is_room(store, room, &id);
            acknowledged.push(id);
        }
        disk.fill(left);
        let refused = (0..200_000).find_map(|n| {
            let id = format!("{round}-full-{n}");
            match try_to_say(store, room, &id) {
                Ok(()) => {
                    acknowledged.push(id);
                    None
                }
                Err(error) => Some((id, error)),
            }
        });
        let (refused, error) = refused.expect("a full disk refuses");
        assert!(is_expected(&error), "{error:?}");
        // Reads go on, and find all acknowledged messages.
        assert_eq!(stored_ids(store, room), acknowledged);
        assert_eq!(store.head(room).unwrap().last_seq, acknowledged.len() as u64);
        disk.empty();
        acknowledged.push(format!("{round}-after"));
        say_when_there_is_room(store, room, &acknowledged[acknowledged.len() - 1]);
        assert_eq!(stored_ids(store, room), acknowledged, "a refused message is not stored without a retry");
        say_when_there_is_room(store, room, &refused);
        acknowledged.push(refused);
        assert_eq!(stored_ids(store, room), acknowledged, "a refused send and its retry give one entry");
    }
    acknowledged
}

/// Fills the disk up, commits until `is_expected` answers true, makes room, goes on and reopens.
fn fills_up_and_recovers(reserve: u64, left: u64, is_expected: impl Fn(&StoreError) -> bool) {
    let Some(disk) = SmallDisk::mount(160) else {
        println!("skipped: no file system may be mounted here");
        return;
    };
    let data = disk.path().join("data");
    let options = EmbeddedOptions { disk_reserve_bytes: reserve, memtable_bytes: 1 << 20, ..options(&data) };
    let store = EmbeddedStore::open(options.clone()).unwrap();
    let room = populate(&store);
    let stop = AtomicBool::new(false);
    let acknowledged = std::thread::scope(|scope| {
        // A reader finds stored rows at all times, also while the engine is restarted.
        let reader = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                assert!(store.conversation(room).unwrap().is_some());
            }
        });
        let stopping = scopeguard::guard((), |()| stop.store(true, Ordering::Relaxed));
        let acknowledged = two_rounds(&disk, &store, room, left, is_expected);
        drop(stopping);
        reader.join().unwrap();
        acknowledged
    });
    assert_eq!(store.last_position(), acknowledged.len() as u64);
    drop(store);
    let store = EmbeddedStore::open(options).unwrap();
    assert_eq!(stored_ids(&store, room), acknowledged);
    let report = store.check(tidings_popups::check_popups).unwrap();
    assert!(report.is_sound(), "{report}");
}

#[test]
fn the_reserve_refuses_commits_before_the_engine_meets_a_full_disk() {
    fills_up_and_recovers(16 << 20, 8 << 20, |error| matches!(error, StoreError::DiskFull));
}

#[test]
fn an_engine_that_met_a_full_disk_is_restarted() {
    fills_up_and_recovers(0, 0, |error| matches!(error, StoreError::Unavailable(_)));
}

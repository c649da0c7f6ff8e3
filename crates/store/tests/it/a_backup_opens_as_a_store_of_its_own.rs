//! A backup made while commits go on is a whole store: a prefix of the original, with an epoch of its own.

use crate::support::*;
use std::sync::{
    atomic::{AtomicBool, Ordering},
    mpsc,
};
use tidings_domain::store::*;

#[test]
fn a_backup_during_commits_is_a_prefix_of_the_store() {
    let folder = scratch();
    let target = folder.path().join("backups").join("monday");
    let store = open(&folder.path().join("served"));
    let room = populate(&store);
    let stop = AtomicBool::new(false);
    let (under_way, wait) = mpsc::sync_channel(1);
    let (copied, said_before) = std::thread::scope(|scope| {
        scopeguard::defer! { stop.store(true, Ordering::Relaxed) }
        scope.spawn(|| {
            for batch in 0.. {
                say(&store, room, (0..5).map(|n| format!("{batch}-{n}")), NOON);
                if batch == 20 {
                    under_way.send(()).unwrap();
                }
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        wait.recv().unwrap();
        let said_before = store.head(room).unwrap().last_seq;
        (store.backup(&target).unwrap(), said_before)
    });
    assert!(copied.rows > said_before && copied.bytes > copied.rows);

    let copy = open(&target);
    let (all, some) = (stored_ids(&store, room), stored_ids(&copy, room));
    assert!(some.len() as u64 >= said_before && some.len().is_multiple_of(5), "whole batches: {}", some.len());
    assert_eq!(some[..], all[..some.len()]);
    assert_ne!(copy.epoch(), store.epoch());
    assert_eq!(copy.last_position(), some.len() as u64);
    assert_eq!(copy.outbox(0, usize::MAX).unwrap().len(), some.len());
    let report = copy.check(tidings_popups::check_popups).unwrap();
    assert!(report.is_sound(), "{report}");

    // The copy answers a retry with the first result, and accepts new messages.
    let retried = copy.commit(&[append(room, &some[3]), append(room, "new")], NOON).unwrap();
    assert!(matches!(retried[0], Outcome::Appended(Appended { seq: 4, duplicate: true, .. })));
    assert!(matches!(retried[1], Outcome::Appended(a) if a.seq == some.len() as u64 + 1));
}

#[test]
fn a_backup_into_an_existing_folder_is_refused() {
    let folder = scratch();
    let store = open(&folder.path().join("served"));
    let refused = store.backup(folder.path()).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::AlreadyExists);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["served"]);
}

//! The disk under PostgreSQL's tables is full: commits are refused and not stored, and they go on when there is room. If the
//! process may not mount a file system, the test says so and is skipped.

use crate::support::{postgres::*, small_disk::SmallDisk, *};
use tidings_domain::store::*;

#[test]
fn commits_are_refused_on_a_full_disk_and_go_on_when_there_is_room() {
    let Some(disk) = SmallDisk::mount(16) else {
        println!("SKIPPED: no disk may be mounted here");
        return;
    };
    let server = PostgresServer::start(&["fsync=off"]);
    let url = disk.database(&server);
    let store = open_at(&url);
    let room = populate(&store);
    let batch = |n: u64| -> Vec<Proposal> { (0..100).map(|m| append(room, &format!("{n}-{m}"))).collect() };
    let mut stored = 0;
    let error = loop {
        match store.commit(&batch(stored), NOON) {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 10_000, "the disk was never full");
    };
    assert!(matches!(error, StoreError::DiskFull), "{error}");
    assert_eq!(
        store.head(room).unwrap().last_seq,
        stored * 100,
        "reads go on, and no message of the refused batch is stored"
    );
    assert!(matches!(store.commit(&batch(stored), NOON), Err(StoreError::DiskFull)));
    disk.grow(64);
    store.commit(&batch(stored), NOON).unwrap();
    assert_eq!(stored_ids(&store, room).len() as u64, stored * 100 + 100);
}

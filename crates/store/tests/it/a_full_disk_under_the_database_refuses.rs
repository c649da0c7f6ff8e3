//! The disk under PostgreSQL's tables is full: commits are refused and not stored, and they go on when there is room. If the
//! process may not mount a file system, the test says so and is skipped.

use crate::support::{postgres::*, *};
use std::{os::unix::fs::chown, path::Path, process::Command};
use tidings_domain::store::*;

/// A small file system of its own; `None` if the process may not mount one.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount(mib: u32) -> Option<SmallDisk> {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={mib}m,mode=755");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(folder.path()).output();
        mounted.is_ok_and(|out| out.status.success()).then_some(SmallDisk(folder))
    }

    fn grow(&self, mib: u32) {
        let size = format!("remount,size={mib}m");
        assert!(Command::new("mount").args(["-o", &size]).arg(self.0.path()).status().unwrap().success());
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(self.0.path()).status().ok();
    }
}

#[test]
fn commits_are_refused_on_a_full_disk_and_go_on_when_there_is_room() {
    let Some(disk) = SmallDisk::mount(16) else {
        println!("SKIPPED: no disk may be mounted here");
        return;
    };
    let server = PostgresServer::start(&["fsync=off"]);
    // The server's write-ahead log is on another disk: without room for it the server would stop.
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(server.write_file("owner", "")).unwrap());
    chown(disk.path(), Some(owner), None).unwrap();
    let url = server.database();
    server.sql(&url, &format!("CREATE TABLESPACE small LOCATION '{}'", disk.path().display()));
    server.sql(&url, "CREATE DATABASE full_soon TABLESPACE small");
    let url = server.url("full_soon");
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

//! A disk that is soon full.

use super::postgres::PostgresServer;
use std::{
    os::unix::fs::{MetadataExt, chown},
    path::Path,
    process::Command,
};

/// A small file system of its own; `None` if the process may not mount one.
pub(crate) struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    pub(crate) fn mount(mib: u32) -> Option<SmallDisk> {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={mib}m,mode=755");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(folder.path()).output();
        mounted.is_ok_and(|out| out.status.success()).then_some(SmallDisk(folder))
    }

    pub(crate) fn grow(&self, mib: u32) {
        let size = format!("remount,size={mib}m");
        assert!(Command::new("mount").args(["-o", &size]).arg(self.0.path()).status().unwrap().success());
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// A new, empty database whose tables are on the disk; answers its url. The server's write-ahead log is on another disk: without
    /// room for it the server would stop.
    pub(crate) fn database(&self, server: &PostgresServer) -> String {
        let owner = std::fs::metadata(server.write_file("owner", "")).unwrap().uid();
        chown(self.path(), Some(owner), None).unwrap();
        let postgres = server.url("postgres");
        server.sql(&postgres, &format!("CREATE TABLESPACE small LOCATION '{}'", self.path().display()));
        server.sql(&postgres, "CREATE DATABASE full_soon TABLESPACE small");
        server.url("full_soon")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(self.0.path()).status().ok();
    }
}

//! A limit on the size of files: writes beyond it fail, as on a full disk.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::signal::unix::{SignalKind, signal};

/// One test at a time: the limit is that of the whole process.
static LIMIT: Mutex<()> = Mutex::new(());

/// SIGXFSZ, which ends a process without a handler for it; with one, the write fails with EFBIG.
const FILE_TOO_LARGE: i32 = 25;

/// Kept by a test as long as it writes to a store.
pub(crate) struct FileSizeLimit {
    before: Rlimit,
    _guard: MutexGuard<'static, ()>,
}

impl FileSizeLimit {
    pub(crate) fn exclusive() -> FileSizeLimit {
        let guard = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // The handler outlives the runtime.
        drop(runtime.block_on(async { signal(SignalKind::from_raw(FILE_TOO_LARGE)) }).unwrap());
        FileSizeLimit { before: getrlimit(Resource::Fsize), _guard: guard }
    }

    /// Limits files to the written length of a store's newest journal and `left` bytes more.
    pub(crate) fn leave_room(&self, folder: &Path, left: u64) {
        let entries = fs::read_dir(folder.join("store")).unwrap().map(|entry| entry.unwrap().path());
        let number = |path: &PathBuf| path.file_stem()?.to_str()?.parse::<u64>().ok();
        let newest = entries.filter(|path| path.extension().is_some_and(|e| e == "jnl")).max_by_key(number);
        let bytes = fs::read(newest.unwrap()).unwrap();
        let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at as u64 + 1);
        setrlimit(Resource::Fsize, Rlimit { current: Some(written + left), ..self.before }).unwrap();
    }

    pub(crate) fn lift(&self) {
        setrlimit(Resource::Fsize, self.before).unwrap();
    }
}

impl Drop for FileSizeLimit {
    fn drop(&mut self) {
        self.lift();
    }
}

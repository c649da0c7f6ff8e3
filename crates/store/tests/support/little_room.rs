//! Files that may grow only so far, as if the disk were full there.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::signal::unix::{SignalKind, signal};

/// One test at a time: the limit is the whole process's.
static LIMIT: Mutex<()> = Mutex::new(());

/// SIGXFSZ, which ends a process that does not care for it; one that does has its write fail with EFBIG.
const FILE_TOO_LARGE: i32 = 25;

/// Held by a test for as long as it writes anything.
pub(crate) struct LittleRoom {
    before: Rlimit,
    _turn: MutexGuard<'static, ()>,
}

impl LittleRoom {
    pub(crate) fn alone() -> LittleRoom {
        let turn = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // The handler stays when the runtime is gone.
        drop(runtime.block_on(async { signal(SignalKind::from_raw(FILE_TOO_LARGE)) }).unwrap());
        LittleRoom { before: getrlimit(Resource::Fsize), _turn: turn }
    }

    /// Leaves this much room behind what was written to the newest journal of a store.
    pub(crate) fn leave(&self, folder: &Path, left: u64) {
        let entries = fs::read_dir(folder.join("store")).unwrap().map(|entry| entry.unwrap().path());
        let number = |path: &PathBuf| path.file_stem()?.to_str()?.parse::<u64>().ok();
        let newest = entries.filter(|path| path.extension().is_some_and(|e| e == "jnl")).max_by_key(number);
        let bytes = fs::read(newest.unwrap()).unwrap();
        let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at as u64 + 1);
        setrlimit(Resource::Fsize, Rlimit { current: Some(written + left), ..self.before }).unwrap();
    }

    pub(crate) fn make(&self) {
        setrlimit(Resource::Fsize, self.before).unwrap();
    }
}

impl Drop for LittleRoom {
    fn drop(&mut self) {
        self.make();
    }
}

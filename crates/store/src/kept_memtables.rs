//! Memtables are freed by a thread that holds no lock.
//!
//! When the engine has written a memtable to a table it forgets it under the lock of the space's versions, for which each read and
//! each commit has to wait (lsm-tree 3.1, `register_tables`), and whoever forgets the last reference frees all rows of 16 MiB, one
//! by one: tens of milliseconds, and more on a thread that has to wait for a core. Here a reference to each memtable is kept, so
//! that the engine's is never the last one.

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use fjall::Keyspace;
use lsm_tree::AbstractTree;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// How soon to check again whether the engine has forgotten a memtable, and the longest pause: the engine forgets one with its next
/// table, which an idle server may never write.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// The thread. It ends with this handle.
pub(crate) struct KeptMemtables {
    written: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    bytes: AtomicU64,
    look_after_bytes: u64,
}

impl KeptMemtables {
    /// Keeps the memtables of these spaces, which take no more rows once they reach `memtable_bytes`. The thread has the priority of all
    /// others: one that fell behind would keep memory that nobody counts.
    pub(crate) fn start(spaces: &[Keyspace], memtable_bytes: u64) -> io::Result<KeptMemtables> {
        let trees: Vec<_> = spaces.iter().map(|space| space.tree.clone()).collect();
        let (written, is_written) = bounded(1);
        let run = move || {
            let (mut kept, mut pause) = (Vec::new(), FIRST_PAUSE);
            loop {
                for active in trees.iter().map(AbstractTree::active_memtable) {
                    if !kept.iter().any(|known| Arc::ptr_eq(known, &active)) {
                        kept.push(active);
                    }
                }
                // The last reference is ours: the rows are freed here.
                kept.retain(|memtable| Arc::strong_count(memtable) > 1);
                let until_then = if kept.len() > trees.len() { pause } else { Duration::MAX };
                pause = match is_written.recv_timeout(until_then) {
                    Ok(()) => FIRST_PAUSE,
                    Err(RecvTimeoutError::Timeout) => PAUSE_MAX.min(2 * pause),
                    Err(RecvTimeoutError::Disconnected) => return,
                };
            }
        };
        let thread = std::thread::Builder::new().name("memtables".into()).spawn(run)?;
        let look_after_bytes = memtable_bytes / 4;
        Ok(KeptMemtables { written: Some(written), thread: Some(thread), bytes: AtomicU64::new(0), look_after_bytes })
    }

    /// Counts a batch. Several times in the life of a memtable the thread checks for a new one.
    pub(crate) fn follow(&self, batch_bytes: u64) {
        let bytes = self.bytes.fetch_add(batch_bytes, Ordering::Relaxed) + batch_bytes;
        if bytes >= self.look_after_bytes {
            self.bytes.store(0, Ordering::Relaxed);
            if let Some(written) = &self.written {
                // Full: a check that has not begun yet finds this memtable, too.
                let _ = written.try_send(());
            }
        }
    }
}

impl Drop for KeptMemtables {
    fn drop(&mut self) {
        self.written = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{fjall_kv::*, kv::*};
    use std::{sync::Weak, time::Instant};

    const SIZES: Sizes = Sizes { memtable_bytes: 1 << 20, journal_bytes: 96 << 20, cache_bytes: 1 << 20 };

    #[test]
    fn a_memtable_that_the_engine_has_forgotten_is_freed() {
        let folder = tempfile::tempdir().unwrap();
        let kv = FjallKv::open(folder.path(), SIZES).unwrap();
        let mut seen: Vec<Weak<_>> = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(300);
        // The engine begins the next memtable on a thread of its own, when that has its turn.
        for n in 0_u32.. {
            let mut batch = Batch::default();
            batch.put(Space::Bodies, n.to_be_bytes().to_vec(), vec![1; 100_000]);
            kv.commit(batch).unwrap();
            let active = kv.active_memtable(Space::Bodies);
            if !seen.iter().any(|known| known.as_ptr() == Arc::as_ptr(&active)) {
                seen.push(Arc::downgrade(&active));
            }
            if seen.len() > 2 {
                break;
            }
            assert!(Instant::now() < deadline, "{} memtables", seen.len());
        }
        kv.flush_memtables().unwrap();
        // The engine forgets at its next versions what it has written.
        while seen.iter().any(|memtable| memtable.strong_count() > 0) {
            assert!(Instant::now() < deadline, "a memtable is kept for ever");
            let mut batch = Batch::default();
            batch.put(Space::Bodies, b"more".to_vec(), vec![1; 600_000]);
            kv.commit(batch).unwrap();
        }
    }
}

//! Whether the engine's tables hold what was written to them. Small stores are read whole before they open; of larger
//! ones the rest is read beside the work. A read that meets damage, and an engine that stops, have all of it read again.

use crate::{
    embedded::OpenError,
    fjall_kv::FjallKv,
    problem::{Damage, Problem},
    tables::{self, Table},
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    io,
    path::PathBuf,
    sync::{Arc, Weak},
    thread::JoinHandle,
    time::Duration,
};

/// Bytes of tables that an open waits for, and a fresh start of an engine that stopped: 0.2 s from memory, a second or
/// two from a disk.
const VERIFIED_AT_ONCE_BYTES: u64 = 512 * 1024 * 1024;
/// Between two tables that are read beside the work, so that they do not take the disk from it.
const BETWEEN_TABLES: Duration = Duration::from_millis(50);
/// How often it is asked whether the engine has stopped.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(crate) struct Health {
    shared: Arc<Shared>,
    thread: Mutex<Option<(Sender<()>, JoinHandle<()>)>>,
}

struct Shared {
    engine: PathBuf,
    damage: Mutex<Vec<Problem>>,
    unread: Mutex<VecDeque<Table>>,
    kv: Mutex<Weak<FjallKv>>,
}

impl Health {
    pub(crate) fn new(engine: PathBuf) -> Self {
        let shared = Shared { engine, damage: Mutex::default(), unread: Mutex::default(), kv: Mutex::default() };
        Health { shared: Arc::new(shared), thread: Mutex::new(None) }
    }

    /// Refuses if a table is damaged; what is too much to wait for is left to the thread.
    pub(crate) fn verify_at_open(&self, tables: Vec<Table>) -> Result<(), OpenError> {
        match self.shared.verify_some(tables) {
            problems if problems.is_empty() => Ok(()),
            problems => Err(OpenError::Damaged(Damage(problems))),
        }
    }

    /// The engine has stopped and is about to be started afresh: not if a table is damaged, or it would stop again and
    /// again.
    pub(crate) fn verify_after_stop(&self) -> io::Result<()> {
        let problems = self.shared.verify_some(self.shared.all_tables()?);
        self.shared.note(problems);
        Ok(())
    }

    /// What an operator must look at, if anything.
    pub(crate) fn trouble(&self) -> Option<String> {
        let damage = self.shared.damage.lock();
        (!damage.is_empty()).then(|| Damage(damage.clone()).to_string())
    }

    /// Looks after this engine from here on.
    pub(crate) fn watch(&self, kv: &Arc<FjallKv>) {
        *self.shared.kv.lock() = Arc::downgrade(kv);
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let (stop, stopped) = bounded(1);
            let shared = self.shared.clone();
            let spawned = std::thread::Builder::new().name("store-health".into()).spawn(move || shared.run(&stopped));
            match spawned {
                Ok(handle) => *thread = Some((stop, handle)),
                Err(error) => tracing::warn!(%error, "nobody looks after the storage engine's tables"),
            }
        }
    }

    /// Ends the thread; nobody looks any more when this returns.
    pub(crate) fn stop(&self) {
        if let Some((stop, thread)) = self.thread.lock().take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, stopped: &Receiver<()>) {
        let mut examined = Weak::new();
        loop {
            let next = self.unread.lock().pop_front();
            let pause = if next.is_some() { BETWEEN_TABLES } else { LOOK_EVERY };
            if let Some(table) = next {
                self.note(self.verify(&table).into_iter().collect());
            }
            if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let kv = self.kv.lock().clone();
            if self.is_suspect(&kv, &examined)
                && let Ok(tables) = self.all_tables()
            {
                examined = kv;
                *self.unread.lock() = tables.into();
            }
        }
    }

    fn is_suspect(&self, kv: &Weak<FjallKv>, examined: &Weak<FjallKv>) -> bool {
        let Some(engine) = kv.upgrade() else { return false };
        engine.take_damage_seen() || !kv.ptr_eq(examined) && engine.has_stopped()
    }

    /// All tables that there are now.
    fn all_tables(&self) -> io::Result<Vec<Table>> {
        let mut all = Vec::new();
        for space in tables::spaces(&self.engine)? {
            match tables::version_tables(&self.engine, space) {
                Ok(tables) => all.extend(tables),
                Err(problem) => self.note(vec![problem]),
            }
        }
        Ok(all)
    }

    /// Reads as many as one waits for; the rest is left to the thread.
    fn verify_some(&self, tables: Vec<Table>) -> Vec<Problem> {
        let mut bytes = 0;
        let mut problems = Vec::new();
        let mut unread = VecDeque::new();
        for table in tables {
            if bytes >= VERIFIED_AT_ONCE_BYTES {
                unread.push_back(table);
                continue;
            }
            match tables::verify(&table) {
                Ok(length) => bytes += length,
                Err(problem) => problems.push(problem),
            }
        }
        *self.unread.lock() = unread;
        problems
    }

    /// Reads a table that the engine may remove meanwhile because it has merged it into others.
    fn verify(&self, table: &Table) -> Option<Problem> {
        let problem = tables::verify(table).err()?;
        let is_named = |tables: Vec<Table>| tables.iter().any(|named| named == table);
        tables::version_tables(&self.engine, table.space).is_ok_and(is_named).then_some(problem)
    }

    fn note(&self, problems: Vec<Problem>) {
        let mut damage = self.damage.lock();
        for problem in problems {
            if !damage.contains(&problem) {
                tracing::error!(file = problem.file, "{}", Damage(vec![problem.clone()]));
                damage.push(problem);
            }
        }
    }
}

//! The scrubber: compares the engine's tables with their checksums. The tables of a small store are verified before it
//! opens; of a large store the rest is verified in the background. All tables are verified again when a read meets damage
//! and when the engine stops.

use crate::{
    damage::{DamageReport, FileFault},
    errors::OpenError,
    fjall_kv::FjallKv,
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

/// Bytes of tables that an open, or the restart of an engine that stopped, waits for: 0.2 s from memory, a second or two
/// from a disk.
const FOREGROUND_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// The pause after each table that is verified in the background, so that the scrubber does not take the disk from the
/// store's work.
const PAUSE_BETWEEN_TABLES: Duration = Duration::from_millis(50);
/// How often the scrubber asks whether the engine has stopped.
const ENGINE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) struct Scrubber {
    shared: Arc<Shared>,
    thread: Mutex<Option<(Sender<()>, JoinHandle<()>)>>,
}

struct Shared {
    engine: PathBuf,
    damage: Mutex<Vec<FileFault>>,
    /// Tables that are still to be verified in the background.
    unverified: Mutex<VecDeque<Table>>,
    kv: Mutex<Weak<FjallKv>>,
}

impl Scrubber {
    pub(crate) fn new(engine: PathBuf) -> Self {
        let shared = Shared { engine, damage: Mutex::default(), unverified: Mutex::default(), kv: Mutex::default() };
        Scrubber { shared: Arc::new(shared), thread: Mutex::new(None) }
    }

    /// Verifies up to [`FOREGROUND_BYTES_MAX`] of the tables and leaves the rest to the thread.
    ///
    /// # Errors
    /// A table is damaged or missing.
    pub(crate) fn verify_at_open(&self, tables: Vec<Table>) -> Result<(), OpenError> {
        match self.shared.verify_in_foreground(tables) {
            faults if faults.is_empty() => Ok(()),
            faults => Err(OpenError::Damaged(DamageReport(faults))),
        }
    }

    /// Verifies tables before an engine that has stopped is restarted. [`Self::damage_text`] says whether one is damaged:
    /// the engine would stop over it again and again.
    pub(crate) fn verify_after_stop(&self) -> io::Result<()> {
        let faults = self.shared.verify_in_foreground(self.shared.all_tables()?);
        self.shared.record(faults);
        Ok(())
    }

    /// The damage that was found so far, for the operator.
    pub(crate) fn damage_text(&self) -> Option<String> {
        let damage = self.shared.damage.lock();
        (!damage.is_empty()).then(|| DamageReport(damage.clone()).to_string())
    }

    /// Watches this engine from here on, in a thread that the first call starts.
    pub(crate) fn watch(&self, kv: &Arc<FjallKv>) {
        *self.shared.kv.lock() = Arc::downgrade(kv);
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let (stop, stopped) = bounded(1);
            let shared = self.shared.clone();
            let spawned = std::thread::Builder::new().name("store-health".into()).spawn(move || shared.run(&stopped));
            match spawned {
                Ok(handle) => *thread = Some((stop, handle)),
                Err(error) => tracing::warn!(%error, "no thread to verify the storage engine's tables"),
            }
        }
    }

    /// Ends the thread and waits for its end.
    pub(crate) fn stop(&self) {
        if let Some((stop, thread)) = self.thread.lock().take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, stopped: &Receiver<()>) {
        let mut last_suspect = Weak::new();
        loop {
            let next = self.unverified.lock().pop_front();
            let pause = if next.is_some() { PAUSE_BETWEEN_TABLES } else { ENGINE_CHECK_INTERVAL };
            if let Some(table) = next {
                self.record(self.verify(&table).into_iter().collect());
            }
            if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let kv = self.kv.lock().clone();
            if self.is_suspect(&kv, &last_suspect)
                && let Ok(tables) = self.all_tables()
            {
                last_suspect = kv;
                *self.unverified.lock() = tables.into();
            }
        }
    }

    /// Whether a read has met damage since the last call, or this engine has stopped and its tables were not verified since.
    fn is_suspect(&self, kv: &Weak<FjallKv>, last_suspect: &Weak<FjallKv>) -> bool {
        let Some(engine) = kv.upgrade() else { return false };
        engine.take_damage_seen() || !kv.ptr_eq(last_suspect) && engine.has_stopped()
    }

    /// The tables that the current versions of all spaces name.
    fn all_tables(&self) -> io::Result<Vec<Table>> {
        let mut all = Vec::new();
        for space in tables::spaces(&self.engine)? {
            match tables::version_tables(&self.engine, space) {
                Ok(tables) => all.extend(tables),
                Err(fault) => self.record(vec![fault]),
            }
        }
        Ok(all)
    }

    /// Verifies up to [`FOREGROUND_BYTES_MAX`] and leaves the rest to the thread.
    fn verify_in_foreground(&self, tables: Vec<Table>) -> Vec<FileFault> {
        let mut bytes = 0;
        let mut faults = Vec::new();
        let mut unverified = VecDeque::new();
        for table in tables {
            if bytes >= FOREGROUND_BYTES_MAX {
                unverified.push_back(table);
                continue;
            }
            match tables::verify(&table) {
                Ok(length) => bytes += length,
                Err(fault) => faults.push(fault),
            }
        }
        *self.unverified.lock() = unverified;
        faults
    }

    /// Verifies a table. A table that the engine has removed meanwhile, because it was merged into others, is no fault.
    fn verify(&self, table: &Table) -> Option<FileFault> {
        let fault = tables::verify(table).err()?;
        let is_named = |tables: Vec<Table>| tables.iter().any(|named| named == table);
        tables::version_tables(&self.engine, table.space).is_ok_and(is_named).then_some(fault)
    }

    /// Records new faults and logs each once.
    fn record(&self, faults: Vec<FileFault>) {
        let mut damage = self.damage.lock();
        for fault in faults {
            if !damage.contains(&fault) {
                tracing::error!(file = fault.file, "{}", DamageReport(vec![fault.clone()]));
                damage.push(fault);
            }
        }
    }
}

//! A commit log that can be cut off: its node renews no lease and reads no commits from then on.

use crate::MemoryStore;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use tidings_domain::{
    commit_log::*,
    function::Function,
    model::Position,
    node_settings::{KnownSettings, NodeSettings},
    store::*,
};

/// A node's commit log, which can be cut off.
pub struct CuttableLog {
    store: Arc<MemoryStore>,
    is_cut: AtomicBool,
}

impl CuttableLog {
    /// A log that is not cut off yet.
    pub fn on(store: Arc<MemoryStore>) -> CuttableLog {
        CuttableLog { store, is_cut: AtomicBool::new(false) }
    }

    /// The store, as nodes that are not cut off reach it.
    pub fn store(&self) -> &MemoryStore {
        &self.store
    }

    /// Cuts the log off, or connects it again.
    pub fn set_cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Relaxed);
    }

    /// Whether the log is cut off.
    pub fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Relaxed)
    }

    fn reach(&self) -> StoreResult<&MemoryStore> {
        if self.is_cut() { Err(StoreError::Unavailable("out of reach".into())) } else { Ok(&self.store) }
    }
}

impl CommitLog for CuttableLog {
    fn committed_after(&self, after: Position, limit: usize) -> StoreResult<LogPage> {
        self.reach()?.committed_after(after, limit)
    }

    fn newest_position(&self) -> StoreResult<Position> {
        self.reach()?.newest_position()
    }

    fn prune(&self, older_than_ms: u64) -> StoreResult<PruneProgress> {
        self.reach()?.prune(older_than_ms)
    }

    fn heartbeat(
        &self,
        me: &NodeInfo,
        lease_ms: u64,
        takes: &[Function],
        takes_name: bool,
    ) -> Result<ClusterView, HeartbeatError> {
        self.reach()?.heartbeat(me, lease_ms, takes, takes_name)
    }

    fn hand_over(&self, function: Function, from: u64, to: u64, lease_ms: u64) -> StoreResult<bool> {
        self.reach()?.hand_over(function, from, to, lease_ms)
    }

    fn open_gates(&self, gates: &[&'static str], known_by: &[u64]) -> StoreResult<()> {
        self.reach()?.open_gates(gates, known_by)
    }

    fn put_node_settings(&self, boot_id: u64, settings: &NodeSettings) -> StoreResult<()> {
        self.reach()?.put_node_settings(boot_id, settings)
    }

    fn node_settings(&self) -> StoreResult<KnownSettings> {
        self.reach()?.node_settings()
    }

    fn release_lease(&self, boot_id: u64) -> StoreResult<()> {
        self.reach()?.release_lease(boot_id)
    }
}

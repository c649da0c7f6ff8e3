//! A commit log that can be cut off: its node renews no lease from then on.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use tidings_domain::{commit_log::*, model::Position, store::*};
use tidings_testkit::MemoryStore;

/// A node's commit log, which can be cut off.
pub struct CuttableLog {
    pub store: Arc<MemoryStore>,
    pub is_cut: AtomicBool,
}

impl CuttableLog {
    fn store(&self) -> StoreResult<&MemoryStore> {
        match self.is_cut.load(Ordering::Relaxed) {
            true => Err(StoreError::Unavailable("cut".into())),
            false => Ok(&self.store),
        }
    }
}

impl CommitLog for CuttableLog {
    fn committed_after(&self, after: Position, limit: usize) -> StoreResult<LogPage> {
        self.store()?.committed_after(after, limit)
    }
    fn newest_position(&self) -> StoreResult<Position> {
        self.store()?.newest_position()
    }
    fn prune(&self, older_than_ms: u64) -> StoreResult<PruneProgress> {
        self.store()?.prune(older_than_ms)
    }
    fn heartbeat(
        &self,
        me: &NodeInfo,
        lease_ms: u64,
        may_lead: bool,
        takes_name: bool,
    ) -> Result<ClusterView, HeartbeatError> {
        self.store()?.heartbeat(me, lease_ms, may_lead, takes_name)
    }
    fn release_lease(&self, boot_id: u64) -> StoreResult<()> {
        self.store()?.release_lease(boot_id)
    }
}

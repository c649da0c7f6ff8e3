//! Unit tests of `src/cluster/log_pruner.rs`.

use super::*;
use crossbeam_channel::{Sender, bounded};
use tidings_domain::{
    commit_log::*,
    metrics::Metrics,
    model::Position,
    store::{StoreResult, Term},
};
use tidings_testkit::{LocalBus, MemoryStore};

const MINUTE: Duration = Duration::from_secs(60);

/// A log with a backlog of five chunks. It reports the retention of each call.
struct Backlog(Sender<u64>);

impl CommitLog for Backlog {
    fn committed_after(&self, after: Position, limit: usize) -> StoreResult<LogPage> {
        MemoryStore::shared().committed_after(after, limit)
    }
    fn newest_position(&self) -> StoreResult<Position> {
        Ok(0)
    }
    fn prune(&self, older_than_ms: u64) -> StoreResult<PruneProgress> {
        let more = self.0.len() < 4;
        self.0.send(older_than_ms).unwrap();
        Ok(PruneProgress { removed: 1, more })
    }
    fn heartbeat(&self, me: &NodeInfo, _: u64, _: &[Function], _: bool) -> Result<ClusterView, HeartbeatError> {
        let term = Term { function: Function::Housekeeping, number: 1 };
        Ok(ClusterView { leaders: vec![Leader { boot_id: me.boot_id, term }], ..ClusterView::default() })
    }
    fn release_lease(&self, _: u64) -> StoreResult<()> {
        Ok(())
    }
}

#[test]
fn a_backlog_is_removed_chunk_by_chunk_until_none_is_left() {
    let (calls, called) = bounded(100);
    let log: Arc<dyn CommitLog> = Arc::new(Backlog(calls));
    let node = NodeInfo { name: "a".into(), boot_id: 1, ..NodeInfo::default() };
    let (bus, metrics) = (Arc::new(LocalBus::default()), Arc::new(Metrics::new()));
    let nodes = Arc::new(ClusterNodes::new(node, (MINUTE, MINUTE), true, Arc::default(), (log.clone(), bus), metrics));
    let (_stop, stopped) = bounded(0);
    let pruner = LogPruner { log, nodes, events_keep: Duration::ZERO, stopped, failures: FailureLog::new("") };
    assert!(!pruner.nodes.leads(Function::Housekeeping));
    let mut chunks = 1;
    while pruner.prune() {
        chunks += 1;
    }
    assert_eq!((chunks, called.try_iter().collect::<Vec<_>>()), (5, vec![3_600_000; 5]));
}

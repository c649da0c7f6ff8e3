//! Keeps the commit log short: the leader removes the changes that no node looks back to. It does so on a thread of its
//! own, because a backlog takes minutes and the lease must be renewed every few seconds.

use super::nodes::ClusterNodes;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tidings_domain::commit_log::CommitLog;

/// How long the log keeps changes: no node looks back farther.
const RETENTION: Duration = Duration::from_secs(3_600);
const PRUNE_EVERY: Duration = Duration::from_secs(60);
/// Between two pieces of a backlog, so that commits get through.
const PRUNE_PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct LogPruner {
    pub log: Arc<dyn CommitLog>,
    pub nodes: Arc<ClusterNodes>,
    /// Nothing is ever sent on it; when its sender is dropped, the pruner stops.
    pub stopped: Receiver<Infallible>,
}

impl LogPruner {
    pub(crate) fn run(&self) {
        let mut wait = PRUNE_EVERY;
        while self.stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            wait = if self.nodes.is_leader() && self.prune() { PRUNE_PAUSE } else { PRUNE_EVERY };
        }
    }

    /// Removes one piece. Returns whether there may be more to remove.
    fn prune(&self) -> bool {
        match self.log.prune(RETENTION.as_millis() as u64) {
            Ok(progress) => progress.more,
            Err(error) => {
                tracing::warn!(%error, "old changes could not be removed from the commit log");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::{Sender, bounded};
    use tidings_domain::{
        commit_log::*,
        metrics::Metrics,
        model::Position,
        store::{StoreResult, Term},
    };
    use tidings_testkit::{LocalBus, MemoryStore};

    /// A log with a backlog of five pieces. It reports the retention of each call.
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
        fn heartbeat(&self, me: &NodeInfo, _: u64, _: bool, _: bool) -> Result<ClusterView, HeartbeatError> {
            Ok(ClusterView { nodes: vec![], leader: Some(me.boot_id), term: Term(1) })
        }
        fn release_lease(&self, _: u64) -> StoreResult<()> {
            Ok(())
        }
    }

    #[test]
    fn a_backlog_is_removed_piece_by_piece_until_none_is_left() {
        let (calls, called) = bounded(100);
        let log: Arc<dyn CommitLog> = Arc::new(Backlog(calls));
        let node = NodeInfo {
            name: "a".into(),
            boot_id: 1,
            address: String::new(),
            link: String::new(),
            version: String::new(),
            roles: String::new(),
        };
        let (bus, metrics) = (Arc::new(LocalBus::default()), Arc::new(Metrics::new()));
        let nodes = Arc::new(ClusterNodes::new(node, Duration::from_secs(60), true, (log.clone(), bus), metrics));
        let (_stop, stopped) = bounded(0);
        let pruner = LogPruner { log, nodes, stopped };
        assert!(!pruner.nodes.is_leader());
        let mut pieces = 1;
        while pruner.prune() {
            pieces += 1;
        }
        assert_eq!((pieces, called.try_iter().collect::<Vec<_>>()), (5, vec![3_600_000; 5]));
    }
}

//! Keeps the commit log short: who leads removes the changes that no node looks back to. On a thread of its own, for a
//! backlog takes minutes and a lease is renewed in seconds.

use super::{log::CommitLog, nodes::ClusterNodes};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use std::{convert::Infallible, sync::Arc, time::Duration};

/// How long the log keeps changes: no node looks back farther.
const KEPT: Duration = Duration::from_secs(3_600);
const PRUNE_EVERY: Duration = Duration::from_secs(60);
/// Between two pieces of a backlog: commits come first.
const BREATH: Duration = Duration::from_millis(100);

pub(crate) struct Keeper {
    pub log: Arc<dyn CommitLog>,
    pub nodes: Arc<ClusterNodes>,
    /// Nothing is ever said on it: it ends.
    pub stopped: Receiver<Infallible>,
}

impl Keeper {
    pub(crate) fn run(&self) {
        let mut wait = PRUNE_EVERY;
        while self.stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            wait = if self.nodes.is_leader() && self.prune() { BREATH } else { PRUNE_EVERY };
        }
    }

    /// Removes a piece; answers whether there may be another one.
    fn prune(&self) -> bool {
        match self.log.prune(KEPT.as_millis() as u64) {
            Ok(pruned) => pruned.more,
            Err(error) => {
                tracing::warn!(%error, "old changes could not be removed from the commit log");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::log::*, *};
    use crate::{
        cluster::bus::LocalBus,
        memory::MemoryStore,
        metrics::Metrics,
        model::Position,
        store::{StoreResult, Term},
    };
    use crossbeam_channel::{Sender, bounded};

    /// A log with a backlog of pieces, which tells of each that is asked for.
    struct Backlog(Sender<u64>);

    impl CommitLog for Backlog {
        fn committed_after(&self, after: Position, limit: usize) -> StoreResult<Stretch> {
            MemoryStore::shared().committed_after(after, limit)
        }
        fn newest_position(&self) -> StoreResult<Position> {
            Ok(0)
        }
        fn prune(&self, older_than_ms: u64) -> StoreResult<Pruned> {
            let more = self.0.len() < 4;
            self.0.send(older_than_ms).unwrap();
            Ok(Pruned { removed: 1, more })
        }
        fn heartbeat(&self, me: &NodeInfo, _: u64, _: bool, _: bool) -> Result<ClusterView, HeartbeatError> {
            Ok(ClusterView { nodes: vec![], leader: Some(me.boot_id), term: Term(1) })
        }
        fn release_lease(&self, _: u64) -> StoreResult<()> {
            Ok(())
        }
    }

    #[test]
    fn a_backlog_goes_piece_by_piece_until_it_is_gone() {
        let (pieces, asked) = bounded(100);
        let log: Arc<dyn CommitLog> = Arc::new(Backlog(pieces));
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
        let keeper = Keeper { log, nodes, stopped };
        assert!(!keeper.nodes.is_leader());
        let mut pieces = 1;
        while keeper.prune() {
            pieces += 1;
        }
        assert_eq!((pieces, asked.try_iter().collect::<Vec<_>>()), (5, vec![3_600_000; 5]));
    }
}

//! Keeps the commit log short: the leader removes the changes that no node looks back to. It does so on a thread of its
//! own, because a backlog takes minutes and the lease must be renewed every few seconds.

use super::nodes::ClusterNodes;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tidings_domain::{commit_log::CommitLog, failure_log::FailureLog, function::Function};

/// How long the log keeps changes at least: no node looks back farther.
const RETENTION: Duration = Duration::from_secs(3_600);
const PRUNE_EVERY: Duration = Duration::from_secs(60);
/// Between two chunks of a backlog, so that commits get through.
const PRUNE_PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct LogPruner {
    pub log: Arc<dyn CommitLog>,
    pub nodes: Arc<ClusterNodes>,
    /// How long the feed of events has them.
    pub events_keep: Duration,
    /// Nothing is ever sent on it; when its sender is dropped, the pruner stops.
    pub stopped: Receiver<Infallible>,
    pub failures: FailureLog,
}

impl LogPruner {
    pub(crate) fn run(&self) {
        let mut wait = PRUNE_EVERY;
        while self.stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            wait = if self.nodes.leads(Function::Housekeeping) && self.prune() { PRUNE_PAUSE } else { PRUNE_EVERY };
        }
    }

    /// Removes one chunk. Returns whether there may be more to remove.
    fn prune(&self) -> bool {
        let pruned = self.log.prune(RETENTION.max(self.events_keep).as_millis() as u64);
        self.failures.note(&pruned);
        pruned.is_ok_and(|progress| progress.more)
    }
}

#[cfg(test)]
#[path = "../../tests/units/cluster_log_pruner.rs"]
mod tests;

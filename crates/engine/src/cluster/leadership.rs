//! Whether this node leads, for push, popups and all else that one node does for all.

use super::nodes::ClusterNodes;
use crate::store::Term;
use std::{sync::Arc, time::Duration};
use tidings_protocol::error::{ErrorCode, Refusal};

/// How often a worker that waits for the lead looks for it.
const POLL_EVERY: Duration = Duration::from_millis(50);
/// Callers try again after this: a new leader is found within a lease.
const RETRY_AFTER_MS: u64 = 1_000;

/// Whether this node leads. A node that is not part of a cluster always leads.
#[derive(Clone, Default)]
pub(crate) struct Leadership(Option<Arc<ClusterNodes>>);

impl Leadership {
    pub(crate) fn of(nodes: Option<Arc<ClusterNodes>>) -> Leadership {
        Leadership(nodes)
    }

    /// Whether other nodes may lead too.
    pub(crate) fn is_clustered(&self) -> bool {
        self.0.is_some()
    }

    /// The term that this node leads in. Its lease may have ended meanwhile: a caller that writes to the store need not
    /// care, since the store refuses writes of an ended term. A caller that answers from memory must: see [`Self::holds`].
    pub(crate) fn term(&self) -> Option<Term> {
        self.0.as_ref().map_or(Some(Term::ALONE), |nodes| nodes.term())
    }

    /// Whether this node leads in this term, and no other can lead meanwhile.
    pub(crate) fn holds(&self, term: Term) -> bool {
        self.0.as_ref().is_none_or(|nodes| nodes.holds(term))
    }

    /// Waits until this node leads in another term than `ended`. `None`: the caller is stopping.
    pub(crate) fn wait_for_term(&self, ended: Option<Term>, is_stopping: impl Fn() -> bool) -> Option<Term> {
        loop {
            if is_stopping() {
                return None;
            }
            match self.term() {
                Some(term) if ended != Some(term) => return Some(term),
                _ => std::thread::park_timeout(POLL_EVERY),
            }
        }
    }
}

/// The refusal of an operation that only the leader does, while another node becomes the leader.
pub(crate) fn leader_unavailable() -> Refusal {
    Refusal::new(ErrorCode::NodeUnavailable, "the node that does this is changing; try again")
        .retry_after(RETRY_AFTER_MS)
}

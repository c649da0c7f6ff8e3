//! The lead, as those see it who do what one node does for all.

use super::nodes::ClusterNodes;
use crate::store::Term;
use std::{sync::Arc, time::Duration};
use tidings_protocol::error::{ErrorCode, Refusal};

/// How often who waits to lead looks whether it does.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Callers try again after this: a new leader is found within a lease.
const RETRY_AFTER_MS: u64 = 1_000;

/// Whether this node leads. Without others it always does.
#[derive(Clone, Default)]
pub(crate) struct Lead(Option<Arc<ClusterNodes>>);

impl Lead {
    pub(crate) fn of(nodes: Option<Arc<ClusterNodes>>) -> Lead {
        Lead(nodes)
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.0.is_some()
    }

    /// The term that this node has. It may not be renewed in time, which only who answers from memory must heed:
    /// see [`Self::holds`].
    pub(crate) fn term(&self) -> Option<Term> {
        self.0.as_ref().map_or(Some(Term::ALONE), |nodes| nodes.term())
    }

    /// Whether nobody else can have the lead now.
    pub(crate) fn holds(&self, term: Term) -> bool {
        self.0.as_ref().is_none_or(|nodes| nodes.holds(term))
    }

    /// Waits until this node has a term other than one that it knows to be over. `None`: it stops.
    pub(crate) fn wait(&self, over: Option<Term>, is_stopping: impl Fn() -> bool) -> Option<Term> {
        loop {
            if is_stopping() {
                return None;
            }
            match self.term() {
                Some(term) if over != Some(term) => return Some(term),
                _ => std::thread::park_timeout(LOOK_EVERY),
            }
        }
    }
}

pub(crate) fn another_leads() -> Refusal {
    Refusal::new(ErrorCode::NodeUnavailable, "the node that does this is changing; try again")
        .retry_after(RETRY_AFTER_MS)
}

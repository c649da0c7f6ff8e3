//! Whether this node leads, for push, popups and all else that one node does for all.

use std::{sync::Arc, time::Duration};

/// How often a worker that waits for the lead looks for it.
const POLL_EVERY: Duration = Duration::from_millis(50);

/// The time of one leader, with a higher number than any term before. Writes of the leader's work name their term, and
/// the store rejects a write of a term that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Term(pub u64);

impl Term {
    /// The term of a node that has the store to itself.
    pub const ALONE: Term = Term(0);
}

/// The election of the leader, as this node knows its outcome.
pub trait LeaderElection: Send + Sync + 'static {
    /// The term that this node leads in, if it leads. Its lease may have ended meanwhile.
    fn term(&self) -> Option<Term>;
    /// Whether this node leads in this term, and no other can lead meanwhile.
    fn holds(&self, term: Term) -> bool;
}

/// Whether this node leads. A node that is not part of a cluster always leads.
#[derive(Clone, Default)]
pub struct Leadership(Option<Arc<dyn LeaderElection>>);

impl Leadership {
    /// `None`: there are no other nodes.
    pub fn of(election: Option<Arc<dyn LeaderElection>>) -> Leadership {
        Leadership(election)
    }

    /// Whether other nodes may lead too.
    pub fn is_clustered(&self) -> bool {
        self.0.is_some()
    }

    /// The term that this node leads in. Its lease may have ended meanwhile: a caller that writes to the store need not
    /// care, since the store refuses writes of an ended term. A caller that answers from memory must: see [`Self::holds`].
    pub fn term(&self) -> Option<Term> {
        self.0.as_ref().map_or(Some(Term::ALONE), |election| election.term())
    }

    /// Whether this node leads in this term, and no other can lead meanwhile.
    pub fn holds(&self, term: Term) -> bool {
        self.0.as_ref().is_none_or(|election| election.holds(term))
    }

    /// Whether this node leads, and no other can.
    pub fn leads(&self) -> bool {
        self.term().is_some_and(|term| self.holds(term))
    }

    /// Waits until this node leads in another term than `ended`. `None`: the caller is stopping.
    pub fn wait_for_term(&self, ended: Option<Term>, is_stopping: impl Fn() -> bool) -> Option<Term> {
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

//! Whether this node leads a function of the cluster: does what one node does for all.

use crate::function::Function;
use std::{sync::Arc, time::Duration};

/// How often a worker that waits for the lead looks for it.
const POLL_EVERY: Duration = Duration::from_millis(50);

/// The time of one leader of a function, with a higher number than any term of that function before. Writes of the leader's work
/// name their term, and the store rejects a write of a term that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Term {
    /// What the leader does in it.
    pub function: Function,
    /// Grows from term to term of a function.
    pub number: u64,
}

impl Term {
    /// The term of a node that has the store to itself, for all functions.
    pub const ALONE: Term = Term { function: Function::Push, number: 0 };

    /// Whether it is that of a node that has the store to itself.
    pub fn is_alone(self) -> bool {
        self.number == 0
    }
}

/// The election of the leaders, as this node knows its outcome.
pub trait LeaderElection: Send + Sync + 'static {
    /// The term that this node leads the function in, if it leads it. Its lease may have ended meanwhile.
    fn term(&self, function: Function) -> Option<Term>;
    /// Whether this node leads the term's function in this term, and no other can lead it meanwhile.
    fn holds(&self, term: Term) -> bool;
}

/// Which functions this node leads. A node that is not part of a cluster always leads all of them.
#[derive(Clone, Default)]
pub struct Leads(Option<Arc<dyn LeaderElection>>);

impl Leads {
    /// `None`: there are no other nodes.
    pub fn new(election: Option<Arc<dyn LeaderElection>>) -> Leads {
        Leads(election)
    }

    /// The term that this node leads the function in: see [`Leadership::term`].
    pub fn term(&self, function: Function) -> Option<Term> {
        self.0.as_ref().map_or(Some(Term::ALONE), |election| election.term(function))
    }

    /// Whether this node leads this function, to be kept.
    pub fn of(&self, function: Function) -> Leadership {
        Leadership { election: self.0.clone(), function }
    }
}

/// Whether this node leads a function. A node that is not part of a cluster always leads.
#[derive(Clone, Default)]
pub struct Leadership {
    election: Option<Arc<dyn LeaderElection>>,
    function: Function,
}

impl Leadership {
    /// Whether other nodes may lead too.
    pub fn is_clustered(&self) -> bool {
        self.election.is_some()
    }

    /// The term that this node leads in. Its lease may have ended meanwhile: a caller that writes to the store need not
    /// care, since the store refuses writes of an ended term. A caller that answers from memory must: see [`Self::holds`].
    pub fn term(&self) -> Option<Term> {
        self.election.as_ref().map_or(Some(Term::ALONE), |election| election.term(self.function))
    }

    /// Whether this node leads in this term, and no other can lead meanwhile.
    pub fn holds(&self, term: Term) -> bool {
        self.election.as_ref().is_none_or(|election| election.holds(term))
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

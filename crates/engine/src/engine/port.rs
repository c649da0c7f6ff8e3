//! What the crate of notifications, which lies above this one, uses of the engine beside what the listeners use: changes of its own
//! by way of the committer, who leads, and what sessions were handed.

use crate::{
    Engine,
    commit::Committer,
    engine::{leader_requests::LeaderRequests, popup_users::PopupUsers},
    views::Found,
};
use std::sync::Arc;
use tidings_domain::{
    function::Function,
    leadership::Leadership,
    model::*,
    store::{Outcome, Proposal},
};
use tidings_popups::{PopupService, UserContextSource};
use tidings_protocol::{
    error::Refusal,
    http::{PopupEvent, PopupEventsAccepted},
};

/// The committer, for changes of which no other user is notified.
#[derive(Clone)]
pub struct Proposals(Arc<Committer>);

impl Proposals {
    /// Commits a change.
    ///
    /// # Errors
    /// `queue_full`, `store_unavailable`, `draining`, or the refusal of the rejected proposal.
    pub async fn propose(&self, proposal: Proposal) -> Result<Outcome, Refusal> {
        self.0.propose_untold(None, proposal).await
    }

    /// Commits a change of the server itself, and blocks its thread until then.
    ///
    /// # Errors
    /// As [`Proposals::propose`].
    pub fn propose_blocking(&self, proposal: Proposal) -> Result<Outcome, Refusal> {
        self.0.propose_blocking(proposal)
    }
}

/// Events of users that the server itself records, on whichever node popups are led.
#[derive(Clone)]
pub struct PopupEventReports {
    popups: Arc<PopupService>,
    lead: Leadership,
    leader_requests: LeaderRequests,
}

impl PopupEventReports {
    /// Records events; once it returns they are durable.
    ///
    /// # Errors
    /// Those of [`PopupService::report_events`], or no leader could be asked (`node_unavailable`).
    pub async fn report(&self, events: Vec<PopupEvent>) -> Result<PopupEventsAccepted, Refusal> {
        match self.lead.term() {
            Some(_) => self.popups.report_events(&Actor::App, events).await,
            None => self.leader_requests.report_popup_events(None, events).await,
        }
    }
}

impl Engine {
    /// How channels of notifications record events of users.
    pub fn popup_event_reports(&self) -> PopupEventReports {
        let (popups, leader_requests) = (self.popups.clone(), self.leader_requests.clone());
        PopupEventReports { popups, lead: self.leads.of(Function::Popups), leader_requests }
    }

    pub fn proposals(&self) -> Proposals {
        Proposals(self.committer.clone())
    }

    /// Whether this node leads this function.
    pub fn leadership(&self, function: Function) -> Leadership {
        self.leads.of(function)
    }

    /// Users as the conditions of popups and of policies see them.
    pub fn user_context(&self) -> Arc<dyn UserContextSource> {
        let (directory, store, metrics) = (self.directory.clone(), self.store.clone(), self.metrics.clone());
        Arc::new(PopupUsers { directory, store, metrics })
    }

    /// The entries that a session of the user was handed between these positions. Blocks.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub fn handed_entries(
        &self,
        user: UserNo,
        since: &Cursor,
        until: [Position; LANES],
    ) -> Result<Vec<(Arc<Conversation>, StoredEntry)>, Refusal> {
        let (_, handed) = self.read_inbox_entries(user, Some(since), until)?;
        Ok(handed.into_iter().map(|Found { conversation, entry, .. }| (conversation, entry)).collect())
    }

    /// When a client of the user first said that it has an entry at this position, as far as this node knows.
    pub fn acknowledged_at(&self, user: UserNo, lane: Lane, position: Position) -> Option<u64> {
        self.recent_acknowledgements.first(user, lane, position)
    }
}

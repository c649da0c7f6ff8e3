//! The pushes of journeys, through the push service of the node that leads pushes.

use super::leader_requests::{LeaderRequests, wait};
use crate::cluster::leader_client::LeaderRequest;
use std::sync::Arc;
use tidings_domain::leadership::Leadership;
use tidings_popups::{JourneyPush, JourneyPushes};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{PushRequest, PushTo},
};
use tidings_push::{PreparedPush, PushHandle};

pub(crate) struct PopupPushes {
    pub(crate) push: Arc<PushHandle>,
    /// Of pushes.
    pub(crate) lead: Leadership,
    pub(crate) leader_requests: LeaderRequests,
}

impl JourneyPushes for PopupPushes {
    fn push(&self, pushes: Vec<JourneyPush>) -> Vec<Result<(), Refusal>> {
        if self.lead.term().is_none() {
            return self.push_at_leader(pushes);
        }
        let prepared = pushes
            .into_iter()
            .map(|push| self.push.prepare(request_of(push)).map(PreparedPush::whatever_it_asks))
            .collect();
        self.push.accept_all(prepared).into_iter().map(|accepted| accepted.map(drop)).collect()
    }
}

impl PopupPushes {
    fn push_at_leader(&self, pushes: Vec<JourneyPush>) -> Vec<Result<(), Refusal>> {
        let request = |push| self.leader_requests.begin(LeaderRequest::Push(Box::new(request_of(push))));
        let begun: Vec<_> = pushes.into_iter().map(request).collect();
        let settle = |begun: Result<_, _>| match begun.and_then(wait) {
            // It is accepted already, with the text of the journey's former version.
            Err(refusal) if refusal.code == ErrorCode::ClientPushIdReused => Ok(()),
            accepted => accepted.map(drop),
        };
        begun.into_iter().map(settle).collect()
    }
}

fn request_of(JourneyPush { user, client_push_id, push }: JourneyPush) -> PushRequest {
    PushRequest {
        to: PushTo { users: vec![user], ..PushTo::default() },
        content_type: push.content_type.clone(),
        body: push.body.clone(),
        ttl_s: push.ttl_s,
        collapse_key: push.collapse_key.clone(),
        priority: push.priority,
        send_at: None,
        dry_run: false,
        client_push_id: Some(client_push_id),
        fallback: push.fallback.clone(),
    }
}

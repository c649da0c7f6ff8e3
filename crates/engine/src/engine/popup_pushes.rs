//! The pushes of journeys, through the push service of the node that leads pushes.

use super::leader_requests::{LeaderRequests, wait};
use crate::cluster::leader_client::LeaderRequest;
use std::sync::Arc;
use tidings_domain::{leadership::Leadership, refusals::leader_unavailable};
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
        let begin = |request| self.leader_requests.begin(LeaderRequest::Push(Box::new(request)));
        let requests = pushes.into_iter().map(request_of);
        let begun: Vec<_> = requests.map(|request| (begin(request.clone()), request)).collect();
        let settle = |(begun, request): (Result<_, _>, PushRequest)| {
            let accepted = match begun.and_then(wait) {
                // There are no providers to fall back to. This node's own pushes go without, too.
                Err(refusal) if refusal.code == ErrorCode::Conflict && request.fallback.is_some() => {
                    begin(PushRequest { fallback: None, ..request }).and_then(wait)
                }
                accepted => accepted,
            };
            match accepted {
                // It is accepted already, with the text of the journey's former version.
                Err(refusal) if refusal.code == ErrorCode::ClientPushIdReused => Ok(()),
                // The secrets or the clocks of the nodes differ, for as long as operators take: no fault of the push.
                Err(Refusal {
                    code: ErrorCode::Unauthorized | ErrorCode::TokenExpired | ErrorCode::Forbidden, ..
                }) => Err(leader_unavailable()),
                accepted => accepted.map(drop),
            }
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

//! The pushes of journeys, through the push service.

use std::sync::Arc;
use tidings_popups::{JourneyPush, JourneyPushes};
use tidings_protocol::{
    error::Refusal,
    http::{PushRequest, PushTo},
};
use tidings_push::{PreparedPush, PushHandle};

pub(crate) struct PopupPushes(pub(crate) Arc<PushHandle>);

impl JourneyPushes for PopupPushes {
    fn push(&self, pushes: Vec<JourneyPush>) -> Vec<Result<(), Refusal>> {
        let prepared = pushes
            .into_iter()
            .map(|push| self.0.prepare(request_of(push)).map(PreparedPush::whatever_it_asks))
            .collect();
        self.0.accept_all(prepared).into_iter().map(|accepted| accepted.map(drop)).collect()
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

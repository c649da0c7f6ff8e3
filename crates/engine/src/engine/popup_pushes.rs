//! The pushes of journeys, through the push service.

use std::sync::Arc;
use tidings_popups::{JourneyPush, JourneyPushes};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{PushRequest, PushTo},
};
use tidings_push::PushHandle;

pub(crate) struct PopupPushes(pub(crate) Arc<PushHandle>);

impl JourneyPushes for PopupPushes {
    fn push(&self, pushes: Vec<JourneyPush>) -> Vec<Result<(), Refusal>> {
        // The thread of journeys' pushes belongs to no runtime. Together the pushes become durable with few commits.
        let runtime = match tokio::runtime::Builder::new_current_thread().build() {
            Ok(runtime) => runtime,
            Err(error) => return pushes.iter().map(|_| Err(internal(&error))).collect(),
        };
        let prepared: Vec<_> = pushes.into_iter().map(|push| self.0.prepare(request_of(push))).collect();
        runtime.block_on(async {
            let accept = |push| {
                let service = self.0.clone();
                tokio::spawn(async move { service.accept(push).await })
            };
            let accepted: Vec<_> = prepared.into_iter().map(|push| push.map(accept)).collect();
            let mut results = Vec::with_capacity(accepted.len());
            for one in accepted {
                results.push(match one {
                    Ok(answer) => answer.await.unwrap_or_else(|error| Err(internal(&error))).map(drop),
                    Err(refusal) => Err(refusal),
                });
            }
            results
        })
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
    }
}

fn internal(error: &dyn std::fmt::Display) -> Refusal {
    Refusal::new(ErrorCode::Internal, error.to_string())
}

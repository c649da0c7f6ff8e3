//! Transient signals.

use super::{
    ids::ConversationId,
    refusals::{Refusals, TakesBody},
};
use crate::{
    Api,
    extract::{Caller, Json, PathIds},
    problem::RefusalResponse,
};
use axum::{extract::State, http::StatusCode};
use std::sync::Arc;
use tidings_engine::access::Operation;
use tidings_protocol::http::NewSignal;

/// Signal something to the members of a conversation who are there.
///
/// Nothing is stored, and nothing comes again: a member without a session, or whose connection is slow, gets none. The sender gets none
/// either. A user may signal 20 times a second.
#[utoipa::path(post, path = "/v1/conversations/{conversation}/signals", tag = "messages", request_body = NewSignal,
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id")),
    responses((status = 204, description = "It is on its way"), Refusals, TakesBody))]
pub(super) async fn send_signal(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(conversation): PathIds<String>,
    Json(signal): Json<NewSignal>,
) -> Result<StatusCode, RefusalResponse> {
    let caller = caller.may(Operation::Signal)?;
    let send = move |engine: &Arc<tidings_engine::Engine>| {
        engine.signal(&caller.0, signal.from, &conversation, &signal.signal_type, signal.body.as_deref())
    };
    api.read(send).await?;
    Ok(StatusCode::NO_CONTENT)
}

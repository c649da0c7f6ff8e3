//! Why users were, or were not, told of messages.

use super::{
    Answer, AnswerResult,
    ids::{ConversationId, Id},
    refusals::{Conflict, Refusals},
};
use crate::{
    Api,
    extract::{AppServer, PathIds, Query},
};
use axum::extract::State;
use serde::Deserialize;
use std::sync::Arc;
use tidings_protocol::http::MessageReach;

/// Of whom it is asked.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Whom {
    /// The user's id.
    #[param(value_type = Id, inline)]
    pub user: String,
}

/// Why a user was, or was not, told of a message.
///
/// What is recorded of the user and the message (`reach.trace_days`), and what holds now.
#[utoipa::path(get, path = "/v1/conversations/{conversation}/messages/{seq}/reach", tag = "outbox",
    operation_id = "get_message_reach",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"),
        ("seq" = u64, Path, description = "The message's number in the conversation"), Whom),
    responses((status = 200, description = "What decided, and each step", body = MessageReach), Refusals, Conflict))]
pub(super) async fn get_message_reach(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds((conversation, seq)): PathIds<(String, u64)>,
    Query(Whom { user }): Query<Whom>,
) -> AnswerResult<MessageReach> {
    Ok(Answer::ok(api.read(move |engine| engine.message_reach(&conversation, seq, &user)).await?))
}

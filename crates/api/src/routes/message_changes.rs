//! One message: reading it, its versions, edits and recalls.

use super::{
    Answer, AnswerResult,
    ids::ConversationId,
    refusals::{Conflict, Refusals, TakesBody},
};
use crate::{
    Api,
    extract::{BatchJson, Caller, Json, PathIds, Query},
};
use axum::extract::State;
use serde::Deserialize;
use std::sync::Arc;
use tidings_engine::access::Operation;
use tidings_protocol::{
    entry::Entry,
    http::{BodyVersions, ChangeReceipt, EditMessage},
};

/// One entry of a timeline.
#[utoipa::path(get, path = "/v1/conversations/{conversation}/messages/{seq}", tag = "messages",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"),
        ("seq" = u64, Path, description = "The entry's number in the conversation")),
    responses((status = 200, description = "The entry as it is now", body = Entry), Refusals))]
pub(super) async fn get_message(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((conversation, seq)): PathIds<(String, u64)>,
) -> AnswerResult<Entry> {
    let caller = caller.may(Operation::ReadMessages)?;
    Ok(Answer::ok(api.read(move |engine| engine.entry(&caller.0, &conversation, seq)).await?))
}

/// Give a message another body.
///
/// The sender may for a time after the send (`messages.edit_window_ms`), the owner, admins and app servers at any time. The answer means
/// that the edit is durable. With a `client_msg_id` a retry is safe.
#[utoipa::path(patch, path = "/v1/conversations/{conversation}/messages/{seq}", tag = "messages",
    request_body = EditMessage,
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"),
        ("seq" = u64, Path, description = "The message's number in the conversation")),
    responses((status = 200, description = "The edit is durable", body = ChangeReceipt), Refusals, TakesBody, Conflict))]
pub(super) async fn edit_message(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((conversation, seq)): PathIds<(String, u64)>,
    Json(request): BatchJson<EditMessage>,
) -> AnswerResult<ChangeReceipt> {
    let caller = caller.may(Operation::ChangeMessage)?;
    Ok(Answer::ok(api.engine.edit_message(&caller.0, &conversation, seq, request).await?))
}

/// Who takes the message back.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct RecallQuery {
    /// The user in whose name an app server acts; absent: the app server itself.
    pub from: Option<String>,
    /// The caller's own id for this recall: a retry with it answers with the first result.
    pub client_msg_id: Option<String>,
}

/// Take a message back.
///
/// Its body is removed for good; who sent it when, and who took it back when, stays. The sender may for a time after the send
/// (`messages.recall_window_ms`), the owner, admins and app servers at any time. A repeated recall answers with the first result.
#[utoipa::path(delete, path = "/v1/conversations/{conversation}/messages/{seq}", tag = "messages",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"),
        ("seq" = u64, Path, description = "The message's number in the conversation"), RecallQuery),
    responses((status = 200, description = "The recall is durable", body = ChangeReceipt), Refusals, Conflict))]
pub(super) async fn recall_message(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((conversation, seq)): PathIds<(String, u64)>,
    Query(RecallQuery { from, client_msg_id }): Query<RecallQuery>,
) -> AnswerResult<ChangeReceipt> {
    let caller = caller.may(Operation::ChangeMessage)?;
    Ok(Answer::ok(api.engine.recall_message(&caller.0, &conversation, seq, from, client_msg_id).await?))
}

/// The bodies that a message has had.
///
/// Old ones only if the server keeps them (`messages.edit_history`).
#[utoipa::path(get, path = "/v1/conversations/{conversation}/messages/{seq}/versions", tag = "messages",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"),
        ("seq" = u64, Path, description = "The message's number in the conversation")),
    responses((status = 200, description = "Oldest first", body = BodyVersions), Refusals, Conflict))]
pub(super) async fn list_versions(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((conversation, seq)): PathIds<(String, u64)>,
) -> AnswerResult<BodyVersions> {
    let caller = caller.may(Operation::ReadMessages)?;
    Ok(Answer::ok(api.read(move |engine| engine.body_versions(&caller.0, &conversation, seq)).await?))
}

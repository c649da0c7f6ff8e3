//! Receipts: who has a message, and who has read it.

use super::{
    Answer, AnswerResult,
    ids::{ConversationId, Id},
    refusals::{Conflict, Refusals, TakesBody},
};
use crate::{
    Api,
    extract::{Caller, Json, PathIds},
    problem::RefusalResponse,
};
use axum::{extract::State, http::StatusCode};
use std::sync::Arc;
use tidings_engine::access::Operation;
use tidings_protocol::http::{ConversationReceipts, MessageReceipts, SetReceipts};

/// How many members have a message and have read it.
///
/// With a list of them where the conversation shows members. The members who were there when the message was sent count, without its sender.
#[utoipa::path(get, path = "/v1/conversations/{conversation}/messages/{seq}/receipts", tag = "messages",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"),
        ("seq" = u64, Path, description = "The message's number in the conversation")),
    responses((status = 200, description = "The counts, and the list", body = MessageReceipts), Refusals, Conflict))]
pub(super) async fn get_receipts(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((conversation, seq)): PathIds<(String, u64)>,
) -> AnswerResult<MessageReceipts> {
    let caller = caller.may(Operation::ReadMessages)?;
    Ok(Answer::ok(api.read(move |engine| engine.message_receipts(&caller.0, &conversation, seq)).await?))
}

/// How far all members of a conversation have come.
///
/// As of the call; what moves later is told live members. Where the conversation shows members it has their marks, at most 500;
/// where it shows counts, how many members but the caller have come past which of the newest 500 entries. A conversation of
/// more than 5,000 members shows none.
#[utoipa::path(get, path = "/v1/conversations/{conversation}/receipts", tag = "messages",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id")),
    responses((status = 200, description = "The marks, or the counts", body = ConversationReceipts), Refusals))]
pub(super) async fn get_conversation_receipts(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(conversation): PathIds<String>,
) -> AnswerResult<ConversationReceipts> {
    let caller = caller.may(Operation::ReadMessages)?;
    Ok(Answer::ok(api.read(move |engine| engine.conversation_receipts(&caller.0, &conversation)).await?))
}

/// Set whether others learn what a user has read.
///
/// A user who sends no read receipts does not see those of others.
#[utoipa::path(put, path = "/v1/users/{user}/receipts", tag = "users", request_body = SetReceipts,
    params(("user" = inline(Id), Path, description = "The user's id; `me` for the token's user")),
    responses((status = 204, description = "It holds from now on"), Refusals, TakesBody))]
pub(super) async fn set_receipts(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(user): PathIds<String>,
    Json(request): Json<SetReceipts>,
) -> Result<StatusCode, RefusalResponse> {
    let user = caller.may(Operation::SetPreferences)?.user(&api, &user)?;
    api.engine.set_receipts(&user.id, request.send).await?;
    Ok(StatusCode::NO_CONTENT)
}

//! The state of one user: conversations, unread counts, read marks, mutes, and missed messages.
//!
//! App servers name the user in the path; a user's token reaches only its own user, also as `me`.

use super::{
    Answer, AnswerResult,
    conversations::Page,
    ids::{ConversationId, Id},
    refusals::{Refusals, TakesBody},
};
use crate::{
    Api,
    extract::{Caller, Json, PathIds, Query},
    problem::RefusalResponse,
};
use axum::{extract::State, http::StatusCode};
use serde::Deserialize;
use std::sync::Arc;
use tidings_engine::access::Scope;
use tidings_protocol::http::{ConversationPage, MarkRead, Mute, ReadMark, SyncAnswer};

/// A user's conversations, the latest active first, with unread counts.
#[utoipa::path(get, path = "/v1/users/{user}/conversations", tag = "reading",
    params(("user" = inline(Id), Path, description = "The user's id; `me` for the token's user"), Page),
    responses((status = 200, description = "A page of the list", body = ConversationPage), Refusals))]
pub(super) async fn list_conversations(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(user): PathIds<String>,
    Query(page): Query<Page>,
) -> AnswerResult<ConversationPage> {
    let user = caller.may(Scope::Read)?.user(&api, &user)?;
    let list = api.read(move |engine| engine.conversations(&user, page.after.as_deref(), page.limit())).await?;
    Ok(Answer::ok(list))
}

/// Where a sync starts.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct SyncQuery {
    /// The last cursor that was handed out; absent on first use.
    pub cursor: Option<String>,
}

/// What a user has missed since a cursor.
///
/// When `resume.complete` is false, fetch `resume.ranges` from history: nothing is left out silently.
#[utoipa::path(get, path = "/v1/users/{user}/sync", tag = "reading",
    params(("user" = inline(Id), Path, description = "The user's id; `me` for the token's user"), SyncQuery),
    responses((status = 200, description = "What was missed, and the cursor to go on from", body = SyncAnswer),
        Refusals))]
pub(super) async fn sync(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(user): PathIds<String>,
    Query(from): Query<SyncQuery>,
) -> AnswerResult<SyncAnswer> {
    let user = caller.may(Scope::Read)?.user(&api, &user)?;
    Ok(Answer::ok(api.read(move |engine| engine.sync(&user, from.cursor.as_deref())).await?))
}

/// Move a read mark forward, on all of the user's devices.
#[utoipa::path(put, path = "/v1/users/{user}/conversations/{conversation}/read", tag = "reading",
    request_body = MarkRead,
    params(("user" = inline(Id), Path, description = "The user's id; `me` for the token's user"),
           ("conversation" = inline(ConversationId), Path, description = "The conversation's id")),
    responses((status = 200, description = "The mark as it is now", body = ReadMark), Refusals, TakesBody))]
pub(super) async fn mark_read(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((user, conversation)): PathIds<(String, String)>,
    Json(request): Json<MarkRead>,
) -> AnswerResult<ReadMark> {
    let user = caller.may(Scope::Read)?.user(&api, &user)?;
    Ok(Answer::ok(api.engine.mark_read(&user, &conversation, request.seq).await?))
}

/// Mute a conversation for a user, for a while or until further notice, or lift that.
#[utoipa::path(put, path = "/v1/users/{user}/conversations/{conversation}/mute", tag = "reading",
    request_body = Mute,
    params(("user" = inline(Id), Path, description = "The user's id; `me` for the token's user"),
           ("conversation" = inline(ConversationId), Path, description = "The conversation's id")),
    responses((status = 204, description = "It holds from now on"), Refusals, TakesBody))]
pub(super) async fn set_mute(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((user, conversation)): PathIds<(String, String)>,
    Json(request): Json<Mute>,
) -> Result<StatusCode, RefusalResponse> {
    let user = caller.may(Scope::Read)?.user(&api, &user)?;
    api.engine.set_mute(&user, &conversation, request).await?;
    Ok(StatusCode::NO_CONTENT)
}

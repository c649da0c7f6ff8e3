//! What one user has: conversations, unread counts, read marks, mutes, and what was missed.
//!
//! App servers name the user in the path; a user's token reaches only its own user, also as `me`.

use super::{Answer, Answered, conversations::Page};
use crate::{
    Api,
    extract::{Caller, Ids, Json, Query},
    problem::Refused,
};
use axum::{extract::State, http::StatusCode};
use serde::Deserialize;
use std::sync::Arc;
use tidings_protocol::http::{ConversationPage, MarkRead, Mute, ReadMark, SyncAnswer};

/// A user's conversations, the latest active first, with unread counts.
#[utoipa::path(get, path = "/v1/users/{user}/conversations", tag = "reading",
    params(("user", description = "The user's id; `me` for the token's user"), Page),
    responses((status = 200, body = ConversationPage)))]
pub(super) async fn list_conversations(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Ids(user): Ids<String>,
    Query(page): Query<Page>,
) -> Answered<ConversationPage> {
    let user = caller.user(&api, &user)?;
    let list = api.read(move |engine| engine.conversations(&user, page.after.as_deref(), page.limit())).await?;
    Ok(Answer::ok(list))
}

/// Where a sync starts.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
pub(super) struct From {
    /// The last cursor that was handed out; absent on first use.
    pub cursor: Option<String>,
}

/// What a user has missed since a cursor.
///
/// When `resume.complete` is false, fetch `resume.ranges` from history: nothing is left out silently.
#[utoipa::path(get, path = "/v1/users/{user}/sync", tag = "reading",
    params(("user", description = "The user's id; `me` for the token's user"), From),
    responses((status = 200, body = SyncAnswer)))]
pub(super) async fn sync(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Ids(user): Ids<String>,
    Query(from): Query<From>,
) -> Answered<SyncAnswer> {
    let user = caller.user(&api, &user)?;
    Ok(Answer::ok(api.read(move |engine| engine.sync(&user, from.cursor.as_deref())).await?))
}

/// Move a read mark forward, on all of the user's devices.
#[utoipa::path(put, path = "/v1/users/{user}/conversations/{conversation}/read", tag = "reading",
    request_body = MarkRead,
    params(("user", description = "The user's id; `me` for the token's user"),
           ("conversation", description = "The conversation's id")),
    responses((status = 200, body = ReadMark)))]
pub(super) async fn mark_read(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Ids((user, conversation)): Ids<(String, String)>,
    Json(request): Json<MarkRead>,
) -> Answered<ReadMark> {
    let user = caller.user(&api, &user)?;
    Ok(Answer::ok(api.engine.mark_read(&user, &conversation, request.seq).await?))
}

/// Mute a conversation for a user, for a while or until further notice, or lift that.
#[utoipa::path(put, path = "/v1/users/{user}/conversations/{conversation}/mute", tag = "reading",
    request_body = Mute,
    params(("user", description = "The user's id; `me` for the token's user"),
           ("conversation", description = "The conversation's id")),
    responses((status = 204)))]
pub(super) async fn set_mute(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Ids((user, conversation)): Ids<(String, String)>,
    Json(request): Json<Mute>,
) -> Result<StatusCode, Refused> {
    let user = caller.user(&api, &user)?;
    api.engine.set_mute(&user, &conversation, request).await?;
    Ok(StatusCode::NO_CONTENT)
}

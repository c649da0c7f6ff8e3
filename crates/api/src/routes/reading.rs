//! The state of one user: conversations, unread counts, read marks, mutes, and missed messages.
//!
//! App servers name the user in the path; a user's token reaches only its own user, also as `me`.

use super::{
    Answer, AnswerResult,
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
use tidings_engine::{Engine, access::Operation};
use tidings_protocol::http::{
    ConversationPage, ConversationView, ListFilter, MarkRead, Mute, ReadAll, ReadMark, SyncAnswer, UnreadTotal,
    UpdatePreferences,
};

/// Which page of which list.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// Which conversations; absent: those that are neither archived nor hidden.
    #[param(inline)]
    pub filter: Option<ListFilter>,
    /// Of those, the ones that this text is found in, whatever its case: in the user's own title, the name, or of a direct
    /// conversation the other user's name. At most 128 bytes.
    pub search: Option<String>,
    /// The `next` of the page before; absent for the first.
    pub after: Option<String>,
    /// At most so many; absent or 0: as many as the server sees fit.
    pub limit: Option<usize>,
}

/// A user's conversations with unread counts: pinned ones first, then the latest active.
#[utoipa::path(get, path = "/v1/users/{user}/conversations", tag = "reading",
    params(("user" = inline(Id), Path, description = "The user's id; `me` for the token's user"), ListQuery),
    responses((status = 200, description = "A page of the list", body = ConversationPage), Refusals))]
pub(super) async fn list_conversations(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(user): PathIds<String>,
    Query(ListQuery { filter, search, after, limit }): Query<ListQuery>,
) -> AnswerResult<ConversationPage> {
    let user = caller.may(Operation::ReadLists)?.user(&api, &user)?;
    let limit = limit.unwrap_or(0);
    let list = move |engine: &Arc<Engine>| match search {
        Some(search) => engine.search_conversations(&user, &search, filter, after.as_deref(), limit),
        None => engine.conversations(&user, filter, after.as_deref(), limit),
    };
    Ok(Answer::ok(api.read(list).await?))
}

/// One conversation as a user's list shows it, also an archived or hidden one.
#[utoipa::path(get, path = "/v1/users/{user}/conversations/{conversation}", tag = "reading",
    params(("user" = inline(Id), Path, description = "The user's id; `me` for the token's user"),
           ("conversation" = inline(ConversationId), Path, description = "The conversation's id")),
    responses((status = 200, description = "The line alone, in a page", body = ConversationPage), Refusals))]
pub(super) async fn get_line(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((user, conversation)): PathIds<(String, String)>,
) -> AnswerResult<ConversationPage> {
    let user = caller.may(Operation::ReadLists)?.user(&api, &user)?;
    Ok(Answer::ok(api.read(move |engine| engine.conversation_line(&user, &conversation)).await?))
}

/// What a user has not read, in all conversations together.
///
/// Of the conversations that are neither archived nor hidden. At most 2,000 of them are counted.
#[utoipa::path(get, path = "/v1/users/{user}/unread", tag = "reading",
    params(("user" = inline(Id), Path, description = "The user's id; `me` for the token's user")),
    responses((status = 200, description = "The total, and the counts of conversations", body = UnreadTotal), Refusals))]
pub(super) async fn get_unread(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(user): PathIds<String>,
) -> AnswerResult<UnreadTotal> {
    let user = caller.may(Operation::ReadLists)?.user(&api, &user)?;
    Ok(Answer::ok(api.read(move |engine| engine.unread_total(&user)).await?))
}

/// Read everything: move a user's read marks to the newest entries.
///
/// In all conversations, also in archived and hidden ones; none of them is marked as unread any more. One call moves the marks of
/// at most 500 conversations, the first in the order of the list: with `more` in the answer, call again.
#[utoipa::path(post, path = "/v1/users/{user}/read-all", tag = "reading",
    params(("user" = inline(Id), Path, description = "The user's id; `me` for the token's user")),
    responses((status = 200, description = "How many marks moved", body = ReadAll), Refusals))]
pub(super) async fn read_all(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(user): PathIds<String>,
) -> AnswerResult<ReadAll> {
    let user = caller.may(Operation::MoveMark)?.user(&api, &user)?;
    let of_user = user.clone();
    let unread = api.read(move |engine| engine.unread_conversations(&of_user)).await?;
    Ok(Answer::ok(api.engine.read_all(&user, unread).await?))
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
    let user = caller.may(Operation::ReadMessages)?.user(&api, &user)?;
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
    let user = caller.may(Operation::MoveMark)?.user(&api, &user)?;
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
    let user = caller.may(Operation::SetPreferences)?.user(&api, &user)?;
    api.engine.set_mute(&user, &conversation, request).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Change what a user has set for a conversation of the list.
///
/// Pinned, archived, hidden until the next message, an own title, marked as unread, cleared. What is absent stays as it was.
#[utoipa::path(patch, path = "/v1/users/{user}/conversations/{conversation}", tag = "reading",
    request_body = UpdatePreferences,
    params(("user" = inline(Id), Path, description = "The user's id; `me` for the token's user"),
           ("conversation" = inline(ConversationId), Path, description = "The conversation's id")),
    responses((status = 200, description = "The line of the list as it is now", body = ConversationView), Refusals,
        TakesBody))]
pub(super) async fn set_preferences(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((user, conversation)): PathIds<(String, String)>,
    Json(request): Json<UpdatePreferences>,
) -> AnswerResult<ConversationView> {
    let user = caller.may(Operation::SetPreferences)?.user(&api, &user)?;
    let conversation = api.engine.set_preferences(&user, &conversation, request).await?;
    Ok(Answer::ok(api.read(move |engine| engine.list_view(&user, &conversation)).await?))
}

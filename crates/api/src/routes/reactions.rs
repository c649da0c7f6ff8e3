//! Reactions, pins, answers and mentions.

use super::{
    Answer, AnswerResult,
    conversations::Page,
    ids::{ConversationId, Id},
    refusals::{Conflict, Refusals},
};
use crate::{
    Api,
    extract::{Caller, PathIds, Query},
};
use axum::extract::State;
use serde::Deserialize;
use std::sync::Arc;
use tidings_engine::access::Operation;
use tidings_protocol::http::{EntryPage, MessageReactions, PinState, ReactorPage};

/// In whose name an app server acts.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct ActingUser {
    /// The user in whose name an app server acts. With a user token it is the token's user.
    pub user: Option<String>,
}

/// Give a reaction to a message.
///
/// A user gives each reaction once: a repeated call changes nothing.
#[utoipa::path(put, path = "/v1/conversations/{conversation}/messages/{seq}/reactions/{key}", tag = "messages",
    operation_id = "add_reaction",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"),
        ("seq" = u64, Path, description = "The message's number in the conversation"),
        ("key" = String, Path, description = "The reaction, such as an emoji: at most 32 bytes"), ActingUser),
    responses((status = 200, description = "The reactions to the message now", body = MessageReactions), Refusals, Conflict))]
pub(super) async fn add_reaction(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((conversation, seq, key)): PathIds<(String, u64, String)>,
    Query(ActingUser { user }): Query<ActingUser>,
) -> AnswerResult<MessageReactions> {
    let caller = caller.may(Operation::React)?;
    Ok(Answer::ok(api.engine.react(&caller.0, user, &conversation, seq, &key, true).await?))
}

/// Take a reaction back.
#[utoipa::path(delete, path = "/v1/conversations/{conversation}/messages/{seq}/reactions/{key}", tag = "messages",
    operation_id = "remove_reaction",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"),
        ("seq" = u64, Path, description = "The message's number in the conversation"),
        ("key" = String, Path, description = "The reaction"), ActingUser),
    responses((status = 200, description = "The reactions to the message now", body = MessageReactions), Refusals, Conflict))]
pub(super) async fn remove_reaction(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((conversation, seq, key)): PathIds<(String, u64, String)>,
    Query(ActingUser { user }): Query<ActingUser>,
) -> AnswerResult<MessageReactions> {
    let caller = caller.may(Operation::React)?;
    Ok(Answer::ok(api.engine.react(&caller.0, user, &conversation, seq, &key, false).await?))
}

/// Which reactions to a message.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct ReactorsQuery {
    /// Only this reaction.
    pub key: Option<String>,
    /// The `next` of the page before; absent for the first.
    pub after: Option<String>,
    /// At most so many users (limit 1,000); absent or 0: as many as the server sees fit.
    pub limit: Option<usize>,
}

/// The users who reacted to a message.
#[utoipa::path(get, path = "/v1/conversations/{conversation}/messages/{seq}/reactions", tag = "messages",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"),
        ("seq" = u64, Path, description = "The message's number in the conversation"), ReactorsQuery),
    responses((status = 200, description = "A page of users", body = ReactorPage), Refusals, Conflict))]
pub(super) async fn list_reactions(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((conversation, seq)): PathIds<(String, u64)>,
    Query(ReactorsQuery { key, after, limit }): Query<ReactorsQuery>,
) -> AnswerResult<ReactorPage> {
    let caller = caller.may(Operation::ReadMessages)?;
    let read = move |engine: &Arc<tidings_engine::Engine>| {
        engine.reactors(&caller.0, &conversation, seq, key.as_deref(), (after.as_deref(), limit.unwrap_or(0)))
    };
    Ok(Answer::ok(api.read(read).await?))
}

/// Pin a message in its conversation.
///
/// The owner, admins and app servers may; in a direct conversation both users may.
#[utoipa::path(put, path = "/v1/conversations/{conversation}/messages/{seq}/pin", tag = "messages",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"),
        ("seq" = u64, Path, description = "The message's number in the conversation"), ActingUser),
    responses((status = 200, description = "The message is pinned", body = PinState), Refusals, Conflict))]
pub(super) async fn pin_message(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((conversation, seq)): PathIds<(String, u64)>,
    Query(ActingUser { user }): Query<ActingUser>,
) -> AnswerResult<PinState> {
    let caller = caller.may(Operation::Pin)?;
    Ok(Answer::ok(api.engine.pin(&caller.0, user, &conversation, seq, true).await?))
}

/// Unpin a message.
#[utoipa::path(delete, path = "/v1/conversations/{conversation}/messages/{seq}/pin", tag = "messages",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"),
        ("seq" = u64, Path, description = "The message's number in the conversation"), ActingUser),
    responses((status = 200, description = "The message is not pinned", body = PinState), Refusals, Conflict))]
pub(super) async fn unpin_message(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((conversation, seq)): PathIds<(String, u64)>,
    Query(ActingUser { user }): Query<ActingUser>,
) -> AnswerResult<PinState> {
    let caller = caller.may(Operation::Pin)?;
    Ok(Answer::ok(api.engine.pin(&caller.0, user, &conversation, seq, false).await?))
}

/// The pinned messages of a conversation, the last pinned one first.
#[utoipa::path(get, path = "/v1/conversations/{conversation}/pins", tag = "messages",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id")),
    responses((status = 200, description = "All of them, at most 100", body = EntryPage), Refusals))]
pub(super) async fn list_pins(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(conversation): PathIds<String>,
) -> AnswerResult<EntryPage> {
    let caller = caller.may(Operation::ReadMessages)?;
    Ok(Answer::ok(api.read(move |engine| engine.pins(&caller.0, &conversation)).await?))
}

/// The answers to a message, oldest first.
#[utoipa::path(get, path = "/v1/conversations/{conversation}/messages/{seq}/replies", tag = "messages",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"),
        ("seq" = u64, Path, description = "The message's number in the conversation"), Page),
    responses((status = 200, description = "A page of answers", body = EntryPage), Refusals, Conflict))]
pub(super) async fn list_replies(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((conversation, seq)): PathIds<(String, u64)>,
    Query(page): Query<Page>,
) -> AnswerResult<EntryPage> {
    let caller = caller.may(Operation::ReadMessages)?;
    let read = move |engine: &Arc<tidings_engine::Engine>| {
        engine.replies(&caller.0, &conversation, seq, (page.after.as_deref(), page.limit()))
    };
    Ok(Answer::ok(api.read(read).await?))
}

/// The messages that mention a user, by id or with `@all`, newest first.
#[utoipa::path(get, path = "/v1/users/{user}/mentions", tag = "reading",
    params(("user" = inline(Id), Path, description = "The user's id; `me` for the token's user"), Page),
    responses((status = 200, description = "A page of messages", body = EntryPage), Refusals))]
pub(super) async fn list_mentions(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(user): PathIds<String>,
    Query(page): Query<Page>,
) -> AnswerResult<EntryPage> {
    let user = caller.may(Operation::ReadMessages)?.user(&api, &user)?;
    Ok(Answer::ok(api.read(move |engine| engine.mentions(&user, page.after.as_deref(), page.limit())).await?))
}

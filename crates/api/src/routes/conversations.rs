//! Conversations and their members.

use super::{
    Answer, AnswerResult,
    ids::{ConversationId, Id},
    refusals::{Conflict, Refusals, TakesBody},
};
use crate::{
    Api,
    extract::{BatchJson, Caller, Json, PathIds, Query},
    problem::RefusalResponse,
};
use axum::{extract::State, http::StatusCode};
use serde::Deserialize;
use std::sync::Arc;
use tidings_domain::model::Actor;
use tidings_engine::access::Operation;
use tidings_protocol::error::{ErrorCode, Refusal};
use tidings_protocol::http::{
    ChangeMembers, ConversationDetails, ConversationKind, ConversationList, ConversationListQuery, CreateConversation,
    HandOver, MemberPage, MembersChanged, Restrict, RestrictionKind, RestrictionPage, UpdateConversation,
};

/// Open a conversation.
///
/// 201 when it is new; 200 with the one that is there when its id (or pair) stands for one of the
/// same kind already, whose members stay as they are.
#[utoipa::path(post, path = "/v1/conversations", tag = "conversations", request_body = CreateConversation,
    responses((status = 201, description = "It is new", body = ConversationDetails),
        (status = 200, description = "It is there already", body = ConversationDetails), Refusals, TakesBody, Conflict))]
pub(super) async fn create_conversation(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Json(request): BatchJson<CreateConversation>,
) -> AnswerResult<ConversationDetails> {
    let operation = match request.kind {
        ConversationKind::Direct => Operation::OpenDirect,
        ConversationKind::Group | ConversationKind::Official => Operation::OpenGroup,
    };
    let caller = caller.may(operation)?;
    let (details, created) = api.engine.create_conversation(&caller.0, request).await?;
    Ok(Answer(if created { StatusCode::CREATED } else { StatusCode::OK }, details))
}

/// Conversations: with `conversations` those, each as a call of its own shows it; otherwise, for app servers, a page of all of them in the
/// order of their ids.
///
/// Those that do not exist, or that the caller may not read, are left out. A page looks at 1,000 conversations at most: with a filter that
/// most do not pass it may have few or none, and a `next`.
#[utoipa::path(get, path = "/v1/conversations", tag = "conversations", params(ConversationListQuery),
    responses((status = 200, description = "The details, in the order asked for or of ids", body = ConversationList), Refusals))]
pub(super) async fn list_all_conversations(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(query): Query<ConversationListQuery>,
) -> AnswerResult<ConversationList> {
    let actor = caller.may(Operation::ReadDetails)?.0;
    let list = api.read(move |engine| match (&query.conversations, actor) {
        (Some(ids), actor) => {
            let ids: Vec<_> = ids.split(',').filter(|id| !id.is_empty()).map(str::to_owned).collect();
            engine.query_conversations(&actor, &ids)
        }
        (None, Actor::App) => engine.list_all_conversations(&query),
        (None, Actor::User(_)) => {
            let why = "conversations: a user's token names the conversations that it asks for";
            Err(Refusal::new(ErrorCode::Forbidden, why))
        }
    });
    Ok(Answer::ok(list.await?))
}

/// A conversation's details.
#[utoipa::path(get, path = "/v1/conversations/{conversation}", tag = "conversations",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id")),
    responses((status = 200, description = "The details", body = ConversationDetails), Refusals))]
pub(super) async fn get_conversation(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(conversation): PathIds<String>,
) -> AnswerResult<ConversationDetails> {
    let caller = caller.may(Operation::ReadDetails)?;
    Ok(Answer::ok(api.read(move |engine| engine.conversation_details(&caller.0, &conversation)).await?))
}

/// Change a conversation's details. What is absent stays as it was.
#[utoipa::path(patch, path = "/v1/conversations/{conversation}", tag = "conversations",
    request_body = UpdateConversation,
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id")),
    responses((status = 200, description = "The details as they are now", body = ConversationDetails), Refusals, TakesBody))]
pub(super) async fn update_conversation(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(conversation): PathIds<String>,
    Json(request): Json<UpdateConversation>,
) -> AnswerResult<ConversationDetails> {
    let caller = caller.may(Operation::ChangeConversation)?;
    Ok(Answer::ok(api.engine.update_conversation(&caller.0, &conversation, request).await?))
}

/// Add and remove members, or change their role; up to 10,000 at once.
#[utoipa::path(post, path = "/v1/conversations/{conversation}/members", tag = "conversations",
    request_body = ChangeMembers,
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id")),
    responses((status = 200, description = "What was changed", body = MembersChanged), Refusals, TakesBody, Conflict))]
pub(super) async fn change_members(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(conversation): PathIds<String>,
    Json(request): BatchJson<ChangeMembers>,
) -> AnswerResult<MembersChanged> {
    let operation = operation_of(caller.actor(), &request);
    let caller = caller.may(operation)?;
    Ok(Answer::ok(api.engine.change_members(&caller.0, &conversation, request).await?))
}

/// What a change of members is. A user who only follows an account or leaves changes nobody else.
fn operation_of(actor: &Actor, request: &ChangeMembers) -> Operation {
    let own = |id: &String| actor.user().is_some_and(|user| user.id == *id);
    if request.role.is_none() && request.add.iter().chain(&request.remove).all(own) {
        Operation::FollowOrLeave
    } else {
        Operation::ChangeConversation
    }
}

/// Where a page of a list starts.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// The `next` of the page before; absent for the first.
    pub after: Option<String>,
    /// At most so many; absent or 0: as many as the server sees fit.
    pub limit: Option<usize>,
}

impl Page {
    pub(super) fn limit(&self) -> usize {
        self.limit.unwrap_or(0)
    }
}

/// The members of a conversation, page by page.
#[utoipa::path(get, path = "/v1/conversations/{conversation}/members", tag = "conversations",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"), Page),
    responses((status = 200, description = "A page of members", body = MemberPage), Refusals))]
pub(super) async fn list_members(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(conversation): PathIds<String>,
    Query(page): Query<Page>,
) -> AnswerResult<MemberPage> {
    let caller = caller.may(Operation::ReadDetails)?;
    let read = move |engine: &Arc<tidings_engine::Engine>| {
        engine.members(&caller.0, &conversation, page.after.as_deref(), page.limit())
    };
    Ok(Answer::ok(api.read(read).await?))
}

/// Hand a group or an account over: a member becomes its owner, and its owner an admin.
#[utoipa::path(post, path = "/v1/conversations/{conversation}/owner", tag = "conversations", request_body = HandOver,
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id")),
    responses((status = 200, description = "What was changed", body = MembersChanged), Refusals, TakesBody, Conflict))]
pub(super) async fn hand_over(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(conversation): PathIds<String>,
    Json(request): Json<HandOver>,
) -> AnswerResult<MembersChanged> {
    let caller = caller.may(Operation::ChangeConversation)?;
    Ok(Answer::ok(api.engine.hand_over(&caller.0, &conversation, request).await?))
}

/// Which mutes or bans.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct KindOfRestriction {
    /// A mute or a ban.
    pub kind: RestrictionKind,
}

/// A page of mutes and bans.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct RestrictionsQuery {
    /// Only mutes, or only bans; absent: both.
    pub kind: Option<RestrictionKind>,
    /// The `next` of the page before; absent for the first.
    pub after: Option<String>,
    /// Users on the page (limit 1,000); absent or 0: 100.
    pub limit: Option<usize>,
}

/// Mute a member, or ban a user: in place of a former mute or ban.
///
/// A muted member reads, and writes nothing. A banned user is removed, and does not become a member again.
#[utoipa::path(put, path = "/v1/conversations/{conversation}/restrictions/{user}", tag = "conversations",
    request_body = Restrict,
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"),
        ("user" = inline(Id), Path, description = "The user")),
    responses((status = 204, description = "It holds from now on"), Refusals, TakesBody, Conflict))]
pub(super) async fn restrict(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((conversation, user)): PathIds<(String, String)>,
    Json(request): Json<Restrict>,
) -> Result<StatusCode, RefusalResponse> {
    let caller = caller.may(Operation::ChangeConversation)?;
    api.engine.restrict(&caller.0, &conversation, &user, request).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lift a mute or a ban. If there is none, nothing happens.
#[utoipa::path(delete, path = "/v1/conversations/{conversation}/restrictions/{user}", tag = "conversations",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"),
        ("user" = inline(Id), Path, description = "The user"), KindOfRestriction),
    responses((status = 204, description = "There is none"), Refusals, Conflict))]
pub(super) async fn lift_restriction(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((conversation, user)): PathIds<(String, String)>,
    Query(query): Query<KindOfRestriction>,
) -> Result<StatusCode, RefusalResponse> {
    let caller = caller.may(Operation::ChangeConversation)?;
    api.engine.lift_restriction(&caller.0, &conversation, &user, query.kind).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The mutes and bans that hold in a conversation, for its owner and admins, page by page.
#[utoipa::path(get, path = "/v1/conversations/{conversation}/restrictions", tag = "conversations",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"), RestrictionsQuery),
    responses((status = 200, description = "A page of mutes and bans", body = RestrictionPage), Refusals))]
pub(super) async fn list_restrictions(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(conversation): PathIds<String>,
    Query(query): Query<RestrictionsQuery>,
) -> AnswerResult<RestrictionPage> {
    let caller = caller.may(Operation::ReadDetails)?;
    let RestrictionsQuery { kind, after, limit } = query;
    let read = move |engine: &Arc<tidings_engine::Engine>| {
        engine.restrictions(&caller.0, &conversation, kind, (after.as_deref(), limit.unwrap_or(0)))
    };
    Ok(Answer::ok(api.read(read).await?))
}

//! Invites, and requests to join.

use super::{
    Answer, AnswerResult,
    conversations::Page,
    ids::{ConversationId, Id},
    refusals::{Conflict, Refusals, TakesBody},
};
use crate::{
    Api,
    extract::{Caller, Json, PathIds, Query},
    problem::RefusalResponse,
};
use axum::{extract::State, http::StatusCode};
use std::sync::Arc;
use tidings_engine::{Engine, access::Operation};
use tidings_protocol::http::{
    AskToJoin, ConversationDetails, InviteList, JoinByInvite, JoinRequestPage, JoinRequestView, MadeInvite,
    MembersChanged, NewInvite, RefuseRequest,
};

/// Make an invite of a group. Its token is in this answer alone.
#[utoipa::path(post, path = "/v1/conversations/{conversation}/invites", tag = "conversations", request_body = NewInvite,
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id")),
    responses((status = 201, description = "The invite, with its token", body = MadeInvite), Refusals, TakesBody, Conflict))]
pub(super) async fn create_invite(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(conversation): PathIds<String>,
    Json(request): Json<NewInvite>,
) -> AnswerResult<MadeInvite> {
    let caller = caller.may(Operation::ChangeConversation)?;
    Ok(Answer(StatusCode::CREATED, api.engine.create_invite(&caller.0, &conversation, request).await?))
}

/// The invites of a group that hold.
#[utoipa::path(get, path = "/v1/conversations/{conversation}/invites", tag = "conversations",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id")),
    responses((status = 200, description = "The invites", body = InviteList), Refusals, Conflict))]
pub(super) async fn list_invites(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(conversation): PathIds<String>,
) -> AnswerResult<InviteList> {
    let caller = caller.may(Operation::ReadDetails)?;
    Ok(Answer::ok(api.read(move |engine: &Arc<Engine>| engine.invites(&caller.0, &conversation)).await?))
}

/// Revoke an invite. Who has joined by it stays.
#[utoipa::path(delete, path = "/v1/conversations/{conversation}/invites/{invite}", tag = "conversations",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"),
        ("invite" = inline(Id), Path, description = "The invite's id")),
    responses((status = 204, description = "Nobody joins by it any more"), Refusals, Conflict))]
pub(super) async fn revoke_invite(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((conversation, invite)): PathIds<(String, String)>,
) -> Result<StatusCode, RefusalResponse> {
    let caller = caller.may(Operation::ChangeConversation)?;
    api.engine.revoke_invite(&caller.0, &conversation, &invite).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Join a group by an invite. A member stays one, and the invite is not used.
#[utoipa::path(post, path = "/v1/invites/join", tag = "conversations", request_body = JoinByInvite,
    responses((status = 200, description = "The user is a member", body = ConversationDetails), Refusals, TakesBody, Conflict))]
pub(super) async fn join_by_invite(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Json(request): Json<JoinByInvite>,
) -> AnswerResult<ConversationDetails> {
    let caller = caller.may(Operation::FollowOrLeave)?;
    Ok(Answer::ok(api.engine.join_by_invite(&caller.0, request).await?))
}

/// Ask to become a member of a group that takes requests. Another request replaces the former one.
#[utoipa::path(post, path = "/v1/conversations/{conversation}/join-requests", tag = "conversations", request_body = AskToJoin,
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id")),
    responses((status = 204, description = "The request waits"), Refusals, TakesBody, Conflict))]
pub(super) async fn ask_to_join(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(conversation): PathIds<String>,
    Json(request): Json<AskToJoin>,
) -> Result<StatusCode, RefusalResponse> {
    let caller = caller.may(Operation::FollowOrLeave)?;
    api.engine.ask_to_join(&caller.0, &conversation, request).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The requests to join a group that wait, page by page.
#[utoipa::path(get, path = "/v1/conversations/{conversation}/join-requests", tag = "conversations",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"), Page),
    responses((status = 200, description = "A page of requests", body = JoinRequestPage), Refusals, Conflict))]
pub(super) async fn list_join_requests(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(conversation): PathIds<String>,
    Query(page): Query<Page>,
) -> AnswerResult<JoinRequestPage> {
    let caller = caller.may(Operation::ReadDetails)?;
    let read = move |engine: &Arc<Engine>| {
        engine.join_requests(&caller.0, &conversation, (page.after.as_deref(), page.limit()))
    };
    Ok(Answer::ok(api.read(read).await?))
}

/// A user's request to join: whether it waits or was refused, and why. A user reads the own one.
#[utoipa::path(get, path = "/v1/conversations/{conversation}/join-requests/{user}", tag = "conversations",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"),
        ("user" = inline(Id), Path, description = "The user")),
    responses((status = 200, description = "The request", body = JoinRequestView), Refusals, Conflict))]
pub(super) async fn get_join_request(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((conversation, user)): PathIds<(String, String)>,
) -> AnswerResult<JoinRequestView> {
    let caller = caller.may(Operation::ReadDetails)?;
    Ok(Answer::ok(api.read(move |engine: &Arc<Engine>| engine.join_request(&caller.0, &conversation, &user)).await?))
}

/// Grant a request to join.
#[utoipa::path(post, path = "/v1/conversations/{conversation}/join-requests/{user}/approve", tag = "conversations",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"),
        ("user" = inline(Id), Path, description = "The user")),
    responses((status = 200, description = "What was changed", body = MembersChanged), Refusals, Conflict))]
pub(super) async fn approve_join_request(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((conversation, user)): PathIds<(String, String)>,
) -> AnswerResult<MembersChanged> {
    let caller = caller.may(Operation::ChangeConversation)?;
    Ok(Answer::ok(api.engine.approve_request(&caller.0, &conversation, &user).await?))
}

/// Refuse a request to join, with a reason for the user; a user withdraws the own one.
#[utoipa::path(post, path = "/v1/conversations/{conversation}/join-requests/{user}/refuse", tag = "conversations",
    request_body = RefuseRequest,
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"),
        ("user" = inline(Id), Path, description = "The user")),
    responses((status = 204, description = "The request waits no more"), Refusals, TakesBody, Conflict))]
pub(super) async fn refuse_join_request(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((conversation, user)): PathIds<(String, String)>,
    Json(request): Json<RefuseRequest>,
) -> Result<StatusCode, RefusalResponse> {
    let is_own = caller.actor().user().is_some_and(|caller| caller.id == user);
    let caller = caller.may(if is_own { Operation::FollowOrLeave } else { Operation::ChangeConversation })?;
    api.engine.refuse_request(&caller.0, &conversation, &user, request).await?;
    Ok(StatusCode::NO_CONTENT)
}

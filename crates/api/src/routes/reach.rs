//! Why users were, or were not, told of messages and pushes, and what came of each road; the policy that says by which roads they are,
//! and what users want.

use super::{
    Answer, AnswerResult,
    ids::{ConversationId, Id},
    popups::{author, precondition},
    refusals::{Conflict, OtherMethods, Refusals, TakesBody},
};
use crate::{
    Api,
    extract::{AppServer, Caller, Json, PathIds, Query, RawJson},
    problem::RefusalResponse,
};
use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
};
use serde::Deserialize;
use std::sync::Arc;
use tidings_engine::{Engine, access::Scope};
use tidings_protocol::http::*;

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

/// The reach policy as it is stored; without one, the default.
#[utoipa::path(get, path = "/v1/reach/policy", tag = "reach",
    responses((status = 200, description = "The policy", body = StoredReachPolicy), Refusals))]
pub(super) async fn get_reach_policy(State(api): State<Arc<Api>>, _: AppServer) -> AnswerResult<StoredReachPolicy> {
    Ok(Answer::ok(api.read(|engine| engine.reach_policies.get()).await?))
}

/// Replace the reach policy as a whole.
///
/// It holds for messages that are decided about from then on, on every node within two seconds. Every write is a version;
/// `Tidings-Author` is kept with it. `If-Match` makes it conditional on the newest version.
#[utoipa::path(put, path = "/v1/reach/policy", tag = "reach", request_body = ReachPolicy,
    params(("Tidings-Author" = Option<String>, Header, description = "Who writes it: kept with the version"),
           ("If-Match" = Option<String>, Header, description = "The version that it must still have; 0: none was ever stored"),
           ("If-None-Match" = Option<String>, Header, description = "`*`: none may have been stored yet")),
    responses((status = 200, description = "The policy as it is now", body = StoredReachPolicy),
        Refusals, TakesBody, Conflict))]
pub(super) async fn put_reach_policy(
    State(api): State<Arc<Api>>,
    _: AppServer,
    headers: HeaderMap,
    RawJson(body): RawJson,
) -> AnswerResult<StoredReachPolicy> {
    let (author, precondition) = (author(&headers)?, precondition(&headers)?);
    let put =
        move |engine: &Arc<tidings_engine::Engine>| engine.reach_policies.put(&body, author.as_deref(), precondition);
    Ok(Answer::ok(api.read(put).await?))
}

/// Remove the reach policy, so that the default holds.
///
/// This is a version, too: the former ones stay listed.
#[utoipa::path(delete, path = "/v1/reach/policy", tag = "reach",
    params(("Tidings-Author" = Option<String>, Header, description = "Who removes it: kept with the version"),
           ("If-Match" = Option<String>, Header, description = "The version that it must still have"),
           ("If-None-Match" = Option<String>, Header, description = "`*`: none may have been stored yet")),
    responses((status = 200, description = "The default, which holds now", body = StoredReachPolicy), Refusals, Conflict))]
pub(super) async fn remove_reach_policy(
    State(api): State<Arc<Api>>,
    _: AppServer,
    headers: HeaderMap,
) -> AnswerResult<StoredReachPolicy> {
    let (author, precondition) = (author(&headers)?, precondition(&headers)?);
    let remove =
        move |engine: &Arc<tidings_engine::Engine>| engine.reach_policies.remove(author.as_deref(), precondition);
    Ok(Answer::ok(api.read(remove).await?))
}

/// The versions of the reach policy, newest first; the newest 50 are kept.
#[utoipa::path(get, path = "/v1/reach/policy/versions", tag = "reach",
    responses((status = 200, description = "The versions", body = ReachPolicyVersions), Refusals))]
pub(super) async fn reach_policy_versions(
    State(api): State<Arc<Api>>,
    _: AppServer,
) -> AnswerResult<ReachPolicyVersions> {
    Ok(Answer::ok(api.read(|engine| engine.reach_policies.versions()).await?))
}

/// What each road would do for a person, if a message were sent now.
///
/// The body is that of a send, with the `user` about whom it is asked. Nothing is sent or stored.
#[utoipa::path(post, path = "/v1/reach/explain", tag = "reach", request_body = ExplainReach,
    responses((status = 200, description = "The rule that decides, and each of its roads", body = ReachExplanation),
        Refusals, TakesBody))]
pub(super) async fn explain_reach(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Json(request): Json<ExplainReach>,
) -> AnswerResult<ReachExplanation> {
    Ok(Answer::ok(api.read(move |engine| engine.explain_reach(&request)).await?))
}

/// By which roads a user wants to be told of messages.
#[utoipa::path(get, path = "/v1/users/{user}/reach", tag = "users",
    params(("user" = inline(Id), Path, description = "The user's id; `me` for the token's user")),
    responses((status = 200, description = "The preferences", body = ReachPreferences), Refusals, OtherMethods))]
pub(super) async fn get_reach_preferences(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(user): PathIds<String>,
) -> AnswerResult<ReachPreferences> {
    let user = caller.may(Scope::Read)?.user(&api, &user)?;
    Ok(Answer::ok(api.read(move |engine| engine.reach_preferences(&user.id)).await?))
}

/// Set by which roads a user wants to be told of messages.
///
/// They replace the former ones; `{}` removes all.
#[utoipa::path(put, path = "/v1/users/{user}/reach", tag = "users", request_body = ReachPreferences,
    params(("user" = inline(Id), Path, description = "The user's id; `me` for the token's user")),
    responses((status = 204, description = "They hold from now on"), Refusals, OtherMethods, TakesBody))]
pub(super) async fn set_reach_preferences(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(user): PathIds<String>,
    Json(request): Json<ReachPreferences>,
) -> Result<StatusCode, RefusalResponse> {
    let user = caller.may(Scope::Read)?.user(&api, &user)?;
    api.engine.set_reach_preferences(&user.id, request).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Why a push reached, or did not reach, the devices of a user.
#[utoipa::path(get, path = "/v1/push/{push}/reach", tag = "push", operation_id = "get_push_reach",
    params(("push" = u64, Path, description = "The push's number"), Whom),
    responses((status = 200, description = "Each of the user's devices, and why", body = PushUserReach), Refusals))]
pub(super) async fn get_push_reach(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(push): PathIds<u64>,
    Query(Whom { user }): Query<Whom>,
) -> AnswerResult<PushUserReach> {
    Ok(Answer::ok(api.read(move |engine: &Arc<Engine>| engine.push.user_reach(push, &user)).await?))
}

/// A time range.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Range {
    /// Its beginning, in milliseconds since 1970 UTC; absent: a day before its end. Counts are kept for `reach.trace_days`.
    pub from: Option<u64>,
    /// Its end; absent: now.
    pub to: Option<u64>,
}

/// How often each road was tried, what came of it, and how long it took.
///
/// In whole hours, which the answer names. Other nodes' counts come up to ten seconds later.
#[utoipa::path(get, path = "/v1/reach/stats", tag = "reach", operation_id = "get_reach_stats", params(Range),
    responses((status = 200, description = "The roads on which something happened", body = ReachStats), Refusals, Conflict))]
pub(super) async fn get_reach_stats(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Query(Range { from, to }): Query<Range>,
) -> AnswerResult<ReachStats> {
    Ok(Answer::ok(api.read(move |engine: &Arc<Engine>| engine.reach_stats(from, to)).await?))
}

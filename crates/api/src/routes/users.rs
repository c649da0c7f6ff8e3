//! Users: profiles, do-not-disturb, and ending their sessions.

use super::{
    Answer, AnswerResult,
    ids::Id,
    refusals::{Refusals, TakesBody},
};
use crate::{
    Api,
    audit::operator,
    extract::{AppServer, BatchJson, Caller, Json, KeyHolder, PathIds, Query},
};
use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
};
use std::sync::Arc;
use tidings_domain::model::Actor;
use tidings_engine::access::Operation;
use tidings_protocol::error::{ErrorCode, Refusal};
use tidings_protocol::http::{
    Kick, Kicked, Revoke, Revoked, SetDoNotDisturb, SetLocale, Suspend, SuspensionView, Unsuspend, UserListQuery,
    UserProfile, UserProfiles, UsersQuery, UsersUpsert, UsersUpserted,
};

/// Create or change users.
///
/// Up to 10,000 at once; what a user's entry leaves out stays as it was.
#[utoipa::path(put, path = "/v1/users", tag = "users", request_body = UsersUpsert,
    responses((status = 200, description = "How many are new, and how many were known", body = UsersUpserted),
        Refusals, TakesBody))]
pub(super) async fn upsert_users(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Json(request): BatchJson<UsersUpsert>,
) -> AnswerResult<UsersUpserted> {
    Ok(Answer::ok(api.engine.upsert_users(request.users).await?))
}

/// Profiles of users: with `users` those, each as a call of its own shows it; otherwise, for app servers, a page of all users in the
/// order of their ids.
///
/// Users whom the server does not know are left out. A page looks at 1,000 users at most: with a filter that most do not pass it may have few
/// or none, and a `next`.
#[utoipa::path(get, path = "/v1/users", tag = "users", params(UserListQuery),
    responses((status = 200, description = "The profiles, in the order asked for or of ids", body = UserProfiles), Refusals))]
pub(super) async fn get_users(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(query): Query<UserListQuery>,
) -> AnswerResult<UserProfiles> {
    let Some(users) = &query.users else {
        let Actor::App = caller.may(Operation::ReadDetails)?.0 else {
            return Err(
                Refusal::new(ErrorCode::Forbidden, "users: a user's token names the users whom it asks for").into()
            );
        };
        return Ok(Answer::ok(api.read(move |engine| engine.list_users(&query)).await?));
    };
    let ids = users.split(',').filter(|id| !id.is_empty()).map(str::to_owned).collect();
    profiles(&api, caller, ids).await
}

/// The same for ids that do not fit an address, or hold commas.
#[utoipa::path(post, path = "/v1/users/query", tag = "users", request_body = UsersQuery,
    responses((status = 200, description = "The profiles, in the order asked for", body = UserProfiles),
        Refusals, TakesBody))]
pub(super) async fn query_users(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Json(query): Json<UsersQuery>,
) -> AnswerResult<UserProfiles> {
    profiles(&api, caller, query.users).await
}

async fn profiles(api: &Arc<Api>, caller: Caller, ids: Vec<String>) -> AnswerResult<UserProfiles> {
    let caller = caller.may(Operation::ReadDetails)?;
    let users = api.read(move |engine| engine.user_profiles(&caller.0, &ids)).await?;
    Ok(Answer::ok(UserProfiles { users, next: None }))
}

/// A user's profile.
///
/// Name and avatar are shown to every user; `attributes`, `do_not_disturb`, `language` and `time_zone` to the user and to
/// app servers alone. Of others' attributes a user's token is shown those that the setting `public_attributes` names.
#[utoipa::path(get, path = "/v1/users/{user}", tag = "users",
    params(("user" = inline(Id), Path, description = "The user's id; `me` for the token's user")),
    responses((status = 200, description = "The profile", body = UserProfile), Refusals))]
pub(super) async fn get_user(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(user): PathIds<String>,
) -> AnswerResult<UserProfile> {
    let caller = caller.may(Operation::ReadDetails)?;
    let (id, private) = match &caller.0 {
        Actor::App => (user, true),
        Actor::User(own) if user == "me" || user == own.id => (own.id.clone(), true),
        Actor::User(_) => (user, false),
    };
    Ok(Answer::ok(api.read(move |engine| engine.user_profile(&id, private)).await?))
}

/// Set or end the daily window without offline push.
#[utoipa::path(put, path = "/v1/users/{user}/do-not-disturb", tag = "users", request_body = SetDoNotDisturb,
    params(("user" = inline(Id), Path, description = "The user's id; `me` for the token's user")),
    responses((status = 204, description = "It holds from now on"), Refusals, TakesBody))]
pub(super) async fn set_do_not_disturb(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(user): PathIds<String>,
    Json(request): Json<SetDoNotDisturb>,
) -> Result<StatusCode, crate::problem::RefusalResponse> {
    let user = caller.may(Operation::SetPreferences)?.user(&api, &user)?;
    api.engine.set_do_not_disturb(&user.id, request.window).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Set a user's language and time zone.
///
/// Notifications are written in this language, and days and daily windows of popups and of the notification policy are those of
/// this time zone. What is absent or `null` is removed.
#[utoipa::path(put, path = "/v1/users/{user}/locale", tag = "users", request_body = SetLocale,
    params(("user" = inline(Id), Path, description = "The user's id; `me` for the token's user")),
    responses((status = 204, description = "They hold from now on"), Refusals, TakesBody))]
pub(super) async fn set_locale(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(user): PathIds<String>,
    Json(request): Json<SetLocale>,
) -> Result<StatusCode, crate::problem::RefusalResponse> {
    let user = caller.may(Operation::SetPreferences)?.user(&api, &user)?;
    api.engine.set_locale(&user.id, request).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// End a user's sessions.
///
/// Their connections are closed with the code `kicked`. A token that is still valid can bind again:
/// revoke it to end that too.
#[utoipa::path(post, path = "/v1/users/{user}/kick", tag = "users", request_body = Kick,
    params(("user" = inline(Id), Path, description = "The user's id")),
    responses((status = 200, description = "How many sessions were ended", body = Kicked), Refusals, TakesBody))]
pub(super) async fn kick(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(user): PathIds<String>,
    Json(request): Json<Kick>,
) -> AnswerResult<Kicked> {
    Ok(Answer::ok(api.engine.kick(&user, request).await?))
}

/// Suspend a user.
///
/// The user's sessions end on every node with the code `user_suspended`, and so are the user's tokens refused over every listener, also
/// new ones; messages in the user's name are refused, too, and the user is not notified. Nothing of the user is lost: others go on
/// writing to the user, who finds it all once the suspension ends or is lifted. A second suspension replaces the first.
#[utoipa::path(post, path = "/v1/users/{user}/suspend", tag = "users", request_body = Suspend,
    params(("user" = inline(Id), Path, description = "The user's id"),
           ("Tidings-Author" = Option<String>, Header, description = "Who suspends the user; absent: the API key's name is kept")),
    responses((status = 200, description = "The user is suspended", body = SuspensionView), Refusals, TakesBody))]
pub(super) async fn suspend(
    State(api): State<Arc<Api>>,
    KeyHolder(key): KeyHolder,
    PathIds(user): PathIds<String>,
    headers: HeaderMap,
    Json(request): Json<Suspend>,
) -> AnswerResult<SuspensionView> {
    let by = operator(&headers).unwrap_or_else(|| key.name.clone());
    Ok(Answer::ok(api.engine.suspend(&user, request, &by).await?))
}

/// Lift a user's suspension.
///
/// Nothing happens if the user is not suspended. The user's tokens are good again, as far as they were not revoked.
#[utoipa::path(post, path = "/v1/users/{user}/unsuspend", tag = "users", request_body = Unsuspend,
    params(("user" = inline(Id), Path, description = "The user's id"),
           ("Tidings-Author" = Option<String>, Header, description = "Who lifts it; absent: the API key's name is kept")),
    responses((status = 204, description = "The user is not suspended"), Refusals, TakesBody))]
pub(super) async fn unsuspend(
    State(api): State<Arc<Api>>,
    KeyHolder(key): KeyHolder,
    PathIds(user): PathIds<String>,
    headers: HeaderMap,
    Json(request): Json<Unsuspend>,
) -> Result<StatusCode, crate::problem::RefusalResponse> {
    let by = operator(&headers).unwrap_or_else(|| key.name.clone());
    api.engine.unsuspend(&user, request, &by).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Revoke a user's tokens.
///
/// Every token that was issued before now is refused from here on, on every node and for good, and the user's sessions
/// are closed with the code `kicked`. Tokens whose `iat` is `issue_from` or later are good; a token without `iat` is not.
#[utoipa::path(post, path = "/v1/users/{user}/revoke", tag = "users", request_body = Revoke,
    params(("user" = inline(Id), Path, description = "The user's id")),
    responses((status = 200, description = "They are refused from here on", body = Revoked), Refusals, TakesBody))]
pub(super) async fn revoke(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(user): PathIds<String>,
    Json(request): Json<Revoke>,
) -> AnswerResult<Revoked> {
    Ok(Answer::ok(api.engine.revoke(&user, request).await?))
}

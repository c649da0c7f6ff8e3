//! Users: profile cards, do-not-disturb, and ending their sessions.

use super::{Answer, Answered};
use crate::{
    Api,
    extract::{AppServer, Caller, Ids, Json},
};
use axum::{extract::State, http::StatusCode};
use std::sync::Arc;
use tidings_engine::engine::Actor;
use tidings_protocol::http::{Kick, Kicked, SetDoNotDisturb, UserCard, UsersUpsert, UsersUpserted};

/// Create or change users.
///
/// Up to 10,000 at once; what a user's entry leaves out stays as it was.
#[utoipa::path(put, path = "/v1/users", tag = "users", request_body = UsersUpsert,
    responses((status = 200, body = UsersUpserted)))]
pub(super) async fn upsert_users(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Json(request): Json<UsersUpsert>,
) -> Answered<UsersUpserted> {
    Ok(Answer::ok(api.engine.upsert_users(request.users).await?))
}

/// A user's profile card.
#[utoipa::path(get, path = "/v1/users/{user}", tag = "users",
    params(("user", description = "The user's id; `me` for the token's user")),
    responses((status = 200, body = UserCard)))]
pub(super) async fn get_user(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Ids(user): Ids<String>,
) -> Answered<UserCard> {
    let (id, private) = match &caller.0 {
        Actor::App => (user, true),
        Actor::User(own) if user == "me" || user == own.id => (own.id.clone(), true),
        Actor::User(_) => (user, false),
    };
    Ok(Answer::ok(api.read(move |engine| engine.user_card(&id, private)).await?))
}

/// Set or end the daily window without offline push.
#[utoipa::path(put, path = "/v1/users/{user}/do-not-disturb", tag = "users", request_body = SetDoNotDisturb,
    params(("user", description = "The user's id; `me` for the token's user")),
    responses((status = 204)))]
pub(super) async fn set_do_not_disturb(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Ids(user): Ids<String>,
    Json(request): Json<SetDoNotDisturb>,
) -> Result<StatusCode, crate::problem::Refused> {
    let user = caller.user(&api, &user)?;
    api.engine.set_do_not_disturb(&user.id, request.window).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// End a user's sessions.
///
/// Their connections are closed with the code `kicked`. A token that is still valid can bind again:
/// stop issuing tokens first.
#[utoipa::path(post, path = "/v1/users/{user}/kick", tag = "users", request_body = Kick,
    params(("user", description = "The user's id")),
    responses((status = 200, body = Kicked)))]
pub(super) async fn kick(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Ids(user): Ids<String>,
    Json(request): Json<Kick>,
) -> Answered<Kicked> {
    Ok(Answer::ok(api.engine.kick(&user, request).await?))
}

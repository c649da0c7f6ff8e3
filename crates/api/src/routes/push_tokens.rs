//! Push tokens: where providers reach users' devices.

use super::{
    Answer, AnswerResult,
    ids::Id,
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
use tidings_protocol::http::{PushToken, PushTokens};

/// Register the token by which a provider reaches a device.
///
/// In place of the device's former one. A token that another device had, perhaps of another user, is this device's alone from
/// now on. A user has at most 20 such devices.
#[utoipa::path(put, path = "/v1/users/{user}/devices/{device_id}/push_token", tag = "users", request_body = PushToken,
    params(("user" = inline(Id), Path, description = "The user's id; `me` for the token's user"),
           ("device_id" = inline(Id), Path, description = "The device's id")),
    responses((status = 204, description = "Messages to the offline user are notified there"), Refusals, Conflict, TakesBody))]
pub(super) async fn set_push_token(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((user, device_id)): PathIds<(String, String)>,
    Json(token): Json<PushToken>,
) -> Result<StatusCode, RefusalResponse> {
    let user = caller.may(Operation::SetPreferences)?.user(&api, &user)?;
    api.read_notifications(move |notifications| notifications.set_push_token(&user, &device_id, Some(&token))).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Forget the token by which a provider reaches a device.
#[utoipa::path(delete, path = "/v1/users/{user}/devices/{device_id}/push_token", tag = "users",
    params(("user" = inline(Id), Path, description = "The user's id; `me` for the token's user"),
           ("device_id" = inline(Id), Path, description = "The device's id")),
    responses((status = 204, description = "The device has none"), Refusals))]
pub(super) async fn remove_push_token(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((user, device_id)): PathIds<(String, String)>,
) -> Result<StatusCode, RefusalResponse> {
    let user = caller.may(Operation::SetPreferences)?.user(&api, &user)?;
    api.read_notifications(move |notifications| notifications.set_push_token(&user, &device_id, None)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The devices of a user that providers reach.
///
/// The tokens themselves are not shown.
#[utoipa::path(get, path = "/v1/users/{user}/push_tokens", tag = "users",
    params(("user" = inline(Id), Path, description = "The user's id; `me` for the token's user")),
    responses((status = 200, description = "The devices", body = PushTokens), Refusals))]
pub(super) async fn list_push_tokens(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(user): PathIds<String>,
) -> AnswerResult<PushTokens> {
    let user = caller.may(Operation::SetPreferences)?.user(&api, &user)?;
    Ok(Answer::ok(api.read(move |engine| engine.push_tokens(&user)).await?))
}

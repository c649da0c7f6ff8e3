//! Push: data to devices, the state of each push, and the devices.

use super::{
    Answer, AnswerResult,
    ids::Id,
    refusals::{Conflict, Refusals, TakesBody},
};
use crate::{
    Api,
    extract::{AppServer, BatchJson, Json, PathIds, Query},
    problem::RefusalResponse,
};
use axum::{extract::State, http::StatusCode};
use serde::Deserialize;
use std::sync::Arc;
use tidings_protocol::{
    error::Refusal,
    http::{
        DeviceDetails, DeviceState, PushAnswer, PushDevicePage, PushListQuery, PushPage, PushRequest, PushStatus,
        SetTags, UserDevices,
    },
};

/// Push to devices.
///
/// To users, devices, tags or all. The answer means that it is durable: devices that are connected
/// get it now, others when they bind, until it is acknowledged or its time is over. With a
/// `client_push_id` a retry is safe: it answers with the first result; another push with the id is refused (`client_push_id_reused`). 202; 200 for a retry and for a dry run.
#[utoipa::path(post, path = "/v1/push", tag = "push", request_body = PushRequest,
    responses((status = 202, description = "It is durable", body = PushAnswer),
        (status = 200, description = "The first result of a retry; whom a dry run would reach", body = PushAnswer),
        Refusals, TakesBody, Conflict))]
pub(super) async fn send_push(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Json(request): BatchJson<PushRequest>,
) -> AnswerResult<PushAnswer> {
    let (status, answer) = accept_push(&api, request).await?;
    Ok(Answer(status, answer))
}

/// Accepts a push of an app server, or answers whom it would reach.
pub(crate) async fn accept_push(api: &Api, request: PushRequest) -> Result<(StatusCode, PushAnswer), Refusal> {
    if request.fallback.is_some() {
        api.notifications.require_providers()?;
    }
    if request.dry_run {
        let read = move |engine: &Arc<tidings_engine::Engine>| engine.push.reach(engine.push.prepare(request)?);
        return Ok((StatusCode::OK, PushAnswer::Reach { reach: api.read(read).await? }));
    }
    let prepared = api.read(move |engine| engine.push.prepare(request)).await?;
    let accepted = api.engine.push.accept(prepared).await?;
    let status = if accepted.duplicate { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, PushAnswer::Accepted(accepted)))
}

/// Pushes, the newest first; ended ones as long as they are kept (`push.kept_days`).
#[utoipa::path(get, path = "/v1/push", tag = "push", params(PushListQuery),
    responses((status = 200, description = "A page of pushes", body = PushPage), Refusals))]
pub(super) async fn list_pushes(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Query(query): Query<PushListQuery>,
) -> AnswerResult<PushPage> {
    Ok(Answer::ok(api.read(move |engine| engine.push.pushes(&query)).await?))
}

/// A push's state, and its devices by what became of it on them.
#[utoipa::path(get, path = "/v1/push/{push}", tag = "push",
    params(("push" = u64, Path, description = "The push's number")),
    responses((status = 200, description = "The state", body = PushStatus), Refusals))]
pub(super) async fn get_push(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(push): PathIds<u64>,
) -> AnswerResult<PushStatus> {
    Ok(Answer::ok(api.read(move |engine| engine.push.status(push)).await?))
}

/// Which of a push's devices, and where the page starts.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct DevicesQuery {
    /// Only devices in this state.
    pub state: Option<DeviceState>,
    /// The `next` of the page before; absent for the first.
    #[param(value_type = Option<u64>)]
    pub after: Option<u32>,
    /// At most so many; absent or 0: as many as the server sees fit.
    pub limit: Option<usize>,
}

/// What became of a push on each of its devices, page by page.
#[utoipa::path(get, path = "/v1/push/{push}/devices", tag = "push",
    params(("push" = u64, Path, description = "The push's number"), DevicesQuery),
    responses((status = 200, description = "A page of devices", body = PushDevicePage), Refusals))]
pub(super) async fn list_push_devices(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(push): PathIds<u64>,
    Query(query): Query<DevicesQuery>,
) -> AnswerResult<PushDevicePage> {
    let DevicesQuery { state, after, limit } = query;
    let read = move |engine: &Arc<tidings_engine::Engine>| engine.push.devices(push, state, after, limit.unwrap_or(0));
    Ok(Answer::ok(api.read(read).await?))
}

/// Cancel a push.
///
/// A scheduled one does not start; of a running one, devices that have not got it do not get it.
#[utoipa::path(delete, path = "/v1/push/{push}", tag = "push",
    params(("push" = u64, Path, description = "The push's number")),
    responses((status = 200, description = "The state as it is now", body = PushStatus), Refusals, Conflict))]
pub(super) async fn cancel_push(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(push): PathIds<u64>,
) -> AnswerResult<PushStatus> {
    Ok(Answer::ok(api.read(move |engine| engine.push.cancel(push)).await?))
}

/// The devices of a user that pushes can be sent to.
#[utoipa::path(get, path = "/v1/users/{user}/devices", tag = "push",
    params(("user" = inline(Id), Path, description = "The user's id")),
    responses((status = 200, description = "The devices", body = UserDevices), Refusals))]
pub(super) async fn list_devices(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(user): PathIds<String>,
) -> AnswerResult<UserDevices> {
    Ok(Answer::ok(api.read(move |engine| engine.push.user_devices(&user)).await?))
}

/// Set all of a device's tags; at most 32.
#[utoipa::path(put, path = "/v1/users/{user}/devices/{device_id}/tags", tag = "push", request_body = SetTags,
    params(("user" = inline(Id), Path, description = "The user's id"),
           ("device_id" = inline(Id), Path, description = "The device's id")),
    responses((status = 200, description = "The device as it is now", body = DeviceDetails), Refusals, TakesBody))]
pub(super) async fn set_device_tags(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds((user, device_id)): PathIds<(String, String)>,
    Json(request): Json<SetTags>,
) -> AnswerResult<DeviceDetails> {
    let set = move |engine: &Arc<tidings_engine::Engine>| engine.push.set_device_tags(&user, &device_id, request.tags);
    Ok(Answer::ok(api.read(set).await?))
}

/// Forget a device.
///
/// What waits for it is cancelled and its session ended. When it binds again, it is a new one.
#[utoipa::path(delete, path = "/v1/users/{user}/devices/{device_id}", tag = "push",
    params(("user" = inline(Id), Path, description = "The user's id"),
           ("device_id" = inline(Id), Path, description = "The device's id")),
    responses((status = 204, description = "It is forgotten"), Refusals))]
pub(super) async fn remove_device(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds((user, device_id)): PathIds<(String, String)>,
) -> Result<StatusCode, RefusalResponse> {
    api.read(move |engine| engine.remove_device(&user, &device_id)).await?;
    Ok(StatusCode::NO_CONTENT)
}

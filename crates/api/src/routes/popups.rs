//! Popups as app servers write them, and the settings of all popups.

use super::{
    Answer, AnswerResult,
    ids::Id,
    refusals::{Conflict, OtherMethods, Refusals, TakesBody},
};
use crate::{
    Api,
    audit::AUTHOR,
    extract::{AppServer, Json, PathIds, Query, RawJson},
    problem::RefusalResponse,
};
use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, header},
};
use serde::Deserialize;
use std::sync::Arc;
use tidings_popups::Precondition;
use tidings_protocol::{
    error::Refusal,
    http::{Popup as PopupSummary, *},
};

pub(super) fn author(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let Some(author) = headers.get(AUTHOR) else { return Ok(None) };
    let author = std::str::from_utf8(author.as_bytes());
    let author = author.map_err(|_| Refusal::field("Tidings-Author", "is not text in UTF-8"))?;
    Ok(Some(author.to_owned()))
}

pub(super) fn precondition(headers: &HeaderMap) -> Result<Precondition, Refusal> {
    if let Some(version) = headers.get(header::IF_MATCH) {
        let text = version.to_str().unwrap_or_default().trim_matches('"');
        let version = text.parse().map_err(|_| Refusal::field("If-Match", "is not a version"))?;
        return Ok(Precondition::Version(version));
    }
    match headers.get(header::IF_NONE_MATCH) {
        Some(any) if any.as_bytes() == b"*" => Ok(Precondition::Absent),
        Some(_) => Err(Refusal::field("If-None-Match", "only * is supported")),
        None => Ok(Precondition::None),
    }
}

/// Create a popup, or replace it as a whole.
///
/// Every write is a version; `Tidings-Author` is kept with it. `If-Match` makes it conditional on the newest version,
/// `If-None-Match: *` on there being none. 201 for a new one.
#[utoipa::path(put, path = "/v1/popups/{popup}", tag = "popups", request_body = PopupSpec,
    params(("popup" = inline(Id), Path, description = "The popup's id"),
           ("Tidings-Author" = Option<String>, Header, description = "Who writes it: kept with the version"),
           ("If-Match" = Option<String>, Header, description = "The version that it must still have"),
           ("If-None-Match" = Option<String>, Header, description = "`*`: it must not be there yet")),
    responses((status = 200, description = "The popup as it is now", body = PopupSummary),
        (status = 201, description = "It is new", body = PopupSummary), Refusals, OtherMethods, TakesBody, Conflict))]
pub(super) async fn put_popup(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(popup): PathIds<String>,
    headers: HeaderMap,
    RawJson(body): RawJson,
) -> AnswerResult<PopupSummary> {
    let (author, precondition) = (author(&headers)?, precondition(&headers)?);
    let put =
        move |engine: &Arc<tidings_engine::Engine>| engine.popups.put(&popup, &body, author.as_deref(), precondition);
    let (details, created) = api.read(put).await?;
    Ok(Answer(if created { StatusCode::CREATED } else { StatusCode::OK }, details))
}

/// A popup as it stands.
#[utoipa::path(get, path = "/v1/popups/{popup}", tag = "popups",
    params(("popup" = inline(Id), Path, description = "The popup's id")),
    responses((status = 200, description = "The popup", body = PopupSummary), Refusals, OtherMethods))]
pub(super) async fn get_popup(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(popup): PathIds<String>,
) -> AnswerResult<PopupSummary> {
    Ok(Answer::ok(api.read(move |engine| engine.popups.get(&popup)).await?))
}

/// Remove a popup with its versions and counts. Events that were taken stay in exports.
#[utoipa::path(delete, path = "/v1/popups/{popup}", tag = "popups",
    params(("popup" = inline(Id), Path, description = "The popup's id"),
           ("If-Match" = Option<String>, Header, description = "The version that it must still have"),
           ("If-None-Match" = Option<String>, Header, description = "`*`: it must not be there yet")),
    responses((status = 204, description = "It is removed"), Refusals, OtherMethods, Conflict))]
pub(super) async fn remove_popup(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(popup): PathIds<String>,
    headers: HeaderMap,
) -> Result<StatusCode, RefusalResponse> {
    let precondition = precondition(&headers)?;
    api.read(move |engine| engine.popups.remove(&popup, precondition)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Where a page of popups starts.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct PopupsQuery {
    /// The `next` of the page before; absent for the first.
    pub after: Option<String>,
    /// At most so many; absent or 0: as many as the server sees fit.
    pub limit: Option<usize>,
}

/// All popups, in the order of their ids.
#[utoipa::path(get, path = "/v1/popups", tag = "popups", params(PopupsQuery),
    responses((status = 200, description = "A page of popups", body = PopupPage), Refusals))]
pub(super) async fn list_popups(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Query(query): Query<PopupsQuery>,
) -> AnswerResult<PopupPage> {
    let list = move |engine: &Arc<tidings_engine::Engine>| {
        engine.popups.list(query.after.as_deref(), query.limit.unwrap_or(0))
    };
    Ok(Answer::ok(api.read(list).await?))
}

/// A popup's versions, newest first; the newest 100 are kept.
#[utoipa::path(get, path = "/v1/popups/{popup}/versions", tag = "popups",
    params(("popup" = inline(Id), Path, description = "The popup's id")),
    responses((status = 200, description = "The versions", body = PopupVersions), Refusals))]
pub(super) async fn popup_versions(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(popup): PathIds<String>,
) -> AnswerResult<PopupVersions> {
    Ok(Answer::ok(api.read(move |engine| engine.popups.versions(&popup)).await?))
}

/// A popup's new state.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SetPopupState {
    state: PopupState,
}

/// Change only a popup's state: a version like any other.
#[utoipa::path(put, path = "/v1/popups/{popup}/state", tag = "popups", request_body = SetPopupState,
    params(("popup" = inline(Id), Path, description = "The popup's id"),
           ("Tidings-Author" = Option<String>, Header, description = "Who writes it: kept with the version"),
           ("If-Match" = Option<String>, Header, description = "The version that it must still have"),
           ("If-None-Match" = Option<String>, Header, description = "`*`: it must not be there yet")),
    responses((status = 200, description = "The popup as it is now", body = PopupSummary), Refusals, TakesBody, Conflict))]
pub(super) async fn set_popup_state(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(popup): PathIds<String>,
    headers: HeaderMap,
    Json(request): Json<SetPopupState>,
) -> AnswerResult<PopupSummary> {
    let (author, precondition) = (author(&headers)?, precondition(&headers)?);
    let set = move |engine: &Arc<tidings_engine::Engine>| {
        engine.popups.set_state(&popup, request.state, author.as_deref(), precondition)
    };
    Ok(Answer::ok(api.read(set).await?))
}

/// What is above all popups: their time zone, caps over all and per placement, the holdout.
#[utoipa::path(get, path = "/v1/popup-settings", tag = "popups",
    responses((status = 200, description = "The settings", body = PopupSettings), Refusals))]
pub(super) async fn get_settings(State(api): State<Arc<Api>>, _: AppServer) -> AnswerResult<PopupSettings> {
    Ok(Answer::ok(api.read(|engine| engine.popups.settings()).await?))
}

/// Replace the settings as a whole.
#[utoipa::path(put, path = "/v1/popup-settings", tag = "popups", request_body = PopupSettings,
    responses((status = 200, description = "The settings as they are now", body = PopupSettings), Refusals, TakesBody))]
pub(super) async fn put_settings(
    State(api): State<Arc<Api>>,
    _: AppServer,
    RawJson(body): RawJson,
) -> AnswerResult<PopupSettings> {
    Ok(Answer::ok(api.read(move |engine| engine.popups.set_settings(&body)).await?))
}

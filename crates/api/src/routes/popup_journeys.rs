//! Journeys of popups as app servers write them, and how many users came to which step.

use super::{
    Answer, AnswerResult,
    ids::Id,
    popup_events::CountsQuery,
    popups::{author, precondition},
    refusals::{Conflict, OtherMethods, Refusals, TakesBody},
};
use crate::{
    Api,
    extract::{AppServer, PathIds, Query, RawJson},
    problem::RefusalResponse,
};
use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
};
use std::sync::Arc;
use tidings_protocol::http::*;

/// Create a journey, or replace it by a new version.
///
/// A user goes through the version that the user entered; the newest 20 are kept. `Tidings-Author` is kept with the
/// version. `If-Match` makes the write conditional on the newest version, `If-None-Match: *` on there being none. 201 for a
/// new one.
#[utoipa::path(put, path = "/v1/popup-journeys/{journey}", tag = "popups", request_body = PopupJourneySpec,
    params(("journey" = inline(Id), Path, description = "The journey's id"),
           ("Tidings-Author" = Option<String>, Header, description = "Who writes it: kept with the version"),
           ("If-Match" = Option<String>, Header, description = "The version that it must still have"),
           ("If-None-Match" = Option<String>, Header, description = "`*`: it must not be there yet")),
    responses((status = 200, description = "The journey as it is now", body = PopupJourney),
        (status = 201, description = "It is new", body = PopupJourney), Refusals, OtherMethods, TakesBody, Conflict))]
pub(super) async fn put_journey(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(journey): PathIds<String>,
    headers: HeaderMap,
    RawJson(body): RawJson,
) -> AnswerResult<PopupJourney> {
    let (author, precondition) = (author(&headers)?, precondition(&headers)?);
    let put = move |engine: &Arc<tidings_engine::Engine>| {
        engine.popups.put_journey(&journey, &body, author.as_deref(), precondition)
    };
    let (details, created) = api.read(put).await?;
    Ok(Answer(if created { StatusCode::CREATED } else { StatusCode::OK }, details))
}

/// A journey as it stands.
#[utoipa::path(get, path = "/v1/popup-journeys/{journey}", tag = "popups",
    params(("journey" = inline(Id), Path, description = "The journey's id")),
    responses((status = 200, description = "The journey", body = PopupJourney), Refusals, OtherMethods))]
pub(super) async fn get_journey(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(journey): PathIds<String>,
) -> AnswerResult<PopupJourney> {
    Ok(Answer::ok(api.read(move |engine| engine.popups.journey(&journey)).await?))
}

/// Remove a journey with its versions and counts: all users leave it.
#[utoipa::path(delete, path = "/v1/popup-journeys/{journey}", tag = "popups",
    params(("journey" = inline(Id), Path, description = "The journey's id"),
           ("If-Match" = Option<String>, Header, description = "The version that it must still have"),
           ("If-None-Match" = Option<String>, Header, description = "`*`: it must not be there yet")),
    responses((status = 204, description = "It is removed"), Refusals, OtherMethods, Conflict))]
pub(super) async fn remove_journey(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(journey): PathIds<String>,
    headers: HeaderMap,
) -> Result<StatusCode, RefusalResponse> {
    let precondition = precondition(&headers)?;
    api.read(move |engine| engine.popups.remove_journey(&journey, precondition)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// All journeys, at most 100, in the order of their ids.
#[utoipa::path(get, path = "/v1/popup-journeys", tag = "popups",
    responses((status = 200, description = "The journeys", body = PopupJourneys), Refusals))]
pub(super) async fn list_journeys(State(api): State<Arc<Api>>, _: AppServer) -> AnswerResult<PopupJourneys> {
    Ok(Answer::ok(api.read(|engine| engine.popups.journeys()).await?))
}

/// How many users came to each step of a journey and went on, by version.
#[utoipa::path(get, path = "/v1/popup-journeys/{journey}/counts", tag = "popups",
    params(("journey" = inline(Id), Path, description = "The journey's id"), CountsQuery),
    responses((status = 200, description = "The counts", body = PopupJourneyCounts), Refusals))]
pub(super) async fn get_journey_counts(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(journey): PathIds<String>,
    Query(query): Query<CountsQuery>,
) -> AnswerResult<PopupJourneyCounts> {
    let counts =
        move |engine: &Arc<tidings_engine::Engine>| engine.popups.journey_counts(&journey, query.from, query.to);
    Ok(Answer::ok(api.read(counts).await?))
}

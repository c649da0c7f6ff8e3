//! Dead letters: notifications that the webhook or a vendor has not taken.

use super::{
    Answer, AnswerResult,
    refusals::{Conflict, Refusals, TakesBody},
};
use crate::{
    Api,
    extract::{AppServer, Json, Query},
};
use axum::extract::State;
use serde::Deserialize;
use std::sync::Arc;
use tidings_engine::Engine;
use tidings_protocol::http::{
    DeadLetterPage, PushVendor, ReachOutcome, ReplayDeadLetters, Replayed, SelectVendorDeadLetters,
    VendorDeadLetterPage, VendorDeadLettersDeleted, VendorDeadLettersReplayed,
};

/// Where a page of dead letters starts.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// The `next` of the page before; absent for the first.
    pub after: Option<u64>,
    /// At most so many; absent or 0: as many as the server sees fit.
    pub limit: Option<usize>,
}

/// Notifications that were given up, oldest first.
#[utoipa::path(get, path = "/v1/outbox/dead-letters", tag = "outbox", params(Page),
    responses((status = 200, description = "A page of notifications", body = DeadLetterPage), Refusals))]
pub(super) async fn list_dead_letters(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Query(page): Query<Page>,
) -> AnswerResult<DeadLetterPage> {
    Ok(Answer::ok(api.read(move |engine| engine.dead_letters(page.after, page.limit.unwrap_or(0))).await?))
}

/// Try given-up notifications again.
#[utoipa::path(post, path = "/v1/outbox/dead-letters/replay", tag = "outbox", request_body = ReplayDeadLetters,
    responses((status = 200, description = "How many are tried again", body = Replayed),
        Refusals, TakesBody, Conflict))]
pub(super) async fn replay_dead_letters(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Json(request): Json<ReplayDeadLetters>,
) -> AnswerResult<Replayed> {
    Ok(Answer::ok(api.engine.replay_dead_letters(request.ids).await?))
}

/// Which dead letters of vendors, and where the page starts.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct VendorPage {
    /// The `next` of the page before; absent for the first.
    pub after: Option<u64>,
    /// At most so many; absent or 0: as many as the server sees fit.
    pub limit: Option<usize>,
    /// Only those of this vendor.
    pub vendor: Option<PushVendor>,
    /// Only those of this user.
    pub user: Option<String>,
    /// Only those with this outcome.
    pub outcome: Option<ReachOutcome>,
    /// Only those whose cause has this text in it.
    pub cause: Option<String>,
}

/// Notifications that vendors did not take, oldest first.
///
/// They have neither tokens nor texts.
#[utoipa::path(get, path = "/v1/reach/dead-letters", tag = "reach", params(VendorPage),
    responses((status = 200, description = "A page of notifications", body = VendorDeadLetterPage), Refusals, Conflict))]
pub(super) async fn list_vendor_dead_letters(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Query(page): Query<VendorPage>,
) -> AnswerResult<VendorDeadLetterPage> {
    let VendorPage { after, limit, vendor, user, outcome, cause } = page;
    let select = SelectVendorDeadLetters { ids: None, vendor, user, outcome, cause };
    let read = move |engine: &Arc<Engine>| engine.vendor_dead_letters(after, limit.unwrap_or(0), &select);
    Ok(Answer::ok(api.read(read).await?))
}

/// Have vendors try again what they did not take.
///
/// A notification whose user is not to be told of the message any more is removed, and the answer says why.
#[utoipa::path(post, path = "/v1/reach/dead-letters/replay", tag = "reach", request_body = SelectVendorDeadLetters,
    responses((status = 200, description = "How many are tried again", body = VendorDeadLettersReplayed),
        Refusals, TakesBody, Conflict))]
pub(super) async fn replay_vendor_dead_letters(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Json(select): Json<SelectVendorDeadLetters>,
) -> AnswerResult<VendorDeadLettersReplayed> {
    let replay = move |engine: &Arc<Engine>| engine.replay_vendor_dead_letters(&select);
    Ok(Answer::ok(api.read(replay).await?))
}

/// Delete notifications that vendors did not take.
#[utoipa::path(post, path = "/v1/reach/dead-letters/delete", tag = "reach", request_body = SelectVendorDeadLetters,
    responses((status = 200, description = "How many were deleted", body = VendorDeadLettersDeleted),
        Refusals, TakesBody, Conflict))]
pub(super) async fn delete_vendor_dead_letters(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Json(select): Json<SelectVendorDeadLetters>,
) -> AnswerResult<VendorDeadLettersDeleted> {
    let delete = move |engine: &Arc<Engine>| engine.delete_vendor_dead_letters(&select);
    Ok(Answer::ok(api.read(delete).await?))
}

//! Dead letters: notifications that the webhook has not taken.

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
use tidings_protocol::http::{DeadLetterPage, ReplayDeadLetters, Replayed};

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

//! Bulk sends: one message to some of an official account's followers.

use super::{
    Answer, AnswerResult,
    refusals::{Conflict, Refusals, TakesBody},
};
use crate::{
    Api,
    extract::{AppServer, BatchJson, Json, PathIds, Query},
};
use axum::{extract::State, http::StatusCode};
use serde::Deserialize;
use std::sync::Arc;
use tidings_engine::Engine;
use tidings_protocol::http::{BulkSend, BulkSends, CreateBulkSend};

/// Send a message to some of an account's followers.
///
/// Each follower gets it in the follower's own conversation with the account, once at most, at the pace at which the server commits
/// beside other senders. The answer means that the send is durable: it goes on after a restart. With a `client_bulk_id` a
/// retry is safe: it answers with the first result. 202; 200 for a retry.
#[utoipa::path(post, path = "/v1/bulk-sends", tag = "bulk_sends", request_body = CreateBulkSend,
    responses((status = 202, description = "It is durable", body = BulkSend),
        (status = 200, description = "The first result of a retry", body = BulkSend),
        Refusals, TakesBody, Conflict))]
pub(super) async fn create_bulk_send(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Json(new): BatchJson<CreateBulkSend>,
) -> AnswerResult<BulkSend> {
    let (view, is_retry) = api.read(move |engine: &Arc<Engine>| engine.create_bulk_send(new)).await?;
    Ok(Answer(if is_retry { StatusCode::OK } else { StatusCode::ACCEPTED }, view))
}

/// Where a page of bulk sends starts.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// The `next` of the page before; absent for the first.
    pub after: Option<u64>,
    /// At most so many; absent or 0: as many as the server sees fit.
    pub limit: Option<usize>,
}

/// Bulk sends, the newest first; ended ones for 30 days.
#[utoipa::path(get, path = "/v1/bulk-sends", tag = "bulk_sends", params(Page),
    responses((status = 200, description = "A page of bulk sends", body = BulkSends), Refusals))]
pub(super) async fn list_bulk_sends(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Query(page): Query<Page>,
) -> AnswerResult<BulkSends> {
    let read = move |engine: &Arc<Engine>| engine.bulk_sends(page.after, page.limit.unwrap_or(0));
    Ok(Answer::ok(api.read(read).await?))
}

/// How far a bulk send has come.
#[utoipa::path(get, path = "/v1/bulk-sends/{bulk_send}", tag = "bulk_sends",
    params(("bulk_send" = u64, Path, description = "The bulk send's number")),
    responses((status = 200, description = "The bulk send", body = BulkSend), Refusals))]
pub(super) async fn get_bulk_send(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(id): PathIds<u64>,
) -> AnswerResult<BulkSend> {
    Ok(Answer::ok(api.read(move |engine: &Arc<Engine>| engine.bulk_send(id)).await?))
}

/// Cancel a bulk send.
///
/// Followers whose turn has not come get no message. An ended send stays as it is.
#[utoipa::path(delete, path = "/v1/bulk-sends/{bulk_send}", tag = "bulk_sends",
    params(("bulk_send" = u64, Path, description = "The bulk send's number")),
    responses((status = 200, description = "The bulk send as it is now", body = BulkSend), Refusals))]
pub(super) async fn cancel_bulk_send(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(id): PathIds<u64>,
) -> AnswerResult<BulkSend> {
    Ok(Answer::ok(api.read(move |engine: &Arc<Engine>| engine.cancel_bulk_send(id)).await?))
}

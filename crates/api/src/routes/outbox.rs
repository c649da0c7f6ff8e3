//! The outboxes that the server follows.

use super::{Answer, AnswerResult, refusals::Refusals};
use crate::{Api, extract::AppServer};
use axum::extract::State;
use std::sync::Arc;
use tidings_protocol::http::OutboxSources;

/// The outboxes in the app's own databases, and how far the server is with each.
#[utoipa::path(get, path = "/v1/outbox-sources", tag = "outbox",
    responses((status = 200, description = "All of them", body = OutboxSources), Refusals))]
pub(super) async fn list_outbox_sources(State(api): State<Arc<Api>>, _: AppServer) -> AnswerResult<OutboxSources> {
    let sources = api.outbox.as_ref().map_or(OutboxSources { sources: Vec::new() }, |outbox| outbox.sources());
    Ok(Answer::ok(sources))
}

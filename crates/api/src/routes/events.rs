//! The feed of events.

use super::{
    Answer, AnswerResult,
    refusals::{Conflict, Gone, Refusals},
};
use crate::{
    Api,
    extract::{AppServer, Query},
};
use axum::extract::State;
use std::sync::Arc;
use tidings_protocol::http::{EventPage, EventsQuery};
use tokio::time::{Instant, timeout_at};

/// All that was committed, in one order.
///
/// Entries of every kind, members, conversations, users, read marks and ended sessions, each in an envelope of
/// [CloudEvents 1.0](https://cloudevents.io). A reader keeps the `cursor` of the last event that it has dealt with, or the `next` of a page
/// without an event, and goes on from there: no event is left out, and one comes twice only if its cursor was not kept. What an event says
/// is read with the event: a message that was recalled since has no body.
///
/// 409 (`conflict`): `[events] keep_days` is 0. 410 (`cursor_expired`): what follows the cursor is not kept any more.
#[utoipa::path(get, path = "/v1/events", tag = "events", params(EventsQuery),
    responses((status = 200, description = "A page of events", body = EventPage), Refusals, Conflict, Gone))]
pub(super) async fn list_events(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Query(query): Query<EventsQuery>,
) -> AnswerResult<EventPage> {
    let mut request = api.read(move |engine| engine.events_request(&query)).await?;
    let deadline = Instant::now() + request.wait;
    loop {
        let asked = request.clone();
        let read = api.read(move |engine| engine.read_events(&asked)).await?;
        // With more behind them, those of other types were many.
        let is_answer = !read.page.events.is_empty() || read.page.more || Instant::now() >= deadline;
        if is_answer || timeout_at(deadline, api.engine.events_beyond(&read)).await.is_err() {
            return Ok(Answer::ok(read.page));
        }
        request = request.after(&read);
    }
}

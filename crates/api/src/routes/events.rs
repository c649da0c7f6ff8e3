//! The feed of events.

use super::{
    Answer, AnswerResult,
    popup_events::{JSON_LINES, as_lines},
    refusals::{Conflict, Gone, Refusals},
};
use crate::{
    Api,
    extract::{AppServer, Query},
    page_stream::{PageSender, PageStream},
    problem::RefusalResponse,
};
use axum::{
    body::Body,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use std::{sync::Arc, time::Duration};
use tidings_engine::{
    Engine,
    engine::events::{EventsRequest, ReadEvents},
};
use tidings_protocol::{
    error::Refusal,
    http::{EventPage, EventStreamQuery, EventsQuery},
};
use tokio::time::{Instant, timeout_at};

/// How long a stream lasts. The key is looked at when it begins: one that was revoked reads no longer than this.
const STREAM_LASTS: Duration = Duration::from_secs(300);

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
    Ok(Answer::ok(page_of_events(&api, query).await?))
}

/// A page of events, for which the caller waits as long as it wishes.
pub(super) async fn page_of_events(api: &Api, query: EventsQuery) -> Result<EventPage, Refusal> {
    let mut request = api.read(move |engine| engine.events_request(&query)).await?;
    let deadline = Instant::now() + request.wait;
    loop {
        let asked = request.clone();
        let read = api.read(move |engine| engine.read_events(&asked)).await?;
        // With more behind them, those of other types were many.
        let is_answer = !read.page.events.is_empty() || read.page.more || Instant::now() >= deadline;
        if is_answer || timeout_at(deadline, api.engine.events_beyond(&read)).await != Ok(true) {
            return Ok(read.page);
        }
        request = request.after(&read);
    }
}

/// The same as they come, one as JSON in each line.
///
/// The stream ends after five minutes, and when the node stops: go on from the `cursor` of the last line. A line that breaks off is none. A
/// reader that is slow is waited for.
#[utoipa::path(get, path = "/v1/events/stream", tag = "events", params(EventStreamQuery),
    responses((status = 200, description = "An `Event` as JSON in each line", content((String = JSON_LINES))), Refusals, Conflict, Gone))]
pub(super) async fn stream_events(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Query(EventStreamQuery { after, types }): Query<EventStreamQuery>,
) -> Result<Response, RefusalResponse> {
    let query = EventsQuery { after, types, ..EventsQuery::default() };
    // The first page is read before anything is answered: its cursor may have expired.
    let read_first = move |engine: &Arc<Engine>| {
        let request = engine.events_request(&query)?;
        let first = engine.read_events(&request)?;
        Ok((request, first))
    };
    let (request, first) = api.read(read_first).await?;
    let (sender, lines) = PageStream::channel();
    tokio::spawn(write_events(api, request, first, sender));
    Ok(([(header::CONTENT_TYPE, JSON_LINES)], Body::new(lines)).into_response())
}

async fn write_events(api: Arc<Api>, mut request: EventsRequest, first: ReadEvents, sender: PageSender) {
    let ends = Instant::now() + STREAM_LASTS;
    let mut first = Some(first);
    loop {
        // Room first: no page is read for a caller that has stopped reading.
        let Ok(Ok(room)) = timeout_at(ends, sender.reserve()).await else { return };
        let asked = request.clone();
        let read = match first.take() {
            Some(first) => Ok(first),
            None => api.read(move |engine| engine.read_events(&asked)).await,
        };
        let read = match read {
            Ok(read) => read,
            Err(refusal) => return room.send(Err(refusal)),
        };
        if !read.page.events.is_empty() {
            room.send(as_lines(&read.page.events).map(Into::into).map_err(|error| crate::internal(&error)));
        }
        if !read.page.more {
            let goes_on = tokio::select! {
                waited = timeout_at(ends, api.engine.events_beyond(&read)) => waited == Ok(true),
                () = sender.closed() => false,
            };
            if !goes_on {
                return;
            }
        }
        request = request.after(&read);
    }
}

//! Consumers of the feed of events, whose places the server keeps.

use super::{
    Answer, AnswerResult,
    refusals::{Conflict, Gone, OtherMethods, Refusals, TakesBody},
};
use crate::{
    Api,
    extract::{AppServer, Json, PathIds, Query},
    problem::RefusalResponse,
};
use axum::{extract::State, http::StatusCode};
use std::sync::Arc;
use tidings_protocol::http::{
    ConsumerEventsQuery, DeadEvents, DeadEventsHandled, DeadEventsQuery, EventConsumer, EventConsumers, EventPage,
    MoveEventConsumer, PutEventConsumer, SelectDeadEvents,
};

/// Make a consumer of events, or change one.
///
/// One with a webhook has its events sent there: those of one subject in their order, those of different subjects side by side, signed as
/// [Standard Webhooks](https://www.standardwebhooks.com) has it. One without reads them. The answer has the secret of a webhook that was made
/// without one, this once. A consumer that there is keeps its place.
///
/// 409 (`conflict`): no events are kept.
#[utoipa::path(put, path = "/v1/event-consumers/{name}", tag = "events", request_body = PutEventConsumer,
    params(("name" = String, Path, description = "Letters, digits, `-`, `_` and `.`, at most 64 bytes")),
    responses((status = 200, description = "It is changed", body = EventConsumer),
        (status = 201, description = "It is made", body = EventConsumer), Refusals, TakesBody, Conflict, Gone))]
pub(super) async fn put_event_consumer(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(name): PathIds<String>,
    Json(put): Json<PutEventConsumer>,
) -> AnswerResult<EventConsumer> {
    let (is_new, consumer) = api.notifications.event_consumers.put(&name, put).await?;
    Ok(Answer(if is_new { StatusCode::CREATED } else { StatusCode::OK }, consumer))
}

/// The consumers of events, and how far each is.
#[utoipa::path(get, path = "/v1/event-consumers", tag = "events",
    responses((status = 200, description = "All of them", body = EventConsumers), Refusals))]
pub(super) async fn list_event_consumers(State(api): State<Arc<Api>>, _: AppServer) -> AnswerResult<EventConsumers> {
    Ok(Answer::ok(api.notifications.event_consumers.list().await?))
}

/// A consumer of events, and how far it is.
#[utoipa::path(get, path = "/v1/event-consumers/{name}", tag = "events",
    params(("name" = String, Path, description = "Its name")),
    responses((status = 200, description = "The consumer", body = EventConsumer), Refusals, OtherMethods))]
pub(super) async fn get_event_consumer(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(name): PathIds<String>,
) -> AnswerResult<EventConsumer> {
    Ok(Answer::ok(api.notifications.event_consumers.get(&name).await?))
}

/// Remove a consumer of events, with what it has still to do.
#[utoipa::path(delete, path = "/v1/event-consumers/{name}", tag = "events",
    params(("name" = String, Path, description = "Its name")),
    responses((status = 204, description = "It is no more"), Refusals, OtherMethods))]
pub(super) async fn delete_event_consumer(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(name): PathIds<String>,
) -> Result<StatusCode, RefusalResponse> {
    api.notifications.event_consumers.delete(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The events behind a consumer's place, which stays where it is.
///
/// Deal with them, then move the consumer to the `cursor` of the last, or to the page's `next`. Events that were read and whose cursor was
/// not given come again.
///
/// 409 (`conflict`): the consumer has a webhook, or no events are kept.
#[utoipa::path(get, path = "/v1/event-consumers/{name}/events", tag = "events",
    params(("name" = String, Path, description = "The consumer's name"), ConsumerEventsQuery),
    responses((status = 200, description = "A page of events", body = EventPage), Refusals, Conflict, Gone))]
pub(super) async fn list_consumer_events(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(name): PathIds<String>,
    Query(page): Query<ConsumerEventsQuery>,
) -> AnswerResult<EventPage> {
    let query = api.notifications.event_consumers.query(&name, &page).await?;
    Ok(Answer::ok(super::events::page_of_events(&api, query).await?))
}

/// Note that a consumer has dealt with its events up to here. One reader at a time should do so.
///
/// 409 (`conflict`): the consumer has a webhook, or no events are kept.
#[utoipa::path(put, path = "/v1/event-consumers/{name}/cursor", tag = "events", request_body = MoveEventConsumer,
    params(("name" = String, Path, description = "The consumer's name")),
    responses((status = 200, description = "The consumer", body = EventConsumer), Refusals, TakesBody, Conflict, Gone))]
pub(super) async fn set_consumer_cursor(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(name): PathIds<String>,
    Json(to): Json<MoveEventConsumer>,
) -> AnswerResult<EventConsumer> {
    Ok(Answer::ok(api.notifications.event_consumers.set_cursor(&name, to.after).await?))
}

/// Have a consumer go on from another place: from a time, from a cursor, or from the present state.
///
/// What waits for another attempt at its webhook is dropped; dead letters stay.
#[utoipa::path(post, path = "/v1/event-consumers/{name}/replay", tag = "events", request_body = MoveEventConsumer,
    params(("name" = String, Path, description = "The consumer's name")),
    responses((status = 200, description = "The consumer", body = EventConsumer), Refusals, TakesBody, Conflict, Gone))]
pub(super) async fn replay_events(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(name): PathIds<String>,
    Json(to): Json<MoveEventConsumer>,
) -> AnswerResult<EventConsumer> {
    Ok(Answer::ok(api.notifications.event_consumers.replay(&name, to.after).await?))
}

/// Events that a consumer's webhook did not take in the time that it had.
#[utoipa::path(get, path = "/v1/event-consumers/{name}/dead-letters", tag = "events",
    params(("name" = String, Path, description = "The consumer's name"), DeadEventsQuery),
    responses((status = 200, description = "A page of them", body = DeadEvents), Refusals))]
pub(super) async fn list_dead_events(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(name): PathIds<String>,
    Query(page): Query<DeadEventsQuery>,
) -> AnswerResult<DeadEvents> {
    Ok(Answer::ok(api.notifications.event_consumers.dead_letters(&name, &page).await?))
}

/// Try given-up events again.
#[utoipa::path(post, path = "/v1/event-consumers/{name}/dead-letters/replay", tag = "events", request_body = SelectDeadEvents,
    params(("name" = String, Path, description = "The consumer's name")),
    responses((status = 200, description = "How many are tried again", body = DeadEventsHandled), Refusals, TakesBody))]
pub(super) async fn replay_dead_events(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(name): PathIds<String>,
    Json(select): Json<SelectDeadEvents>,
) -> AnswerResult<DeadEventsHandled> {
    Ok(Answer::ok(api.notifications.event_consumers.handle_dead(&name, select, true).await?))
}

/// Delete given-up events.
#[utoipa::path(post, path = "/v1/event-consumers/{name}/dead-letters/delete", tag = "events", request_body = SelectDeadEvents,
    params(("name" = String, Path, description = "The consumer's name")),
    responses((status = 200, description = "How many were deleted", body = DeadEventsHandled), Refusals, TakesBody))]
pub(super) async fn delete_dead_events(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(name): PathIds<String>,
    Json(select): Json<SelectDeadEvents>,
) -> AnswerResult<DeadEventsHandled> {
    Ok(Answer::ok(api.notifications.event_consumers.handle_dead(&name, select, false).await?))
}

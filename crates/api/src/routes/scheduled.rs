//! Messages for a later time.

use super::{
    Answer, AnswerResult,
    refusals::{Conflict, Refusals, TakesBody},
};
use crate::{
    Api,
    extract::{Caller, Json, PathIds, Query},
    problem::RefusalResponse,
};
use axum::{extract::State, http::StatusCode};
use serde::Deserialize;
use std::sync::Arc;
use tidings_engine::access::Operation;
use tidings_protocol::http::{ScheduleMessage, ScheduledMessageView, ScheduledMessages, UpdateScheduledMessage};

/// Send a message at a later time.
///
/// The answer means that it is durable. It is sent at its time, with that time, as if its sender did so then: what the sender may do is
/// looked at then. With a `client_msg_id` a retry is safe. A sender has at most 100 messages that are yet to be sent.
#[utoipa::path(post, path = "/v1/scheduled-messages", tag = "scheduled", request_body = ScheduleMessage,
    responses((status = 201, description = "It is durable", body = ScheduledMessageView), Refusals, TakesBody, Conflict))]
pub(super) async fn schedule_message(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Json(new): Json<ScheduleMessage>,
) -> AnswerResult<ScheduledMessageView> {
    let caller = caller.may_send(Operation::Send)?;
    let view = api.read(move |engine| engine.schedule_message(&caller, new)).await?;
    Ok(Answer(StatusCode::CREATED, view))
}

/// Whose scheduled messages.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Sender {
    /// The sender: for app servers, which otherwise mean the messages of conversations themselves.
    pub from: Option<String>,
}

/// Which page of whose scheduled messages.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct SchedulePage {
    /// The sender: for app servers, which otherwise mean the messages of conversations themselves.
    pub from: Option<String>,
    /// The `next` of the page before; absent for the first.
    pub after: Option<u64>,
    /// At most so many (default and limit 100).
    pub limit: Option<usize>,
}

/// Messages that are yet to be sent, and those that could not be.
#[utoipa::path(get, path = "/v1/scheduled-messages", tag = "scheduled", params(SchedulePage),
    responses((status = 200, description = "A page of them", body = ScheduledMessages), Refusals))]
pub(super) async fn list_scheduled_messages(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(SchedulePage { from, after, limit }): Query<SchedulePage>,
) -> AnswerResult<ScheduledMessages> {
    let caller = caller.may_send(Operation::Send)?;
    let limit = limit.unwrap_or(0);
    Ok(Answer::ok(api.read(move |engine| engine.scheduled_messages(&caller, from.as_deref(), after, limit)).await?))
}

/// A message that is yet to be sent.
#[utoipa::path(get, path = "/v1/scheduled-messages/{scheduled}", tag = "scheduled",
    params(("scheduled" = u64, Path, description = "Its number"), Sender),
    responses((status = 200, description = "The message", body = ScheduledMessageView), Refusals))]
pub(super) async fn get_scheduled_message(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(number): PathIds<u64>,
    Query(Sender { from }): Query<Sender>,
) -> AnswerResult<ScheduledMessageView> {
    let caller = caller.may_send(Operation::Send)?;
    Ok(Answer::ok(api.read(move |engine| engine.scheduled_message(&caller, from.as_deref(), number)).await?))
}

/// Change a message that is yet to be sent.
///
/// One that could not be sent is tried anew if it gets another time. One whose time has come is refused with `conflict`.
#[utoipa::path(patch, path = "/v1/scheduled-messages/{scheduled}", tag = "scheduled", request_body = UpdateScheduledMessage,
    params(("scheduled" = u64, Path, description = "Its number"), Sender),
    responses((status = 200, description = "The message as it is now", body = ScheduledMessageView), Refusals, TakesBody, Conflict))]
pub(super) async fn update_scheduled_message(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(number): PathIds<u64>,
    Query(Sender { from }): Query<Sender>,
    Json(update): Json<UpdateScheduledMessage>,
) -> AnswerResult<ScheduledMessageView> {
    let caller = caller.may_send(Operation::Send)?;
    let updated =
        api.read(move |engine| engine.update_scheduled_message(&caller, from.as_deref(), number, update)).await?;
    Ok(Answer::ok(updated))
}

/// Cancel a message that is yet to be sent.
///
/// One that could not be sent is forgotten. One whose time has come is refused with `conflict`.
#[utoipa::path(delete, path = "/v1/scheduled-messages/{scheduled}", tag = "scheduled",
    params(("scheduled" = u64, Path, description = "Its number"), Sender),
    responses((status = 204, description = "It will not be sent"), Refusals, Conflict))]
pub(super) async fn cancel_scheduled_message(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(number): PathIds<u64>,
    Query(Sender { from }): Query<Sender>,
) -> Result<StatusCode, RefusalResponse> {
    let caller = caller.may_send(Operation::Send)?;
    api.read(move |engine| engine.cancel_scheduled_message(&caller, from.as_deref(), number)).await?;
    Ok(StatusCode::NO_CONTENT)
}

//! Sending messages, and reading a conversation's history.

use super::{
    Answer, AnswerResult,
    ids::ConversationId,
    refusals::{Conflict, Refusals, TakesBody},
};
use crate::{
    Api,
    api_keys::permissions,
    extract::{BatchJson, Caller, Json, PathIds, Query, read_json},
    internal,
    problem::{RefusalResponse, problem, retry_after_header},
};
use axum::{
    extract::{Request, State},
    http::HeaderMap,
};
use bytes::Bytes;
use hyper::body::Body;
use serde_json::value::{RawValue, to_raw_value};
use std::sync::Arc;
use tidings_engine::access::Operation;
use tidings_listen::ConnectionActivity;
use tidings_protocol::{
    error::Refusal,
    http::{HistoryPage, HistoryQuery, SendBatch, SendBatchResults, SendReceipt, SendRequest, SendResult},
    limits::SEND_BODY_BYTES_MAX,
};

/// About what a message of a batch takes beside its body, in bytes.
const MESSAGE_BYTES: usize = 128;

/// Send a message.
///
/// The answer means that it is durable. With a `client_msg_id` a retry is safe: it answers with the
/// first result.
#[utoipa::path(post, path = "/v1/messages", tag = "messages", request_body = SendRequest,
    responses((status = 200, description = "It is durable", body = SendReceipt), Refusals, TakesBody, Conflict))]
pub(super) async fn send(State(api): State<Arc<Api>>, request: Request) -> AnswerResult<SendReceipt> {
    let (parts, body) = request.into_parts();
    let activity = parts.extensions.get::<ConnectionActivity>();
    Ok(Answer::ok(send_message(&api, &parts.headers, activity, body).await?))
}

/// A send from its headers and body. Called directly, since the router costs as much as the send itself.
pub(crate) async fn send_message<B>(
    api: &Api,
    headers: &HeaderMap,
    activity: Option<&ConnectionActivity>,
    body: B,
) -> Result<SendReceipt, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    let caller = api.authenticate_for(headers, permissions::SEND, Operation::Send, activity)?;
    let request: SendRequest = read_json(api, headers, body, SEND_BODY_BYTES_MAX).await?;
    api.engine.send(&caller, request).await
}

/// Send up to 500 messages, in order.
///
/// Each has its own result: some may be refused while others are stored. Behind one that is refused as `queue_full` or `rate_limited`,
/// those of its sender in its conversation are refused likewise, so that a retry of what was refused keeps their order. `Retry-After` says
/// when, in seconds, if any of them may succeed then.
#[utoipa::path(post, path = "/v1/messages/batch", tag = "messages", request_body = SendBatch,
    responses((status = 200, description = "A result for each, in the order of the request", body = SendBatchResults),
        Refusals, TakesBody))]
pub(super) async fn send_batch(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Json(request): BatchJson<SendBatch>,
) -> Result<(HeaderMap, Answer<Box<RawValue>>), RefusalResponse> {
    let caller = caller.may_send(Operation::Send)?;
    let bytes = request.messages.iter().map(|message| message.body.get().len() + MESSAGE_BYTES).sum();
    let turn = api.bulk.turn(bytes).await;
    let begun = api.engine.begin_batch(&caller, request.messages)?;
    drop(turn);
    let results = begun.finish().await;
    let retry_after_ms = results.iter().filter_map(|result| result.as_ref().err()?.retry_after_ms).max();
    let _turn = api.bulk.turn(bytes).await;
    let results = results.into_iter().map(|result| match result {
        Ok(receipt) => SendResult::Sent(receipt),
        Err(refusal) => {
            api.engine.metrics.count_refusal(refusal.code);
            SendResult::Refused { error: problem(&refusal) }
        }
    });
    let results = to_raw_value(&SendBatchResults { results: results.collect() }).map_err(|error| internal(&error))?;
    Ok((retry_after_header(retry_after_ms), Answer::ok(results)))
}

/// A part of a conversation's timeline, by `seq` or by time.
#[utoipa::path(get, path = "/v1/conversations/{conversation}/messages", tag = "messages",
    operation_id = "list_messages",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"), HistoryQuery),
    responses((status = 200, description = "A page, oldest first", body = HistoryPage), Refusals))]
pub(super) async fn history(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(conversation): PathIds<String>,
    Query(query): Query<HistoryQuery>,
) -> Result<Answer<HistoryPage>, RefusalResponse> {
    let caller = caller.may(Operation::ReadMessages)?;
    Ok(Answer::ok(api.read(move |engine| engine.history(&caller.0, &conversation, &query)).await?))
}

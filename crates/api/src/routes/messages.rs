//! Sending, and reading what was sent.

use super::{Answer, Answered};
use crate::{
    Api,
    extract::{Caller, Ids, Json, Query, read_json},
    problem::{Refused, problem},
};
use axum::{
    extract::{Request, State},
    http::HeaderMap,
};
use bytes::Bytes;
use hyper::body::Body;
use std::sync::Arc;
use tidings_protocol::{
    error::Refusal,
    http::{HistoryPage, HistoryQuery, SendBatch, SendBatchResults, SendReceipt, SendRequest, SendResult},
};

/// Send a message.
///
/// The answer means that it is durable. With a `client_msg_id` a retry is safe: it answers with the
/// first result.
#[utoipa::path(post, path = "/v1/messages", tag = "messages", request_body = SendRequest,
    responses((status = 200, body = SendReceipt)))]
pub(super) async fn send(State(api): State<Arc<Api>>, request: Request) -> Answered<SendReceipt> {
    let (parts, body) = request.into_parts();
    Ok(Answer::ok(send_message(&api, &parts.headers, body).await?))
}

/// A send from its headers and body. The door calls it without going through the router.
pub(crate) async fn send_message<B>(api: &Api, headers: &HeaderMap, body: B) -> Result<SendReceipt, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    let actor = api.authenticate(headers)?;
    let request: SendRequest = read_json(headers, body).await?;
    api.engine.send(&actor, request).await
}

/// Send up to 500 messages, in order.
///
/// Each has its own result: some may be refused while others are stored.
#[utoipa::path(post, path = "/v1/messages/batch", tag = "messages", request_body = SendBatch,
    responses((status = 200, body = SendBatchResults)))]
pub(super) async fn send_batch(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Json(request): Json<SendBatch>,
) -> Answered<SendBatchResults> {
    let results = api.engine.send_batch(&caller.0, request.messages).await?;
    let results = results.into_iter().map(|result| match result {
        Ok(receipt) => SendResult::Sent(receipt),
        Err(refusal) => {
            api.engine.metrics.count_refusal(refusal.code);
            SendResult::Refused { error: problem(&refusal) }
        }
    });
    Ok(Answer::ok(SendBatchResults { results: results.collect() }))
}

/// A part of a conversation's timeline, by `seq` or by time.
#[utoipa::path(get, path = "/v1/conversations/{conversation}/messages", tag = "messages",
    params(("conversation", description = "The conversation's id"), HistoryQuery),
    responses((status = 200, body = HistoryPage)))]
pub(super) async fn history(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Ids(conversation): Ids<String>,
    Query(query): Query<HistoryQuery>,
) -> Result<Answer<HistoryPage>, Refused> {
    Ok(Answer::ok(api.read(move |engine| engine.history(&caller.0, &conversation, &query)).await?))
}

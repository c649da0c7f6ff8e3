//! Messages that grow: their beginning, their chunks and their end.

use super::{
    Answer, AnswerResult,
    ids::ConversationId,
    refusals::{Conflict, Refusals, TakesBody},
};
use crate::{
    Api,
    extract::{Caller, Json, PathIds},
};
use axum::extract::State;
use std::sync::Arc;
use tidings_engine::access::Operation;
use tidings_protocol::http::{AppendChunk, ChangeReceipt, ChunkReceipt, EndStream, SendReceipt, SendRequest};

/// Begin a message that grows.
///
/// Its body is an object whose string `text` grows; the other fields stay. The answer means that the message is durable. With a
/// `client_msg_id` a retry is safe. The message is ended as interrupted when nothing is appended for a minute (`streams.timeout_ms`).
#[utoipa::path(post, path = "/v1/streams", tag = "messages", request_body = SendRequest,
    responses((status = 200, description = "The message is durable, and grows", body = SendReceipt), Refusals, TakesBody, Conflict))]
pub(super) async fn begin_stream(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Json(request): Json<SendRequest>,
) -> AnswerResult<SendReceipt> {
    let caller = caller.may_send(Operation::GrowMessage)?;
    Ok(Answer::ok(api.engine.begin_stream(&caller, request).await?))
}

/// Append a chunk to a message that grows.
///
/// The answer comes at once; the text is durable within a second. `offset` is the length of the text in bytes of UTF-8: a chunk that repeats
/// known text is a retry, and one that leaves a gap is refused with `conflict`. Only the caller who began the message may append and end.
#[utoipa::path(post, path = "/v1/streams/{conversation}/{seq}", tag = "messages", request_body = AppendChunk,
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"),
        ("seq" = u64, Path, description = "The message's number in the conversation")),
    responses((status = 200, description = "The text has the chunk", body = ChunkReceipt), Refusals, TakesBody, Conflict))]
pub(super) async fn append_chunk(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((conversation, seq)): PathIds<(String, u64)>,
    Json(AppendChunk { offset, text }): Json<AppendChunk>,
) -> AnswerResult<ChunkReceipt> {
    let caller = caller.may(Operation::GrowMessage)?;
    match api.engine.append_to_stream(&caller.0, &conversation, seq, offset, &text)? {
        Some(offset) => Ok(Answer::ok(ChunkReceipt { offset })),
        None => Err(api.read(move |engine| Ok(engine.why_no_stream(&caller.0, &conversation, seq))).await?.into()),
    }
}

/// End a message that grows.
///
/// The answer means that the whole body is durable. It is the second version of the message, and members who were away get it by the
/// end's own entry, of the kind `edit`. A repeated end answers with the first result.
#[utoipa::path(post, path = "/v1/streams/{conversation}/{seq}/end", tag = "messages", request_body = EndStream,
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"),
        ("seq" = u64, Path, description = "The message's number in the conversation")),
    responses((status = 200, description = "The whole message is durable", body = ChangeReceipt), Refusals, TakesBody, Conflict))]
pub(super) async fn end_stream(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((conversation, seq)): PathIds<(String, u64)>,
    Json(EndStream { body }): Json<EndStream>,
) -> AnswerResult<ChangeReceipt> {
    let caller = caller.may(Operation::GrowMessage)?;
    Ok(Answer::ok(api.engine.end_stream(&caller.0, &conversation, seq, body).await?))
}

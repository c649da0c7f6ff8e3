//! Messages that grow: their beginning, their pieces and their end.

use super::{
    Answer, AnswerResult,
    ids::ConversationId,
    messages::check_may_open,
    refusals::{Conflict, Refusals, TakesBody},
};
use crate::{
    Api,
    extract::{Caller, Json, PathIds},
};
use axum::extract::State;
use std::sync::Arc;
use tidings_engine::access::Scope;
use tidings_protocol::http::{AppendPiece, ChangeReceipt, EndStream, PieceReceipt, SendReceipt, SendRequest};

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
    let scopes = caller.scopes();
    let caller = caller.may(Scope::Send)?;
    check_may_open(&api, &caller.0, scopes, &request)?;
    Ok(Answer::ok(api.engine.begin_stream(&caller.0, request).await?))
}

/// Append a piece to a message that grows.
///
/// The answer comes at once; the text is durable within a second. `offset` is the length of the text in bytes of UTF-8: a piece that repeats
/// known text is a retry, and one that leaves a gap is refused with `conflict`. Only the caller who began the message may append and end.
#[utoipa::path(post, path = "/v1/streams/{conversation}/{seq}", tag = "messages", request_body = AppendPiece,
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"),
        ("seq" = u64, Path, description = "The message's number in the conversation")),
    responses((status = 200, description = "The text has the piece", body = PieceReceipt), Refusals, TakesBody, Conflict))]
pub(super) async fn append_piece(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((conversation, seq)): PathIds<(String, u64)>,
    Json(AppendPiece { offset, text }): Json<AppendPiece>,
) -> AnswerResult<PieceReceipt> {
    let caller = caller.may(Scope::Send)?;
    match api.engine.append_to_stream(&caller.0, &conversation, seq, offset, &text)? {
        Some(offset) => Ok(Answer::ok(PieceReceipt { offset })),
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
    let caller = caller.may(Scope::Send)?;
    Ok(Answer::ok(api.engine.end_stream(&caller.0, &conversation, seq, body).await?))
}

//! Sessions over server-sent events, for clients whose network lets no WebSocket through.

use super::{
    Answer, AnswerResult,
    refusals::{Conflict, Gone, Refusals, TakesBody},
};
use crate::{
    Api, bearer,
    bodies::collect_body,
    extract::{Caller, PathIds, Query, check_encoding, essence},
    handover::stream_headers,
    internal,
    problem::RefusalResponse,
    unauthorized,
};
use axum::{
    extract::{FromRequestParts, Request, State},
    http::{HeaderMap, HeaderName, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use std::sync::Arc;
use tidings_domain::model::Actor;
use tidings_engine::access::{Operation, Scopes};
use tidings_listen::{Client, ConnectionActivity};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    event_stream::{FRAMES_PER_POST_MAX, OpenStream, PostReceipt, StreamId, StreamPost, StreamSecret},
    frames::{Bind, ClientFrame},
    limits::FRAME_BYTES_MAX,
};
use utoipa::IntoParams;

/// The path below which streams have their frames.
pub(crate) const STREAM_PATHS: &str = "/v1/stream/";

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Marks the response to a request that opens a stream: the connection becomes a session. Holds the session's bind, as a line.
#[derive(Clone)]
pub(crate) struct StreamBind(pub(crate) Vec<u8>);

/// Open an event stream.
///
/// The session of `/v1/connect` where WebSockets are blocked: `docs/sse.md`. The response is a `text/event-stream` that lasts as long as the
/// session: its first event, `open`, says where frames go to, each frame of the server is an event without a name, and the last event,
/// `close`, says why the session has ended. A header `Last-Event-ID` stands above `cursor`.
#[utoipa::path(get, path = "/v1/stream", tag = "sessions",
    params(OpenStream, ("last-event-id" = Option<String>, Header, description = "The id of the last event of an earlier stream: its cursor")),
    responses((status = 200, description = "The session's events", content_type = "text/event-stream", body = String), Refusals))]
pub(super) async fn open_stream(
    State(_): State<Arc<Api>>,
    caller: Caller,
    headers: HeaderMap,
    Query(open): Query<OpenStream>,
) -> Result<Response, RefusalResponse> {
    if let Actor::App = caller.actor() {
        let why = "a stream is a user's session: it needs a user's token, not an API key";
        return Err(Refusal::new(ErrorCode::Forbidden, why).into());
    }
    if caller.scopes() == Scopes::NONE {
        caller.scopes().check(Operation::ReceiveMessages)?;
    }
    // The session checks the token again: it may be revoked between here and there.
    let token = headers.get(header::AUTHORIZATION).ok_or_else(|| unauthorized("a token"))?;
    let last_event_id = headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok()).filter(|id| !id.is_empty());
    let bind = ClientFrame::Bind(Bind {
        token: bearer(token.as_bytes())?.to_owned(),
        device_id: open.device_id,
        device_kind: open.device_kind.unwrap_or_else(|| "web".into()),
        app_version: open.app_version,
        cursor: last_event_id.map(str::to_owned).or(open.cursor),
        push: open.push,
        attention: open.attention,
        compact: open.compact,
    });
    let mut line = serde_json::to_vec(&bind).map_err(|error| internal(&error))?;
    line.push(b'\n');
    let mut response = stream_headers().into_response();
    response.extensions_mut().insert(StreamBind(line));
    Ok(response)
}

/// The secret of a request to a stream; absent: the credential is no secret. Read before anything else of the request is looked at.
pub(super) struct StreamCredential(Option<StreamSecret>);

impl<S: Sync> FromRequestParts<S> for StreamCredential {
    type Rejection = RefusalResponse;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, RefusalResponse> {
        let credential = parts.headers.get(header::AUTHORIZATION).ok_or_else(|| unauthorized("the stream's secret"))?;
        Ok(StreamCredential(bearer(credential.as_bytes())?.parse().ok()))
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct PostNumber {
    /// 1 for the stream's first request, and one more for each further one. Requests are taken in this order and once: repeat a request
    /// whose answer was lost with its number.
    number: u64,
}

/// Tells sessions from users, whose numbers are lower.
const OF_A_STREAM: u64 = 1 << 63;

/// Send frames to an event stream's session.
///
/// One frame per line, at most 256; they are what a client sends over a WebSocket. The credential is the `secret` of the event `open`. The
/// answer says that the session has the frames; what they are answered with comes on the stream.
#[utoipa::path(post, path = "/v1/stream/{stream}", tag = "sessions",
    request_body(content = String, content_type = "application/x-ndjson", description = "Frames, one per line", example = "{\"t\":\"ping\"}"),
    params(("stream" = String, Path, description = "The `stream` of the event `open`"), PostNumber),
    responses((status = 202, description = "The session has the frames", body = PostReceipt), Refusals, TakesBody, Conflict, Gone))]
pub(super) async fn post_frames(
    State(api): State<Arc<Api>>,
    StreamCredential(secret): StreamCredential,
    PathIds(stream): PathIds<String>,
    Query(PostNumber { number }): Query<PostNumber>,
    request: Request,
) -> AnswerResult<PostReceipt> {
    let (parts, body) = request.into_parts();
    let stream = stream.parse::<StreamId>().ok().filter(|stream| stream.node == api.stream_node_number());
    let (Some(stream), Some(secret)) = (stream, secret) else { return Err(session_gone().into()) };
    if number == 0 {
        return Err(Refusal::field("number", "the first request of a stream is 1").into());
    }
    let kind = parts.headers.get(header::CONTENT_TYPE).map(|kind| essence(kind.as_bytes()).to_ascii_lowercase());
    if !matches!(kind.as_deref(), None | Some(b"application/x-ndjson" | b"application/json")) {
        let why = "content-type: send application/x-ndjson";
        return Err(Refusal::new(ErrorCode::UnsupportedMediaType, why).into());
    }
    check_encoding(&parts.headers)?;
    let body = collect_body(&api.bodies, body, FRAME_BYTES_MAX, "frames of one request (bytes)").await?;
    let session = stream.session;
    let post = StreamPost { stream, secret, number, lines: lines_of(body.as_ref())? };
    // The body's share of the memory is held until the session has the frames.
    let taken = api.sessions.post(post).await;
    drop(body);
    let taken = taken.unwrap_or_else(|_| Err(Refusal::new(ErrorCode::Draining, "the server is stopping")))?;
    // Who knows the secret keeps the connection for the next request. Its user is not known here: it counts as the session's own.
    if let Some(activity) = parts.extensions.get::<ConnectionActivity>() {
        activity.set_client(Client::User(session | OF_A_STREAM));
    }
    Ok(Answer(StatusCode::ACCEPTED, PostReceipt { taken }))
}

/// The frames of a body, each line complete.
fn lines_of(body: &[u8]) -> Result<Vec<u8>, Refusal> {
    if std::str::from_utf8(body).is_err() {
        return Err(Refusal::new(ErrorCode::Malformed, "frames: text that is not UTF-8"));
    }
    let frames = body.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()).count();
    match frames {
        0 => Err(Refusal::field("frames", "the body has no frame")),
        1..=FRAMES_PER_POST_MAX => Ok([body, b"\n"].concat()),
        _ => Err(Refusal::limit("frames of one request", FRAMES_PER_POST_MAX as u64, frames as u64)),
    }
}

fn session_gone() -> Refusal {
    Refusal::new(ErrorCode::SessionGone, "no session with this stream and secret; open another and resume")
}

impl Api {
    /// What this process is called in the ids of streams.
    pub(crate) fn stream_node_number(&self) -> u64 {
        self.engine.cluster.as_ref().map_or(0, |cluster| cluster.nodes.me().boot_id)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_frames_of_a_request_are_counted() {
        assert_eq!(lines_of(b"{}").unwrap(), b"{}\n");
        assert_eq!(lines_of(b"\r\n{}\n\n{}\n").unwrap(), b"\r\n{}\n\n{}\n\n");
        let code = |body: &[u8]| lines_of(body).unwrap_err().code;
        assert_eq!(code(b" \n"), ErrorCode::InvalidField);
        assert_eq!(code(&b"{}\n".repeat(FRAMES_PER_POST_MAX + 1)), ErrorCode::LimitExceeded);
        assert_eq!(code(b"\xff"), ErrorCode::Malformed);
    }
}

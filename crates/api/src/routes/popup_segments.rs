//! Lists of users that popups are for.

use super::{
    Answer, AnswerResult,
    ids::Id,
    refusals::{Conflict, Refusals, TakesBody},
};
use crate::{
    Api,
    extract::{AppServer, PathIds},
    problem::RefusalResponse,
};
use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
};
use std::sync::Arc;
use tidings_popups::parse_segment;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{Segment, Segments},
    limits::SEGMENT_BYTES_MAX,
};

/// Upload a list of users, in the place of the one before.
///
/// `text/plain`: a user's id in each line, at most a million. Taken as a whole or not at all.
#[utoipa::path(put, path = "/v1/popup-segments/{segment}", tag = "popups",
    params(("segment" = inline(Id), Path, description = "The segment's id")),
    request_body(content = String, content_type = "text/plain"),
    responses((status = 200, description = "The list as it is now", body = Segment), Refusals, TakesBody))]
pub(super) async fn put_segment(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(segment): PathIds<String>,
    headers: HeaderMap,
    body: Body,
) -> AnswerResult<Segment> {
    let _place = api.uploads.try_acquire().map_err(|_| {
        Refusal::new(ErrorCode::QueueFull, "too many lists are being uploaded at the same time").retry_after(1_000)
    })?;
    let kind = headers.get(header::CONTENT_TYPE).map_or(&b"text/plain"[..], HeaderValue::as_bytes);
    if !crate::extract::essence(kind).eq_ignore_ascii_case(b"text/plain") {
        return Err(Refusal::new(ErrorCode::UnsupportedMediaType, "content-type: must be text/plain").into());
    }
    crate::extract::check_encoding(&headers)?;
    let body = crate::bodies::collect_body(&api.bodies, body, SEGMENT_BYTES_MAX, "segment (bytes)").await?;
    let put =
        move |engine: &Arc<tidings_engine::Engine>| engine.popups.put_segment(&segment, parse_segment(body.as_ref())?);
    Ok(Answer::ok(api.read(put).await?))
}

/// All lists of users.
#[utoipa::path(get, path = "/v1/popup-segments", tag = "popups",
    responses((status = 200, description = "The lists", body = Segments), Refusals))]
pub(super) async fn list_segments(State(api): State<Arc<Api>>, _: AppServer) -> AnswerResult<Segments> {
    Ok(Answer::ok(api.read(|engine| engine.popups.segments()).await?))
}

/// One of them.
#[utoipa::path(get, path = "/v1/popup-segments/{segment}", tag = "popups",
    params(("segment" = inline(Id), Path, description = "The segment's id")),
    responses((status = 200, description = "The list", body = Segment), Refusals))]
pub(super) async fn get_segment(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(segment): PathIds<String>,
) -> AnswerResult<Segment> {
    Ok(Answer::ok(api.read(move |engine| engine.popups.segment(&segment)).await?))
}

/// Whether a user is in a list: 204; 404 if not.
#[utoipa::path(get, path = "/v1/popup-segments/{segment}/users/{user}", tag = "popups",
    params(("segment" = inline(Id), Path, description = "The segment's id"),
           ("user" = inline(Id), Path, description = "The user's id")),
    responses((status = 204, description = "The user is in it"), Refusals))]
pub(super) async fn is_in_segment(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds((segment, user)): PathIds<(String, String)>,
) -> Result<StatusCode, RefusalResponse> {
    let is_in = move |engine: &Arc<tidings_engine::Engine>| {
        if engine.popups.is_in_segment(&segment, &user)? {
            Ok(StatusCode::NO_CONTENT)
        } else {
            Err(Refusal::not_found("user in the segment", &user))
        }
    };
    Ok(api.read(is_in).await?)
}

/// Remove a list. One that a popup names is not removed: `conflict`.
#[utoipa::path(delete, path = "/v1/popup-segments/{segment}", tag = "popups",
    params(("segment" = inline(Id), Path, description = "The segment's id")),
    responses((status = 204, description = "It is removed"), Refusals, Conflict))]
pub(super) async fn remove_segment(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(segment): PathIds<String>,
) -> Result<StatusCode, RefusalResponse> {
    api.read(move |engine| engine.popups.remove_segment(&segment)).await?;
    Ok(StatusCode::NO_CONTENT)
}

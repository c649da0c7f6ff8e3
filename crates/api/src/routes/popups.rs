//! Popups: decisions, configuration, segments of users, and events.

use super::{
    Answer, AnswerResult,
    ids::Id,
    refusals::{Conflict, OtherMethods, Refusals, TakesBody},
};
use crate::{
    Api,
    extract::{AppServer, BatchJson, Caller, Json, PathIds, Query, RawJson, read_body},
    page_stream::PageStream,
    problem::{RefusalResponse, retry_after_s},
};
use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderValue, Response, StatusCode, header},
    response::IntoResponse,
};
use bytes::Bytes;
use serde::Deserialize;
use std::sync::Arc;
use tidings_engine::{
    access::Scope,
    engine::popup_questions::{PopupAnswer, PopupCaller},
};
use tidings_popups::{EventCursor, Precondition, QuestionBody, parse_segment};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{Popup as PopupCard, *},
    limits::{OPERATION_BODY_BYTES_MAX, SEGMENT_BYTES_MAX},
};

const AUTHOR: &str = "tidings-author";
/// The media types of an export.
const JSON_LINES: &str = "application/x-ndjson";
const CSV: &str = "text/csv; charset=utf-8";

// ---- decisions

/// Which popup suits this user now?
///
/// The answer counts as a showing, on all of the user's devices, before it leaves. 204: none; `Retry-After` tells when
/// one could be due, and is absent if time alone will not make one due. With a user's token `user` may be absent.
#[utoipa::path(post, path = "/v1/popups/decide", tag = "popups", request_body = DecideRequest,
    responses((status = 200, description = "The popup to show", body = Decision),
        (status = 204, description = "None now",
            headers(("Retry-After" = u64, description = "After how many seconds one could be due"))),
        Refusals, TakesBody))]
pub(super) async fn decide(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response<Body>, RefusalResponse> {
    Ok(decide_popup(&api, &headers, body).await?.map(Body::from))
}

/// The same operation without the cost of the router.
pub(crate) async fn decide_popup<B>(api: &Api, headers: &HeaderMap, body: B) -> Result<Response<Bytes>, Refusal>
where
    B: hyper::body::Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    let actor = api.authenticate_for(headers, Scope::Popups)?.actor;
    let body = read_body(api, headers, body, OPERATION_BODY_BYTES_MAX).await?;
    let caller = PopupCaller { actor: &actor, session: None };
    let PopupAnswer { decision, retry_after_ms } = api.engine.answer_popup_question(caller, body.as_ref()).await?;
    Ok(match decision {
        Some(json) => {
            let mut response = Response::new(Bytes::from(json));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        None => {
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = StatusCode::NO_CONTENT;
            if let Some(ms) = retry_after_ms {
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(retry_after_s(ms)));
            }
            response
        }
    })
}

/// Why each popup of a placement is or is not chosen for a user. Nothing is counted.
#[utoipa::path(post, path = "/v1/popups/explain", tag = "popups", request_body = DecideRequest,
    responses((status = 200, description = "Each popup of the placement", body = Explanation), Refusals, TakesBody))]
pub(super) async fn explain(
    State(api): State<Arc<Api>>,
    _: AppServer,
    RawJson(body): RawJson,
) -> AnswerResult<Explanation> {
    let explain = move |engine: &Arc<tidings_engine::Engine>| {
        let question = QuestionBody::read(&body)?;
        let user = question.user().ok_or_else(|| Refusal::field("user", "is missing"))?;
        engine.popups.explain(&question.for_user(user))
    };
    Ok(Answer::ok(api.read(explain).await?))
}

/// Send a popup to a user's live session, if one is due.
///
/// For what happens away from the app's own page views; `event` is what happened. It goes to the session that came
/// last. Without a live session nothing is decided and nothing counted.
#[utoipa::path(post, path = "/v1/popups/trigger", tag = "popups", request_body = DecideRequest,
    responses((status = 200, description = "What became of it", body = Triggered), Refusals, TakesBody))]
pub(super) async fn trigger(
    State(api): State<Arc<Api>>,
    _: AppServer,
    RawJson(body): RawJson,
) -> AnswerResult<Triggered> {
    let trigger = move |engine: &Arc<tidings_engine::Engine>| {
        let question = QuestionBody::read(&body)?;
        let user = question.user().ok_or_else(|| Refusal::field("user", "is missing"))?;
        engine.trigger_popup(&question.for_user(user))
    };
    Ok(Answer::ok(api.read(trigger).await?))
}

// ---- configuration

fn author(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let Some(author) = headers.get(AUTHOR) else { return Ok(None) };
    let author = author.to_str().map_err(|_| Refusal::field("Tidings-Author", "is not text"))?;
    Ok(Some(author.to_owned()))
}

fn precondition(headers: &HeaderMap) -> Result<Precondition, Refusal> {
    if let Some(version) = headers.get(header::IF_MATCH) {
        let text = version.to_str().unwrap_or_default().trim_matches('"');
        let version = text.parse().map_err(|_| Refusal::field("If-Match", "is not a version"))?;
        return Ok(Precondition::Version(version));
    }
    match headers.get(header::IF_NONE_MATCH) {
        Some(any) if any.as_bytes() == b"*" => Ok(Precondition::Absent),
        Some(_) => Err(Refusal::field("If-None-Match", "only * is understood")),
        None => Ok(Precondition::None),
    }
}

/// Create a popup, or replace it as a whole.
///
/// Every write is a version; `Tidings-Author` is kept with it. `If-Match` makes it conditional on the newest version,
/// `If-None-Match: *` on there being none. 201 for a new one.
#[utoipa::path(put, path = "/v1/popups/{popup}", tag = "popups", request_body = PopupSpec,
    params(("popup" = inline(Id), Path, description = "The popup's id"),
           ("Tidings-Author" = Option<String>, Header, description = "Who writes it: kept with the version"),
           ("If-Match" = Option<String>, Header, description = "The version that it must still have"),
           ("If-None-Match" = Option<String>, Header, description = "`*`: it must not be there yet")),
    responses((status = 200, description = "The popup as it is now", body = PopupCard),
        (status = 201, description = "It is new", body = PopupCard), Refusals, OtherMethods, TakesBody, Conflict))]
pub(super) async fn put_popup(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(popup): PathIds<String>,
    headers: HeaderMap,
    RawJson(body): RawJson,
) -> AnswerResult<PopupCard> {
    let (author, precondition) = (author(&headers)?, precondition(&headers)?);
    let put =
        move |engine: &Arc<tidings_engine::Engine>| engine.popups.put(&popup, &body, author.as_deref(), precondition);
    let (card, created) = api.read(put).await?;
    Ok(Answer(if created { StatusCode::CREATED } else { StatusCode::OK }, card))
}

/// A popup as it stands.
#[utoipa::path(get, path = "/v1/popups/{popup}", tag = "popups",
    params(("popup" = inline(Id), Path, description = "The popup's id")),
    responses((status = 200, description = "The popup", body = PopupCard), Refusals, OtherMethods))]
pub(super) async fn get_popup(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(popup): PathIds<String>,
) -> AnswerResult<PopupCard> {
    Ok(Answer::ok(api.read(move |engine| engine.popups.get(&popup)).await?))
}

/// Remove a popup with its versions and counts. Events that were taken stay in exports.
#[utoipa::path(delete, path = "/v1/popups/{popup}", tag = "popups",
    params(("popup" = inline(Id), Path, description = "The popup's id"),
           ("If-Match" = Option<String>, Header, description = "The version that it must still have"),
           ("If-None-Match" = Option<String>, Header, description = "`*`: it must not be there yet")),
    responses((status = 204, description = "It is removed"), Refusals, OtherMethods, Conflict))]
pub(super) async fn remove_popup(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(popup): PathIds<String>,
    headers: HeaderMap,
) -> Result<StatusCode, RefusalResponse> {
    let precondition = precondition(&headers)?;
    api.read(move |engine| engine.popups.remove(&popup, precondition)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Where a page of popups starts.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct PopupsQuery {
    /// The `next` of the page before; absent for the first.
    pub after: Option<String>,
    /// At most so many; absent or 0: as many as the server sees fit.
    pub limit: Option<usize>,
}

/// All popups, in the order of their ids.
#[utoipa::path(get, path = "/v1/popups", tag = "popups", params(PopupsQuery),
    responses((status = 200, description = "A page of popups", body = PopupPage), Refusals))]
pub(super) async fn list_popups(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Query(query): Query<PopupsQuery>,
) -> AnswerResult<PopupPage> {
    let list = move |engine: &Arc<tidings_engine::Engine>| {
        engine.popups.list(query.after.as_deref(), query.limit.unwrap_or(0))
    };
    Ok(Answer::ok(api.read(list).await?))
}

/// A popup's versions, newest first; the newest 100 are kept.
#[utoipa::path(get, path = "/v1/popups/{popup}/versions", tag = "popups",
    params(("popup" = inline(Id), Path, description = "The popup's id")),
    responses((status = 200, description = "The versions", body = PopupVersions), Refusals))]
pub(super) async fn popup_versions(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(popup): PathIds<String>,
) -> AnswerResult<PopupVersions> {
    Ok(Answer::ok(api.read(move |engine| engine.popups.versions(&popup)).await?))
}

/// A popup's new state.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SetPopupState {
    state: PopupState,
}

/// Change only a popup's state: a version like any other.
#[utoipa::path(put, path = "/v1/popups/{popup}/state", tag = "popups", request_body = SetPopupState,
    params(("popup" = inline(Id), Path, description = "The popup's id"),
           ("Tidings-Author" = Option<String>, Header, description = "Who writes it: kept with the version"),
           ("If-Match" = Option<String>, Header, description = "The version that it must still have"),
           ("If-None-Match" = Option<String>, Header, description = "`*`: it must not be there yet")),
    responses((status = 200, description = "The popup as it is now", body = PopupCard), Refusals, TakesBody, Conflict))]
pub(super) async fn set_popup_state(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(popup): PathIds<String>,
    headers: HeaderMap,
    Json(request): Json<SetPopupState>,
) -> AnswerResult<PopupCard> {
    let (author, precondition) = (author(&headers)?, precondition(&headers)?);
    let set = move |engine: &Arc<tidings_engine::Engine>| {
        engine.popups.set_state(&popup, request.state, author.as_deref(), precondition)
    };
    Ok(Answer::ok(api.read(set).await?))
}

/// What is above all popups: their time zone, caps over all and per placement, the holdout.
#[utoipa::path(get, path = "/v1/popup-settings", tag = "popups",
    responses((status = 200, description = "The settings", body = PopupSettings), Refusals))]
pub(super) async fn get_settings(State(api): State<Arc<Api>>, _: AppServer) -> AnswerResult<PopupSettings> {
    Ok(Answer::ok(api.read(|engine| engine.popups.settings()).await?))
}

/// Replace the settings as a whole.
#[utoipa::path(put, path = "/v1/popup-settings", tag = "popups", request_body = PopupSettings,
    responses((status = 200, description = "The settings as they are now", body = PopupSettings), Refusals, TakesBody))]
pub(super) async fn put_settings(
    State(api): State<Arc<Api>>,
    _: AppServer,
    RawJson(body): RawJson,
) -> AnswerResult<PopupSettings> {
    Ok(Answer::ok(api.read(move |engine| engine.popups.set_settings(&body)).await?))
}

// ---- lists of users

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
        Refusal::new(ErrorCode::QueueFull, "as many lists as can be are being uploaded").retry_after(1_000)
    })?;
    let kind = headers.get(header::CONTENT_TYPE).map_or(&b"text/plain"[..], HeaderValue::as_bytes);
    if !crate::extract::essence(kind).eq_ignore_ascii_case(b"text/plain") {
        return Err(Refusal::new(ErrorCode::UnsupportedMediaType, "content-type: only text/plain is taken").into());
    }
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
    let is_in = move |engine: &Arc<tidings_engine::Engine>| match engine.popups.is_in_segment(&segment, &user)? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Refusal::not_found("user in the segment", &user)),
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

// ---- what became of them

/// Report what users did with popups.
///
/// At most 1,000 in a call. 202: they are durable, and each is counted once: a second one with an id that is known
/// is a duplicate. A user's token reports events of its own decisions only. 429 when too many wait to be stored.
#[utoipa::path(post, path = "/v1/popup-events", tag = "popups", request_body = PopupEvents,
    responses((status = 202, description = "They are durable", body = PopupEventsAccepted), Refusals, TakesBody))]
pub(super) async fn report_events(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Json(request): BatchJson<PopupEvents>,
) -> AnswerResult<PopupEventsAccepted> {
    let caller = caller.may(Scope::Popups)?;
    let caller = PopupCaller { actor: &caller.0, session: None };
    Ok(Answer(StatusCode::ACCEPTED, api.engine.report_popup_events(caller, request.events).await?))
}

/// Which hours of counts.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct CountsQuery {
    /// Hours that begin then or later, in milliseconds since 1970 UTC.
    pub from: Option<u64>,
    /// Hours that begin before then.
    pub to: Option<u64>,
}

/// What became of a popup: per variant and hour. Hours in which nothing happened are left out.
#[utoipa::path(get, path = "/v1/popups/{popup}/counts", tag = "popups",
    params(("popup" = inline(Id), Path, description = "The popup's id"), CountsQuery),
    responses((status = 200, description = "The counts", body = PopupCounts), Refusals))]
pub(super) async fn get_counts(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(popup): PathIds<String>,
    Query(query): Query<CountsQuery>,
) -> AnswerResult<PopupCounts> {
    Ok(Answer::ok(api.read(move |engine| engine.popups.counts(&popup, query.from, query.to)).await?))
}

/// How an export is written.
#[derive(Debug, Clone, Copy, Default, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum ExportFormat {
    /// An event a line, as JSON.
    #[default]
    Jsonl,
    /// RFC 4180, with a line of names first.
    Csv,
}

/// Which events.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ExportQuery {
    /// Taken then or later, in milliseconds since 1970 UTC.
    pub from: Option<u64>,
    /// Taken before then.
    pub to: Option<u64>,
    /// Only of this popup.
    pub popup: Option<String>,
    /// How it is written; `jsonl` when absent.
    #[serde(default)]
    #[param(inline)]
    pub format: ExportFormat,
}

/// All events, in the order in which they were taken, streamed. An answer that breaks off is not whole.
#[utoipa::path(get, path = "/v1/popup-events", tag = "popups", params(ExportQuery),
    responses((status = 200, description = "As `format` says: an `ExportedEvent` as JSON in each line, or CSV",
        content((String = JSON_LINES), (String = CSV))), Refusals))]
pub(super) async fn export_events(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Query(query): Query<ExportQuery>,
) -> Result<axum::response::Response, RefusalResponse> {
    let ExportQuery { from, to, popup, format } = query;
    let mut cursor = EventCursor::new(from, to, popup);
    // Events that are still on their way to the store belong to the export.
    api.read(|engine| engine.popups.flush()).await?;
    let mut first = true;
    let pages = PageStream::start(api, move |engine| {
        let (events, more) = engine.popups.export_events(&mut cursor)?;
        let text = match format {
            ExportFormat::Jsonl => as_lines(&events),
            ExportFormat::Csv => as_csv(&events, std::mem::take(&mut first)),
        };
        Ok((text.map_err(|error| crate::internal(&error))?.into(), more))
    });
    let kind = match format {
        ExportFormat::Jsonl => JSON_LINES,
        ExportFormat::Csv => CSV,
    };
    Ok(([(header::CONTENT_TYPE, kind)], Body::new(pages)).into_response())
}

fn as_lines(events: &[ExportedEvent]) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
    let mut text = Vec::with_capacity(events.len() * 256);
    for event in events {
        serde_json::to_writer(&mut text, event)?;
        text.push(b'\n');
    }
    Ok(text)
}

fn as_csv(events: &[ExportedEvent], first: bool) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
    const NAMES: [&str; 10] =
        ["taken_at", "at", "id", "type", "popup", "variant", "decision", "user", "button", "value"];
    let mut writer =
        csv::WriterBuilder::new().has_headers(false).terminator(csv::Terminator::CRLF).from_writer(Vec::new());
    if first {
        writer.write_record(NAMES)?;
    }
    for event in events {
        let ExportedEvent { taken_at, at, id, kind, popup, variant, decision, user, button, value } = event;
        writer.serialize((taken_at, at, id, kind, popup, variant, decision, user, button, value))?;
    }
    Ok(writer.into_inner().map_err(|error| error.into_error())?)
}

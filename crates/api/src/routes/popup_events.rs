//! What became of popups: reports of events, counts and exports.

use super::{
    Answer, AnswerResult,
    ids::Id,
    refusals::{Refusals, TakesBody},
};
use crate::{
    Api,
    extract::{AppServer, BatchJson, Caller, Json, PathIds, Query},
    page_stream::PageStream,
    problem::RefusalResponse,
};
use axum::{
    body::Body,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, sync::Arc};
use tidings_engine::{access::Operation, engine::popup_questions::PopupCaller};
use tidings_popups::EventCursor;
use tidings_protocol::{
    http::{ExportedEvent, PopupCounts, PopupEvents, PopupEventsAccepted},
    time::time_or_zero,
};

/// The media types of an export.
pub(super) const JSON_LINES: &str = "application/x-ndjson";
pub(super) const CSV: &str = "text/csv; charset=utf-8";

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
    let caller = caller.may(Operation::ReportPopupEvents)?;
    let caller = PopupCaller { actor: &caller.0, session: None };
    Ok(Answer(StatusCode::ACCEPTED, api.engine.report_popup_events(caller, request.events).await?))
}

/// Which hours of counts.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct CountsQuery {
    /// Hours that begin then or later, in milliseconds since 1970 UTC.
    #[serde(default, deserialize_with = "time_or_zero")]
    pub from: Option<u64>,
    /// Hours that begin before then.
    #[serde(default, deserialize_with = "time_or_zero")]
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
    /// RFC 4180, with a line of names first. A text that begins with `=`, `+`, `-`, `@`, a tab or a line end has `'` before it, so that no
    /// spreadsheet takes it for a formula.
    Csv,
}

/// Which events.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ExportQuery {
    /// Taken then or later, in milliseconds since 1970 UTC.
    #[serde(default, deserialize_with = "time_or_zero")]
    pub from: Option<u64>,
    /// Taken before then.
    #[serde(default, deserialize_with = "time_or_zero")]
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

/// One as JSON in each line.
pub(super) fn as_lines<T: Serialize>(all: &[T]) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
    let mut text = Vec::with_capacity(all.len() * 256);
    for one in all {
        serde_json::to_writer(&mut text, one)?;
        text.push(b'\n');
    }
    Ok(text)
}

/// CSV that begins with these names, if there are any.
pub(super) fn csv_of(
    names: Option<&[&str]>,
    write: impl FnOnce(&mut csv::Writer<Vec<u8>>) -> csv::Result<()>,
) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
    let mut writer =
        csv::WriterBuilder::new().has_headers(false).terminator(csv::Terminator::CRLF).from_writer(Vec::new());
    if let Some(names) = names {
        writer.write_record(names)?;
    }
    write(&mut writer)?;
    Ok(writer.into_inner().map_err(|error| error.into_error())?)
}

fn as_csv(events: &[ExportedEvent], first: bool) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
    const NAMES: [&str; 13] = [
        "taken_at",
        "at",
        "id",
        "type",
        "popup",
        "variant",
        "decision",
        "user",
        "button",
        "value",
        "name",
        "until",
        "properties",
    ];
    csv_of(first.then_some(&NAMES), |writer| {
        for event in events {
            let ExportedEvent { taken_at, at, id, kind, popup, variant, decision, user, button, value, .. } = event;
            let ExportedEvent { name, until, properties, .. } = event;
            // JSON as text cannot fail.
            let properties = properties.as_ref().and_then(|all| serde_json::to_string(all).ok());
            let [id, popup, variant, decision, user] = [id, popup, variant, decision, user].map(|text| inert(text));
            let [button, name] = [button, name].map(|text| text.as_deref().map(inert));
            let of_custom = (name, until, properties);
            writer.serialize((taken_at, at, id, kind, popup, variant, decision, user, button, value, of_custom))?;
        }
        Ok(())
    })
}

/// A text as a cell that no spreadsheet takes for a formula: one that could be begun as such has `'` before it, as OWASP advises.
pub(super) fn inert(text: &str) -> Cow<'_, str> {
    if text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']) {
        Cow::Owned(format!("'{text}"))
    } else {
        Cow::Borrowed(text)
    }
}

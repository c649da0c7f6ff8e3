//! The history of another system: read and written, a record in each line.

use super::{
    Answer, AnswerResult,
    popup_events::JSON_LINES,
    refusals::{Conflict, Refusals, TakesBody},
};
use crate::{
    Api,
    extract::{AppServer, Query},
    page_stream::PageStream,
    problem::RefusalResponse,
};
use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use std::{sync::Arc, time::Duration};
use tidings_engine::imports::Import;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{HistoryExportQuery, ImportResult},
    limits::IMPORT_LINE_BYTES_MAX,
};
use tokio::time::{Instant, timeout, timeout_at};

/// For how long an import waits for the next part of its body.
const PART_TIMEOUT: Duration = Duration::from_secs(60);
/// For how long the rest of a refused import is read, so that a caller who writes on gets the answer.
const REST_TIMEOUT: Duration = Duration::from_secs(10);

/// Import history.
///
/// The body is records of users, conversations, members, messages and read marks, one as JSON in each line, as `docs/import.md` says. It
/// may be as long as it likes: lines are stored while they come. At an error the lines before it are stored, and `detail` names the
/// line; mend the file, and send it again as a whole: what is stored already is found by its id. In a conversation that is imported
/// nobody sends before its record `finish`, and nobody is notified of what comes by an import.
///
/// 409 (`conflict`): a message of a conversation that is not importing.
#[utoipa::path(post, path = "/v1/import", tag = "import",
    request_body(content = String, content_type = JSON_LINES, description = "A record as JSON in each line",
        example = json!("{\"type\":\"user\",\"id\":\"ada\",\"name\":\"Ada\"}\n")),
    responses((status = 200, description = "What was stored", body = ImportResult), Refusals, TakesBody, Conflict))]
pub(super) async fn import_history(
    State(api): State<Arc<Api>>,
    _: AppServer,
    headers: HeaderMap,
    body: Body,
) -> AnswerResult<ImportResult> {
    let kind = headers.get(header::CONTENT_TYPE).map_or(b"".as_slice(), |kind| kind.as_bytes());
    if !kind.to_ascii_lowercase().starts_with(JSON_LINES.as_bytes()) {
        let why = format!("content-type: must be {JSON_LINES}");
        return Err(Refusal::new(ErrorCode::UnsupportedMediaType, why).into());
    }
    let mut lines = Lines { body, rest: BytesMut::new(), is_over: false };
    match import_lines(&api, &mut lines).await {
        Ok(result) => Ok(Answer::ok(result)),
        Err(refusal) => {
            lines.discard().await;
            Err(refusal.into())
        }
    }
}

async fn import_lines(api: &Arc<Api>, lines: &mut Lines) -> Result<ImportResult, Refusal> {
    let mut import = Import::new(api.engine.clone())?;
    loop {
        match lines.next(import.lines()).await {
            Ok(Some(line)) => import.line(&line).await?,
            Ok(None) => return import.end().await,
            // What came before a body that broke off is kept.
            Err(refusal) => return import.end().await.and(Err(refusal)),
        }
    }
}

/// The lines of a body.
struct Lines {
    body: Body,
    rest: BytesMut,
    is_over: bool,
}

impl Lines {
    /// The next line, of which `before` came before it.
    async fn next(&mut self, before: u64) -> Result<Option<Bytes>, Refusal> {
        let mut searched = 0;
        loop {
            let end = self.rest[searched..].iter().position(|byte| *byte == b'\n').map(|end| searched + end);
            searched = self.rest.len();
            let (length, number) = (end.unwrap_or(searched), before + 1);
            if length > IMPORT_LINE_BYTES_MAX {
                let refusal = Refusal::limit("line (bytes)", IMPORT_LINE_BYTES_MAX as u64, length as u64);
                return Err(Refusal::new(refusal.code, format!("line {number}: {}", refusal.detail)));
            }
            if let Some(end) = end {
                let line = self.rest.split_to(end).freeze();
                self.rest.advance(1);
                return Ok(Some(line));
            }
            if self.is_over {
                return Ok(Some(self.rest.split().freeze()).filter(|line| !line.is_empty()));
            }
            let Ok(frame) = timeout(PART_TIMEOUT, self.body.frame()).await else {
                let why = format!("nothing came for {} s behind line {before}", PART_TIMEOUT.as_secs());
                return Err(Refusal::new(ErrorCode::Malformed, why));
            };
            match frame {
                None => self.is_over = true,
                Some(Err(error)) => {
                    let why = format!("the body ended early, in line {number}: {error}");
                    return Err(Refusal::new(ErrorCode::Malformed, why));
                }
                Some(Ok(frame)) => frame.into_data().into_iter().for_each(|data| self.rest.extend_from_slice(&data)),
            }
        }
    }

    async fn discard(&mut self) {
        let until = Instant::now() + REST_TIMEOUT;
        while let Ok(Some(Ok(_))) = timeout_at(until, self.body.frame()).await {}
    }
}

/// Export history.
///
/// The records of everything, or of one conversation with its members and the senders of its messages, as `POST /v1/import` reads them.
/// What was recalled or hidden, and who has left, is not among them. A response that breaks off is not whole.
#[utoipa::path(get, path = "/v1/export", tag = "import", params(HistoryExportQuery),
    responses((status = 200, description = "A record as JSON in each line", content((String = JSON_LINES))), Refusals))]
pub(super) async fn export_history(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Query(query): Query<HistoryExportQuery>,
) -> Result<Response, RefusalResponse> {
    let mut export = api.read(move |engine| engine.export(&query)).await?;
    let pages = PageStream::start(api, move |engine| export.next(engine).map(|(page, more)| (page.into(), more)));
    Ok(([(header::CONTENT_TYPE, JSON_LINES)], Body::new(pages)).into_response())
}

//! The responses of the fast path, as the library would write them.

use super::callers::Answer;
use crate::{
    Api,
    pipelines::Operation,
    problem::{PROBLEM_JSON, problem, retry_after_s},
};
use axum::http::StatusCode;
use std::{
    io::{self, Write},
    time::{Instant, SystemTime, UNIX_EPOCH},
};
use tidings_engine::engine::popup_questions::PopupAnswer;
use tidings_protocol::error::{ErrorCode, Refusal};

/// The value of the `Date` header, formatted once a second.
#[derive(Default)]
pub(super) struct Date {
    second: u64,
    text: String,
}

impl Date {
    pub(super) fn text(&mut self) -> &str {
        let now = SystemTime::now();
        let second = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if second != self.second || self.text.is_empty() {
            (self.second, self.text) = (second, httpdate::fmt_http_date(now));
        }
        &self.text
    }
}

/// Appends the response, counts it, and returns its status.
pub(super) fn finish(
    out: &mut Vec<u8>,
    api: &Api,
    operation: Operation,
    answered: Result<Answer, Refusal>,
    date: &str,
    began: Instant,
) -> StatusCode {
    let status = put_answer(out, api, answered, date);
    let latency = match operation {
        Operation::Decide => &api.http_metrics.decisions,
        Operation::Report => &api.http_metrics.reports,
        Operation::Push => &api.http_metrics.pushes,
    };
    latency.observe(status, began.elapsed());
    status
}

/// Appends the response, and returns its status.
pub(super) fn put_answer(out: &mut Vec<u8>, api: &Api, answered: Result<Answer, Refusal>, date: &str) -> StatusCode {
    // Writing to memory cannot fail.
    let (status, _) = match answered {
        Ok(Answer::Decided(PopupAnswer { decision: Some(json), .. })) => {
            (StatusCode::OK, put_json(out, "200 OK", &json, date))
        }
        Ok(Answer::Decided(PopupAnswer { decision: None, retry_after_ms })) => {
            out.extend_from_slice(b"HTTP/1.1 204 No Content\r\n");
            let seconds = retry_after_ms.map(retry_after_s);
            let _ = seconds.map(|seconds| write!(out, "retry-after: {seconds}\r\n"));
            (StatusCode::NO_CONTENT, write!(out, "date: {date}\r\n\r\n"))
        }
        Ok(Answer::Reported(accepted)) => {
            let json = serde_json::to_vec(&accepted).unwrap_or_default();
            (StatusCode::ACCEPTED, put_json(out, "202 Accepted", &json, date))
        }
        Ok(Answer::Pushed(status, answer)) => {
            let json = serde_json::to_vec(&answer).unwrap_or_default();
            let line = if status == StatusCode::OK { "200 OK" } else { "202 Accepted" };
            (status, put_json(out, line, &json, date))
        }
        Ok(Answer::FromLeader(response)) => {
            out.extend_from_slice(&response.bytes);
            (StatusCode::from_u16(response.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), Ok(()))
        }
        Err(refusal) => {
            api.engine.metrics.count_refusal(refusal.code);
            tracing::debug!(code = %refusal.code, "refused");
            let status = StatusCode::from_u16(refusal.code.http_status());
            (status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), put_refusal(out, &refusal, date))
        }
    };
    status
}

/// Appends the answer to a handshake, as the library gives it.
pub(super) fn put_upgrade(out: &mut Vec<u8>, accept_key: &str, date: &str) -> io::Result<()> {
    write!(
        out,
        "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: {accept_key}\r\n\
         date: {date}\r\n\r\n"
    )
}

fn put_json(out: &mut Vec<u8>, status: &str, json: &[u8], date: &str) -> io::Result<()> {
    let length = json.len();
    write!(
        out,
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\ndate: {date}\r\n\r\n"
    )?;
    out.extend_from_slice(json);
    Ok(())
}

/// Appends the same response to a refusal as the router would give.
fn put_refusal(out: &mut Vec<u8>, refusal: &Refusal, date: &str) -> io::Result<()> {
    let problem = problem(refusal);
    let body = serde_json::to_vec(&problem)?;
    let reason = StatusCode::from_u16(problem.status).ok().and_then(|status| status.canonical_reason());
    write!(out, "HTTP/1.1 {} {}\r\ncontent-type: {PROBLEM_JSON}\r\n", problem.status, reason.unwrap_or_default())?;
    if let Some(ms) = refusal.retry_after_ms {
        write!(out, "retry-after: {}\r\n", retry_after_s(ms))?;
    }
    if refusal.code == ErrorCode::Unauthorized || refusal.code == ErrorCode::TokenExpired {
        write!(out, "www-authenticate: Bearer\r\n")?;
    }
    write!(out, "content-length: {}\r\ndate: {date}\r\n\r\n", body.len())?;
    out.extend_from_slice(&body);
    Ok(())
}

//! The audit log: which operator changed what, with an app server's key.
//!
//! A caller names its operator in the `Tidings-Author` header, as the console always does. A line is written for each change that names one,
//! when the request is over. Traffic of app servers names none, and costs one look for a header.

use crate::{Api, bearer};
use axum::http::{HeaderMap, HeaderName, Method, Request, StatusCode, header};
use std::net::IpAddr;

/// Names the operator on whose behalf an app server's key is used.
pub(crate) const AUTHOR: HeaderName = HeaderName::from_static("tidings-author");
/// A longer name is cut in the log, at this many bytes.
const AUTHOR_BYTES_MAX: usize = 256;

/// A change that the log names when this is dropped, so also one whose caller went away before the answer.
pub(crate) struct AuditedChange {
    author: String,
    method: Method,
    path: String,
    client: Option<IpAddr>,
    status: Option<StatusCode>,
}

impl AuditedChange {
    /// `None`: the request changes nothing, names no operator, or is not an app server's.
    pub(crate) fn of<B>(api: &Api, request: &Request<B>, client: Option<IpAddr>) -> Option<Self> {
        let author = request.headers().get(AUTHOR)?;
        if request.method().is_safe() || !has_app_key(api, request.headers()) {
            return None;
        }
        let author = author.as_bytes();
        let author = String::from_utf8_lossy(&author[..author.len().min(AUTHOR_BYTES_MAX)]).into_owned();
        let method = request.method().clone();
        // The path only: queries may hold cursors.
        Some(AuditedChange { author, method, path: request.uri().path().to_owned(), client, status: None })
    }

    pub(crate) fn set_status(&mut self, status: StatusCode) {
        self.status = Some(status);
    }
}

impl Drop for AuditedChange {
    fn drop(&mut self) {
        let AuditedChange { author, method, path, client, status } = self;
        let client = client.map_or_else(|| "unknown".to_owned(), |client| client.to_string());
        let outcome = match status {
            Some(status) if status.is_success() => "done",
            Some(_) => "refused",
            None => "the caller went away before the answer",
        };
        let status = status.map(|status| status.as_u16());
        // As `Debug` writes them: a name cannot begin a line of its own.
        tracing::info!(target: "audit", ?author, %method, ?path, status, client, "{outcome}");
    }
}

fn has_app_key(api: &Api, headers: &HeaderMap) -> bool {
    let credential = headers.get(header::AUTHORIZATION).map(|credential| credential.as_bytes());
    credential.and_then(|credential| bearer(credential).ok()).is_some_and(|secret| api.keys.contain(secret))
}

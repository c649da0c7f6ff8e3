//! The audit log: which operator changed what, with an app server's key.
//!
//! A caller names its operator in the `Tidings-Author` header, as the console always does. A line is written for each change that names one,
//! when the request is over. Traffic of app servers names none, and costs one look for a header.

use crate::{
    Api,
    api_keys::{
        Author,
        permissions::{self, OperationName},
    },
};
use axum::http::{HeaderMap, HeaderName, Method, Request, StatusCode};
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
        if request.method().is_safe() || api.key_of(request.headers()).is_none() {
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

/// An operation that the stored audit log names, whoever its operator is.
pub(crate) struct AuditedOperation {
    operation: OperationName<'static>,
    /// The path of the request, if the operation has parameters in it.
    path: Option<String>,
    author: Author,
}

impl AuditedOperation {
    /// `None`: the operation is none of those, or the caller has no API key.
    pub(crate) fn of<B>(api: &Api, request: &Request<B>) -> Option<Self> {
        let path = request.uri().path();
        let operation = permissions::audited(request.method().as_str(), path)?;
        let path = (path != operation.path).then(|| path.to_owned());
        let author = Author { key: api.key_of(request.headers())?, operator: operator(request.headers()) };
        Some(AuditedOperation { operation, path, author })
    }

    /// Stores the entry. The operation is done: a store that fails now is logged.
    pub(crate) async fn record(self, api: &Api) {
        let AuditedOperation { operation, path, author } = self;
        let recorded = api.with_keys(move |keys| keys.record(operation, path, &author)).await;
        if let Err(refusal) = recorded {
            tracing::error!(%refusal, ?operation, "the audit log lacks an operation");
        }
    }
}

/// The operator whom a request names.
pub(crate) fn operator(headers: &HeaderMap) -> Option<String> {
    headers.get(AUTHOR).map(|author| String::from_utf8_lossy(author.as_bytes()).into_owned())
}

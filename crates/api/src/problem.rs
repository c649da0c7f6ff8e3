//! Refusals as RFC 9457 problem details, with a stable code.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Response, StatusCode, header},
    response::IntoResponse,
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::Problem,
};

/// The media type of problem details.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// A refusal as an HTTP response.
#[derive(Debug)]
pub struct RefusalResponse(pub Refusal);

impl From<Refusal> for RefusalResponse {
    fn from(refusal: Refusal) -> Self {
        RefusalResponse(refusal)
    }
}

/// The problem details of a refusal.
pub fn problem(refusal: &Refusal) -> Problem {
    let status = refusal.code.http_status();
    Problem {
        problem_type: format!("urn:tidings:error:{}", refusal.code),
        title: title(refusal.code),
        status,
        detail: refusal.detail.clone(),
        code: refusal.code,
        retry: refusal.code.retryable(),
        reason: refusal.reason.as_deref().map(str::to_owned),
    }
}

/// `not_a_member` reads "Not a member".
fn title(code: ErrorCode) -> String {
    let mut title = code.as_str().replace('_', " ");
    if let Some(first) = title.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    title
}

/// The value of `Retry-After`, which holds whole seconds; rounded up, so that nobody retries too early.
pub(crate) fn retry_after_s(ms: u64) -> u64 {
    ms.div_ceil(1_000).max(1)
}

/// The headers of a response after which a retry may succeed, if any.
pub(crate) fn retry_after_header(ms: Option<u64>) -> HeaderMap {
    ms.map(|ms| (header::RETRY_AFTER, HeaderValue::from(retry_after_s(ms)))).into_iter().collect()
}

impl IntoResponse for RefusalResponse {
    fn into_response(self) -> Response<Body> {
        let RefusalResponse(refusal) = self;
        let body = serde_json::to_vec(&problem(&refusal)).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        let status = StatusCode::from_u16(refusal.code.http_status());
        *response.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        headers.extend(retry_after_header(refusal.retry_after_ms));
        if refusal.code.http_status() == 401 {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // Read on the way out, where refusals are counted by code.
        response.extensions_mut().insert(refusal.code);
        response
    }
}

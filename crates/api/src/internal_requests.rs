//! Requests of app servers that come in by no connection: those of the outbox. They pass the same router as all others, and with it the
//! same authentication, scopes, limits and checks; a request that another node's function answers is passed on to it, as all others are.

use crate::{Api, request_service::catch_panic, routes};
use axum::{
    Router,
    body::{Body, to_bytes},
    http::{HeaderName, HeaderValue, Request, header},
    response::Response,
};
use bytes::Bytes;
use http_body_util::Full;
use std::sync::Arc;
use tidings_protocol::{error::Refusal, http::Problem};
use tower::ServiceExt;

/// Responses are receipts and refusals.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// A caller within the process.
#[derive(Clone)]
pub struct InternalRequests {
    api: Arc<Api>,
    router: Router,
}

impl InternalRequests {
    pub fn new(api: Arc<Api>) -> InternalRequests {
        InternalRequests { router: routes::router(api.clone()), api }
    }

    /// Posts a body, as an app server with this key. Answers the response's body.
    ///
    /// # Errors
    /// Those of the operation.
    pub async fn post(&self, api_key: &str, path: &str, body: String) -> Result<String, Refusal> {
        let length = body.len();
        let header = |value: String| HeaderValue::from_str(&value).map_err(|error| crate::internal(&error));
        let headers: [(HeaderName, HeaderValue); 3] = [
            (header::AUTHORIZATION, header(format!("Bearer {api_key}"))?),
            (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (header::CONTENT_LENGTH, HeaderValue::from(length)),
        ];
        let mut request = Request::post(path).body(body).map_err(|error| crate::internal(&error))?;
        request.headers_mut().extend(headers);
        if let Some(function) = self.api.is_for_another_node(path) {
            let forwarded = self.api.forward(function, request.map(Full::<Bytes>::from)).await;
            return self.read(forwarded.map_err(|(refusal, _)| refusal)?).await;
        }
        let answered = catch_panic(self.router.clone().oneshot(request.map(Body::from))).await;
        let Ok(response) = answered.map_err(|panic| crate::internal(&format!("panic: {panic}")))?;
        self.read(response).await
    }

    async fn read(&self, response: Response) -> Result<String, Refusal> {
        let is_success = response.status().is_success();
        let retry_after = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after_ms = retry_after.and_then(|seconds| seconds.parse::<u64>().ok()).map(|seconds| seconds * 1_000);
        let body = to_bytes(response.into_body(), RESPONSE_BYTES_MAX).await.map_err(|error| crate::internal(&error))?;
        if is_success {
            return String::from_utf8(body.into()).map_err(|error| crate::internal(&error));
        }
        let Problem { code, detail, reason, .. } =
            serde_json::from_slice(&body).map_err(|error| crate::internal(&error))?;
        self.api.engine.metrics.count_refusal(code);
        Err(Refusal { retry_after_ms, reason: reason.map(Into::into), ..Refusal::new(code, detail) })
    }
}

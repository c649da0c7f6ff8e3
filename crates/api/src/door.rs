//! One request: where it goes, and what every answer has in common.

use crate::{
    Api,
    connect::{CONNECT_PATH, upgrade},
    internal,
    problem::Refused,
    routes,
};
use axum::{
    Router,
    body::Body,
    http::{HeaderValue, Method, Request, Response, header},
    response::IntoResponse,
};
use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::{body::Incoming, service::Service};
use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::Arc,
};
use tidings_listen::Descriptors;
use tidings_protocol::error::{ErrorCode, Refusal};
use tower::ServiceExt;
use tracing::Instrument;

const SEND_PATH: &str = "/v1/messages";
const DECIDE_PATH: &str = "/v1/popups/decide";

/// A ready-made answer, or one of the router's.
pub type AnswerBody = Either<Full<Bytes>, Body>;

/// The service behind every connection.
#[derive(Clone)]
pub struct Door {
    api: Arc<Api>,
    router: Router,
    /// Set for a connection that took a descriptor of the reserve: it is served, but may not become a WebSocket.
    reserve: Option<Arc<Descriptors>>,
}

impl Door {
    pub fn new(api: Arc<Api>) -> Self {
        Door { router: routes::router(api.clone()), api, reserve: None }
    }

    pub(crate) fn within_the_reserve(&self, descriptors: &Arc<Descriptors>) -> Self {
        Door { reserve: Some(descriptors.clone()), ..self.clone() }
    }

    pub fn api(&self) -> &Arc<Api> {
        &self.api
    }

    async fn answer(self, request: Request<Incoming>) -> Response<AnswerBody> {
        if self.api.is_for_another(request.uri().path()) {
            return match self.api.forward(request).await {
                Ok(response) => response.map(Either::Right),
                Err(refusal) => refused(refusal),
            };
        }
        match request.uri().path() {
            // The router's boxes and layers cost as much as the send itself.
            SEND_PATH if request.method() == Method::POST => {
                let (parts, body) = request.into_parts();
                match routes::send_message(&self.api, &parts.headers, body).await {
                    Ok(receipt) => json(&receipt),
                    Err(refusal) => refused(refusal),
                }
            }
            DECIDE_PATH if request.method() == Method::POST => {
                let (parts, body) = request.into_parts();
                match routes::decide_popup(&self.api, &parts.headers, body).await {
                    Ok(response) => response.map(|body| Either::Left(Full::new(body))),
                    Err(refusal) => refused(refusal),
                }
            }
            CONNECT_PATH => match upgrade(&self.api, self.reserve.as_deref(), request) {
                Ok(response) => response.map(Either::Left),
                Err(refusal) => refused(refusal),
            },
            _ => match self.router.oneshot(request).await {
                Ok(response) => response.map(Either::Right),
            },
        }
    }
}

impl Service<Request<Incoming>> for Door {
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let door = self.clone();
        Box::pin(async move {
            let api = door.api.clone();
            // The path only: queries may hold cursors, headers hold secrets.
            let span = tracing::debug_span!("request", method = %request.method(), path = request.uri().path());
            let response = match caught(door.answer(request)).instrument(span).await {
                Ok(response) => response,
                Err(panic) => refused(internal(&format!("panic: {panic}"))),
            };
            if let Some(code) = response.extensions().get::<ErrorCode>() {
                api.engine.metrics.count_refusal(*code);
                tracing::debug!(%code, "refused");
            }
            Ok(response)
        })
    }
}

fn json(body: &impl serde::Serialize) -> Response<AnswerBody> {
    match serde_json::to_vec(body) {
        Ok(body) => {
            let mut response = Response::new(Either::Left(Full::from(body)));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err(error) => refused(internal(&error)),
    }
}

fn refused(refusal: Refusal) -> Response<AnswerBody> {
    Refused(refusal).into_response().map(Either::Right)
}

/// Runs a future; a panic in it ends the request, not the connection's task.
pub(crate) async fn caught<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let mut future = pin!(future);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => std::task::Poll::Ready(Err(panic_text(&*panic))),
    })
    .await
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "of an unknown kind".into())
}

#[cfg(test)]
mod tests {
    use super::caught;

    #[tokio::test]
    async fn a_panic_is_an_error_of_its_request() {
        let text = "why";
        assert_eq!(caught(async { panic!("told {text}") }).await, Err::<(), _>("told why".to_owned()));
        assert_eq!(caught(async { 7 }).await, Ok(7));
    }
}

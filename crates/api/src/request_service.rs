//! The service behind every HTTP connection: it routes a request, and finishes every response in the same way.

use crate::{
    Api,
    api_keys::shows_stored_key,
    audit::{AuditedChange, AuditedOperation},
    bodies::discard_rest,
    body_reclaim::BodyReclaim,
    handover::{Handover, HandoverSlot, stream_head},
    internal,
    problem::RefusalResponse,
    routes::{self, STREAM_PATHS, StreamBind},
    unread_responses::UnreadResponses,
    websocket_upgrade::{CONNECT_PATH, check_room, upgrade},
};
use axum::{
    Router,
    body::Body,
    http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header},
    response::IntoResponse,
};
use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::{
    body::{Body as _, Incoming},
    service::Service,
};
use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_listen::{
    ClientAddress, ConnectionActivity, ConnectionSlot, ConnectionSlots, ConnectionSlotsConfig, Descriptors,
    ThrottleKey, jittered_retry_after_ms,
};
use tidings_protocol::error::{ErrorCode, Refusal};
use tower::ServiceExt;
use tracing::Instrument;

pub(crate) const SEND_PATH: &str = "/v1/messages";
pub(crate) const DECIDE_PATH: &str = "/v1/popups/decide";
pub(crate) const REPORT_PATH: &str = "/v1/popup-events";
pub(crate) const PUSH_PATH: &str = "/v1/push";
/// The paths that are served to everybody even when all connections are taken: those that tell operators how the server fares.
const OPERATIONS_PATHS: [&str; 3] = ["/healthz", "/readyz", "/metrics"];
/// Connections to a listener for health alone.
const HEALTH_CONNECTIONS_MAX: usize = 64;

/// The body of a response: made here, or by the router.
pub type ResponseBody = Either<Full<Bytes>, Body>;

/// The service behind every connection.
#[derive(Clone)]
pub struct RequestService {
    api: Arc<Api>,
    router: Router,
    slots: Arc<ConnectionSlots>,
    /// Serves health and metrics only.
    health_only: bool,
    /// Set for a connection beyond the limit, in the reserve that other connections need: it ends with its first response.
    closes_after_response: bool,
    /// Set for a connection that took a file descriptor of the reserve: its requests are served, but it may not become a WebSocket.
    reserve: Option<Arc<Descriptors>>,
    /// Set once the service belongs to a connection.
    activity: Option<ConnectionActivity>,
    /// Where the connection is asked to become a session.
    handover: HandoverSlot,
    /// The client, for counting failed authentications and connections, and for the audit log.
    client: ClientAddress,
    /// What the connection's client has not read of responses. Set once the service belongs to a connection.
    unread: Option<Arc<UnreadResponses>>,
}

impl RequestService {
    pub fn new(api: Arc<Api>) -> Self {
        RequestService {
            router: routes::router(api.clone()),
            slots: api.slots.clone(),
            api,
            health_only: false,
            closes_after_response: false,
            reserve: None,
            activity: None,
            handover: HandoverSlot::default(),
            client: ClientAddress::default(),
            unread: None,
        }
    }

    /// A service for health and metrics only, with a connection limit of its own.
    pub fn for_health(&self) -> Self {
        let most = HEALTH_CONNECTIONS_MAX;
        let idle_min = self.api.config.idle_min;
        let slots = ConnectionSlots::new(ConnectionSlotsConfig {
            connections_max: most,
            per_address_max: most,
            per_local_address_max: most,
            per_user_max: most,
            reserve: 0,
            idle_min,
        });
        RequestService { slots, health_only: true, ..self.clone() }
    }

    /// The service for a connection of this client.
    pub(crate) fn for_client(self, client: SocketAddr) -> Self {
        let throttle_key =
            self.api.throttle.as_ref().map_or(ThrottleKey::UNKNOWN, |throttle| throttle.key(client.ip()));
        RequestService { client: ClientAddress { address: Some(client.ip()), throttle_key }, ..self }
    }

    pub(crate) fn client(&self) -> ClientAddress {
        self.client
    }

    pub fn api(&self) -> &Arc<Api> {
        &self.api
    }

    pub(crate) fn slots(&self) -> &Arc<ConnectionSlots> {
        &self.slots
    }

    /// Whether the connection may become a session: it took no descriptor of the reserve.
    pub(crate) fn may_become_session(&self) -> bool {
        self.reserve.is_none()
    }

    /// Whether this service serves health and metrics only.
    pub(crate) fn is_health_only(&self) -> bool {
        self.health_only
    }

    /// The service for one connection; `reserve` is set if the connection took a descriptor of the reserve.
    pub(crate) fn for_connection(
        mut self,
        slot: &ConnectionSlot,
        reserve: Option<&Arc<Descriptors>>,
        unread: Arc<UnreadResponses>,
    ) -> Self {
        self.activity = Some(slot.activity());
        self.unread = Some(unread);
        self.closes_after_response = slot.is_reserved();
        self.health_only |= self.closes_after_response;
        self.reserve = reserve.cloned();
        self.handover = HandoverSlot::default();
        self
    }

    pub(crate) fn handover(&self) -> &HandoverSlot {
        &self.handover
    }

    /// Answers a request. Returns the response, and the body if it was not read to its end.
    async fn answer(&self, request: Request<Incoming>) -> (Response<ResponseBody>, Option<Incoming>) {
        if let Err(refusal) = check_host(&request) {
            return (refusal_response(refusal), Some(request.into_body()));
        }
        let path = request.uri().path();
        let credential = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        // A full server serves its operators, and app servers: their keys are not tried out here, where nobody counts failures.
        let is_served = || self.closes_after_response && self.api.is_unguessable_key(credential);
        if self.health_only && !OPERATIONS_PATHS.contains(&path) && !is_served() {
            return (refusal_response(self.limited_refusal()), Some(request.into_body()));
        }
        if let Some(preflight) = self.api.config.cors.as_ref().and_then(|cors| cors.preflight(&request)) {
            let response = preflight.map_or_else(refusal_response, |response| response.map(Either::Left));
            return (response, Some(request.into_body()));
        }
        // Nobody guesses the secret of a stream.
        let is_stream_secret = path.starts_with(STREAM_PATHS);
        if !is_stream_secret && let Err(refusal) = self.api.check_throttle(self.client.throttle_key, credential) {
            return (refusal_response(refusal), Some(request.into_body()));
        }
        // Forwarding is rare, and its state is large: boxed, it is not a part of the state of every request.
        if let Some(function) = self.api.is_for_another_node(path) {
            // Failed authentications are counted here: to the leader they would all come from this node.
            if let Err(refusal) = self.api.check_credential(credential, self.activity.as_ref()) {
                return (refusal_response(refusal), Some(request.into_body()));
            }
            return match Box::pin(self.api.forward(function, request)).await {
                Ok(response) => (response.map(Either::Right), None),
                Err((refusal, unread)) => (refusal_response(refusal), unread),
            };
        }
        if let Some(node) = self.api.event_stream_node(path, request.headers()) {
            return match Box::pin(self.api.forward_to(&node, request.map(reqwest::Body::wrap))).await {
                Ok(response) => (response.map(Either::Right), None),
                Err(refusal) => (refusal_response(refusal), None),
            };
        }
        // A look-up that fails here fails in the router too, which says why.
        if let Ok(Some(node)) = self.api.stream_node(path, request.headers()).await {
            if let Err(refusal) = self.api.check_credential(credential, self.activity.as_ref()) {
                return (refusal_response(refusal), Some(request.into_body()));
            }
            return match Box::pin(self.api.forward_to(&node, request.map(reqwest::Body::wrap))).await {
                Ok(response) => (response.map(Either::Right), None),
                Err(refusal) => (refusal_response(refusal), None),
            };
        }
        match path {
            // The router's boxes and layers cost as much as the send itself.
            SEND_PATH if request.method() == Method::POST => {
                let (parts, mut body) = request.into_parts();
                match routes::send_message(&self.api, &parts.headers, self.activity.as_ref(), &mut body).await {
                    Ok(receipt) => (json_response(&receipt), None),
                    Err(refusal) => (refusal_response(refusal), Some(body)),
                }
            }
            DECIDE_PATH if request.method() == Method::POST => {
                let (parts, mut body) = request.into_parts();
                match routes::decide_popup(&self.api, &parts.headers, self.activity.as_ref(), &mut body).await {
                    Ok(response) => (response.map(|body| Either::Left(Full::new(body))), None),
                    Err(refusal) => (refusal_response(refusal), Some(body)),
                }
            }
            CONNECT_PATH => match upgrade(&self.api, self.reserve.as_deref(), &request) {
                Ok(response) => {
                    self.handover.set(Handover::WebSocket);
                    (response.map(Either::Left), None)
                }
                // RFC 6455, 4.2.2: a client with another version learns which one the server speaks.
                Err(refusal) => {
                    let mut response = refusal_response(refusal);
                    response.headers_mut().insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
                    (response, None)
                }
            },
            _ => {
                let audited = AuditedOperation::of(&self.api, &request);
                let left = BodyReclaim::default();
                let mut request = request.map(|body| left.lend(body));
                if let Some(activity) = &self.activity {
                    request.extensions_mut().insert(activity.clone());
                }
                let Ok(response) = self.router.clone().oneshot(request).await;
                if let Some(audited) = audited.filter(|_| response.status().is_success()) {
                    audited.record(&self.api).await;
                }
                let opens_stream = response.extensions().get::<StreamBind>().is_some();
                match opens_stream.then(|| check_room(&self.api, self.reserve.as_deref())) {
                    Some(Err(refusal)) => (refusal_response(refusal), None),
                    _ => (response.map(Either::Right), left.take()),
                }
            }
        }
    }

    fn limited_refusal(&self) -> Refusal {
        if self.closes_after_response {
            connection_limit_refusal()
        } else {
            Refusal::new(ErrorCode::NotFound, "this listener serves only health checks and metrics")
        }
    }

    /// Answers a request, counts and times it, and adds the headers that every response has.
    async fn serve(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let began = Instant::now();
        if self.activity.as_ref().is_some_and(|activity| !activity.begin_request()) {
            // The connection's place was given to another one: nothing was executed, and the client may retry.
            return with_connection_close(refusal_response(connection_limit_refusal()));
        }
        // The path only: queries may hold cursors, headers hold secrets.
        let span = tracing::debug_span!("request", method = %request.method(), path = request.uri().path());
        let observed = Observed::of(&request);
        let mut audited = AuditedChange::of(&self.api, &request, self.client.address);
        let version = request.version();
        // Taken before the request is consumed.
        let credential = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        let (has_credential, has_stored_key) = (credential.is_some(), credential.is_some_and(shows_stored_key));
        let expects = request.headers().contains_key(header::EXPECT);
        let origin = self.api.config.cors.as_ref().and_then(|_| request.headers().get(header::ORIGIN).cloned());
        let (mut response, left) = match catch_panic(self.answer(request)).instrument(span).await {
            Ok(answered) => answered,
            Err(panic) => (refusal_response(internal(&format!("panic: {panic}"))), None),
        };
        if has_credential
            && response.extensions().get() == Some(&ErrorCode::Unauthorized)
            && let Some(refusal) = self.api.count_auth_failure(self.client.throttle_key)
        {
            response = refusal_response(refusal);
        }
        if let Some(code) = response.extensions().get::<ErrorCode>() {
            self.api.engine.metrics.count_refusal(*code);
            tracing::debug!(%code, "refused");
        }
        self.observe(&observed, response.status(), began.elapsed());
        audited.iter_mut().for_each(|change| change.set_status(response.status()));
        if let Some(cors) = &self.api.config.cors {
            cors.add_headers(origin.as_ref(), response.headers_mut());
        }
        if let Some(StreamBind(bind)) = response.extensions_mut().remove() {
            let (head, is_chunked) = stream_head(version, response.headers());
            self.handover.leave_with(Handover::EventStream { head, is_chunked, bind }).await;
        }
        // From here an unauthenticated connection may be closed for others, also while the rest of its body is awaited. A connection that
        // becomes a WebSocket leaves by itself.
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            self.activity.iter().for_each(ConnectionActivity::end_request);
        }
        if let (Some(unread), Some(activity)) = (&self.unread, &self.activity) {
            let bytes = response.body().size_hint().lower();
            unread.add(usize::try_from(bytes).unwrap_or(usize::MAX), activity.client());
        }
        let is_over = match left {
            Some(body) if !body.is_end_stream() => expects || !discard_rest(body).await,
            _ => false,
        };
        // A connection that a key has opened is never closed for others: it must not outlive the key.
        let key_is_over = has_stored_key && response.status() == StatusCode::UNAUTHORIZED;
        if is_over || key_is_over || self.closes_after_response { with_connection_close(response) } else { response }
    }

    fn observe(&self, observed: &Observed, status: StatusCode, took: Duration) {
        let metrics = &self.api.http_metrics;
        match observed {
            Observed::Send => metrics.sends.observe(status, took),
            Observed::Decide => metrics.decisions.observe(status, took),
            Observed::Other(method, uri) => metrics.observe(uri.path(), method, status, took),
        }
    }
}

/// The operation that a request's time is counted for. The two that are called most are told apart without a copy.
enum Observed {
    Send,
    Decide,
    Other(Method, Uri),
}

impl Observed {
    fn of(request: &Request<Incoming>) -> Self {
        match request.uri().path() {
            SEND_PATH if request.method() == Method::POST => Observed::Send,
            DECIDE_PATH if request.method() == Method::POST => Observed::Decide,
            _ => Observed::Other(request.method().clone(), request.uri().clone()),
        }
    }
}

/// The service as hyper calls it. A request clones one `Arc` instead of each part of the service.
pub(crate) struct HyperService(pub(crate) Arc<RequestService>);

impl Service<Request<Incoming>> for HyperService {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move { Ok(service.serve(request).await) })
    }
}

/// Refuses a request of HTTP/1.1 without `Host`, and any request with several (RFC 9112, 3.2): two programs on its way may take it
/// for requests to different hosts.
///
/// # Errors
/// `malformed`.
pub fn check_host<B>(request: &Request<B>) -> Result<(), Refusal> {
    let count = request.headers().get_all(header::HOST).iter().count();
    if count == 1 || count == 0 && request.version() < Version::HTTP_11 {
        Ok(())
    } else {
        Err(Refusal::new(ErrorCode::Malformed, format!("a request has one Host header, and this one has {count}")))
    }
}

/// The refusal of a request on a connection beyond the limit.
fn connection_limit_refusal() -> Refusal {
    let detail = "the limit of open connections is reached; connect again";
    Refusal::new(ErrorCode::QueueFull, detail).retry_after(jittered_retry_after_ms())
}

/// The response with the header that closes its connection.
fn with_connection_close(mut response: Response<ResponseBody>) -> Response<ResponseBody> {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

fn json_response(body: &impl serde::Serialize) -> Response<ResponseBody> {
    match serde_json::to_vec(body) {
        Ok(body) => {
            let mut response = Response::new(Either::Left(Full::from(body)));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err(error) => refusal_response(internal(&error)),
    }
}

fn refusal_response(refusal: Refusal) -> Response<ResponseBody> {
    RefusalResponse(refusal).into_response().map(Either::Right)
}

/// Runs a future. A panic in it becomes an error, so that it ends the request and not the connection's task.
pub(crate) async fn catch_panic<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let mut future = pin!(future);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => std::task::Poll::Ready(Err(panic_text(&*panic))),
    })
    .await
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "of an unknown kind".into())
}

#[cfg(test)]
mod tests {
    use super::{catch_panic, connection_limit_refusal};

    /// A request may be refused because its connection was just closed for another: the client must know that a retry can succeed.
    #[test]
    fn a_connection_limit_refusal_is_retryable() {
        let refusal = connection_limit_refusal();
        assert!(refusal.code.retryable() && refusal.code.http_status() == 503);
        assert!(refusal.retry_after_ms.is_some());
    }

    #[tokio::test]
    async fn a_panic_becomes_an_error_of_its_request() {
        let text = "why";
        assert_eq!(catch_panic(async { panic!("told {text}") }).await, Err::<(), _>("told why".to_owned()));
        assert_eq!(catch_panic(async { 7 }).await, Ok(7));
    }
}

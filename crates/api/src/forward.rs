//! Forwards requests to the leader of the function that they need, the one node that does it for all, and chunks of a message that grows to the
//! node that takes them, and frames for an event stream to the node that has it. The response is passed on unchanged.
//!
//! A request is forwarded once only: a node that gets a forwarded request and does not lead (any more) refuses it. Bodies are streamed
//! in both directions, not held. What is asked most goes by [`pipelines`] instead, and is held, as it is short.

use crate::{
    Api,
    audit::AUTHOR,
    auth::NodeTokenSigner,
    extract::{is_json, read_body},
    pipelines::{self, Operation, Pipelines, Unanswered},
    routes::STREAM_PATHS,
};
use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, header, request::Parts},
};
use bytes::Bytes;
use hyper::body::Body as HttpBody;
use std::{sync::Arc, time::Duration};
use tidings_domain::{commit_log::NodeInfo, function::Function, metrics::Metrics};
use tidings_engine::{
    Engine,
    cluster::{
        leader_client::{LeaderClient, LeaderRequest, LeaderResponse, PendingResponse},
        nodes::ClusterNodes,
    },
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    event_stream::StreamId,
    http::PopupEvents,
};
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
};

/// The header that names the forwarding node.
pub const FORWARDED: HeaderName = HeaderName::from_static("tidings-forwarded");
/// Forwarded requests that wait for the leader at once. Full: refused with `queue_full`.
const FORWARDED_MAX: usize = 2_048;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Longer than the leader waits for a body to arrive.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Requests of nodes and of their sessions are small, and so are the answers: a leader that has not answered by then is not going to.
const OWN_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Idle connections that are kept for the next request, for half as long as the leader keeps them.
const IDLE_CONNECTIONS_MAX: usize = 256;
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
const RETRY_AFTER_MS: u64 = 1_000;
const MAYBE_EXECUTED: &str = "the leader did not answer; the request may have been executed or not";
/// How often a request is sent in all, if each connection ends before the request is written: a leader stops, and another follows it.
const SENDS_MAX: usize = 3;
/// Headers that concern one connection only (RFC 9110, 7.6.1), or that the client sets anew for the next.
const HOP_BY_HOP: [HeaderName; 10] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
    header::HOST,
];

/// The client for other nodes' HTTP APIs.
pub struct Forwarder {
    client: reqwest::Client,
    pipelines: Pipelines,
    node: HeaderValue,
    in_flight: Arc<Semaphore>,
}

/// The function whose leader serves a path. `None`: every node serves it.
pub(crate) fn function_of_path(path: &str) -> Option<Function> {
    let mut parts = path.strip_prefix("/v1/")?.split('/');
    match (parts.next()?, parts.next(), parts.next()) {
        ("push" | "notifications", ..) => Some(Function::Push),
        ("popups" | "popup-settings" | "popup-segments" | "popup-events" | "popup-journeys" | "bulk-sends", ..) => {
            Some(Function::Popups)
        }
        ("scheduled-messages", ..) => Some(Function::ScheduledMessages),
        ("event-consumers", ..) => Some(Function::EventConsumers),
        ("outbox-sources", ..) => Some(Function::Outboxes),
        // What one's own key may do, every node says from memory.
        ("admin", Some("keys"), third) => (third != Some("me")).then_some(Function::Housekeeping),
        // Tokens of devices at providers are proposals, which every node commits.
        ("users", Some(_), Some("devices")) => (parts.nth(1) != Some("push_token")).then_some(Function::Push),
        _ => None,
    }
}

/// The message of a path below `/v1/streams`, whose chunks one node takes: the conversation's id and the `seq`.
fn stream_of_path(path: &str) -> Option<(String, u64)> {
    let (conversation, rest) = path.strip_prefix("/v1/streams/")?.split_once('/')?;
    let seq = rest.split('/').next()?.parse().ok()?;
    let conversation = percent_encoding::percent_decode_str(conversation).decode_utf8().ok()?;
    Some((conversation.into_owned(), seq))
}

impl Forwarder {
    /// The forwarder of a node in a cluster. `None`: the node is in no cluster, or a client cannot be made; then nothing is forwarded.
    pub(crate) fn of(engine: &Engine) -> Option<Forwarder> {
        let node = HeaderValue::from_str(&engine.cluster.as_ref()?.nodes.me().name).ok()?;
        // Err: a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(ANSWER_TIMEOUT)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .tcp_nodelay(true)
            .build();
        let client = client.inspect_err(|error| tracing::error!(%error, "nothing can be forwarded to other nodes"));
        let (pipelines, in_flight) = (Pipelines::default(), Arc::new(Semaphore::new(FORWARDED_MAX)));
        Some(Forwarder { client: client.ok()?, pipelines, node, in_flight })
    }

    /// Has the leader answer a request, by a pipeline. `None`: pipelines do not take it, and the library forwards it.
    async fn ask_leader(
        &self,
        nodes: &ClusterNodes,
        metrics: &Metrics,
        request: &pipelines::Request<'_>,
    ) -> Result<Option<pipelines::response::Response>, Refusal> {
        for _ in 0..SENDS_MAX {
            let leader = find_leader(nodes, request.operation.function())?;
            if !request.operation.is_known_to(&leader) {
                return Ok(None);
            }
            let permit = self.permit()?;
            let answered = match self.pipelines.send(&leader, (&FORWARDED, &self.node), request, permit) {
                Ok(response) => {
                    metrics.cluster.forwarded.inc();
                    response.await.unwrap_or(Err(Unanswered::Lost))
                }
                Err(why) => Err(why),
            };
            match answered {
                Ok(response) => return Ok(Some(response)),
                Err(Unanswered::NotTaken) => return Ok(None),
                Err(Unanswered::NotSent) => {}
                Err(Unanswered::Unreachable) => break,
                Err(Unanswered::Lost) => return Err(no_leader(MAYBE_EXECUTED)),
            }
        }
        Err(no_leader("the leader cannot be reached; the request was not executed"))
    }

    fn permit(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        self.in_flight.clone().try_acquire_owned().map_err(|_| {
            let why = format!("requests that wait for another node are limited to {FORWARDED_MAX}");
            Refusal::new(ErrorCode::QueueFull, why).retry_after(RETRY_AFTER_MS)
        })
    }
}

/// Sends the requests of this node, and of its sessions, to leaders, over HTTP.
struct HttpLeaderClient(Arc<NodeClient>);

/// What the requests of a node need.
struct NodeClient {
    forwarder: Arc<Forwarder>,
    nodes: Arc<ClusterNodes>,
    metrics: Arc<Metrics>,
    tokens: NodeTokenSigner,
    /// Requests come from threads without a runtime, too.
    runtime: Handle,
}

/// A request of this node as HTTP has it.
struct HttpRequest {
    function: Function,
    /// Set: pipelines take it, unless it is too long.
    operation: Option<Operation>,
    /// On whose behalf; `None`: on this node's own.
    user: Option<String>,
    method: Method,
    path: String,
    body: Vec<u8>,
}

impl HttpRequest {
    fn of(request: LeaderRequest) -> serde_json::Result<HttpRequest> {
        let id = |id: &str| percent_encoding::utf8_percent_encode(id, percent_encoding::NON_ALPHANUMERIC).to_string();
        let operation = match &request {
            LeaderRequest::DecidePopup { .. } => Some(Operation::Decide),
            LeaderRequest::ReportPopupEvents { .. } => Some(Operation::Report),
            LeaderRequest::Push(_) => Some(Operation::Push),
            LeaderRequest::UserDevices { .. } | LeaderRequest::RemoveDevice { .. } => None,
        };
        let (function, user, method, path, body) = match request {
            LeaderRequest::DecidePopup { user, question } => {
                (Function::Popups, Some(user), Method::POST, "/v1/popups/decide".into(), question)
            }
            LeaderRequest::ReportPopupEvents { user, events } => {
                let body = serde_json::to_vec(&PopupEvents { events })?;
                (Function::Popups, user, Method::POST, "/v1/popup-events".into(), body)
            }
            LeaderRequest::Push(push) => {
                (Function::Push, None, Method::POST, "/v1/push".into(), serde_json::to_vec(&*push)?)
            }
            LeaderRequest::UserDevices { user } => {
                (Function::Push, None, Method::GET, format!("/v1/users/{}/devices", id(&user)), Vec::new())
            }
            LeaderRequest::RemoveDevice { user, device_id } => {
                let path = format!("/v1/users/{}/devices/{}", id(&user), id(&device_id));
                (Function::Push, None, Method::DELETE, path, Vec::new())
            }
        };
        Ok(HttpRequest { function, operation, user, method, path, body })
    }
}

impl NodeClient {
    /// Sends a request and reads its response.
    async fn answer(&self, request: HttpRequest) -> Result<LeaderResponse, Refusal> {
        let token = self.tokens.sign(request.user.as_deref()).map_err(|error| crate::internal(&error))?;
        if let Some(operation) = request.operation {
            let (credential, body) = (format!("Bearer {token}"), request.body.as_slice());
            let request = pipelines::Request { operation, credential: credential.as_bytes(), body };
            if let Some(mut response) = self.forwarder.ask_leader(&self.nodes, &self.metrics, &request).await? {
                let retry_after_ms = response.retry_after_s.map(|seconds| seconds.saturating_mul(1_000));
                let body = response.bytes.split_off(response.body);
                return Ok(LeaderResponse { status: response.status, retry_after_ms, body });
            }
        }
        let HttpRequest { function, method, path, body, .. } = request;
        let leader = find_leader(&self.nodes, function)?;
        let _permit = self.forwarder.permit()?;
        self.metrics.cluster.forwarded.inc();
        let request = self.forwarder.client.request(method, url(&leader, &path)).bearer_auth(token);
        let request = request.header(header::CONTENT_TYPE, "application/json").body(body);
        Self::exchange(request.header(FORWARDED, &self.forwarder.node)).await.map_err(not_answered)
    }

    async fn exchange(request: reqwest::RequestBuilder) -> reqwest::Result<LeaderResponse> {
        let answer = request.timeout(OWN_ANSWER_TIMEOUT).send().await?;
        let retry_after = answer.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after_ms = retry_after.and_then(|seconds| seconds.parse::<u64>().ok()).map(|seconds| seconds * 1_000);
        let status = answer.status().as_u16();
        Ok(LeaderResponse { status, retry_after_ms, body: answer.bytes().await?.to_vec() })
    }
}

impl LeaderClient for HttpLeaderClient {
    fn send(&self, request: LeaderRequest) -> Result<PendingResponse, Refusal> {
        let request = HttpRequest::of(request).map_err(|error| crate::internal(&error))?;
        // Refused before a task is made for it.
        find_leader(&self.0.nodes, request.function)?;
        let (respond, response) = oneshot::channel();
        let client = self.0.clone();
        self.0.runtime.spawn(async move {
            // Who asked may have given up.
            let _ = respond.send(client.answer(request).await);
        });
        Ok(response)
    }
}

impl Api {
    /// Gives this node and its sessions a client to leaders, for the requests that leaders answer. `tokens` signs them. Call within the
    /// runtime that is to do the requests.
    pub fn connect_to_leaders(&self, tokens: NodeTokenSigner) {
        let Some((cluster, forwarder)) = self.engine.cluster.as_ref().zip(self.forwarder.clone()) else { return };
        let (nodes, metrics, runtime) = (cluster.nodes.clone(), self.engine.metrics.clone(), Handle::current());
        let client = NodeClient { forwarder, nodes, metrics, tokens, runtime };
        self.engine.set_leader_client(Arc::new(HttpLeaderClient(Arc::new(client))));
    }

    /// Whether requests that need this function are forwarded, before their bodies are read.
    pub(crate) fn is_led_by_another_node(&self, function: Function) -> bool {
        !self.engine.has_term(function)
    }

    /// The function that this path needs, if another node leads it.
    pub(crate) fn is_for_another_node(&self, path: &str) -> Option<Function> {
        function_of_path(path).filter(|function| self.is_led_by_another_node(*function))
    }

    /// The node that has the event stream that this path names, if it is another one. A request that was forwarded already is
    /// answered here.
    pub(crate) fn event_stream_node(&self, path: &str, headers: &HeaderMap) -> Option<Arc<NodeInfo>> {
        let cluster = self.engine.cluster.as_ref().filter(|_| !headers.contains_key(FORWARDED))?;
        let stream: StreamId = path.strip_prefix(STREAM_PATHS)?.parse().ok()?;
        let is_others = |node: &NodeInfo| node.boot_id == stream.node && node.boot_id != cluster.nodes.me().boot_id;
        cluster.nodes.all().into_iter().find(|node| is_others(node) && !node.address.is_empty())
    }

    /// The node that takes the chunks of the message that this path names, if it is another one. A request that was
    /// forwarded already is answered here.
    pub(crate) async fn stream_node(&self, path: &str, headers: &HeaderMap) -> Result<Option<Arc<NodeInfo>>, Refusal> {
        let Some(cluster) = &self.engine.cluster else { return Ok(None) };
        let Some((conversation, seq)) = stream_of_path(path).filter(|_| !headers.contains_key(FORWARDED)) else {
            return Ok(None);
        };
        let owner = self.read(move |engine| engine.stream_owner(&conversation, seq)).await?;
        let nodes = cluster.nodes.all();
        Ok(owner.and_then(|owner| nodes.into_iter().find(|node| node.boot_id == owner && !node.address.is_empty())))
    }

    /// Forwards a request to the leader of this function and returns its response.
    ///
    /// # Errors
    /// With the body, if it was not read to its end.
    pub(crate) async fn forward<B>(
        &self,
        function: Function,
        request: Request<B>,
    ) -> Result<Response<Body>, (Refusal, Option<B>)>
    where
        B: HttpBody<Data = Bytes> + Send + Sync + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync,
    {
        let (parts, mut body) = request.into_parts();
        if parts.headers.contains_key(FORWARDED) {
            return Err((does_not_lead(), Some(body)));
        }
        let Some(operation) = pipelined_operation(&parts) else {
            let request = Request::from_parts(parts, reqwest::Body::wrap(body));
            return self.forward_to_leader(function, request).await.map_err(|refusal| (refusal, None));
        };
        let read = match read_body(self, &parts.headers, &mut body, pipelines::REQUEST_BYTES_MAX).await {
            Ok(read) => read,
            Err(refusal) => return Err((refusal, Some(body))),
        };
        let credential = parts.headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
        let asked = pipelines::Request { operation, credential, body: read.as_ref() };
        let answered = match self.ask_leader(&asked).await {
            Ok(Some(response)) => response.into_http().ok_or_else(|| no_leader(MAYBE_EXECUTED)),
            Ok(None) => {
                let request = Request::from_parts(parts, Bytes::from(read).into());
                self.forward_to_leader(function, request).await
            }
            Err(refusal) => Err(refusal),
        };
        answered.map_err(|refusal| (refusal, None))
    }

    async fn forward_to_leader(
        &self,
        function: Function,
        request: Request<reqwest::Body>,
    ) -> Result<Response<Body>, Refusal> {
        let cluster = self.engine.cluster.as_ref().ok_or_else(cannot_ask)?;
        let leader = find_leader(&cluster.nodes, function)?;
        self.forward_to(&leader, request).await
    }

    /// Has the leader answer a request. `None`: the library forwards it.
    pub(crate) async fn ask_leader(
        &self,
        request: &pipelines::Request<'_>,
    ) -> Result<Option<pipelines::response::Response>, Refusal> {
        let parts = self.engine.cluster.as_ref().zip(self.forwarder.as_deref());
        let (cluster, forwarder) = parts.ok_or_else(cannot_ask)?;
        forwarder.ask_leader(&cluster.nodes, &self.engine.metrics, request).await
    }

    /// Forwards a request to another node and returns its response.
    pub(crate) async fn forward_to(
        &self,
        node: &NodeInfo,
        request: Request<reqwest::Body>,
    ) -> Result<Response<Body>, Refusal> {
        let forwarder = self.forwarder.as_deref().ok_or_else(cannot_ask)?;
        let (parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut headers = parts.headers;
        remove_hop_by_hop_headers(&mut headers);
        // The client sets it from the body.
        headers.remove(header::CONTENT_LENGTH);
        headers.insert(FORWARDED, forwarder.node.clone());
        let request = forwarder.client.request(parts.method, url(node, path)).headers(headers);
        let answer = self.send(forwarder, request.body(body)).await?;
        let mut answer = Response::from(answer);
        remove_hop_by_hop_headers(answer.headers_mut());
        Ok(answer.map(Body::new))
    }

    async fn send(
        &self,
        forwarder: &Forwarder,
        request: reqwest::RequestBuilder,
    ) -> Result<reqwest::Response, Refusal> {
        let _permit = forwarder.permit()?;
        self.engine.metrics.cluster.forwarded.inc();
        request.send().await.map_err(not_answered)
    }
}

/// What pipelines do for a request, if it is short and has no header that its leader needs beside the credential.
fn pipelined_operation(request: &Parts) -> Option<Operation> {
    let operation = Operation::of(&request.method, request.uri.path()).filter(|_| request.uri.query().is_none())?;
    let length: usize = request.headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()?;
    let is_json = request.headers.get(header::CONTENT_TYPE).is_none_or(|kind| is_json(kind.as_bytes()));
    // The leader says what it does not read, and writes the audit log.
    let is_needed = [header::CONTENT_ENCODING, AUTHOR].iter().any(|header| request.headers.contains_key(header));
    (length <= pipelines::REQUEST_BYTES_MAX && is_json && !is_needed).then_some(operation)
}

fn find_leader(nodes: &ClusterNodes, function: Function) -> Result<Arc<NodeInfo>, Refusal> {
    let leader = nodes.leader(function).filter(|leader| leader.boot_id != nodes.me().boot_id);
    let leader = leader.ok_or_else(|| no_leader("no node leads now; another will soon"))?;
    if leader.address.is_empty() { Err(no_leader("the leader does not advertise an address")) } else { Ok(leader) }
}

fn not_answered(error: reqwest::Error) -> Refusal {
    tracing::debug!(error = %error.without_url(), "the leader did not answer");
    no_leader(MAYBE_EXECUTED)
}

fn url(leader: &NodeInfo, path: &str) -> String {
    format!("{}{path}", leader.address.trim_end_matches('/'))
}

fn cannot_ask() -> Refusal {
    no_leader("this node cannot ask others")
}

/// The refusal of a request that another node has forwarded to this one.
pub(crate) fn does_not_lead() -> Refusal {
    no_leader("this node does not lead; another will soon")
}

fn no_leader(why: &str) -> Refusal {
    Refusal::new(ErrorCode::NodeUnavailable, why).retry_after(RETRY_AFTER_MS)
}

fn remove_hop_by_hop_headers(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in HOP_BY_HOP.iter().chain(&named) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The operations with a leader's tag that read the store or memory alone.
    const ANSWERED_BY_EVERY_NODE: [&str; 5] = [
        "/v1/conversations/{conversation}/messages/{seq}/notifications",
        "/v1/admin/keys/me",
        "/v1/admin/audit",
        "/v1/events",
        "/v1/events/stream",
    ];

    const LEADER_TAGS: [&str; 8] =
        ["push", "popups", "bulk_sends", "scheduled", "notifications", "keys", "events", "outbox"];

    #[test]
    fn operations_with_the_tag_of_a_function_are_its_leaders() {
        let description = crate::routes::openapi();
        for (path, item) in &description.paths.paths {
            let operations = [&item.get, &item.put, &item.post, &item.delete, &item.patch];
            for operation in operations.into_iter().flatten() {
                let tags = operation.tags.clone().unwrap_or_default();
                let is_one_nodes = !ANSWERED_BY_EVERY_NODE.contains(&path.as_str())
                    && tags.iter().any(|tag| LEADER_TAGS.contains(&tag.as_str()));
                assert_eq!(function_of_path(path).is_some(), is_one_nodes, "{path} {tags:?}");
            }
        }
    }
}

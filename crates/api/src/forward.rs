//! What another node does for all: a request that came here goes to that node, and its answer comes back as it is.
//!
//! One hop only: a node that is asked so and does not lead (any more) says so. Bodies pass through, neither is held.

use crate::{Api, auth::NodeTokenSigner};
use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header},
};
use hyper::body::Incoming;
use std::{sync::Arc, time::Duration};
use tidings_engine::{
    Engine,
    cluster::{
        leader_client::{LeaderClient, LeaderRequest, LeaderResponse, PendingResponse},
        log::NodeInfo,
        nodes::ClusterNodes,
    },
    metrics::Metrics,
};
use tidings_protocol::error::{ErrorCode, Refusal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Names the node that a request came by.
pub const FORWARDED: HeaderName = HeaderName::from_static("tidings-forwarded");
/// Requests that wait for the other node's answer at once. Full: refused with `queue_full`.
const FORWARDED_MAX: usize = 2_048;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Longer than the other node gives a body to come.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// What a session asks is small on both sides: a leader that has not answered by then will not.
const SESSIONS_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections kept for the next request, for half as long as the other node keeps them.
const IDLE_CONNECTIONS_MAX: usize = 256;
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
const RETRY_AFTER_MS: u64 = 1_000;
/// Speak of one connection (RFC 9110, 7.6.1), or are made anew for the next.
const OF_ONE_CONNECTION: [HeaderName; 10] = [
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

/// The way to other nodes' HTTP doors.
pub struct Forwarder {
    client: reqwest::Client,
    node: HeaderValue,
    places: Arc<Semaphore>,
}

/// Whether a path is of what one node does for all: push, devices and popups.
pub(crate) fn is_of_the_leader(path: &str) -> bool {
    let Some(path) = path.strip_prefix("/v1/") else { return false };
    let mut parts = path.split('/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("push" | "popups" | "popup-settings" | "popup-segments" | "popup-events"), ..) => true,
        (Some("users"), Some(_), Some(third)) => third == "devices",
        _ => false,
    }
}

impl Forwarder {
    /// For a node of a cluster. `None`: it cannot be, and nothing is forwarded.
    pub(crate) fn of(engine: &Engine) -> Option<Forwarder> {
        let node = HeaderValue::from_str(&engine.cluster.as_ref()?.nodes.me().name).ok()?;
        // Err: it is installed already.
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
        Some(Forwarder { client: client.ok()?, node, places: Arc::new(Semaphore::new(FORWARDED_MAX)) })
    }

    fn place(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        self.places.clone().try_acquire_owned().map_err(|_| {
            let why = format!("requests that wait for another node are limited to {FORWARDED_MAX}");
            Refusal::new(ErrorCode::QueueFull, why).retry_after(RETRY_AFTER_MS)
        })
    }
}

/// The way of sessions to the leader.
struct SessionLeaderClient {
    forwarder: Arc<Forwarder>,
    nodes: Arc<ClusterNodes>,
    metrics: Arc<Metrics>,
    tokens: NodeTokenSigner,
}

impl SessionLeaderClient {
    /// The answer to a request that is ready to be sent.
    async fn answer(post: reqwest::RequestBuilder) -> reqwest::Result<LeaderResponse> {
        let answer = post.timeout(SESSIONS_ANSWER_TIMEOUT).send().await?;
        let retry_after = answer.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after_ms = retry_after.and_then(|seconds| seconds.parse::<u64>().ok()).map(|seconds| seconds * 1_000);
        let status = answer.status().as_u16();
        Ok(LeaderResponse { status, retry_after_ms, body: answer.bytes().await?.to_vec() })
    }
}

impl LeaderClient for SessionLeaderClient {
    fn send(&self, request: LeaderRequest) -> Result<PendingResponse, Refusal> {
        let leader = find_leader(&self.nodes)?;
        let place = self.forwarder.place()?;
        self.metrics.cluster.forwarded.inc();
        let token = self.tokens.sign(&request.user).map_err(|error| crate::internal(&error))?;
        let post = self.forwarder.client.post(url(&leader, request.path)).bearer_auth(token);
        let post = post.header(header::CONTENT_TYPE, "application/json").header(FORWARDED, &self.forwarder.node);
        let post = post.body(request.body);
        Ok(Box::pin(async move {
            let answer = Self::answer(post).await.map_err(not_answered);
            drop(place);
            answer
        }))
    }
}

impl Api {
    /// Has sessions of this node ask what the leader answers.
    pub fn connect_sessions_to_leader(&self, tokens: NodeTokenSigner) {
        let Some((cluster, forwarder)) = self.engine.cluster.as_ref().zip(self.forwarder.clone()) else { return };
        let (nodes, metrics) = (cluster.nodes.clone(), self.engine.metrics.clone());
        let client = SessionLeaderClient { forwarder, nodes, metrics, tokens };
        self.engine.set_leader_client(Arc::new(client));
    }

    /// Whether a request is for another node to answer.
    pub(crate) fn is_for_another(&self, path: &str) -> bool {
        !self.engine.has_leader_term() && is_of_the_leader(path)
    }

    /// The leader's answer.
    pub(crate) async fn forward(&self, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        if request.headers().contains_key(FORWARDED) {
            return Err(no_leader("this node does not lead; another will soon"));
        }
        let (forwarder, leader) = self.leader()?;
        let (parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut headers = parts.headers;
        drop_of_one_connection(&mut headers);
        // Told by the body itself.
        headers.remove(header::CONTENT_LENGTH);
        headers.insert(FORWARDED, forwarder.node.clone());
        let request = forwarder.client.request(parts.method, url(&leader, path)).headers(headers);
        let answer = self.send(forwarder, request.body(reqwest::Body::wrap(body))).await?;
        let mut answer = Response::from(answer);
        drop_of_one_connection(answer.headers_mut());
        Ok(answer.map(Body::new))
    }

    fn leader(&self) -> Result<(&Forwarder, NodeInfo), Refusal> {
        let cluster = self.engine.cluster.as_ref().zip(self.forwarder.as_deref());
        let (cluster, forwarder) = cluster.ok_or_else(|| no_leader("this node cannot ask others"))?;
        Ok((forwarder, find_leader(&cluster.nodes)?))
    }

    async fn send(
        &self,
        forwarder: &Forwarder,
        request: reqwest::RequestBuilder,
    ) -> Result<reqwest::Response, Refusal> {
        let _place = forwarder.place()?;
        self.engine.metrics.cluster.forwarded.inc();
        request.send().await.map_err(not_answered)
    }
}

fn find_leader(nodes: &ClusterNodes) -> Result<NodeInfo, Refusal> {
    let leader = nodes.leader().filter(|leader| leader.boot_id != nodes.me().boot_id);
    let leader = leader.ok_or_else(|| no_leader("no node leads now; another will soon"))?;
    match leader.address.is_empty() {
        true => Err(no_leader("the node that leads does not tell where it is reached")),
        false => Ok(leader),
    }
}

fn not_answered(error: reqwest::Error) -> Refusal {
    tracing::debug!(error = %error.without_url(), "the node that leads did not answer");
    no_leader("the node that does this did not answer; whether it was done is not known")
}

fn url(leader: &NodeInfo, path: &str) -> String {
    format!("{}{path}", leader.address.trim_end_matches('/'))
}

fn no_leader(why: &str) -> Refusal {
    Refusal::new(ErrorCode::NodeUnavailable, why).retry_after(RETRY_AFTER_MS)
}

fn drop_of_one_connection(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in OF_ONE_CONNECTION.iter().chain(&named) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn push_and_popup_operations_are_leader_paths() {
        let description = crate::routes::openapi();
        for (path, item) in &description.paths.paths {
            let operations = [&item.get, &item.put, &item.post, &item.delete, &item.patch];
            for operation in operations.into_iter().flatten() {
                let tags = operation.tags.clone().unwrap_or_default();
                let is_one_nodes = tags.iter().any(|tag| tag == "push" || tag == "popups");
                assert_eq!(is_of_the_leader(path), is_one_nodes, "{path} {tags:?}");
            }
        }
    }
}

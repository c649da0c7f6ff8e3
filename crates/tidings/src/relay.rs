//! Holds devices' connections for a core in another process. A process of `role = gateway` does nothing else. In a cluster
//! every node does so too, because one node, the leader, does the pushes of all.

use crate::{listeners::Listeners, settings::Settings};
use anyhow::{Context, Result};
use axum::{
    Router,
    extract::Request,
    http::{HeaderMap, StatusCode},
    middleware::{Next, from_fn},
    response::IntoResponse,
    routing::get,
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::gauge::ConstGauge,
};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tidings_api::{
    exposition::in_accepted_format, metrics::render, problem::RefusalResponse, request_service::check_host,
};
use tidings_domain::{function::Function, metrics::Metrics};
use tidings_engine::{Engine, cluster::nodes::ClusterNodes};
use tidings_gateway::{
    miop_listener::ConnectionHost,
    relay::{CoreLocator, Relay},
};
use tidings_listen::OutboundBudget;

/// A running gateway.
pub(crate) struct RelayServer {
    relay: Arc<Relay>,
    listeners: Listeners,
    metrics: Option<SocketAddr>,
}

impl RelayServer {
    /// Starts the relay and its listeners within this limit of file descriptors. Call within the runtime.
    pub(crate) async fn start(settings: &Settings, descriptors: u64) -> Result<RelayServer> {
        let (metrics, outbound) = (Arc::new(Metrics::new()), settings.outbound_budget());
        let mut started = None;
        let listeners = Listeners::open_miop(settings, settings.listener_context(descriptors)?, |addresses| {
            let config = settings.relay_config(settings.cores(), addresses, outbound.clone());
            let relay = Relay::start(config, metrics.clone())?;
            started = Some(relay.clone());
            Ok(relay as Arc<dyn ConnectionHost>)
        })?;
        let relay = started.context("the relay did not start")?;
        let mut metrics_address = None;
        if let Some(address) = settings.link.metrics_listen.first() {
            let listener = tokio::net::TcpListener::bind(address).await;
            let listener = listener.with_context(|| format!("listening on {address} for metrics"))?;
            metrics_address = Some(listener.local_addr()?);
            let router = operations(relay.clone(), metrics, outbound);
            tokio::spawn(async move { axum::serve(listener, router).await });
        }
        Ok(RelayServer { relay, listeners, metrics: metrics_address })
    }

    /// A line `name=address` for each listener.
    pub(crate) fn listening(&self) -> String {
        let metrics = self.metrics.map(|address| format!("metrics={address}\n"));
        self.listeners.listening() + &metrics.unwrap_or_default()
    }

    /// Stops accepting, tells devices to connect again, and closes everything.
    pub(crate) async fn stop(mut self, deadline: Duration) {
        self.listeners.close(deadline).await;
        let relay = self.relay;
        // It joins threads, which blocks.
        let _ = tokio::task::spawn_blocking(move || relay.drain(deadline)).await;
    }
}

fn operations(relay: Arc<Relay>, metrics: Arc<Metrics>, outbound: Arc<OutboundBudget>) -> Router {
    let ready = move || async move {
        if relay.is_attached() { (StatusCode::OK, "ready") } else { (StatusCode::SERVICE_UNAVAILABLE, "not attached") }
    };
    let exposed = move |headers: HeaderMap| async move {
        metrics.set_queue("outbound_bytes", outbound.held(), outbound.bytes_max());
        in_accepted_format(&headers, render(&metrics))
    };
    Router::new()
        .route("/metrics", get(exposed))
        .route("/healthz", get(|| async { "alive" }))
        .route("/readyz", get(ready))
        .layer(from_fn(|request: Request, next: Next| async move {
            match check_host(&request) {
                Ok(()) => next.run(request).await,
                Err(refusal) => RefusalResponse(refusal).into_response(),
            }
        }))
}

/// The node that leads push, as this one has heard.
struct Leader(Arc<ClusterNodes>);

impl Leader {
    fn link(&self) -> Option<String> {
        self.0.leader(Function::Push).map(|leader| leader.link).filter(|link| !link.is_empty())
    }
}

impl CoreLocator for Leader {
    fn candidates(&self) -> Vec<String> {
        self.link().into_iter().collect()
    }

    fn has_moved(&self, from: &str) -> bool {
        self.link().is_some_and(|link| link != from)
    }
}

/// Starts the relay that holds a cluster node's devices for the leader, which may be this node. `None`: this node is in no
/// cluster or has no address for devices.
pub(crate) fn start_for_leader(
    settings: &Settings,
    engine: &Engine,
    addresses: &[SocketAddr],
    outbound: Arc<OutboundBudget>,
) -> Result<Option<Arc<Relay>>> {
    let Some(cluster) = engine.cluster.as_ref().filter(|_| !addresses.is_empty()) else { return Ok(None) };
    let mut config = settings.relay_config(Leader(cluster.nodes.clone()), addresses, outbound);
    // The node's own name already stands for the sessions that the node serves itself.
    config.name = format!("{}/devices", cluster.nodes.me().name);
    // Metrics of its own: the engine's count the sessions that the engine serves.
    let relay = Relay::start(config, Arc::new(Metrics::new()))?;
    engine.metrics.register_collector(Box::new(RelayMetrics(relay.clone())));
    Ok(Some(relay))
}

/// The metrics of a node's relay, exported with those of the engine.
struct RelayMetrics(Arc<Relay>);

impl std::fmt::Debug for RelayMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayMetrics").field("connections", &self.0.connections()).finish()
    }
}

impl Collector for RelayMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (name, help, value) in [
            (
                "relay_connections",
                "Devices' connections that this node holds for the leader",
                self.0.connections() as i64,
            ),
            (
                "relay_attached",
                "1 while this node's devices have their links to the leader",
                i64::from(self.0.is_attached()),
            ),
        ] {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

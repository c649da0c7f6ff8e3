//! Devices' connections for a core elsewhere: all that `role = gateway` does; and in a cluster every node, since push is
//! done at one of them.

use crate::{doors::Doors, settings::Settings};
use anyhow::{Context, Result};
use axum::{
    Router,
    http::{HeaderMap, StatusCode},
    routing::get,
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::gauge::ConstGauge,
};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tidings_api::{exposition::in_asked_format, figures::render};
use tidings_engine::{Engine, cluster::nodes::ClusterNodes, metrics::Metrics};
use tidings_gateway::{
    door::Host,
    relay::{FindCore, Relay},
};

/// A running gateway.
pub(crate) struct RelayServer {
    relay: Arc<Relay>,
    doors: Doors,
    metrics: Option<SocketAddr>,
}

impl RelayServer {
    /// Starts everything, with so many file descriptors. Call within the runtime.
    pub(crate) async fn start(settings: &Settings, descriptors: u64) -> Result<RelayServer> {
        let metrics = Arc::new(Metrics::new());
        let mut started = None;
        let doors = Doors::open_miop(settings, settings.entry(descriptors)?, |addresses| {
            let relay = Relay::start(settings.relay_config(settings.cores(), addresses), metrics.clone())?;
            started = Some(relay.clone());
            Ok(relay as Arc<dyn Host>)
        })?;
        let relay = started.context("the relay did not start")?;
        let mut metrics_address = None;
        if let Some(address) = settings.link.metrics_listen.first() {
            let listener = tokio::net::TcpListener::bind(address).await;
            let listener = listener.with_context(|| format!("listening on {address} for metrics"))?;
            metrics_address = Some(listener.local_addr()?);
            let router = operations(relay.clone(), metrics);
            tokio::spawn(async move { axum::serve(listener, router).await });
        }
        Ok(RelayServer { relay, doors, metrics: metrics_address })
    }

    /// Where it listens: a line for each address.
    pub(crate) fn listening(&self) -> String {
        let metrics = self.metrics.map(|address| format!("metrics={address}\n"));
        self.doors.listening() + &metrics.unwrap_or_default()
    }

    /// No new connections; devices told to connect again; all closed.
    pub(crate) async fn stop(self, deadline: Duration) {
        self.doors.close(deadline).await;
        let relay = self.relay;
        // Joins threads.
        let _ = tokio::task::spawn_blocking(move || relay.drain(deadline)).await;
    }
}

fn operations(relay: Arc<Relay>, metrics: Arc<Metrics>) -> Router {
    let ready = move || async move {
        if relay.is_attached() { (StatusCode::OK, "ready") } else { (StatusCode::SERVICE_UNAVAILABLE, "not attached") }
    };
    Router::new()
        .route("/metrics", get(move |headers: HeaderMap| async move { in_asked_format(&headers, render(&metrics)) }))
        .route("/healthz", get(|| async { "alive" }))
        .route("/readyz", get(ready))
}

/// The node that leads, as this one has heard.
struct Leader(Arc<ClusterNodes>);

impl Leader {
    fn link(&self) -> Option<String> {
        self.0.leader().map(|leader| leader.link).filter(|link| !link.is_empty())
    }
}

impl FindCore for Leader {
    fn candidates(&self) -> Vec<String> {
        self.link().into_iter().collect()
    }

    fn has_moved(&self, from: &str) -> bool {
        self.link().is_some_and(|link| link != from)
    }
}

/// Holds the devices of a node that is one of several, for the one that leads: itself too.
pub(crate) fn for_the_leader(
    settings: &Settings,
    engine: &Engine,
    addresses: &[SocketAddr],
) -> Result<Option<Arc<Relay>>> {
    let Some(cluster) = engine.cluster.as_ref().filter(|_| !addresses.is_empty()) else { return Ok(None) };
    let mut config = settings.relay_config(Leader(cluster.nodes.clone()), addresses);
    // Not the node's own name, under which it is known for the sessions that it serves itself.
    config.name = format!("{}/devices", cluster.nodes.me().name);
    // Counted apart: the engine's metrics are of the sessions that it serves.
    let relay = Relay::start(config, Arc::new(Metrics::new()))?;
    engine.metrics.add(Box::new(RelayFigures(relay.clone())));
    Ok(Some(relay))
}

/// A node's relay among its metrics.
struct RelayFigures(Arc<Relay>);

impl std::fmt::Debug for RelayFigures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayFigures").field("connections", &self.0.connections()).finish()
    }
}

impl Collector for RelayFigures {
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

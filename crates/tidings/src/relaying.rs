//! `role = gateway`: devices' connections for a core elsewhere.

use crate::{doors::Doors, settings::Settings};
use anyhow::{Context, Result};
use axum::{Router, http::StatusCode, routing::get};
use std::{sync::Arc, time::Duration};
use tidings_engine::metrics::Metrics;
use tidings_gateway::{door::Host, relay::Relay};

/// A running gateway.
pub(crate) struct RelayServer {
    relay: Arc<Relay>,
    doors: Doors,
}

impl RelayServer {
    /// Starts everything, with so many file descriptors. Call within the runtime.
    pub(crate) async fn start(settings: &Settings, descriptors: u64) -> Result<RelayServer> {
        let metrics = Arc::new(Metrics::new());
        let mut started = None;
        let doors = Doors::open_miop(settings, settings.entry(descriptors)?, |addresses| {
            let relay = Relay::start(settings.relay_config(addresses), metrics.clone())?;
            started = Some(relay.clone());
            Ok(relay as Arc<dyn Host>)
        })?;
        let relay = started.context("the relay did not start")?;
        if let Some(address) = settings.link.metrics_listen.first() {
            let listener = tokio::net::TcpListener::bind(address).await;
            let listener = listener.with_context(|| format!("listening on {address} for metrics"))?;
            let router = operations(relay.clone(), metrics);
            tokio::spawn(async move { axum::serve(listener, router).await });
        }
        Ok(RelayServer { relay, doors })
    }

    /// Where it listens: a line for each address.
    pub(crate) fn listening(&self) -> String {
        self.doors.listening()
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
        .route("/metrics", get(move || async move { metrics.render() }))
        .route("/healthz", get(|| async { "alive" }))
        .route("/readyz", get(ready))
}

//! Holds devices' connections for cores in other processes: a process of `role = gateway` does nothing else.

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
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tidings_api::{
    exposition::in_accepted_format, metrics::render, problem::RefusalResponse, request_service::check_host,
};
use tidings_domain::metrics::Metrics;
use tidings_gateway::{miop_listener::ConnectionHost, relay::Relay};
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
            let config = settings.relay_config(addresses, outbound.clone());
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

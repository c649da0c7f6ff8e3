//! Sends spans to an OpenTelemetry collector by OTLP over HTTP, in batches from a thread of their own.

use anyhow::{Context, Result};
use opentelemetry::{KeyValue, trace::TracerProvider};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::{
    Resource,
    trace::{Sampler, SdkTracerProvider},
};
use tracing_subscriber::{EnvFilter, Layer, Registry};

/// The filter of spans: our own, and none of the libraries'.
const SPANS: &str =
    "off,tidings=debug,tidings_api=debug,tidings_engine=debug,tidings_gateway=debug,tidings_store=debug";

/// The exporter. When dropped, it sends the spans that still wait.
pub(crate) struct Traces(SdkTracerProvider);

impl Drop for Traces {
    fn drop(&mut self) {
        if let Err(error) = self.0.shutdown() {
            eprintln!("tidings: the last traces could not be sent: {error}");
        }
    }
}

/// The layer that collects spans for a collector at `endpoint`. `ratio` of all traces are kept. Call outside the
/// runtime.
pub(crate) fn layer(endpoint: &str, ratio: f64) -> Result<(Box<dyn Layer<Registry> + Send + Sync>, Traces)> {
    // Err: it is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let exporter = SpanExporter::builder()
        .with_http()
        .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
        .build()
        .with_context(|| format!("otlp_endpoint {endpoint:?}"))?;
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio))))
        .with_resource(Resource::builder().with_service_name("tidings").with_attribute(version).build())
        .build();
    let tracer = provider.tracer("tidings");
    let layer = tracing_opentelemetry::layer().with_tracer(tracer).with_filter(EnvFilter::try_new(SPANS)?).boxed();
    Ok((layer, Traces(provider)))
}

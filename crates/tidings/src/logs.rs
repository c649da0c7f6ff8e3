//! Structured logs, and traces if the settings ask for them. Neither ever holds message bodies, keys or tokens.

use crate::settings::{LogFormat, Settings};
#[cfg(feature = "otel")]
use crate::traces::{self, Traces};
use anyhow::{Context, Result};
use std::{
    io::IsTerminal,
    sync::atomic::{AtomicBool, Ordering},
};
use tracing_subscriber::{EnvFilter, Layer, Registry, layer::SubscriberExt, util::SubscriberInitExt};

#[cfg(not(feature = "otel"))]
pub(crate) struct Traces;

/// Starts logging to standard error; standard output is for other programs to read. The caller holds the returned [`Traces`]
/// until the process ends.
pub(crate) fn start(settings: &Settings) -> Result<Option<Traces>> {
    let log = &settings.log;
    // The storage engine logs its own work at `info`: shown only if the settings ask for it.
    let filter = EnvFilter::try_new(format!("fjall=warn,lsm_tree=warn,{}", log.level))
        .with_context(|| format!("log level {:?}", log.level))?;
    IS_JSON.store(log.format == LogFormat::Json, Ordering::Relaxed);
    let colours = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(colours);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match log.format {
        LogFormat::Text => lines.with_filter(filter).boxed(),
        LogFormat::Json => lines.json().with_filter(filter).boxed(),
    };
    let mut layers = vec![lines];
    let traces = match &settings.otlp_endpoint {
        Some(endpoint) => Some(add_traces(&mut layers, endpoint, settings.otlp_sample_ratio)?),
        None => None,
    };
    tracing_subscriber::registry().with(layers).try_init()?;
    Ok(traces)
}

/// Whether lines on standard error are JSON.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Writes what must be seen also where logs are switched off, in the form of the logs.
pub(crate) fn print_error(text: &str) {
    if IS_JSON.load(Ordering::Relaxed) {
        let fields = serde_json::json!({ "message": text });
        eprintln!("{}", serde_json::json!({ "level": "ERROR", "fields": fields, "target": "tidings" }));
    } else {
        eprintln!("tidings: {text}");
    }
}

type Layers = Vec<Box<dyn Layer<Registry> + Send + Sync>>;

#[cfg(feature = "otel")]
fn add_traces(layers: &mut Layers, endpoint: &str, ratio: f64) -> Result<Traces> {
    let (layer, traces) = traces::layer(endpoint, ratio)?;
    layers.push(layer);
    Ok(traces)
}

#[cfg(not(feature = "otel"))]
fn add_traces(_: &mut Layers, _: &str, _: f64) -> Result<Traces> {
    anyhow::bail!("otlp_endpoint is set, but this program was built without the feature otel")
}

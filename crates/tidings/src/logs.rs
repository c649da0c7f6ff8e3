//! Structured logs. What is logged never holds message bodies, keys or tokens.

use crate::settings::{Log, LogFormat};
use anyhow::{Context, Result};
use std::io::IsTerminal;
use tracing_subscriber::{EnvFilter, Layer, Registry, layer::SubscriberExt, util::SubscriberInitExt};

/// Starts logging to standard error, which leaves standard output to what other programs read.
pub(crate) fn start(log: &Log) -> Result<()> {
    let filter = EnvFilter::try_new(&log.level).with_context(|| format!("log level {:?}", log.level))?;
    let colours = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(colours);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match log.format {
        LogFormat::Text => lines.with_filter(filter).boxed(),
        LogFormat::Json => lines.json().with_filter(filter).boxed(),
    };
    tracing_subscriber::registry().with(lines).try_init()?;
    Ok(())
}

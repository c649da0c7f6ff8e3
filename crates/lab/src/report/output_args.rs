//! The options that say where figures are written, and what they are held to.

use crate::result::Threshold;
use clap::Args;
use std::path::PathBuf;

/// Where the figures are written, and what they are held to: of every command.
#[derive(Debug, Clone, Args)]
pub struct OutputArgs {
    /// Write the figures to this file as JSON
    #[arg(long, value_name = "FILE", global = true)]
    pub json: Option<PathBuf>,
    /// Write report.html, report.json and CSV files into this folder
    #[arg(long, value_name = "DIR", global = true)]
    pub report: Option<PathBuf>,
    /// Write what the run was held to into this file as JUnit's XML, which servers that run builds read
    #[arg(long, value_name = "FILE", global = true)]
    pub junit: Option<PathBuf>,
    /// Send the figures every second while it runs to an OpenTelemetry collector: OTLP over HTTP, such as http://127.0.0.1:4318. One
    /// that is away costs the run nothing. For benches that are scenarios
    #[arg(long, value_name = "URL", global = true)]
    pub otlp: Option<String>,
    /// Show nothing on the terminal while it runs
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Whole runs, one after the other, each with a report in a folder of its own within that of --report
    #[arg(long, value_name = "N", default_value_t = 1, global = true)]
    pub repeat: usize,
    /// What the figures must keep, such as `p99<70`, `errors<5` or `rate>=1000`; may be repeated. Milliseconds for p50, p90, p99,
    /// p99.9, p99.99 and max; percent for errors; messages a second for rate; cores for server-cpu; MiB for server-memory
    #[arg(long = "threshold", value_name = "FIGURE<VALUE", value_parser = str::parse::<Threshold>, global = true)]
    pub thresholds: Vec<Threshold>,
}

impl Default for OutputArgs {
    fn default() -> Self {
        OutputArgs {
            json: None,
            report: None,
            junit: None,
            otlp: None,
            quiet: false,
            repeat: 1,
            thresholds: Vec::new(),
        }
    }
}

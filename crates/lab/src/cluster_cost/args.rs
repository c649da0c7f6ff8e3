//! The options of `bench cluster-cost`.

use crate::options::{parse_duration, parse_setting};
use clap::Args;
use std::time::Duration;

#[derive(Debug, Clone, Args)]
pub struct ClusterCostArgs {
    /// Members of each group
    #[arg(long, value_delimiter = ',', default_values_t = [2, 300, 10_000])]
    pub sizes: Vec<usize>,
    /// Members connected, at most
    #[arg(long, default_value_t = 300)]
    pub online: usize,
    #[arg(long, default_value_t = 3)]
    pub nodes: usize,
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub duration: Duration,
    /// HTTP connections that send, spread over the nodes
    #[arg(long, default_value_t = 96)]
    pub senders: usize,
    /// Messages in one HTTP request
    #[arg(long, default_value_t = 1)]
    pub batch: usize,
    /// Messages between send and last receiver
    #[arg(long, default_value_t = 1000)]
    pub window: usize,
    #[arg(long, default_value_t = 200)]
    pub body_bytes: usize,
    #[arg(long, default_value = "60s", value_parser = parse_duration)]
    pub patience: Duration,
    /// The core that the load client keeps to; the last one unless given
    #[arg(long)]
    pub client_core: Option<usize>,
    /// A setting of all nodes, such as TIDINGS_LOG_LEVEL=debug
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_setting)]
    pub set: Vec<(String, String)>,
}

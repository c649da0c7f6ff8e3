//! The options of the benches with popups.

use crate::{
    client_engine::http::ConnectionUse,
    options::{Rate, TargetArgs, parse_duration},
};
use clap::Args;
use std::time::Duration;

#[derive(Debug, Clone, Args)]
pub struct PopupArgs {
    /// --url names a server without popups; its popup settings and segments are replaced
    #[command(flatten)]
    pub target: TargetArgs,
    #[arg(long, default_value_t = 1_000_000)]
    pub users: u32,
    /// Live popups, three in ten of them for the home page
    #[arg(long, default_value_t = 500)]
    pub popups: usize,
    #[arg(long, default_value_t = 64)]
    pub connections: usize,
    /// A connection of its own for every request, as clients without keep-alive make it
    #[arg(long)]
    pub one_request_per_connection: bool,
    #[arg(long, default_value = "30s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Before anything is measured; at least until the first users are due again
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub warm: Duration,
    /// Between two popups of a user
    #[arg(long, default_value = "30s", value_parser = parse_duration)]
    pub gap: Duration,
    /// Requests a second of the open loop; 0.7 of the closed loop's unless given
    #[arg(long)]
    pub rate: Option<Rate>,
    /// Compare with nginx answering every request with 300 bytes, before and after
    #[arg(long)]
    pub nginx: bool,
    /// Nginx alone: the limit of this machine and this client
    #[arg(long)]
    pub only_nginx: bool,
    /// The core of the bench's own server, and of nginx
    #[arg(long, default_value_t = 0)]
    pub server_core: usize,
    /// Users who are due and nevertheless told to come back, of those asked for, at most
    #[arg(long, default_value_t = 0.01)]
    pub nothing_share: f64,
    /// A setting of the bench's own server; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = crate::options::parse_setting)]
    pub settings: Vec<(String, String)>,
}

impl PopupArgs {
    pub(crate) fn connection_use(&self) -> ConnectionUse {
        if self.one_request_per_connection { ConnectionUse::OneRequest } else { ConnectionUse::Kept }
    }
}

#[derive(Debug, Clone, Args)]
pub struct PopupGrowthArgs {
    /// Numbers of live popups
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100, 500, 5_000])]
    pub popups: Vec<usize>,
    /// Users while popups grow
    #[arg(long, default_value_t = 100_000)]
    pub users: u32,
    /// Numbers of known users, with 500 popups
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 10_000_000])]
    pub known: Vec<u32>,
    #[arg(long, default_value_t = 64)]
    pub connections: usize,
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub duration: Duration,
    #[arg(long, default_value_t = 0)]
    pub server_core: usize,
    #[arg(long)]
    pub client_core: Option<usize>,
    /// A setting of the bench's own servers; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = crate::options::parse_setting)]
    pub settings: Vec<(String, String)>,
}

#[derive(Debug, Clone, Args)]
pub struct PopupCapsArgs {
    /// With --url nothing is restarted
    #[command(flatten)]
    pub target: TargetArgs,
    #[arg(long, default_value_t = 10_000)]
    pub users: u32,
    /// Devices of each user, which request popups at once
    #[arg(long, default_value_t = 8)]
    pub devices: usize,
    /// Users asked for at the same time
    #[arg(long, default_value_t = 8)]
    pub lanes: usize,
}

#[derive(Debug, Clone, Args)]
pub struct PopupCrashArgs {
    #[arg(long, default_value_t = 20)]
    pub kills: usize,
    /// Decisions answered so long before a kill are never forgotten
    #[arg(long, default_value = "100ms", value_parser = parse_duration)]
    pub bound: Duration,
    /// Repeats an earlier run's moments
    #[arg(long)]
    pub seed: Option<u64>,
}

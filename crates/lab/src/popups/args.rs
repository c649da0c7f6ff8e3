//! The options of the benches with popups that are no scenarios.

use crate::options::{TargetArgs, parse_duration};
use clap::Args;
use std::time::Duration;

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

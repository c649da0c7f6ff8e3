//! The options of `bench chaos`.

use super::fault_kind::FaultKind;
use crate::{
    mix::share::MixShare,
    options::{parse_duration, parse_setting},
};
use clap::Args;
use std::{path::PathBuf, time::Duration};

#[derive(Debug, Clone, Args)]
pub struct ChaosArgs {
    /// Random sequences; 0: each kind of fault once, in order, and each node in turn killed, restarted and frozen; with --overlap every pair once
    #[arg(long, default_value_t = 10)]
    pub sequences: usize,
    /// Steps of a sequence
    #[arg(long, default_value_t = 3)]
    pub steps: usize,
    /// Two faults of different kinds at the same time in every step
    #[arg(long)]
    pub overlap: bool,
    /// Only these kinds
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<FaultKind>,
    /// Repeats an earlier run's choices
    #[arg(long)]
    pub seed: Option<u64>,
    #[arg(long, default_value_t = 3)]
    pub nodes: usize,
    /// The program that nodes run at first, such as the version before; a node that is killed or restarted then runs this program
    #[arg(long, value_name = "PROGRAM")]
    pub from: Option<PathBuf>,
    /// Members online, spread over the nodes
    #[arg(long, default_value_t = 300)]
    pub members: usize,
    /// Users beside the group, each with a device over MIOP and a WebSocket session: all are pushed to, half connect and
    /// disconnect on purpose during the fault
    #[arg(long, default_value_t = 16)]
    pub guests: usize,
    /// Pushes to guests a second, over all nodes
    #[arg(long, default_value_t = 3.0)]
    pub pushes: f64,
    /// Messages a second (open loop)
    #[arg(long, default_value_t = 100.0)]
    pub rate: f64,
    /// HTTP connections that send, spread over the nodes
    #[arg(long, default_value_t = 32)]
    pub senders: usize,
    #[arg(long, default_value_t = 200)]
    pub body_bytes: usize,
    /// This share of all operations are edits, recalls, reactions and receipts of the members, such as 20%
    #[arg(long, default_value = "0", value_name = "PERCENT")]
    pub mix: MixShare,
    /// How long a node stays cut off, Redis stopped, a disk slow
    #[arg(long, default_value = "30s", value_parser = parse_duration)]
    pub hold: Duration,
    /// How long a killed node stays dead
    #[arg(long, default_value = "5s", value_parser = parse_duration)]
    pub restart: Duration,
    /// Without a delivery, a push or an answer for so long, what is missing counts as lost
    #[arg(long, default_value = "60s", value_parser = parse_duration)]
    pub patience: Duration,
    /// The core that the load client keeps to; the last one unless given
    #[arg(long)]
    pub client_core: Option<usize>,
    /// A setting of all nodes, such as TIDINGS_LOG_LEVEL=debug
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_setting)]
    pub set: Vec<(String, String)>,
}

impl ChaosArgs {
    pub(crate) fn kinds(&self) -> Vec<FaultKind> {
        if self.only.is_empty() { FaultKind::ALL.to_vec() } else { self.only.clone() }
    }
}

//! A scenario's file as it is written. What the keys mean, and which go together, is checked when a [`plan`](super::plan) is
//! made of it; docs/scenarios.md describes each.

use super::{
    script_file::ScriptFile,
    values::{Bound, DeviceTask, RateFile},
};
use crate::{
    offline_push::{OfflineVia, fake_hook::HookMode},
    toml_file::Time,
    topology::broker::BrokerKind,
};
use serde::Deserialize;
use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};
use toml::Spanned;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScenarioFile {
    pub(crate) name: Spanned<String>,
    pub(crate) about: String,
    #[serde(default)]
    pub(crate) server: Option<Spanned<ServerFile>>,
    #[serde(default)]
    pub(crate) population: BTreeMap<String, Spanned<PopulationFile>>,
    #[serde(default)]
    pub(crate) script: BTreeMap<String, Spanned<ScriptFile>>,
    #[serde(default)]
    pub(crate) phase: Vec<Spanned<PhaseFile>>,
    #[serde(default)]
    pub(crate) fault: Vec<Spanned<FaultFile>>,
    #[serde(default)]
    pub(crate) command: Vec<Spanned<CommandFile>>,
    #[serde(default)]
    pub(crate) thresholds: Vec<Bound>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServerFile {
    pub(crate) url: Option<Spanned<String>>,
    /// A driver's name or file, or the driver itself.
    pub(crate) driver: Option<Spanned<toml::Value>>,
    pub(crate) broker: Option<Spanned<BrokerKind>>,
    pub(crate) nodes: Option<Spanned<usize>>,
    pub(crate) measures_cost: Option<Spanned<bool>>,
    pub(crate) descriptors: Option<Spanned<u64>>,
    pub(crate) core: Option<Spanned<usize>>,
    pub(crate) gateways: Option<Spanned<usize>>,
    #[serde(default)]
    pub(crate) listeners: Vec<SocketAddr>,
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) offline_via: Option<Spanned<OfflineVia>>,
    pub(crate) hook: Option<Spanned<HookMode>>,
    pub(crate) events_fail: Option<Spanned<f64>>,
    #[serde(default)]
    pub(crate) settings: BTreeMap<Spanned<String>, Spanned<toml::Value>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PopulationKind {
    Group,
    Official,
    Direct,
    NewConversations,
    Devices,
    Connections,
    FaultyDevices,
    PopupUsers,
    Chat,
    Streams,
}

/// The keys of a population: which there are is a matter of its `kind`.
pub(crate) type PopulationFile = BTreeMap<Spanned<String>, Spanned<toml::Value>>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PhaseFile {
    pub(crate) name: Spanned<String>,
    pub(crate) duration: Option<Spanned<Time>>,
    pub(crate) warm_up: Option<Spanned<Time>>,
    pub(crate) rate: Option<Spanned<RateFile>>,
    #[serde(default)]
    pub(crate) thresholds: Vec<Bound>,
    #[serde(default)]
    pub(crate) work: Vec<Spanned<WorkFile>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WorkFile {
    pub(crate) name: Option<String>,
    pub(crate) population: Option<Spanned<String>>,
    pub(crate) script: Option<Spanned<String>>,
    pub(crate) does: Option<Spanned<DeviceTask>>,
    pub(crate) rate: Option<Spanned<RateFile>>,
    pub(crate) share: Option<Spanned<f64>>,
    pub(crate) rounds: Option<Spanned<usize>>,
    pub(crate) until_end: Option<bool>,
    pub(crate) replay: Option<Spanned<RateFile>>,
    pub(crate) pause: Option<Spanned<Time>>,
    pub(crate) window: Option<Spanned<usize>>,
    pub(crate) batch: Option<Spanned<usize>>,
    pub(crate) may_be_refused: Option<bool>,
    pub(crate) around: Option<Spanned<Time>>,
    pub(crate) beside_bare_loop: Option<Spanned<bool>>,
    pub(crate) lab_sustains: Option<Spanned<f64>>,
    pub(crate) forgotten_within: Option<Spanned<Time>>,
    #[serde(default)]
    pub(crate) thresholds: Vec<Bound>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FaultFile {
    pub(crate) at: Spanned<Time>,
    pub(crate) kind: Spanned<String>,
    pub(crate) phase: Option<Spanned<String>>,
    #[serde(rename = "for")]
    pub(crate) lasts: Option<Spanned<Time>>,
    pub(crate) node: Option<Spanned<usize>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CommandFile {
    pub(crate) name: Option<String>,
    pub(crate) run: Spanned<String>,
}

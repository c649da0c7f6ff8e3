//! What nodes of one installation must have alike, as each tells the others in the store.
//!
//! A value is never revealed: only a [fingerprint](crate::installation::InstallationId::fingerprint) of it. A name that another node
//! does not tell is not compared, so that a later version may compare more.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A setting that nodes must have alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedSetting {
    /// The name, as an operator finds it in the settings.
    pub name: &'static str,
    /// What goes wrong while two nodes differ in it.
    pub consequence: &'static str,
}

/// The installation's id, which a node reads from the database when it starts.
pub const INSTALLATION: SharedSetting = SharedSetting {
    name: "the installation's id in the database",
    consequence: "it was changed while nodes ran, and they do not hear each other over Redis; restart every node",
};
/// The prefix of channel names.
pub const REDIS_PREFIX: SharedSetting = SharedSetting {
    name: "[cluster] redis_prefix",
    consequence: "they do not hear each other over Redis, and messages between them are late; give all nodes one prefix",
};
/// The secret between nodes.
pub const CLUSTER_SECRET: SharedSetting = SharedSetting {
    name: "[cluster] secret",
    consequence: "popups of sessions and devices that one of them passes on to the other are refused; give all nodes one secret",
};
/// The keys of app servers.
pub const API_KEYS: SharedSetting = SharedSetting {
    name: "api_key, api_keys",
    consequence: "app servers are refused at one of them; give all nodes the same keys",
};
/// The keys that user tokens are signed with.
pub const TOKEN_KEYS: SharedSetting = SharedSetting {
    name: "token_key, jwks_file, [tokens] jwks_url",
    consequence: "users are refused at one of them; give all nodes the same keys",
};
/// What user tokens must claim.
pub const TOKEN_RULES: SharedSetting = SharedSetting {
    name: "[tokens]",
    consequence: "users are refused, or may do more, at one of them; give all nodes the same rules",
};
/// All of them.
pub const SHARED_SETTINGS: [SharedSetting; 6] =
    [INSTALLATION, REDIS_PREFIX, CLUSTER_SECRET, API_KEYS, TOKEN_KEYS, TOKEN_RULES];

/// What one node tells the others of its settings, and of its clock.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeSettings {
    /// Fingerprints by [`SharedSetting::name`].
    pub fingerprints: BTreeMap<String, String>,
    /// By how many seconds the node's clock is ahead of the store's; negative: behind. 0 if they agree.
    pub clock_ahead_s: i64,
    /// Whether the node's own bus is up: one whose bus is down says so itself, and hears nobody.
    pub bus_up: bool,
}

/// What all nodes have reported.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KnownSettings {
    /// The store's clock, in milliseconds since 1970 UTC, while it answered. `None`: the store has no clock of its own.
    pub store_now_ms: Option<u64>,
    /// The nodes whose leases run.
    pub nodes: Vec<KnownNode>,
}

/// A node, as far as it has reported its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownNode {
    /// Its name.
    pub name: String,
    /// The boot id of its process.
    pub boot_id: u64,
    /// `None`: its program tells none. It is of a version that does not know installations either.
    pub settings: Option<NodeSettings>,
}

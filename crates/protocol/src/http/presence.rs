//! The bodies of presence: who is online, and where; the nodes; and sessions that are ended.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "users": ["alice", "bob"] }))]
#[serde(deny_unknown_fields)]
pub struct PresenceQuery {
    pub users: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PresenceAnswer {
    pub users: Vec<UserPresence>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserPresence {
    pub user: String,
    /// As it is announced: who has just gone counts until the grace is over, without devices.
    pub online: bool,
    pub devices: Vec<DevicePresence>,
    /// When the last session ended, in milliseconds since 1970 UTC; absent while there is one, and for who never had any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DevicePresence {
    pub device_id: String,
    pub device_kind: String,
    /// When the session was bound, in milliseconds since 1970 UTC.
    pub since: u64,
    /// The process that holds its connection.
    pub node: String,
}

/// One user's sessions, by what is registered and by what the nodes hold.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PresenceViews {
    pub user: String,
    /// What others are told: registered sessions.
    pub stored: Vec<SessionView>,
    /// What the processes list that hold the connections.
    pub memory: Vec<SessionView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionView {
    pub session: String,
    pub node: String,
    pub device_id: String,
    pub device_kind: String,
    pub since: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NodesAnswer {
    pub nodes: Vec<NodeView>,
}

/// A process that holds connections.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    pub name: String,
    /// In hexadecimal; another one under the same name is its successor.
    pub boot_id: String,
    pub address: String,
    pub attached_at: u64,
    /// What is left of its lease; absent for the core itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_left_ms: Option<u64>,
    pub sessions: u64,
    /// What a node of a cluster runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// What a node of a cluster does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roles: Option<String>,
    /// Whether it does now what one node of a cluster does for all.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leads: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ComparePresence {
    /// Mend what differs.
    #[serde(default)]
    pub repair: bool,
}

/// How the registered sessions and those that the nodes hold agree.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PresenceComparison {
    pub registered: u64,
    pub held: u64,
    /// Registered, but held by no node.
    pub ghosts: u64,
    /// Held by a node, but not registered.
    pub missing: u64,
    /// Registered at another node than the one that holds it.
    pub wrong_node: u64,
    pub repaired: u64,
    /// At most 1,000 of them.
    pub differences: Vec<PresenceDifference>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PresenceDifference {
    /// `ghost`, `missing` or `wrong_node`.
    pub kind: String,
    pub user: String,
    pub device_id: String,
    pub session: String,
    pub node: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Kick {
    /// Only this device; absent: all of the user's.
    #[serde(default)]
    pub device_id: Option<String>,
    #[serde(default)]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Revoke {
    /// Told to the sessions that end.
    #[serde(default)]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Revoked {
    /// Sessions that were open, and are closed.
    pub sessions: usize,
    /// In seconds since 1970 UTC: tokens whose `iat` is this or later are good.
    pub issue_from: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Kicked {
    pub sessions: usize,
}

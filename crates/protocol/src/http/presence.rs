//! The bodies of presence: who is online, and where; the nodes; and sessions that are ended.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whose state to answer.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "users": ["alice", "bob"] }))]
#[serde(deny_unknown_fields)]
pub struct PresenceQuery {
    /// User ids, at most 1,000.
    pub users: Vec<String>,
}

/// States of users.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PresenceAnswer {
    /// One for each user that was asked about, in the same order.
    pub users: Vec<UserPresence>,
}

/// A user's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserPresence {
    /// The user's id.
    pub user: String,
    /// As it is announced: who has just gone counts until the grace is over, without devices.
    pub online: bool,
    /// Whether somebody looks at one of the sessions, as far as their clients say so: one is in the foreground.
    #[serde(default)]
    pub active: bool,
    /// One for each live session.
    pub devices: Vec<DevicePresence>,
    /// When the last session ended, in milliseconds since 1970 UTC; absent while there is one, and for who never had any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<u64>,
}

/// A device with a live session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DevicePresence {
    /// As the device named itself when it bound.
    pub device_id: String,
    /// `web`, `ios`, `android`, `desktop` or the app's own word.
    pub device_kind: String,
    /// When the session was bound, in milliseconds since 1970 UTC.
    pub since: u64,
    /// The process that holds its connection.
    pub node: String,
    /// The client has said that nobody looks at it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub background: bool,
}

/// One user's sessions, by what is registered and by what the nodes hold.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PresenceViews {
    /// The user's id.
    pub user: String,
    /// What others are told: registered sessions.
    pub stored: Vec<SessionView>,
    /// What the processes list that hold the connections.
    pub memory: Vec<SessionView>,
    /// When the last session ended, in milliseconds since 1970 UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<u64>,
}

/// A session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionView {
    /// The session's name, as its `bound` has it.
    pub session: String,
    /// The name of the process that holds its connection.
    pub node: String,
    /// As the device named itself.
    pub device_id: String,
    /// `web`, `ios`, `android`, `desktop` or the app's own word.
    pub device_kind: String,
    /// When it was bound, in milliseconds since 1970 UTC.
    pub since: u64,
}

/// The processes that make up the server.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NodesAnswer {
    /// Gateways among them.
    pub nodes: Vec<NodeView>,
    /// What nodes write once all of them read it, as the answering node knows it.
    #[serde(default)]
    pub gates: Vec<GateView>,
}

/// Something that nodes write once all of them read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GateView {
    /// The gate's name.
    pub name: String,
    /// Whether it is written now; it then is for good.
    pub open: bool,
}

/// A process that holds connections.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    /// As its settings name it.
    pub name: String,
    /// In hexadecimal; another one under the same name is its successor.
    pub boot_id: String,
    /// Of a gateway, where devices connect; of a node of a cluster, where others reach it.
    pub address: String,
    /// When this process learnt of it, in milliseconds since 1970 UTC.
    pub attached_at: u64,
    /// What is left of its lease; absent for the core itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_left_ms: Option<u64>,
    /// Live sessions whose connections it holds.
    pub sessions: u64,
    /// What a node of a cluster runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The version of the messages that a node of a cluster sends to others; absent: the node runs a version that does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire_version: Option<u8>,
    /// The gates that a node of a cluster knows: what it reads, and writes once every node knows it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<String>,
    /// What a node of a cluster does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roles: Option<String>,
    /// Whether it does now pushes and notifications for all nodes of the cluster: `functions` has `push`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leads: bool,
    /// The functions that it leads now, each of which one node of the cluster leads: `push` (with notifications), `popups` (with bulk
    /// sends and erasures), `scheduled_messages`, `event_consumers`, `outboxes`, `presence`, `housekeeping`. Later versions may have more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<String>,
    /// Settings in which it differs from the node that answers, though all nodes must have them alike.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differs_in: Vec<String>,
}

/// What to do with differences.
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
    /// Sessions that are told to others.
    pub registered: u64,
    /// Sessions whose connections exist.
    pub held: u64,
    /// Registered, but held by no node.
    pub ghosts: u64,
    /// Held by a node, but not registered.
    pub missing: u64,
    /// Registered at another node than the one that holds it.
    pub wrong_node: u64,
    /// Differences that are mended now.
    pub repaired: u64,
    /// At most 1,000 of them.
    pub differences: Vec<PresenceDifference>,
}

/// A session about which registry and connections do not agree.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PresenceDifference {
    /// `ghost`, `missing` or `wrong_node`.
    pub kind: String,
    /// The user's id.
    pub user: String,
    /// As the device named itself.
    pub device_id: String,
    /// The session's name.
    pub session: String,
    /// The process that it is registered at, or, of a missing one, that holds it.
    pub node: String,
}

/// Which sessions of a user to end.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Kick {
    /// Only this device; absent: all of the user's.
    #[serde(default)]
    pub device_id: Option<String>,
    /// Told to the sessions that end.
    #[serde(default)]
    pub reason: Option<String>,
}

/// Ends a user's tokens, and the sessions with them.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Revoke {
    /// Told to the sessions that end.
    #[serde(default)]
    pub reason: Option<String>,
}

/// Suspends a user.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Suspend {
    /// When the suspension ends by itself, in milliseconds since 1970 UTC. Absent: when it is lifted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// Why, at most 512 bytes: told to the user, and in the feed of events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Lifts a suspension.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Unsuspend {
    /// Why, at most 512 bytes: in the feed of events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A user's suspension.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SuspensionView {
    /// When it ends by itself, in milliseconds since 1970 UTC. Absent: when it is lifted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// What the user is told.
    pub reason: String,
    /// The operator that the request named, or the name of its API key.
    pub by: String,
    /// When the user was suspended, in milliseconds since 1970 UTC.
    pub at: u64,
}

/// What a revocation did.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Revoked {
    /// Sessions that were open, and are closed.
    pub sessions: usize,
    /// In seconds since 1970 UTC: tokens whose `iat` is this or later are good.
    pub issue_from: u64,
}

/// What a kick did.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Kicked {
    /// Sessions that were open, and are closed.
    pub sessions: usize,
}

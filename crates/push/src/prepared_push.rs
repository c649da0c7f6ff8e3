//! A push as it comes to the worker: its fields are checked, and the users that it names are looked up.

use crate::devices::AudienceQuery;

/// Whom a push is for, as the app server has written it. Stored as JSON with a scheduled push: the names of variants and
/// fields are part of the stored form.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(crate) enum TargetSpec {
    Named {
        users: Vec<u64>,
        /// Users, each with a device id. The device of a scheduled push need not exist before the push starts.
        devices: Vec<(u64, String)>,
        kinds: Vec<String>,
    },
    Many(AudienceQuery),
}

/// A push whose fields are checked. What remains are the checks against devices and limits, which the worker does.
#[derive(Debug, Clone)]
pub struct PreparedPush {
    pub(crate) targets: TargetSpec,
    pub(crate) content_type: String,
    pub(crate) body: String,
    pub(crate) collapse_key: Option<String>,
    pub(crate) high: bool,
    pub(crate) ttl_ms: u64,
    pub(crate) send_at: Option<u64>,
    pub(crate) client_push_id: Option<String>,
    /// How many of the named users do not exist.
    pub(crate) unknown: u32,
}

impl PreparedPush {
    /// The users and devices that it names: what it costs a queue.
    pub(crate) fn named_targets(&self) -> usize {
        match &self.targets {
            TargetSpec::Named { users, devices, .. } => users.len() + devices.len(),
            TargetSpec::Many(_) => 1,
        }
    }
}

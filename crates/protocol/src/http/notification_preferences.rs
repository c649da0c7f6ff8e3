//! By which channels a user wants to be notified of messages.

use super::PolicyChannel;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// By which channels a user wants to be notified. They replace the former ones: what is absent is as if it had never been set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "off": ["webhook"], "group": { "only_mentions": true }, "snooze_until": 1_767_225_600_000_u64 }))]
#[serde(deny_unknown_fields)]
pub struct NotificationPreferences {
    /// Of direct conversations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct: Option<KindPreferences>,
    /// Of groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<KindPreferences>,
    /// Channels by which the user is never notified; `session` cannot be among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub off: Vec<PolicyChannel>,
    /// Of official accounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub official: Option<KindPreferences>,
    /// Until then the user is notified by live sessions and popups alone; milliseconds since 1970 UTC.
    #[serde(default, deserialize_with = "crate::time::time", skip_serializing_if = "Option::is_none")]
    pub snooze_until: Option<u64>,
}

/// By which channels a user wants to be notified of messages of one kind of conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KindPreferences {
    /// Channels by which the user is not notified of these, besides those that are off for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub off: Vec<PolicyChannel>,
    /// Only messages that mention the user, or all members, are notified by other channels than live sessions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_mentions: bool,
}

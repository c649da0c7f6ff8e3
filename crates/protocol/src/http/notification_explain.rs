//! What would become of a message that was not sent, for one person.

use super::{NotificationOutcome, OnSuccess, PolicyChannel, text};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A message that is not sent, and the person about whom it is asked. The fields are those of a send.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "user": "bob", "conversation": "demo", "from": "alice", "body": { "text": "hello" } }))]
#[serde(deny_unknown_fields)]
pub struct ExplainNotifications {
    /// The person.
    pub user: String,
    /// The conversation's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// A user instead of a conversation: their direct conversation with the sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The sending user; absent: the conversation itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The app's own kind of content; `text` when absent.
    #[serde(rename = "type", default = "text")]
    pub content_type: String,
    /// Any JSON.
    #[serde(default)]
    #[schema(value_type = serde_json::Value)]
    pub body: serde_json::Value,
    /// User ids, or `@all`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mentions: Vec<String>,
    /// Neither counted as unread nor pushed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub silent: bool,
    /// Counted as unread, but not pushed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skip_push: bool,
}

/// What would become of the message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NotificationExplanation {
    /// The person.
    pub user: String,
    /// The conversation's id.
    pub conversation: String,
    /// When it was asked, in milliseconds since 1970 UTC: as if the message were sent then.
    pub at: u64,
    /// The version of the policy; 0: the default.
    pub policy_version: u32,
    /// The rule that decides; absent: none applies, and live sessions alone get the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The rules ahead of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passed_over: Vec<PassedOverRule>,
    /// Why no channel but live sessions is taken, whatever the rule says: `not_pushed`, `sender`, `not_a_member`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<NotificationOutcome>,
    /// The rule's channels, in order.
    pub channels: Vec<ExplainedChannel>,
}

/// A rule that does not apply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PassedOverRule {
    /// Its name.
    pub rule: String,
    /// The part of it that says so, such as `for.kinds` or `when.all[1]`.
    pub because: String,
}

/// What would become of one channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExplainedChannel {
    /// The channel.
    pub channel: PolicyChannel,
    /// When it is due, in milliseconds since 1970 UTC.
    pub at: u64,
    /// Whether it is taken then.
    pub taken: bool,
    /// The state that decides, if it is one of the person's: `muted`, `do_not_disturb`, `no_device`, `active`, ….
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<NotificationOutcome>,
    /// Until when that holds, in milliseconds since 1970 UTC, if an end is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// The part of the policy that says no, such as `rules[1].channels[0].when.not`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// The devices that are reached by it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// What becomes of the channels after it, if it succeeds.
    pub on_success: OnSuccess,
    /// One sentence, in English; it may change.
    pub detail: String,
}

//! Messages for a later time.

use super::SendRequest;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// A message, and when it is to be sent.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "send_at": 4102444800000_u64, "message": { "conversation": "demo", "from": "alice", "body": { "text": "happy new year" } } }))]
#[serde(deny_unknown_fields)]
pub struct ScheduleMessage {
    /// In milliseconds since 1970 UTC; not in the past.
    #[serde(deserialize_with = "crate::time::required_time")]
    pub send_at: u64,
    /// The message, as a send at once has it.
    pub message: SendRequest,
}

/// What is changed of a message that is yet to be sent. What is absent stays as it was.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateScheduledMessage {
    /// When it is to be sent, in milliseconds since 1970 UTC. One that has failed is tried anew then.
    #[serde(default, deserialize_with = "crate::time::time", skip_serializing_if = "Option::is_none")]
    pub send_at: Option<u64>,
    /// The app's own kind of content.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Any JSON of at most 64 KiB.
    #[schema(value_type = Option<serde_json::Value>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Box<RawValue>>,
    /// User ids, or `@all`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mentions: Option<Vec<String>>,
}

/// Why a message was not sent when its time came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduledFailure {
    /// When, in milliseconds since 1970 UTC.
    pub at: u64,
    /// The `code` with which the send was refused.
    pub code: String,
    /// For people.
    pub detail: String,
}

/// A message that is yet to be sent, or that could not be.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ScheduledMessageView {
    /// Its number.
    pub id: u64,
    /// When it is to be sent, in milliseconds since 1970 UTC.
    pub send_at: u64,
    /// When it was accepted, or changed last.
    pub updated_at: u64,
    /// The message.
    pub message: SendRequest,
    /// It was refused when its time came, and is not tried again unless it gets another time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<ScheduledFailure>,
}

/// Messages that are yet to be sent, in the order in which they were accepted.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct ScheduledMessages {
    /// The messages of this page.
    pub scheduled_messages: Vec<ScheduledMessageView>,
    /// The `after` of the next page; absent: this is the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

//! Sends of one message to some of an official account's followers.

use super::NewMessage;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// One message for some of an official account's followers, each in the follower's own conversation with the account.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateBulkSend {
    /// The caller's own id for this send: a retry with it answers with the first result, another send of the account with it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_bulk_id: Option<String>,
    /// The official account's id. The messages are from the user with the same id.
    pub account: String,
    /// Which followers get the message.
    pub to: BulkTarget,
    /// The message, without `client_msg_id` and `reply_to`.
    pub message: NewMessage,
}

/// Some of an account's followers. Exactly one field is given.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkTarget {
    /// Users by id, at most 10,000. Those who do not follow the account are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<Vec<String>>,
    /// The followers in this segment of popups, as it is when each follower's turn comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<String>,
    /// The followers for whom this rule holds when their turn comes, in the language of popups' audiences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub rule: Option<Box<RawValue>>,
}

/// What has become of a send to some followers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BulkStatus {
    /// It goes on, also after a restart.
    Running,
    /// Every follower has had a turn.
    Done,
    /// It was cancelled; what was sent by then stays sent.
    Cancelled,
    /// It cannot go on; `last_error` tells why.
    Failed,
}

/// A send to some followers, and how far it has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BulkSend {
    /// The send's number.
    pub id: u64,
    /// The caller's own id for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_bulk_id: Option<String>,
    /// The official account's id.
    pub account: String,
    /// What has become of it.
    pub status: BulkStatus,
    /// When it was accepted, in milliseconds since 1970 UTC.
    pub created_at: u64,
    /// When it was done, cancelled or failed; absent: it is running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<u64>,
    /// Users who have had a turn.
    pub examined: u64,
    /// Messages that were sent.
    pub sent: u64,
    /// Followers to whom the message could not be sent.
    pub failed: u64,
    /// Why the message could not be sent to the last of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// Sends to some followers, the newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BulkSends {
    /// The sends of this page.
    pub bulk_sends: Vec<BulkSend>,
    /// The `after` of the next page; absent: this is the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

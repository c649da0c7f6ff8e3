//! Webhook events that could not be delivered.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// A notification that could not be delivered by webhook.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DeadLetter {
    /// Names it to be replayed. Ids grow with time.
    pub id: u64,
    /// When the last attempt failed, in milliseconds since 1970 UTC.
    pub failed_at: u64,
    /// How often it was tried.
    pub attempts: u32,
    /// Why the last attempt failed.
    pub last_error: String,
    /// What the webhook would have been sent.
    #[schema(value_type = Object)]
    pub event: Box<RawValue>,
}

/// Dead letters, page by page.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DeadLetterPage {
    /// The oldest first.
    pub dead_letters: Vec<DeadLetter>,
    /// Hand back as `after` for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// Dead letters to try once more.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayDeadLetters {
    /// Which; absent: all.
    #[serde(default)]
    pub ids: Option<Vec<u64>>,
}

/// What a replay begins.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Replayed {
    /// Dead letters that are tried once more. The answer does not wait for that.
    pub replayed: usize,
}

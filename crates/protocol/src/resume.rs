//! How a resume went, as it is reported to clients over WebSocket and over HTTP.

use serde::{Deserialize, Serialize};

/// How a resume went. What was missed comes in `messages` frames after `bound`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Resume {
    /// Whether the entries that follow are all that was missed. If not, fetch `ranges` from history.
    pub complete: bool,
    /// The cursor was of another epoch, or ahead of the store: what the client holds may differ
    /// from the server. It should drop what it holds and read anew.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reset: bool,
    /// What to fetch from history when `complete` is false.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<MissedRange>,
    /// Conversations of which retention has removed entries that were missed: the rest of them is among the entries that follow
    /// and in `ranges`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<RemovedRange>,
}

/// A conversation whose missed entries are not all there any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RemovedRange {
    /// The conversation.
    pub conversation: String,
    /// The oldest entry that is left: from here on nothing is missing.
    pub first_seq: u64,
}

/// Entries `from_seq..=to_seq` of a conversation that were missed and do not follow by themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct MissedRange {
    /// The conversation to read from.
    pub conversation: String,
    /// The first entry that was missed.
    pub from_seq: u64,
    /// The last entry of the range.
    pub to_seq: u64,
}

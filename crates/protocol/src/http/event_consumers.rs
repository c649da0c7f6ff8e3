//! Consumers of the feed of events, whose place the server keeps.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A consumer as it is to be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutEventConsumer {
    /// Only events of these types; a word with a dot at its end stands for all that begin with it. Absent or empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<String>,
    /// Where a new consumer begins, as `after` of [the feed](#tag/events/GET/v1/events) has it. A consumer that there is goes on from
    /// where it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Where its events are sent. Absent: the consumer reads them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<PutEventWebhook>,
}

/// Where a consumer's events are to be sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutEventWebhook {
    /// The address, `http` or `https`, of at most 1,024 bytes.
    pub url: String,
    /// What requests are signed with: `whsec_` and 24 to 64 bytes as base64. Absent: the one before stays, and a new webhook gets one
    /// in the answer. Another one takes its place at once; for a day requests are signed with both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Events of a request, at most 1,000 (default 100).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u32>,
    /// Requests under way at once, at most 32 (default 8).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel: Option<u32>,
    /// How long an answer is waited for, 100 to 60,000 milliseconds (default 10,000).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// For how long an event that is not taken is tried again, 0 to 604,800 seconds (default 86,400); then it is a dead letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub give_up_s: Option<u64>,
}

/// A consumer, and how far it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventConsumer {
    /// Its name.
    pub name: String,
    /// Only events of these types; empty: all.
    pub types: Vec<String>,
    /// Where its events are sent; absent: the consumer reads them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<EventWebhook>,
    /// When it was made, in milliseconds since 1970 UTC.
    pub created_at: u64,
    /// All events up to here are dealt with, or put aside.
    pub cursor: String,
    /// Commits behind the cursor.
    pub behind: u64,
    /// What it does.
    pub state: EventConsumerState,
    /// Events that its webhook has not taken, and those behind them of the same subjects: they wait for another attempt.
    pub aside: u64,
    /// Events that were given up.
    pub dead_letters: u64,
    /// Events that its webhook has taken since the leader began.
    pub delivered: u64,
    /// Why it does not go on, or why its webhook did not take an event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<EventConsumerError>,
    /// In the answer to the request that made it alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// What a consumer does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventConsumerState {
    /// It is read by who owns it.
    Read,
    /// Its events are sent.
    Running,
    /// Its webhook takes nothing, and is tried now and then; or its server begins.
    Waiting,
    /// What follows its cursor is not kept any more: give it another cursor.
    Stopped,
}

/// What went wrong last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventConsumerError {
    /// When, in milliseconds since 1970 UTC.
    pub at: u64,
    /// What, for people.
    pub detail: String,
}

/// Where a consumer's events are sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventWebhook {
    /// The address.
    pub url: String,
    /// Events of a request at most.
    pub batch: u32,
    /// Requests under way at once at most.
    pub parallel: u32,
    /// How long an answer is waited for, in milliseconds.
    pub timeout_ms: u64,
    /// For how long an event that is not taken is tried again, in seconds.
    pub give_up_s: u64,
}

/// All consumers, by their names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventConsumers {
    /// In the order of their names.
    pub consumers: Vec<EventConsumer>,
}

/// Which page of a consumer's events.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams, ToSchema)]
#[into_params(parameter_in = Query)]
pub struct ConsumerEventsQuery {
    /// At most so many events (default 100, limit 1,000). A page of large events has fewer.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// While there is no event, wait so many seconds for one (default 0, limit 30).
    #[param(maximum = 30)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_s: Option<u64>,
}

/// Where a consumer goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveEventConsumer {
    /// The cursor of the last event that is dealt with, or the `next` of a page; or, to begin anew, what `after` of the feed may be.
    pub after: String,
}

/// An event that a consumer's webhook did not take in the time that it had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeadEvent {
    /// The event's id.
    pub id: String,
    /// What it concerns.
    pub subject: String,
    /// Read the feed `after` this to see the event, while it is kept.
    pub after: String,
    /// When it was given up, in milliseconds since 1970 UTC.
    pub at: u64,
    /// Attempts in all.
    pub attempts: u32,
    /// What the last attempt met.
    pub error: String,
}

/// Which page of a consumer's dead letters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams, ToSchema)]
#[into_params(parameter_in = Query)]
pub struct DeadEventsQuery {
    /// At most so many (default 100, limit 500).
    #[param(minimum = 1, maximum = 500)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The `next` of the page before; absent for the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// Events that were given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeadEvents {
    /// The oldest first.
    pub dead_letters: Vec<DeadEvent>,
    /// The `after` of the next page; absent: there are no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Which dead letters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SelectDeadEvents {
    /// The ids of their events; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<String>>,
}

/// What became of dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeadEventsHandled {
    /// How many are tried again, or were deleted.
    pub handled: u64,
}

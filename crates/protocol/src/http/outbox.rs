//! The outboxes that the server follows.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whether a source is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutboxState {
    /// The server has only just begun to.
    Waiting,
    /// Its rows are taken.
    Followed,
    /// The database does not answer, or lacks the tables: it is tried again each second.
    Unreachable,
}

/// A row that was refused, and waits for somebody to correct it or to leave it out. So do those behind it in its conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefusedOutboxRow {
    /// The row's number.
    pub id: i64,
    /// `send`, `push`, `popup_events` or `members`.
    pub operation: String,
    /// Its conversation; absent for a row that is in no order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// The refusal's code.
    pub code: String,
    /// Why, for a person.
    pub detail: String,
    /// When it was refused, in milliseconds since 1970 UTC by the database's clock.
    pub at: u64,
}

/// An outbox, and how far the server is with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutboxSource {
    /// The name in the settings.
    pub name: String,
    /// Whether it is followed.
    pub state: OutboxState,
    /// Rows that wait, up to 100,000, as they were counted last.
    pub waiting: u64,
    /// How old the oldest row is that waits for nothing but the server, in milliseconds.
    pub lag_ms: u64,
    /// Rows that were refused and wait for somebody's decision, up to 100,000.
    pub refused: u64,
    /// The oldest 20 of these.
    pub refused_rows: Vec<RefusedOutboxRow>,
    /// Rows stored since this server began to follow it.
    pub done: u64,
    /// What went wrong last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

impl OutboxSource {
    /// A source of which nothing is known yet.
    pub fn waiting(name: &str) -> OutboxSource {
        OutboxSource {
            name: name.to_owned(),
            state: OutboxState::Waiting,
            waiting: 0,
            lag_ms: 0,
            refused: 0,
            refused_rows: Vec::new(),
            done: 0,
            last_error: None,
        }
    }
}

/// The outboxes of the settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutboxSources {
    /// In the order of the settings.
    pub sources: Vec<OutboxSource>,
}

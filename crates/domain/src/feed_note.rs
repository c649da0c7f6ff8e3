//! A note: an event of the feed from outside the commits of chat, and the form of its row.

use crate::store_error::{StoreError, StoreResult};
use serde::{Deserialize, Serialize};
use tidings_protocol::http::EventType;

/// An event as it comes into the feed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FeedNote {
    /// Tells it from all others, also if it is proposed twice.
    pub id: String,
    /// The name of its [`EventType`].
    pub kind: String,
    /// What the event is about.
    pub subject: String,
    /// When it happened, in milliseconds since 1970 UTC.
    pub at: u64,
    /// What the event says, as JSON.
    pub data: String,
}

impl FeedNote {
    /// A note of something that has just happened. It gets its id from its row.
    pub fn new(kind: EventType, subject: &str, at: u64, data: &impl Serialize) -> FeedNote {
        // What events are made of has a form as JSON.
        let data = serde_json::to_string(data).unwrap_or_default();
        FeedNote { id: String::new(), kind: kind.to_string(), subject: subject.to_owned(), at, data }
    }
}

/// The number of a row of notes: when it was written, about, and the boot of the node that wrote it.
pub type NotesNo = (u64, u64);

/// A row of notes, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotesRow {
    /// Its key is made of this.
    pub no: NotesNo,
    /// The value.
    pub bytes: Vec<u8>,
}

/// The notes of a row.
///
/// # Errors
/// The row is damaged.
pub fn notes_of(row: &[u8]) -> StoreResult<Vec<FeedNote>> {
    postcard::from_bytes(row).map_err(|error| StoreError::Damaged(format!("a row of notes for the feed: {error}")))
}

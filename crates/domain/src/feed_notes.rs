//! What happens outside the commits of chat, on its way into the feed of events: pushes, notifications, and what popups do.
//!
//! Whoever writes rows of such things writes a row of notes with them, in the same write. The leader proposes the notes, many at once,
//! and then deletes the rows. So each note is in the commit order at least once, always under the same id, and the write itself waits
//! for nothing.

use crate::{
    clock::{Clock, SystemClock},
    gates::{Gate, OpenGates},
    store::{ROW_BYTES_MAX, StoreError, StoreResult},
};
use serde::{Deserialize, Serialize};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
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

/// The low bits of a number, for rows of the same millisecond.
const MS_SHIFT: u32 = 20;
/// A write takes less time than this, unless the store is away.
const NEW_FOR_MS: u64 = 30_000;
/// What a note without its texts takes of a row, and more.
const NOTE_BYTES: usize = 48;

/// Which notes are wanted, and the numbers of their rows.
pub struct FeedNotes {
    wanted: Vec<EventType>,
    gates: Arc<OpenGates>,
    clock: Arc<dyn Clock>,
    boot: u64,
    last: AtomicU64,
}

/// None are wanted.
impl Default for FeedNotes {
    fn default() -> FeedNotes {
        FeedNotes::new(Vec::new(), Arc::default(), Arc::new(SystemClock), 0)
    }
}

impl FeedNotes {
    /// `boot`: of this process.
    pub fn new(wanted: Vec<EventType>, gates: Arc<OpenGates>, clock: Arc<dyn Clock>, boot: u64) -> FeedNotes {
        FeedNotes { wanted, gates, clock, boot, last: AtomicU64::new(0) }
    }

    /// Whether notes of this type are to be written now.
    pub fn wants(&self, kind: EventType) -> bool {
        self.wanted.contains(&kind) && self.gates.is_open(Gate::FeedNotes)
    }

    /// Whether this node has made rows lately, of which some may not be in the commit log yet.
    pub fn has_new(&self) -> bool {
        let made_at = self.last.load(Ordering::Relaxed) >> MS_SHIFT;
        made_at + NEW_FOR_MS >= self.clock.now_ms()
    }

    /// The rows of these notes. A note that does not fit a row is left out: its maker bounds it.
    pub fn rows(&self, notes: Vec<FeedNote>) -> Vec<NotesRow> {
        let mut rows: Vec<(usize, Vec<FeedNote>)> = Vec::new();
        for note in notes {
            let bytes = NOTE_BYTES + note.kind.len() + note.subject.len() + note.data.len();
            match rows.last_mut() {
                Some((taken, row)) if *taken + bytes <= ROW_BYTES_MAX => {
                    *taken += bytes;
                    row.push(note);
                }
                _ if bytes <= ROW_BYTES_MAX => rows.push((bytes, vec![note])),
                _ => tracing::warn!(note.kind, bytes, "an event is too long for the feed"),
            }
        }
        rows.into_iter().map(|(_, notes)| self.row(notes)).collect()
    }

    fn row(&self, mut notes: Vec<FeedNote>) -> NotesRow {
        let now = self.clock.now_ms() << MS_SHIFT;
        let next = |last: u64| now.max(last + 1);
        let last = self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
        let no = (next(last.unwrap_or_else(|last| last)), self.boot);
        for (at, note) in notes.iter_mut().enumerate() {
            note.id = format!("{:x}.{:x}.{at}", no.0, no.1);
        }
        // Serializing into memory cannot fail.
        NotesRow { no, bytes: postcard::to_allocvec(&notes).unwrap_or_default() }
    }
}

/// The notes of a row.
///
/// # Errors
/// The row is damaged.
pub fn notes_of(row: &[u8]) -> StoreResult<Vec<FeedNote>> {
    postcard::from_bytes(row).map_err(|error| StoreError::Damaged(format!("a row of notes for the feed: {error}")))
}

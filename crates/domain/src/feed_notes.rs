//! What happens outside the commits of chat, on its way into the feed of events: pushes, notifications, and what popups do.
//!
//! Whoever writes rows of such things writes a row of notes with them, in the same write, and then proposes the notes, many at once,
//! and deletes the rows. So each note is in the commit order at least once, always under the same id, and the write itself waits
//! for nothing.

use crate::{
    clock::{Clock, SystemClock},
    feed_note::{FeedNote, NotesNo, NotesRow},
    gates::{Gate, OpenGates},
    store::ROW_BYTES_MAX,
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tidings_protocol::http::{DeviceEvent, EventType, PushProvider};

/// The low bits of a number, for rows of the same millisecond.
const MS_SHIFT: u32 = 20;
/// A write takes less time than this, unless the store is away.
const NEW_FOR_MS: u64 = 30_000;
/// Rows come into the store in another order than that of their numbers, by this much at most if all goes well.
const LATE_BY_MS: u64 = 5_000;
/// What a note without its texts takes of a row, and more.
const NOTE_BYTES: usize = 48;

/// Which notes are wanted, and the numbers of their rows.
pub struct FeedNotes {
    wanted: Vec<EventType>,
    gates: Arc<OpenGates>,
    clock: Arc<dyn Clock>,
    boot: u64,
    last: AtomicU64,
    /// The newest number of a row that this node has brought into the commit log.
    added: AtomicU64,
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
        FeedNotes { wanted, gates, clock, boot, last: AtomicU64::new(0), added: AtomicU64::new(0) }
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

    /// Whether this process has made the row of this number.
    pub fn is_own(&self, no: NotesNo) -> bool {
        no.1 == self.boot
    }

    /// Whether the process that has made the row would have brought it into the commit log by now.
    pub fn is_left_behind(&self, no: NotesNo) -> bool {
        (no.0 >> MS_SHIFT) + NEW_FOR_MS < self.clock.now_ms()
    }

    /// From which number on to look for rows: a store passes over those that were deleted, of which there may be many. `all`: also
    /// for rows whose write took very long, or that another boot has left.
    pub fn look_from(&self, all: bool) -> u64 {
        let added = self.added.load(Ordering::Relaxed);
        if all { 0 } else { added.saturating_sub(LATE_BY_MS << MS_SHIFT) }
    }

    /// All rows up to this number that were there have come into the commit log.
    pub fn note_added(&self, number: u64) {
        self.added.fetch_max(number, Ordering::Relaxed);
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

    /// What is to be said of a user's device which a provider reaches from now on, or none any more; `None`: nothing.
    pub fn of_device(&self, user: &str, device: &str, provider: Option<PushProvider>) -> Option<FeedNote> {
        let (registered, user_id, device_id) = (provider.is_some(), user.to_owned(), device.to_owned());
        let event = || DeviceEvent { user: user_id, device_id, registered, provider };
        let note = || FeedNote::new(EventType::Device, user, self.clock.now_ms(), &event());
        self.wants(EventType::Device).then(note)
    }

    /// Notes for a proposal that brings them into the log by itself.
    pub fn for_commit(&self, mut notes: Vec<FeedNote>) -> Vec<FeedNote> {
        self.number(&mut notes);
        notes
    }

    fn row(&self, mut notes: Vec<FeedNote>) -> NotesRow {
        let no = self.number(&mut notes);
        // Serializing into memory cannot fail.
        NotesRow { no, bytes: postcard::to_allocvec(&notes).unwrap_or_default() }
    }

    fn number(&self, notes: &mut [FeedNote]) -> NotesNo {
        let now = self.clock.now_ms() << MS_SHIFT;
        let next = |last: u64| now.max(last + 1);
        let last = self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
        let no = (next(last.unwrap_or_else(|last| last)), self.boot);
        for (at, note) in notes.iter_mut().enumerate() {
            note.id = format!("{:x}.{:x}.{at}", no.0, no.1);
        }
        no
    }
}

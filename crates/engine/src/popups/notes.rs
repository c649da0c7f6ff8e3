//! What was shown survives a crash within the stated bound also while the disk stalls: showings that wait for longer than a
//! quarter of it are noted where the process can lose nothing, and read back at the next start.

use super::{Shared, UserKey, marks::Marks, rows};
use crate::store::{RowChange, StoreResult};
use std::time::Instant;

impl Shared {
    /// Notes until nothing comes any more: the whole of a thread.
    pub(super) fn note(&self) {
        let mut is_failing = false;
        let mut not_before = Instant::now();
        while let Some((users, through)) = self.inbox.to_note(not_before) {
            let mut notes = Vec::with_capacity(users.len());
            for key in users {
                if let Some(user) = self.users.table(key).get(key) {
                    notes.push(RowChange { key: rows::user_key(key), value: Some(user.marks.to_bytes()) });
                }
            }
            match self.store.append_to_side_log(&notes) {
                Ok(()) => {
                    is_failing = false;
                    self.inbox.noted(through);
                }
                // They stay at risk, and are noted with the next.
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(%error, "showings of popups could not be noted; they wait for the store");
                    }
                    not_before = Instant::now() + self.inbox.note_patience();
                }
            }
        }
    }

    /// Stores what was noted and not stored when the process ended. A note may be older than what is stored: of each mark the
    /// one that counts more stands.
    pub(super) fn take_notes(&self) -> StoreResult<()> {
        let notes = self.store.read_side_log()?;
        for piece in notes.chunks(rows::ROWS_PER_WRITE) {
            let mut changes = Vec::with_capacity(piece.len());
            for note in piece {
                let Some(key) = note.key.get(1..).and_then(|key| key.try_into().ok()).map(u128::from_be_bytes) else {
                    return Err(rows::damaged(&"a note of no user"));
                };
                let user = UserKey(key);
                // Of a user who was noted twice the second note is merged with the first, once that is stored.
                if changes.iter().any(|change: &RowChange| change.key.starts_with(&note.key)) {
                    self.write(std::mem::take(&mut changes))?;
                }
                let mut marks = self.read_marks(user)?;
                marks.merge(&Marks::of_bytes(note.value.as_deref().unwrap_or_default())?);
                rows::put_long(&mut changes, &rows::user_key(user), &marks.to_bytes());
            }
            self.write(changes)?;
        }
        if !notes.is_empty() {
            tracing::info!(users = notes.len(), "what was shown shortly before the last end was read from notes");
        }
        self.store.truncate_side_log()
    }
}

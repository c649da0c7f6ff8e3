//! Brings what happened outside the commits of chat into their order: a node that leads a function proposes the notes that it has
//! written with its rows. Those that another process has left come from the leader of push.

use crate::Engine;
use std::sync::Arc;
use tidings_domain::{
    chat_rows,
    feed_note::{FeedNote, NotesNo, notes_of},
    function::Function,
    leadership::Term,
    push_store::{PushChange, PushKey, PushRow},
    refusals::store_refusal,
    store::{Proposal, RowChange, RowSpace, StoreResult},
};
use tidings_protocol::error::{ErrorCode, Refusal};

/// Rows of one place that are read at once.
const ROWS_AT_ONCE: usize = 256;
/// Notes of one proposal.
const NOTES_PER_PROPOSAL: usize = 200;

/// Rows of notes that were read, to be deleted once the notes are committed.
#[derive(Default)]
struct NotesFound {
    notes: Vec<FeedNote>,
    /// The highest number of a row.
    newest: u64,
    /// The keys of rows, by where they are.
    chat: Vec<Vec<u8>>,
    popups: Vec<Vec<u8>>,
    push: Vec<PushKey>,
}

impl Engine {
    /// Commits some of the notes that wait, if this node leads a function. Answers whether there may be more. `all`: looks for old
    /// ones, too.
    ///
    /// # Errors
    /// `store_unavailable`, `queue_full`, `draining`: a later call goes on.
    pub async fn add_feed_notes(self: &Arc<Self>, all: bool) -> Result<bool, Refusal> {
        let Some(term) = Function::ALL.into_iter().find_map(|function| self.leads.term(function)) else {
            return Ok(false);
        };
        let all = all && term.function == Function::Push;
        let (engine, from) = (self.clone(), self.feed_notes.look_from(all));
        let found = blocking(move || engine.read_feed_notes(from, all)).await?;
        if found.chat.is_empty() && found.popups.is_empty() && found.push.is_empty() {
            return Ok(false);
        }
        for notes in found.notes.chunks(NOTES_PER_PROPOSAL) {
            self.committer.propose_untold(None, Proposal::AddFeedNotes(notes.to_vec())).await?;
        }
        let has_more = [found.chat.len(), found.popups.len(), found.push.len()].contains(&ROWS_AT_ONCE);
        let (engine, newest) = (self.clone(), found.newest);
        blocking(move || engine.delete_feed_notes(term, found)).await?;
        self.feed_notes.note_added(newest);
        Ok(has_more)
    }

    /// Whether notes were written lately, so that it is worth looking for them at once.
    pub fn has_new_feed_notes(&self) -> bool {
        self.feed_notes.has_new()
    }

    /// `all`: with those of processes that have ended, or lead nothing any more.
    fn read_feed_notes(&self, from: u64, all: bool) -> StoreResult<NotesFound> {
        let mut found = NotesFound::default();
        let nodes = self.cluster.as_ref().map_or_else(Vec::new, |cluster| cluster.nodes.all());
        let is_alive = |boot: u64| nodes.iter().any(|node| node.boot_id == boot);
        let is_taken =
            |no: NotesNo| self.feed_notes.is_own(no) || all && (!is_alive(no.1) || self.feed_notes.is_left_behind(no));
        let places = [
            (RowSpace::Chat, chat_rows::feed_notes_from(from)),
            (RowSpace::Popups, tidings_popups::feed_notes_from(from)),
        ];
        for (space, (from, to)) in places {
            for (key, row) in self.store.rows(space, &from, &to, ROWS_AT_ONCE)? {
                let number = |place: usize| chat_rows::number_in(&key, place).unwrap_or_default();
                let no = (number(0), number(1));
                if !is_taken(no) {
                    continue;
                }
                found.add(&row, no.0);
                match space {
                    RowSpace::Chat => found.chat.push(key),
                    RowSpace::Popups => found.popups.push(key),
                }
            }
        }
        let (from, to) = (PushKey::Notes((from, 0)), PushKey::Notes((u64::MAX, u64::MAX)));
        for row in self.store.push_rows(&from, &to, ROWS_AT_ONCE)? {
            if let PushRow::Notes { no, bytes } = &row
                && is_taken(*no)
            {
                found.add(bytes, no.0);
                found.push.push(row.key());
            }
        }
        Ok(found)
    }

    fn delete_feed_notes(&self, term: Term, NotesFound { chat, popups, push, .. }: NotesFound) -> StoreResult<()> {
        for (space, keys) in [(RowSpace::Chat, chat), (RowSpace::Popups, popups)] {
            let changes: Vec<RowChange> = keys.into_iter().map(|key| RowChange { key, value: None }).collect();
            if !changes.is_empty() {
                self.store.write_rows(term, space, changes)?;
            }
        }
        let changes: Vec<PushChange> = push.into_iter().map(PushChange::Delete).collect();
        if changes.is_empty() { Ok(()) } else { self.store.write_push(term, &changes) }
    }
}

impl NotesFound {
    fn add(&mut self, row: &[u8], number: u64) {
        self.newest = self.newest.max(number);
        match notes_of(row) {
            Ok(notes) => self.notes.extend(notes),
            // It would stay damaged, and those behind it are to come into the feed.
            Err(error) => tracing::error!(%error, "events are left out of the feed"),
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> StoreResult<T> + Send + 'static) -> Result<T, Refusal> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(store_refusal),
        Err(error) => Err(Refusal::new(ErrorCode::Internal, error.to_string())),
    }
}

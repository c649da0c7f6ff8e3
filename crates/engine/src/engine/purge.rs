//! Purging: some time after a recall, the recalled body leaves the store's files, too.

use crate::{engine::Engine, outbox};
use std::time::Duration;
use tidings_domain::{
    chat_rows::{self, RecallNote},
    refusals::store_refusal,
    store::{Proposal, RowChange, RowSpace, Store, StoreResult, Term},
};
use tidings_protocol::error::Refusal;

/// Notes of recalls that are removed at once.
const NOTES_AT_ONCE: usize = 1_000;
/// Stored webhook events that are read at once.
const EVENTS_AT_ONCE: usize = 100;

impl Engine {
    /// If the oldest recall since the last purge is this old: removes webhook events of recalled messages, and has the store's
    /// files lose all bodies that were recalled until now. Answers whether it did. Blocks, possibly for minutes.
    ///
    /// # Errors
    /// `store_unavailable`, `queue_full`, `draining`: some bodies may be left; a later call begins anew.
    pub fn purge_recalled(&self, age_min: Duration) -> Result<bool, Refusal> {
        let Some(term) = self.lead.term() else { return Ok(false) };
        let age = |note: RecallNote| Duration::from_millis(self.clock.now_ms().saturating_sub(note.at));
        match oldest_note(&*self.store).map_err(store_refusal)? {
            Some(note) if age(note) >= age_min => {}
            _ => return Ok(false),
        }
        // Later recalls wait for the next purge: it may begin before they are committed.
        let until = self.store.last_position();
        self.delete_recalled_events()?;
        self.store.purge().map_err(store_refusal)?;
        remove_notes(&*self.store, term, until).map_err(store_refusal)?;
        Ok(true)
    }

    fn delete_recalled_events(&self) -> Result<(), Refusal> {
        let mut after = None;
        loop {
            let events = self.store.dead_notifications(after, EVENTS_AT_ONCE).map_err(store_refusal)?;
            let Some(last) = events.last() else { return Ok(()) };
            after = Some(last.id);
            let mut ids = Vec::new();
            for event in &events {
                if outbox::is_recalled(&self.directory, &*self.store, event).map_err(store_refusal)? {
                    ids.push(event.id);
                }
            }
            if !ids.is_empty() {
                self.committer.begin(None, Proposal::DeleteDeadLetters { ids })?.wait()?;
            }
        }
    }
}

fn oldest_note(store: &dyn Store) -> StoreResult<Option<RecallNote>> {
    let (first, last) = (chat_rows::recall_key(0), chat_rows::recall_key(u64::MAX));
    let rows = store.rows(RowSpace::Chat, &first, &last, 1)?;
    rows.first().map(|(_, value)| chat_rows::decode(Some(value))).transpose()
}

/// Removes the notes of recalls up to this position.
fn remove_notes(store: &dyn Store, term: Term, until: u64) -> StoreResult<()> {
    let (first, last) = (chat_rows::recall_key(0), chat_rows::recall_key(until));
    loop {
        let rows = store.rows(RowSpace::Chat, &first, &last, NOTES_AT_ONCE)?;
        if rows.is_empty() {
            return Ok(());
        }
        let removals = rows.into_iter().map(|(key, _)| RowChange { key, value: None }).collect();
        store.write_rows(term, RowSpace::Chat, removals)?;
    }
}

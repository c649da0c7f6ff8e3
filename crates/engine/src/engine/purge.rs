//! Purging: some time after a recall, the recalled body leaves the store's files, too.

use crate::Engine;
use std::time::Duration;
use tidings_domain::{
    chat_rows,
    function::Function,
    refusals::store_refusal,
    store::{RowChange, RowSpace, Store, StoreResult},
};
use tidings_protocol::error::Refusal;

/// Notes of recalls that are removed at once.
const NOTES_AT_ONCE: usize = 1_000;

impl Engine {
    /// If the oldest recall since the last purge is this old: has `remove_copies` remove copies of recalled messages, then the
    /// store's files lose all bodies that were recalled until now. Answers whether it did. Blocks, possibly for minutes.
    ///
    /// # Errors
    /// `store_unavailable`, or those of `remove_copies`: some bodies may be left; a later call begins anew.
    pub fn purge_recalled(
        &self,
        age_min: Duration,
        remove_copies: impl FnOnce() -> Result<(), Refusal>,
    ) -> Result<bool, Refusal> {
        let Some(term) = self.leads.term(Function::Housekeeping) else { return Ok(false) };
        let (first, last) = chat_rows::all_recalls();
        let oldest = self.store.rows(RowSpace::Chat, &first, &last, 1).map_err(store_refusal)?;
        let oldest = oldest.first().and_then(|(key, _)| chat_rows::number_in(key, 0));
        let is_due = |at| Duration::from_millis(self.clock.now_ms().saturating_sub(at)) >= age_min;
        if !oldest.is_some_and(is_due) {
            return Ok(false);
        }
        // Later recalls wait for the next purge: this one may read their messages before they are committed.
        let notes = recall_notes(&*self.store).map_err(store_refusal)?;
        remove_copies()?;
        self.store.purge().map_err(store_refusal)?;
        for some in notes.chunks(NOTES_AT_ONCE) {
            let removals = some.iter().map(|key| RowChange { key: key.clone(), value: None }).collect();
            self.store.write_rows(term, RowSpace::Chat, removals).map_err(store_refusal)?;
        }
        Ok(true)
    }
}

/// The keys of all notes of recalls.
fn recall_notes(store: &dyn Store) -> StoreResult<Vec<Vec<u8>>> {
    let (mut from, last) = chat_rows::all_recalls();
    let mut notes = Vec::new();
    loop {
        let rows = store.rows(RowSpace::Chat, &from, &last, NOTES_AT_ONCE)?;
        let is_last = rows.len() < NOTES_AT_ONCE;
        notes.extend(rows.into_iter().map(|(key, _)| key));
        match notes.last() {
            Some(newest) if !is_last => from = [&newest[..], &[0]].concat(),
            _ => return Ok(notes),
        }
    }
}

//! The details of many conversations at once: one read of the store for all that are not cached.

use super::Directory;
use quick_cache::sync::GuardResult;
use std::{sync::Arc, time::Duration};
use tidings_domain::{
    chat_rows::block_key,
    model::*,
    store::{RowSpace, StoreResult},
};

impl Directory {
    /// The details of these conversations as readers see them, in this order; no conversation may be named twice.
    ///
    /// # Errors
    /// Those of the store.
    pub fn conversations(&self, nos: &[ConversationNo]) -> StoreResult<Vec<Option<Arc<Conversation>>>> {
        let mut all = self.all_details(nos)?;
        all.iter_mut().for_each(|found| drop(found.take_if(|found| found.is_deleted())));
        Ok(all)
    }

    /// The conversation, unless it is being deleted: it has no readers then.
    ///
    /// # Errors
    /// Those of the store.
    pub fn readable_conversation(&self, no: ConversationNo) -> StoreResult<Option<Arc<Conversation>>> {
        Ok(self.conversation(no)?.filter(|found| !found.is_deleted()))
    }

    fn all_details(&self, nos: &[ConversationNo]) -> StoreResult<Vec<Option<Arc<Conversation>>>> {
        let mut all_details = Vec::with_capacity(nos.len());
        let (mut missing, mut guards) = (Vec::new(), Vec::new());
        for (index, no) in nos.iter().enumerate() {
            // Never wait for details that another caller loads: two callers that wait for details of each other would
            // wait for ever.
            let found = match self.conversations.get_value_or_guard(no, Some(Duration::ZERO)) {
                GuardResult::Value(details) => Some(details),
                GuardResult::Guard(guard) => {
                    missing.push((index, *no));
                    guards.push(Some(guard));
                    None
                }
                GuardResult::Timeout => {
                    missing.push((index, *no));
                    guards.push(None);
                    None
                }
            };
            all_details.push(found);
        }
        if missing.is_empty() {
            return Ok(all_details);
        }
        let nos: Vec<_> = missing.iter().map(|(_, no)| *no).collect();
        for (((index, _), guard), details) in missing.into_iter().zip(guards).zip(self.loaded(&nos)?) {
            let Some(details) = details.map(Arc::new) else { continue };
            if let Some(guard) = guard {
                // Err: the details were invalidated while they were loaded; they serve this caller only.
                let _ = guard.insert(details.clone());
            }
            all_details[index] = Some(details);
        }
        Ok(all_details)
    }

    /// The details as the cache has them: of direct conversations with who blocks whom, by one more read for all of them.
    fn loaded(&self, nos: &[ConversationNo]) -> StoreResult<Vec<Option<Conversation>>> {
        let mut all = self.store.conversations(nos)?;
        let mut direct: Vec<_> = all.iter_mut().flatten().filter(|details| details.pair.is_some()).collect();
        let pairs = direct.iter().filter_map(|details| details.pair);
        let keys: Vec<Vec<u8>> = pairs.flat_map(|(a, b)| [block_key(a, b), block_key(b, a)]).collect();
        if keys.is_empty() {
            return Ok(all);
        }
        let rows = self.store.rows_of(RowSpace::Chat, &keys)?;
        for (details, rows) in direct.iter_mut().zip(rows.chunks_exact(2)) {
            details.blocks = PairBlocks(rows[0].is_some(), rows[1].is_some());
        }
        Ok(all)
    }
}

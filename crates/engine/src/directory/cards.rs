//! Cards of many conversations at once: one read of the store for all that are not cached.

use super::Directory;
use quick_cache::sync::GuardResult;
use std::{sync::Arc, time::Duration};
use tidings_domain::{model::*, store::StoreResult};

impl Directory {
    /// The cards of these conversations, in this order; no conversation may be named twice.
    ///
    /// # Errors
    /// Those of the store.
    pub fn conversations(&self, nos: &[ConversationNo]) -> StoreResult<Vec<Option<Arc<Conversation>>>> {
        let mut cards = Vec::with_capacity(nos.len());
        let (mut missing, mut guards) = (Vec::new(), Vec::new());
        for (index, no) in nos.iter().enumerate() {
            // Never wait for a card that another caller loads: two callers that wait for a card of each other would
            // wait for ever.
            let found = match self.conversations.get_value_or_guard(no, Some(Duration::ZERO)) {
                GuardResult::Value(card) => Some(card),
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
            cards.push(found);
        }
        if missing.is_empty() {
            return Ok(cards);
        }
        let nos: Vec<_> = missing.iter().map(|(_, no)| *no).collect();
        for (((index, _), guard), card) in missing.into_iter().zip(guards).zip(self.store.conversations(&nos)?) {
            let Some(card) = card.map(Arc::new) else { continue };
            if let Some(guard) = guard {
                // Err: the card was invalidated while it was loaded; it serves this caller only.
                let _ = guard.insert(card.clone());
            }
            cards[index] = Some(card);
        }
        Ok(cards)
    }
}

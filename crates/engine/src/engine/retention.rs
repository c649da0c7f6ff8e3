//! Retention, and what else goes with messages that it removes: the rows of their reactions, answers, mentions and pins.

use crate::{Engine, reactions::requests::pin_entry};
use std::time::Duration;
use tidings_domain::{
    chat_row_kind::ChatRowKind,
    chat_rows,
    expiry::{all_own_retentions, own_retention_in},
    function::Function,
    model::*,
    refusals::store_refusal,
    store::*,
};
use tidings_protocol::error::Refusal;

const ROWS_AT_ONCE: usize = 1_000;
const DAY_S: u64 = 24 * 60 * 60;

impl Engine {
    /// Removes messages beyond the limits, with all rows that belong to them; answers how many messages. Only the leader does
    /// so. Blocks.
    ///
    /// # Errors
    /// `store_unavailable`, `queue_full`, `draining`: some may be removed; a later call goes on.
    pub fn remove_old(&self, retention: Retention) -> Result<u64, Refusal> {
        let Some(term) = self.leads.term(Function::Housekeeping) else { return Ok(0) };
        let now_ms = self.clock.now_ms();
        let held = self
            .conversations_of(ChatRowKind::LegalHold.all(), |key| chat_rows::number_in(key, 0).map(ConversationNo))?;
        let own = self.conversations_of(all_own_retentions(), own_retention_in)?;
        let mut except = [held.clone(), own.clone()].concat();
        except.sort_unstable();
        except.dedup();
        let mut removed = self.store.retain_but(retention, &except, now_ms).map_err(store_refusal)?;
        for conversation in own.into_iter().filter(|own| held.binary_search(own).is_err()) {
            removed += self.remove_old_of(conversation, retention, now_ms)?;
        }
        self.metrics.retention_removed.inc_by(removed);
        if removed > 0 {
            self.remove_rows_of_removed(term).map_err(store_refusal)?;
            self.unpin_removed()?;
        }
        Ok(removed)
    }

    /// Removes old messages of a conversation that keeps them for a time of its own.
    fn remove_old_of(&self, no: ConversationNo, of_all: Retention, now_ms: u64) -> Result<u64, Refusal> {
        let details = self.directory.conversation(no).map_err(store_refusal)?;
        let Some(own) = details.and_then(|details| details.settings.retention) else { return Ok(0) };
        let days = Some(own.keep_days).filter(|days| *days > 0);
        let age_max = days.map(|days| Duration::from_secs(u64::from(days) * DAY_S)).or(of_all.age_max);
        let retention = Retention { age_max, bytes_max: None };
        let done = self.store.retain_in(no, retention, now_ms).map_err(store_refusal)?;
        if let Some(kept_from) = done.kept_from.filter(|_| own.removes_newest) {
            let last = self.store.head(no).map_err(store_refusal)?.last_seq;
            let newest = self.store.entries(no, last, last, 1, End::Newest).map_err(store_refusal)?.pop();
            let is_old = |newest: &StoredEntry| newest.kept_since() < kept_from && !newest.content.is_recalled();
            if newest.is_some_and(|newest| newest.content.kind == EntryKind::Message && is_old(&newest)) {
                // The head is read from the newest entry: its place stays.
                self.expire(no, last)?;
            }
        }
        Ok(done.removed)
    }

    /// The conversations of a range of rows, in the order of their numbers.
    fn conversations_of(
        &self,
        (mut low, high): (Vec<u8>, Vec<u8>),
        of_key: impl Fn(&[u8]) -> Option<ConversationNo>,
    ) -> Result<Vec<ConversationNo>, Refusal> {
        let mut found = Vec::new();
        loop {
            let rows = self.store.rows(RowSpace::Chat, &low, &high, ROWS_AT_ONCE).map_err(store_refusal)?;
            found.extend(rows.iter().filter_map(|(key, _)| of_key(key)));
            match rows.last() {
                Some((last, _)) if rows.len() == ROWS_AT_ONCE => low = [&last[..], &[0]].concat(),
                _ => return Ok(found),
            }
        }
    }

    fn remove_rows_of_removed(&self, term: Term) -> StoreResult<()> {
        for kind in chat_rows::KINDS_BY_MESSAGE {
            let mut next = Some(ConversationNo(0));
            while let Some(from) = next {
                let (low, high) = chat_rows::conversations_from(kind, from);
                let found = self.store.rows(RowSpace::Chat, &low, &high, 1)?;
                let conversation = found.first().and_then(|(key, _)| chat_rows::number_in(key, 0)).map(ConversationNo);
                if let Some(conversation) = conversation {
                    self.remove_rows_before(term, kind, conversation)?;
                }
                next = conversation.and_then(|conversation| conversation.0.checked_add(1)).map(ConversationNo);
            }
        }
        self.remove_mentions(term)
    }

    /// Removes the rows of a conversation's messages before its first one.
    fn remove_rows_before(&self, term: Term, kind: ChatRowKind, conversation: ConversationNo) -> StoreResult<()> {
        let first_seq = self.store.head(conversation)?.first_seq;
        let (low, high) = chat_rows::messages_before(kind, conversation, first_seq);
        loop {
            let rows = self.store.rows(RowSpace::Chat, &low, &high, ROWS_AT_ONCE)?;
            let is_last = rows.len() < ROWS_AT_ONCE;
            let removals = rows.into_iter().map(|(key, _)| RowChange { key, value: None }).collect();
            self.store.write_rows(term, RowSpace::Chat, removals)?;
            if is_last {
                return Ok(());
            }
        }
    }

    fn remove_mentions(&self, term: Term) -> StoreResult<()> {
        for (mut low, high) in chat_rows::all_mentions() {
            loop {
                let rows = self.store.rows(RowSpace::Chat, &low, &high, ROWS_AT_ONCE)?;
                let Some((last, _)) = rows.last() else { break };
                low = [&last[..], &[0]].concat();
                let mut removals = Vec::new();
                for (key, _) in rows {
                    let Some(place) = chat_rows::mention_in(&key) else { continue };
                    if place.seq < self.store.head(place.conversation)?.first_seq {
                        removals.push(RowChange { key, value: None });
                    }
                }
                self.store.write_rows(term, RowSpace::Chat, removals)?;
            }
        }
        Ok(())
    }

    /// Removes the pins of messages that are gone: they would hold places for ever.
    fn unpin_removed(&self) -> Result<(), Refusal> {
        let (mut low, high) = chat_rows::conversations_from(ChatRowKind::Pins, ConversationNo(0));
        loop {
            let rows = self.store.rows(RowSpace::Chat, &low, &high, ROWS_AT_ONCE).map_err(store_refusal)?;
            let Some((last, _)) = rows.last() else { return Ok(()) };
            low = [&last[..], &[0]].concat();
            for (key, pins) in rows {
                let Some(conversation) = chat_rows::number_in(&key, 0).map(ConversationNo) else { continue };
                let pins: Vec<u64> = chat_rows::decode(Some(&pins)).map_err(store_refusal)?;
                let first_seq = self.store.head(conversation).map_err(store_refusal)?.first_seq;
                let details = self.directory.conversation(conversation).map_err(store_refusal)?;
                for target in pins.into_iter().filter(|seq| *seq < first_seq) {
                    let change = MessageChange::Pin { pinned: false, pins_max: 0 };
                    let entry = pin_entry(None);
                    let proposal = Proposal::ChangeMessage { conversation, target, change, entry };
                    self.committer.begin(details.as_ref(), proposal)?.wait()?;
                }
            }
        }
    }
}

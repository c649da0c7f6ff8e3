//! Retention: removes old entries, by age or by the size of all timelines together. A conversation keeps at least its
//! newest entry, from which its head is read.

use crate::{embedded::EmbeddedStore, errors::store_error, first_results::*, kv::*, rows::*, timeline_days::day_key};
use rustc_hash::FxHashMap;
use tidings_domain::{model::*, store::*};

/// Entries removed in one batch: commits wait while such a batch is written.
const REMOVED_PER_BATCH: usize = 1_000;

impl EmbeddedStore {
    pub(crate) fn timeline_bytes(&self) -> StoreResult<u64> {
        Ok(self.days()?.iter().map(|(_, bytes)| bytes).sum())
    }

    /// The days that have entries, each with the bytes of its entries.
    fn days(&self) -> StoreResult<Vec<(u64, u64)>> {
        let kv = self.kv()?;
        let mut days = Vec::new();
        for day in self.days.list() {
            let row = kv.get(Space::Meta, &day_key(day)).map_err(store_error)?;
            days.extend(row.and_then(|row| number_at(&row, 0)).map(|bytes| (day, bytes)));
        }
        Ok(days)
    }

    /// Entries before this time are removed. Always the start of a day, so that a day's byte count is removed as a whole.
    fn cutoff(&self, retention: Retention, now_ms: u64) -> StoreResult<u64> {
        let days = self.days()?;
        // Without a day there is no entry that could be removed.
        let Some(&(newest, _)) = days.last() else { return Ok(0) };
        let mut day = retention.kept_from(now_ms, (newest + 1) * DAY_MS).map_or(0, day_of);
        if let Some(bytes_max) = retention.bytes_max {
            let mut bytes: u64 = days.iter().map(|(_, bytes)| bytes).sum();
            for (of, taken) in days {
                // Today is never removed, however large, and neither is the newest day, if the clock runs ahead of it:
                // the latest messages must stay readable.
                if bytes <= bytes_max || of >= newest.min(day_of(now_ms)) {
                    break;
                }
                bytes -= taken;
                day = day.max(of + 1);
            }
        }
        Ok(day * DAY_MS)
    }

    pub(crate) fn remove_old(&self, retention: Retention, except: &[ConversationNo], now_ms: u64) -> StoreResult<u64> {
        let cutoff = self.cutoff(retention, now_ms)?;
        if cutoff == 0 {
            return Ok(0);
        }
        let mut conversations = Vec::new();
        self.kv()?
            .scan(
                Space::Meta,
                &key(MetaKind::Conversation, &[0]),
                &key(MetaKind::Conversation, &[u64::MAX]),
                Order::Ascending,
                &mut |key, _| {
                    conversations.extend(number_at(key, 1).map(ConversationNo));
                    true
                },
            )
            .map_err(store_error)?;
        let mut removed = 0;
        for conversation in conversations.into_iter().filter(|no| except.binary_search(no).is_err()) {
            loop {
                // The bytes of whole days go with the days.
                let count = self.remove_batch(conversation, cutoff, false)?;
                removed += count as u64;
                if count < REMOVED_PER_BATCH {
                    break;
                }
            }
        }
        let mut batch = Batch::default();
        let over: Vec<u64> = self.days.list().into_iter().filter(|day| *day < day_of(cutoff)).collect();
        for day in &over {
            // Before the write: a commit that gives an entry to such a day meanwhile adds the day again.
            self.days.remove(*day);
            batch.remove(Space::Meta, day_key(*day));
        }
        if let Err(error) = self.write_cleanup(batch, None, &FxHashMap::default()) {
            over.into_iter().for_each(|day| self.days.add(day));
            return Err(error);
        }
        Ok(removed)
    }

    pub(crate) fn remove_old_in(
        &self,
        conversation: ConversationNo,
        retention: Retention,
        now_ms: u64,
    ) -> StoreResult<RetainedIn> {
        let newest_day = self.days.list().last().map_or(0, |newest| newest + 1);
        let mut done = RetainedIn { removed: 0, kept_from: retention.kept_from(now_ms, newest_day * DAY_MS) };
        let Some(cutoff) = done.kept_from else { return Ok(done) };
        loop {
            let count = self.remove_batch(conversation, cutoff, true)?;
            done.removed += count as u64;
            if count < REMOVED_PER_BATCH {
                return Ok(done);
            }
        }
    }

    /// Removes at most one batch of a conversation's entries before `cutoff`; answers how many. `counts`: their days have fewer bytes
    /// then.
    fn remove_batch(&self, conversation: ConversationNo, cutoff: u64, counts: bool) -> StoreResult<usize> {
        let head = self.head(conversation)?;
        if head.first_seq >= head.last_seq {
            return Ok(0);
        }
        let old = self.entries(conversation, head.first_seq, head.last_seq - 1, REMOVED_PER_BATCH, End::Oldest)?;
        let old: Vec<_> = old.into_iter().take_while(|entry| entry.kept_since() < cutoff).collect();
        let Some(last) = old.last() else { return Ok(0) };
        let mut batch = Batch::default();
        let kv = &*self.kv()?;
        let mut freed = FxHashMap::default();
        for entry in &old {
            if counts {
                let day = day_of(entry.kept_since());
                let (row, parts) = encode_entry(&entry.content, entry.at, entry.position);
                let bytes = row.len() + parts.iter().map(|part| part.len()).sum::<usize>();
                *freed.entry(day).or_insert(0) += bytes as u64;
            }
            batch.remove(Space::Timeline, entry_key(conversation, entry.seq));
            if let Some((author, id)) = entry.content.idempotency_key() {
                let key = dedupe_key(conversation, author, id);
                let former = self.has_former_results.then(|| read_first_result(kv, &key, true)).transpose()?.flatten();
                batch.remove(Space::Dedupe, former.map_or(key, |(_, key)| key));
            }
            for part in 0..crate::rows::parts_of(&entry.content) {
                batch.remove(Space::Bodies, part_key(conversation, entry.seq, part));
            }
        }
        batch.put(Space::Meta, key(MetaKind::FirstSeq, &[conversation.0]), (last.seq + 1).to_be_bytes().to_vec());
        self.write_cleanup(batch, Some(conversation), &freed)?;
        Ok(old.len())
    }
}

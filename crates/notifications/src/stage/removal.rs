//! Reading removes, and so do clearing and a recall: what a device still shows of a message that its user has read elsewhere, or
//! that was recalled, is taken away, once for each conversation, if a provider had accepted it.
//!
//! The providers' workers keep a row for each device and conversation that they have notified. Reads are noted in memory; a node that
//! begins to lead looks at all rows, so that no read is lost.

use super::worker::Worker;
use crate::{
    channel_jobs::{Due, JobPart, JobRow, JobWriter, Target},
    offline_recipients::{is_read, is_recalled},
};
use std::collections::HashMap;
use tidings_domain::{
    chat_rows::{ShownNotification, all_shown, shown_of},
    leadership::Term,
    model::*,
    store::*,
};
use tidings_protocol::http::PushProvider;

/// Conversations of users in one round.
const READS_PER_ROUND: usize = 200;
/// Rows of one conversation and user that are read.
const ROWS_PER_READ: usize = 200;
/// Rows in one round, of those that are all looked at.
const ROWS_PER_ROUND: usize = 500;

impl Worker {
    /// Has providers remove what was read; answers whether there was anything to look at.
    pub(super) fn remove(&mut self, term: Term, now_ms: u64) -> StoreResult<bool> {
        if self.channels.providers.is_empty() {
            return Ok(false);
        }
        let context = self.context.clone();
        let (store, shown) = (&*context.store, &context.directory.shown);
        let (read, has_missed) = shown.take_read(READS_PER_ROUND);
        // A sweep under way may have passed what was missed.
        self.sweeps_again |= has_missed;
        if self.sweep.is_none() && std::mem::take(&mut self.sweeps_again) {
            self.sweep = Some(all_shown().0);
        }
        let mut worked = !read.is_empty();
        let mut rows = Vec::new();
        for (user, conversation) in read {
            let (from, to) = shown_of(user, conversation);
            // Before the rows: a worker notes what it has stored meanwhile.
            let noted = shown.noted(user, conversation);
            let found = store.rows(RowSpace::Chat, &from, &to, ROWS_PER_READ)?;
            if let Some(noted) = noted.filter(|_| found.is_empty()) {
                shown.forget(user, conversation, noted);
            }
            rows.extend(found);
        }
        let mut is_swept = false;
        if let Some(from) = self.sweep.take() {
            let page = store.rows(RowSpace::Chat, &from, &all_shown().1, ROWS_PER_ROUND)?;
            match page.last().filter(|_| page.len() == ROWS_PER_ROUND) {
                Some((last, _)) => self.sweep = Some([&last[..], &[0]].concat()),
                None => is_swept = true,
            }
            worked |= self.sweep.is_some() || self.sweeps_again;
            rows.extend(page);
        }
        let mut changes = Vec::new();
        let mut recalled = HashMap::new();
        let mut removed: HashMap<(ConversationNo, u64, PushProvider), Vec<Target>> = HashMap::new();
        for (key, row) in rows {
            let Some(found) = ShownNotification::of_row(&key, &row) else {
                changes.push(RowChange { key, value: None });
                continue;
            };
            let ShownNotification { user, conversation, provider, device, seq, expires_at } = found;
            if expires_at <= now_ms {
                changes.push(RowChange { key, value: None });
            } else if is_read(&context, user, conversation, seq)?
                || self.is_recalled(&mut recalled, conversation, seq)?
            {
                removed.entry((conversation, seq, provider)).or_default().push(Target(user.0, device));
            } else {
                shown.note_shown(user, conversation, seq);
            }
        }
        // Once all rows are noted: whoever reads from now on finds them.
        if is_swept {
            shown.note_complete();
        }
        let position = store.last_position();
        for ((conversation, seq, provider), mut targets) in removed {
            targets.sort_by_key(|target| target.0);
            targets.dedup();
            let message = OutboxItem { position, conversation, seq };
            self.removals = self.removals.wrapping_add(1);
            let part = JobPart::removal(self.removals);
            let mut writer = JobWriter::new(Due::Now(provider.into()), message, part).removing();
            targets.into_iter().for_each(|target| writer.add(target));
            changes.extend(writer.finish().iter().map(JobRow::change));
        }
        self.write(term, changes)?;
        Ok(worked)
    }

    /// Whether the message was recalled, or retention has removed it; each is looked up once in a round.
    fn is_recalled(
        &self,
        known: &mut HashMap<(ConversationNo, u64), bool>,
        conversation: ConversationNo,
        seq: u64,
    ) -> StoreResult<bool> {
        if let Some(known) = known.get(&(conversation, seq)) {
            return Ok(*known);
        }
        let found = self.context.store.entries(conversation, seq, seq, 1, End::Oldest)?;
        let is_recalled = found.first().is_none_or(is_recalled);
        known.insert((conversation, seq), is_recalled);
        Ok(is_recalled)
    }
}

//! Reading withdraws: what a device still shows of a message that its user has read elsewhere is taken away, once for each
//! conversation, if a vendor had accepted it.
//!
//! The vendors' workers keep a row for each device and conversation that they have notified. Reads are noted in memory; a node that
//! begins to lead looks at all rows, so that no read is lost.

use super::worker::Worker;
use crate::road_jobs::{JobRoad, JobRow, JobWriter, Target};
use std::collections::HashMap;
use tidings_domain::{
    chat_rows::{ShownNotification, all_shown, shown_of},
    leadership::Term,
    model::*,
    store::*,
};
use tidings_protocol::http::PushVendor;

/// Conversations of users in one round.
const READS_PER_ROUND: usize = 200;
/// Rows of one conversation and user that are read.
const ROWS_PER_READ: usize = 200;
/// Rows in one round, of those that are all looked at.
const ROWS_PER_ROUND: usize = 500;
/// Parts from here on are of withdrawals.
const WITHDRAWAL_PARTS: u64 = 1 << 61;
/// Rows that the targets of one withdrawal take at most.
const PARTS_PER_WITHDRAWAL: u64 = 1 << 8;

impl Worker {
    /// Has vendors withdraw what was read; answers whether there was anything to look at.
    pub(super) fn withdraw(&mut self, term: Term, now_ms: u64) -> StoreResult<bool> {
        if self.roads.vendors.is_empty() {
            return Ok(false);
        }
        let context = self.context.clone();
        let (store, shown) = (&*context.store, &context.directory.shown);
        let (read, has_missed) = shown.take_read(READS_PER_ROUND);
        if has_missed && self.sweep.is_none() {
            self.sweep = Some(all_shown().0);
        }
        let mut worked = !read.is_empty();
        let mut rows = Vec::new();
        for (user, conversation) in read {
            let (from, to) = shown_of(user, conversation);
            let found = store.rows(RowSpace::Chat, &from, &to, ROWS_PER_READ)?;
            if found.is_empty() {
                shown.forget(user, conversation);
            }
            rows.extend(found);
        }
        if let Some(from) = self.sweep.take() {
            let page = store.rows(RowSpace::Chat, &from, &all_shown().1, ROWS_PER_ROUND)?;
            match page.last().filter(|_| page.len() == ROWS_PER_ROUND) {
                Some((last, _)) => self.sweep = Some([&last[..], &[0]].concat()),
                None => shown.note_complete(),
            }
            worked |= self.sweep.is_some();
            rows.extend(page);
        }
        let mut changes = Vec::new();
        let mut withdrawn: HashMap<(ConversationNo, u64, PushVendor), Vec<Target>> = HashMap::new();
        for (key, row) in rows {
            let Some(found) = ShownNotification::of_row(&key, &row) else {
                changes.push(RowChange { key, value: None });
                continue;
            };
            let ShownNotification { user, conversation, vendor, device, seq, expires_at } = found;
            if expires_at <= now_ms {
                changes.push(RowChange { key, value: None });
            } else if self.is_read(user, conversation, seq)? {
                withdrawn.entry((conversation, seq, vendor)).or_default().push(Target(user.0, device));
            } else {
                shown.note_shown(user, conversation);
            }
        }
        let position = store.last_position();
        for ((conversation, seq, vendor), mut targets) in withdrawn {
            targets.sort_by_key(|target| target.0);
            targets.dedup();
            let message = OutboxItem { position, conversation, seq };
            self.withdrawals = self.withdrawals.wrapping_add(1);
            let part = WITHDRAWAL_PARTS | (u64::from(self.withdrawals) * PARTS_PER_WITHDRAWAL);
            let mut writer = JobWriter::new(JobRoad::Vendor(vendor), message, part).withdrawing();
            targets.into_iter().for_each(|target| writer.add(target));
            changes.extend(writer.finish().iter().map(JobRow::change));
        }
        self.write(term, changes)?;
        Ok(worked)
    }

    /// Whether the user has read the message, or is no member any more.
    fn is_read(&self, user: UserNo, conversation: ConversationNo, seq: u64) -> StoreResult<bool> {
        let directory = &self.context.directory;
        let Some(card) = directory.conversation(conversation)? else { return Ok(true) };
        // An agent reads for the account.
        let sides = directory.desks.sides(card.pair);
        let served = sides.filter(|sides| user != sides.customer && sides.desk.has_agent(user));
        let member = served.map_or(user, |sides| sides.desk.desk.user.no);
        let membership = directory.membership(conversation, member)?;
        Ok(membership.is_none_or(|membership| membership.read_seq >= seq))
    }
}

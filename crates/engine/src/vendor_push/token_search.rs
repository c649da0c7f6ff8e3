//! The thread that looks, for each entry of the list, for the devices that vendors are to notify.

use super::{StopSignal, jobs::JobWriter, target_of, unacknowledged};
use crate::offline_recipients::{OfflinePushContext, OfflineRecipients, RecipientPage};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_domain::{
    chat_rows::{self, vendor_search_key},
    leadership::Term,
    model::*,
    push_tokens::{devices_of, tokens_of},
    store::*,
};
use tidings_protocol::{http::PushVendor, limits::PUSH_TOKENS_PER_USER_MAX};

/// How often the list is read when it was empty.
const POLL: Duration = Duration::from_millis(100);
/// The pause after the store could not be read.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How often unacknowledged messages of other nodes are read.
const UNACKNOWLEDGED_POLL: Duration = Duration::from_secs(1);
/// Entries of the list in one read.
const ITEMS_PER_READ: usize = 100;
/// Rows in one write, about.
const ROWS_PER_WRITE: usize = 500;

pub(super) struct TokenSearch {
    context: Arc<OfflinePushContext>,
    vendors: Vec<PushVendor>,
    /// The position up to which all entries are searched; 0 while that is unknown. The webhook does not cut the list behind it.
    searched: Arc<AtomicU64>,
    prunes: bool,
    term: Option<Term>,
    unacknowledged_at: Option<Instant>,
}

impl TokenSearch {
    pub(super) fn new(
        context: Arc<OfflinePushContext>,
        vendors: Vec<PushVendor>,
        searched: Arc<AtomicU64>,
        prunes: bool,
    ) -> TokenSearch {
        TokenSearch { context, vendors, searched, prunes, term: None, unacknowledged_at: None }
    }

    pub(super) fn run(mut self, stop: &StopSignal) {
        let mut told = false;
        loop {
            let pause = match self.round() {
                Ok(worked) => {
                    if std::mem::take(&mut told) {
                        tracing::info!("the search for devices that vendors reach goes on");
                    }
                    if worked { Duration::ZERO } else { POLL }
                }
                Err(error) => {
                    // The next round begins where the last stored one ended.
                    self.lose_term();
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(%error, "the search for devices that vendors reach waits; it is tried again");
                    }
                    RETRY_PAUSE
                }
            };
            if stop.wait(pause) {
                return;
            }
        }
    }

    fn lose_term(&mut self) {
        self.term = None;
        self.searched.store(0, Ordering::Release);
        self.context.metrics.vendor_lag.set(0);
    }

    /// Searches the next entries; answers whether there were any.
    fn round(&mut self) -> StoreResult<bool> {
        let lead = &self.context.lead;
        let Some(term) = lead.term().filter(|term| lead.holds(*term)) else {
            self.lose_term();
            return Ok(false);
        };
        let store = self.context.store.clone();
        if self.term != Some(term) {
            let row = store.row(RowSpace::Chat, &vendor_search_key())?;
            let stored: Position = chat_rows::decode(row.as_deref())?;
            self.searched.store(stored.max(store.outbox_position()?), Ordering::Release);
            self.term = Some(term);
        }
        let mut worked = self.context.trace.prune(&*store, term, self.context.clock.now_ms())?;
        let now = self.context.clock.monotonic();
        let is_due = |at| now.saturating_duration_since(at) >= UNACKNOWLEDGED_POLL;
        if self.unacknowledged_at.is_none_or(is_due) {
            let taken = unacknowledged::take(&self.context, &self.vendors, term)?;
            self.unacknowledged_at = (!taken).then_some(now);
            worked |= taken;
        }
        let after = self.searched.load(Ordering::Acquire);
        let items = store.outbox(after, ITEMS_PER_READ)?;
        let lag = items.first().map_or(0, |first| store.last_position().saturating_sub(first.position) + 1);
        self.context.metrics.vendor_lag.set(lag as i64);
        let Some(through) = items.last().map(|item| item.position) else { return Ok(worked) };
        let mut changes = Vec::new();
        for item in &items {
            self.search(item, term, &mut changes)?;
        }
        changes.push(RowChange { key: vendor_search_key(), value: Some(chat_rows::encode(&through)) });
        store.write_rows(term, RowSpace::Chat, changes)?;
        self.searched.store(through, Ordering::Release);
        if self.prunes {
            // A refusal does no harm: the next round cuts the list further.
            let _ = self.context.committer.propose_blocking(Proposal::AdvanceOutbox { through, dead: Vec::new() });
        }
        Ok(true)
    }

    /// Adds the rows of one entry. Those of a large conversation are written on the way: after a crash they are written again.
    fn search(&self, item: &OutboxItem, term: Term, changes: &mut Vec<RowChange>) -> StoreResult<()> {
        let context = &*self.context;
        let Some(mut found) = OfflineRecipients::of(context, item.conversation, item.seq)? else { return Ok(()) };
        let writer = |vendor: &PushVendor| JobWriter::new(*vendor, &found.entry, found.conversation.no, 0);
        let mut writers: Vec<JobWriter> = self.vendors.iter().map(writer).collect();
        let mut part = 0;
        while let Some(RecipientPage { told: users, left_out }) = found.next_page(context)? {
            found.record_left_out(context, part, left_out, changes);
            part += 1;
            // One look for all: most users have no token.
            let ranges: Vec<_> = users.iter().map(|user| devices_of(user.no)).collect();
            let first = context.store.first_keys(RowSpace::Chat, &ranges)?;
            for (user, _) in users.iter().zip(first).filter(|(_, first)| first.is_some()) {
                for (_, token) in tokens_of(&*context.store, user.no, PUSH_TOKENS_PER_USER_MAX)? {
                    let vendor = token.token.vendor();
                    if let Some(at) = self.vendors.iter().position(|known| *known == vendor) {
                        writers[at].add(target_of(token), changes);
                    }
                }
            }
            if changes.len() >= ROWS_PER_WRITE {
                context.store.write_rows(term, RowSpace::Chat, std::mem::take(changes))?;
            }
        }
        writers.iter_mut().for_each(|writer| writer.finish(changes));
        Ok(())
    }
}

//! The thread: walks the list of entries in commit order, has each decided, and moves its position.

use super::{
    Channels, StageProgress,
    alike::AlikeMessages,
    decision::{Decision, DecisionScope, Told},
    untried_pushes::UntriedPushes,
};
use crate::{
    channel_jobs::{JobNews, JobSignals, RoundEnd},
    offline_recipients::{OfflinePushContext, OfflineRecipients, RoundLookups, is_recalled},
};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{
    chat_rows::{self, notification_position_key, provider_search_key},
    failure_log::FailureLog,
    leadership::Term,
    model::*,
    store::*,
};
use tidings_protocol::http::PolicyChannel;

/// The pause after the store could not be read.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How often unacknowledged messages of other nodes are read.
const UNACKNOWLEDGED_POLL: Duration = Duration::from_secs(1);
/// Entries of the list in one round.
const ITEMS_PER_ROUND: usize = 250;
/// Bytes of entries that are read at once, about.
const ENTRY_BYTES_MAX: usize = 8 << 20;
/// Rows in one write, about.
const ROWS_PER_WRITE: usize = 500;
/// Entries that stay in the list, at most, once they are decided: the list is cut while there is nothing else to do, or when so many
/// have gathered.
const UNCUT_MAX: usize = 2_000;

pub(super) struct Worker {
    pub(super) context: Arc<OfflinePushContext>,
    pub(super) channels: Channels,
    pub(super) signals: Arc<JobSignals>,
    progress: Arc<StageProgress>,
    /// While this node leads.
    term: Option<Term>,
    /// All entries through this position are decided.
    decided: Position,
    /// Providers have been notified through this position, by an older version of the server.
    providers_notified: Position,
    /// The position through which the list is cut, and how many entries are decided behind it.
    cut: Position,
    uncut: usize,
    unacknowledged_at: Option<Instant>,
    /// The last round left entries for the caches to become current.
    has_waited: bool,
    /// The time by which channels were last due, and the monotonic time then.
    pub(super) last_time: Option<(u64, Instant)>,
    pub(super) told: Told,
    /// Where to go on with looking at all that devices may show.
    pub(super) sweep: Option<Vec<u8>>,
    /// The next sweep begins when this one has ended.
    pub(super) sweeps_again: bool,
    /// Tells removals apart.
    pub(super) removals: u32,
    /// Tells apart pages of devices that fall back.
    pub(super) push_pages: u32,
    /// Rows of pushes that no provider has tried yet.
    pub(super) untried_pushes: UntriedPushes,
    /// The hour in which old marks were last removed.
    pub(super) marks_removed_at: Option<u64>,
}

impl Worker {
    pub(super) fn new(
        context: Arc<OfflinePushContext>,
        channels: Channels,
        signals: Arc<JobSignals>,
        progress: Arc<StageProgress>,
    ) -> Worker {
        Worker {
            context,
            channels,
            signals,
            progress,
            term: None,
            decided: 0,
            providers_notified: 0,
            cut: 0,
            uncut: 0,
            unacknowledged_at: None,
            has_waited: false,
            last_time: None,
            told: Told::default(),
            sweep: None,
            sweeps_again: false,
            removals: rand::random(),
            push_pages: rand::random(),
            untried_pushes: UntriedPushes::default(),
            marks_removed_at: None,
        }
    }

    pub(super) fn run(mut self, stopped: &Receiver<Infallible>) {
        let failures = FailureLog::new("who is notified of messages is not decided; it is tried again");
        loop {
            let pause = match self.round() {
                Ok(end) => {
                    failures.succeeded();
                    end.pause()
                }
                Err(error) => {
                    // The next round begins where the last stored one ended.
                    self.lose_term();
                    failures.failed(&error);
                    RETRY_PAUSE
                }
            };
            if matches!(stopped.recv_timeout(pause), Err(RecvTimeoutError::Disconnected)) {
                self.cut_list();
                return;
            }
        }
    }

    fn lose_term(&mut self) {
        self.term = None;
        self.context.directory.shown.end();
        self.progress.set(0);
        self.context.metrics.provider_lag.set(0);
    }

    /// Reads how far the leader before has come.
    fn begin_term(&mut self, term: Term) -> StoreResult<()> {
        let store = &*self.context.store;
        let rows = store.rows_of(RowSpace::Chat, &[notification_position_key(), provider_search_key()])?;
        let position = |at: usize| chat_rows::decode::<Position>(rows.get(at).and_then(|row| row.as_deref()));
        self.cut = store.outbox_position()?;
        self.decided = position(0)?.max(self.cut);
        self.providers_notified = position(1)?;
        (self.uncut, self.unacknowledged_at, self.has_waited) = (usize::from(self.decided > self.cut), None, false);
        (self.sweep, self.sweeps_again) = (Some(chat_rows::all_shown().0), false);
        self.told = Told::default();
        self.context.directory.shown.begin();
        self.progress.set(self.decided);
        self.term = Some(term);
        Ok(())
    }

    /// Decides the next entries; answers whether there were any.
    fn round(&mut self) -> StoreResult<RoundEnd> {
        let lead = &self.context.lead;
        let Some(term) = lead.term().filter(|term| lead.holds(*term)) else {
            self.lose_term();
            return Ok(RoundEnd::Idle);
        };
        if self.term != Some(term) {
            self.begin_term(term)?;
        }
        let store = self.context.store.clone();
        let mut worked = self.context.trace.prune(&*store, term, self.context.clock.now_ms())?;
        let now = self.context.clock.monotonic();
        let is_due = |at| now.saturating_duration_since(at) >= UNACKNOWLEDGED_POLL;
        if self.unacknowledged_at.is_none_or(is_due) {
            let taken = self.take_unacknowledged(term)?;
            self.unacknowledged_at = (!taken).then_some(now);
            worked |= taken;
        }
        worked |= self.take_due(term)?;
        let now_ms = self.due_time();
        worked |= self.remove(term, now_ms)?;
        worked |= self.take_push_fallbacks(term)?;
        let mut items = store.outbox(self.decided, ITEMS_PER_ROUND)?;
        let lag = items.first().map_or(0, |first| store.last_position().saturating_sub(first.position) + 1);
        self.context.metrics.provider_lag.set(lag as i64);
        if self.channels.webhook.is_none() {
            self.context.metrics.webhook_lag.set(lag as i64);
        }
        let other_work = if worked { RoundEnd::MoreIsDue } else { RoundEnd::Idle };
        if items.is_empty() {
            return Ok(if self.cut_list() { RoundEnd::Worked.max(other_work) } else { other_work });
        }
        let is_full = items.len() == ITEMS_PER_ROUND;
        // What a message's commit changed is known here a moment after the commit. A node that is behind reads from the store.
        let current = self.context.directory.current();
        let known = items.partition_point(|item| item.position <= current);
        let is_current = known > 0;
        if is_current {
            items.truncate(known);
        } else if !std::mem::replace(&mut self.has_waited, true) {
            return Ok(other_work);
        }
        self.has_waited = false;
        self.decide_all(&items, term, is_current)?;
        if self.uncut >= UNCUT_MAX {
            self.cut_list();
        }
        Ok(if is_full || worked { RoundEnd::MoreIsDue } else { RoundEnd::Worked })
    }

    fn decide_all(&mut self, items: &[OutboxItem], term: Term, is_current: bool) -> StoreResult<()> {
        let context = self.context.clone();
        let Some(through) = items.last().map(|item| item.position) else { return Ok(()) };
        let one = |item: &OutboxItem| {
            let OutboxItem { conversation, seq, .. } = *item;
            PageRequest { conversation, from_seq: seq, to_seq: seq, limit: 1 }
        };
        let requests: Vec<_> = items.iter().map(one).collect();
        let pages = context.store.pages(&requests, ENTRY_BYTES_MAX)?;
        let now_ms = self.due_time();
        let policy = context.policies.current();
        let mut changes = Vec::new();
        let (mut lookups, has_providers) = (RoundLookups::of(items), self.channels.has(PolicyChannel::Providers));
        let scope = DecisionScope { context: &context, channels: &self.channels, policy: &policy, now_ms, is_current };
        let mut alike = AlikeMessages::new(&policy);
        let write = |changes: &mut Vec<RowChange>| {
            if changes.len() < ROWS_PER_WRITE { Ok(()) } else { self.write(term, std::mem::take(changes)) }
        };
        for (item, page) in items.iter().zip(pages) {
            // A message that was recalled, or that retention removed, is notified to nobody; nor is an entry of a later version, since
            // only that knows whom it concerns.
            let is_notified = |entry: &StoredEntry| !is_recalled(entry) && !entry.content.kind.is_opaque();
            let entry = page.into_iter().next().filter(is_notified);
            let (Some(entry), Some(conversation)) =
                (entry, context.directory.readable_conversation(item.conversation)?)
            else {
                continue;
            };
            let found =
                OfflineRecipients::for_all(&context, conversation, entry, is_current, &mut lookups, has_providers)?;
            let without_providers = item.position <= self.providers_notified;
            if !without_providers && alike.take(scope, &found, &mut changes)? {
                write(&mut changes)?;
                continue;
            }
            let decision = Decision::new(scope, &found).without_providers(without_providers);
            decision.decide_members(&mut changes, write)?;
        }
        alike.finish(&mut changes);
        for key in [notification_position_key(), provider_search_key()] {
            changes.push(RowChange { key, value: Some(chat_rows::encode(&through)) });
        }
        self.write(term, changes)?;
        self.decided = through;
        self.uncut += items.len();
        self.progress.set(through);
        Ok(())
    }

    /// Writes rows, and tells the channels' workers of them.
    pub(super) fn write(&self, term: Term, changes: Vec<RowChange>) -> StoreResult<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let news = JobNews::of(&changes);
        self.context.store.write_rows(term, RowSpace::Chat, changes)?;
        self.signals.note(&news);
        Ok(())
    }

    /// Cuts the list behind the decided entries; answers whether it did.
    fn cut_list(&mut self) -> bool {
        if self.decided <= self.cut {
            return false;
        }
        // A refusal does no harm: it is tried again.
        let cut = Proposal::AdvanceOutbox { through: self.decided, dead: Vec::new() };
        let is_cut = self.context.proposals.propose_blocking(cut).is_ok();
        if is_cut {
            (self.cut, self.uncut) = (self.decided, 0);
        }
        is_cut
    }
}

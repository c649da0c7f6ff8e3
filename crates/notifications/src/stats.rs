//! The thread that stores what this node has counted on channels: one row for each hour, channel and boot, which holds all that the boot has
//! counted in the hour.
//!
//! What was counted since the last round, at most ten seconds, is lost with a process that dies. The leader removes rows that are too old.

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tidings_domain::{
    chat_rows::{notification_counts_key, notification_counts_of},
    clock::Clock,
    leadership::Leadership,
    metrics::Metrics,
    notification_counts::{ChannelCounts, HOUR_MS},
    store::{Proposal, RowChange, RowSpace, Store, StoreResult},
};
use tidings_engine::{engine::port::Proposals, worker_thread::WorkerThread};
use tidings_protocol::http::Channel;

/// How often the clock is looked at.
const POLL: Duration = Duration::from_millis(200);
/// How often counts are stored.
const INTERVAL_MS: u64 = 10_000;
/// Hours whose sums are in memory. Those of an older hour are read again, should it come back with the clock.
const HOURS_KEPT: u64 = 2;
/// Sums that could not be stored. Above, the oldest are dropped.
const UNSTORED_MAX: usize = 48 * Channel::ALL.len();
/// Rows that are deleted in one write.
const ROWS_PER_WRITE: usize = 500;
const HOURS_PER_DAY: u64 = 24;

/// What [`NotificationStatsWorker::start`] needs.
pub(crate) struct NotificationStatsParts {
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub proposals: Proposals,
    pub metrics: Arc<Metrics>,
    pub lead: Leadership,
    /// A number that no other boot of any node has.
    pub boot: u64,
    /// For how many days counts are kept; 0: they are not stored.
    pub days: u32,
}

/// The handle of the thread.
pub(crate) struct NotificationStatsWorker(WorkerThread<Sender<()>>);

impl NotificationStatsWorker {
    pub(crate) fn start(parts: NotificationStatsParts) -> NotificationStatsWorker {
        let worker = Worker { parts, sums: BTreeMap::new(), unstored: BTreeSet::new(), pruned_hour: 0 };
        NotificationStatsWorker(WorkerThread::start("notify-stats", 1, move |asked| worker.run(&asked)))
    }

    /// Stores what is counted, and waits until that is done.
    pub(crate) fn settle(&self) {
        self.0.order_and_wait(|done| done);
    }

    /// Does a last round, and ends the thread.
    pub(crate) fn stop(&self) {
        self.0.stop();
    }
}

struct Worker {
    parts: NotificationStatsParts,
    /// What this boot has counted in the newest hours.
    sums: BTreeMap<(u64, Channel), ChannelCounts>,
    /// Which of the sums differ from their rows.
    unstored: BTreeSet<(u64, Channel)>,
    /// The hour in which old rows were removed last.
    pruned_hour: u64,
}

impl Worker {
    fn run(mut self, asked: &Receiver<Sender<()>>) {
        let mut last = self.parts.clock.now_ms();
        loop {
            let asked = asked.recv_timeout(POLL);
            let now = self.parts.clock.now_ms();
            // A clock that was set back does not hold up the next round.
            if !matches!(asked, Err(RecvTimeoutError::Timeout)) || now.abs_diff(last) >= INTERVAL_MS {
                last = now;
                if let Err(error) = self.round(now / HOUR_MS) {
                    tracing::debug!(%error, "what channels count is stored later");
                }
            }
            match asked {
                Ok(done) => drop(done.send(())),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn round(&mut self, hour: u64) -> StoreResult<()> {
        let counted = self.parts.metrics.notifications.take();
        if self.parts.days == 0 {
            return Ok(());
        }
        for ((hour, channel), counts) in counted {
            if !self.sums.contains_key(&(hour, channel)) {
                let row =
                    self.parts.store.row(RowSpace::Chat, &notification_counts_key(hour, self.parts.boot, channel));
                let stored = row.ok().flatten().and_then(|row| ChannelCounts::decode(&row).ok());
                self.sums.insert((hour, channel), stored.unwrap_or_default());
            }
            self.sums.entry((hour, channel)).or_default().merge(&counts);
            self.unstored.insert((hour, channel));
        }
        while self.unstored.len() > UNSTORED_MAX {
            self.unstored.pop_first();
        }
        if !self.unstored.is_empty() {
            let boot = self.parts.boot;
            let row = |place: &(u64, Channel)| self.sums.get(place).map(|sum| (place.0, boot, place.1, sum.encode()));
            let rows = self.unstored.iter().filter_map(row).collect();
            match self.parts.proposals.propose_blocking(Proposal::SetNotificationCounts(rows)) {
                Ok(_) => self.unstored.clear(),
                Err(refusal) => tracing::debug!(%refusal, "what channels count is stored later"),
            }
        }
        let unstored = &self.unstored;
        self.sums.retain(|place, _| place.0 + HOURS_KEPT > hour || unstored.contains(place));
        self.prune(hour)
    }

    /// Removes rows that are too old, once an hour.
    fn prune(&mut self, hour: u64) -> StoreResult<()> {
        let Some(term) = self.parts.lead.term().filter(|_| self.pruned_hour != hour) else { return Ok(()) };
        let kept = (u64::from(self.parts.days) + 1) * HOURS_PER_DAY;
        let Some(last) = hour.checked_sub(kept) else { return Ok(()) };
        let (from, to) = notification_counts_of(0, last);
        loop {
            let rows = self.parts.store.rows(RowSpace::Chat, &from, &to, ROWS_PER_WRITE)?;
            if rows.is_empty() {
                break;
            }
            let changes = rows.into_iter().map(|(key, _)| RowChange { key, value: None }).collect();
            self.parts.store.write_rows(term, RowSpace::Chat, changes)?;
        }
        self.pruned_hour = hour;
        Ok(())
    }
}

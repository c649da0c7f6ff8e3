//! Devices that have not acknowledged a push in time fall back to the providers with which their tokens are registered.
//!
//! The push worker hands them out page by page ([`due_fallback`](tidings_push::PushHandle::due_fallback)). Each page becomes rows of the
//! providers, which their workers deal with as with those of messages. What one push may cost others is bounded twice: the next page waits
//! until providers have tried most of what they were handed, so that a message is behind some hundred devices at most; and while a provider
//! has many rows of pushes that it did not take, further devices of its wait in the store.

use super::worker::Worker;
use crate::{
    channel_jobs::{Due, JobPart, PushJob, Target},
    gate,
};
use std::collections::BTreeMap;
use tidings_domain::{leadership::Term, model::*, store::*};
use tidings_protocol::{error::Refusal, http::PushProvider};
use tidings_push::{DueFallback, FallbackDevice};

/// Rows of pushes that a provider did not take yet. With more, further devices wait for [`PROVIDER_AWAY_WAIT_MS`].
const ROWS_PER_PROVIDER_MAX: usize = 200;
const PROVIDER_AWAY_WAIT_MS: u64 = 5 * 60 * 1_000;

impl Worker {
    /// Has devices notified that have not acknowledged a push in time; answers whether there were any.
    pub(super) fn take_push_fallbacks(&mut self, term: Term) -> StoreResult<bool> {
        if self.channels.providers.is_empty() || self.untried_pushes.are_to_be_tried_first(&self.context)? {
            return Ok(false);
        }
        let push = self.context.push.clone();
        let later = |refusal: Refusal| tracing::debug!(%refusal, "devices fall back to providers later");
        let due = push.due_fallback().map_err(later);
        let Ok(Some(due)) = due else { return Ok(false) };
        let DueFallback { push: number, expires_at, ref devices, .. } = due;
        let target = |FallbackDevice { user, device_id }: &FallbackDevice| Target(user.0, device_id.clone());
        let job = PushJob { push: number, expires_at, ..PushJob::default() };
        let mut changes = Vec::new();
        self.route(&job, devices.iter().map(target).collect(), &mut changes)?;
        self.write(term, changes)?;
        // A page that is handed out again notifies nobody twice: each attempt asks whether a provider has taken the notification.
        push.fallback_taken(due).unwrap_or_else(later);
        Ok(true)
    }

    /// Whether a provider takes so little that further devices are to wait.
    fn is_away(&self, provider: PushProvider) -> bool {
        self.signals.pushes(provider) >= ROWS_PER_PROVIDER_MAX || self.untried_pushes.are_many(provider)
    }

    /// A row of a push whose time has come: its people's quiet hours are over, or a provider was away.
    pub(super) fn take_waiting_push(&mut self, row: &[u8], changes: &mut Vec<RowChange>) -> StoreResult<()> {
        match PushJob::decode(row) {
            Ok(mut job) => {
                let targets = std::mem::take(&mut job.targets);
                self.route(&job, targets, changes)
            }
            Err(error) => {
                tracing::error!(%error, "devices do not fall back");
                Ok(())
            }
        }
    }

    /// Adds the rows of these devices: of their providers, or of the end of their users' quiet hours. A device without a token, or whose user
    /// does not want notifications, has none.
    fn route(&mut self, job: &PushJob, targets: Vec<Target>, changes: &mut Vec<RowChange>) -> StoreResult<()> {
        let context = self.context.clone();
        let now_ms = self.due_time();
        if job.expires_at <= now_ms {
            return Ok(());
        }
        let users: Vec<UserNo> = targets.iter().map(|target| UserNo(target.0)).collect();
        let devices = context.directory.push_devices(&users, false)?;
        let mut by_provider = BTreeMap::<PushProvider, Vec<Target>>::new();
        // With from when the time to live counts.
        let mut by_time = BTreeMap::<(u64, u64), Vec<Target>>::new();
        for (target, devices) in targets.into_iter().zip(devices) {
            let Some(user) = context.directory.user(UserNo(target.0))? else { continue };
            let defers = context.quiet_hours.defers_pushes();
            if let Some(unwanted) = gate::why_not_by_fallback(&user, job.expires_at, defers, now_ms) {
                if let Some(until) = unwanted.deferred_to {
                    by_time.entry((until, until)).or_default().push(target);
                }
                continue;
            }
            let Some((provider, _)) = devices.iter().find(|(_, device)| *device == target.1) else { continue };
            match self.channels.providers.contains(provider) {
                true if self.is_away(*provider) => {
                    let again = (now_ms + PROVIDER_AWAY_WAIT_MS, job.counts_from);
                    by_time.entry(again).or_default().push(target);
                }
                true => by_provider.entry(*provider).or_default().push(target),
                false => {}
            }
        }
        let position = context.store.last_position();
        self.push_pages = self.push_pages.wrapping_add(1);
        let part = JobPart::push_page(self.push_pages);
        for ((until, counts_from), targets) in by_time {
            let job = PushJob { counts_from, ..job.clone() };
            job.add_rows(Due::At(until), position, part, targets, changes);
        }
        let now = context.clock.monotonic();
        for (provider, targets) in by_provider {
            let first = changes.len();
            job.add_rows(Due::Now(provider.into()), position, part, targets, changes);
            self.untried_pushes.add(provider, &changes[first..], now);
        }
        Ok(())
    }
}

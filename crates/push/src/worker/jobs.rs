//! Jobs at a push's time: a scheduled push starts, a running one ends, an ended one is purged. Timers are stored by the
//! wall clock: after a restart, or when the clock jumps, they fire late or early, but they fire.

use super::{Worker, start::Plan};
use crate::{PushFrame, draft::Draft, prepared_push::TargetSpec};
use tidings_domain::{
    notification_counts::ChannelEvent,
    push_store::*,
    store::{StoreError, StoreResult},
};

/// Timers that fire in one turn.
const TIMERS_PER_TURN: usize = 64;
/// Targets that are ended in one write, and rows that are purged in one.
const TARGETS_PER_WRITE: usize = PUSH_ROWS_PER_WRITE / 4;
/// When a scheduled push tries again to start after too many pushes ran.
const START_RETRY_MS: u64 = 1_000;

/// A push that is being ended or purged, over several writes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Job {
    /// Targets are ended, from the device `next` on. `any_pending`: a target was pending until its end.
    End { next: u32, any_pending: bool },
    /// All rows are deleted.
    Purge,
}

impl Job {
    pub(super) fn end() -> Job {
        Job::End { next: 0, any_pending: false }
    }
}

impl Worker {
    /// Ends pushes to many that all targets have acknowledged, and fires the timers that are due.
    pub(super) fn fire_timers(&mut self) -> StoreResult<()> {
        let now = self.now();
        let done = self.audiences.iter().filter(|(push, audience)| audience.is_done() && !self.jobs.contains_key(push));
        let done: Vec<u64> = done.map(|(push, _)| *push).collect();
        self.jobs.extend(done.into_iter().map(|push| (push, Job::end())));
        let rows = self.store.push_rows(&PushKey::Timer(0, 0), &PushKey::Timer(now, u64::MAX), TIMERS_PER_TURN)?;
        for row in rows {
            let PushRow::Timer { at, push } = row else { continue };
            if self.jobs.contains_key(&push) {
                continue;
            }
            match self.stored_push(push)? {
                Some(stored) if stored.due_at == at => self.on_timer(stored)?,
                // The push has another timer since, or is purged.
                _ => {
                    let store = self.store.clone();
                    let mut draft = Draft::new(&*store);
                    draft.delete(PushKey::Timer(at, push));
                    self.store_draft(draft)?;
                }
            }
        }
        Ok(())
    }

    fn on_timer(&mut self, stored: StoredPush) -> StoreResult<()> {
        match stored.stage {
            // Scheduled => Running, or Expired after a long downtime.
            PushStage::Scheduled => self.start_scheduled(stored),
            // Running => Completed or Expired; an ended push is purged.
            _ => {
                let job = if stored.closed { Job::Purge } else { Job::end() };
                self.jobs.insert(stored.push, job);
                Ok(())
            }
        }
    }

    fn start_scheduled(&mut self, mut stored: StoredPush) -> StoreResult<()> {
        let (push, due_at) = (stored.push, stored.due_at);
        let now = self.now();
        if now >= stored.expires_at {
            // The server was down, or the clock jumped, for longer than the push was to live.
            let store = self.store.clone();
            let mut draft = Draft::new(&*store);
            draft.delete(PushKey::RecoveryIndex(RecoveryIndex::Scheduled, push));
            self.close(&mut draft, &mut stored, true);
            self.store_draft(draft)?;
            self.scheduled = self.scheduled.saturating_sub(1);
            return Ok(());
        }
        if stored.to_many && self.audiences.len() >= self.config.running_to_many {
            return self.reset_timer(stored, now + START_RETRY_MS);
        }
        self.undo_start(push)?;
        let (body, targets) = self.read_parts(&stored)?;
        let targets: TargetSpec =
            serde_json::from_slice(&targets).map_err(|error| StoreError::Damaged(format!("push {push}: {error}")))?;
        let frame = PushFrame::encode(&stored, &body);
        self.last_push += 1;
        stored.start_order = self.last_push;
        let mut plan = Plan::new(stored, frame);
        plan.deletes = vec![PushKey::Timer(due_at, push), PushKey::RecoveryIndex(RecoveryIndex::Scheduled, push)];
        self.resolve_targets(&mut plan, &targets, &Default::default())?;
        plan.falling_back_after(self.fallback_of(push)?.map(|fallback| fallback.after_s));
        self.store_in_writes(plan)?;
        self.scheduled = self.scheduled.saturating_sub(1);
        Ok(())
    }

    /// Deletes the rows of a start that failed halfway: their devices may not be targets any more, and a pending row
    /// must not be counted twice.
    fn undo_start(&mut self, push: u64) -> StoreResult<()> {
        let store = self.store.clone();
        loop {
            let mut draft = Draft::new(&*store);
            self.delete_targets(&mut draft, push)?;
            if draft.len() == 0 {
                return Ok(());
            }
            self.store_draft(draft)?;
        }
    }

    fn reset_timer(&mut self, mut stored: StoredPush, at: u64) -> StoreResult<()> {
        let store = self.store.clone();
        let mut draft = Draft::new(&*store);
        draft.delete(PushKey::Timer(stored.due_at, stored.push));
        stored.due_at = at;
        draft.put(PushRow::Timer { at, push: stored.push });
        draft.put(PushRow::Push(stored));
        self.store_draft(draft)
    }

    /// Cancels a push: a scheduled one ends at once, a running one when the job has ended its targets.
    pub(super) fn cancel(&mut self, mut stored: StoredPush) -> StoreResult<()> {
        let store = self.store.clone();
        let mut draft = Draft::new(&*store);
        let now = self.now();
        draft.delete(PushKey::Timer(stored.due_at, stored.push));
        if stored.stage == PushStage::Scheduled {
            draft.delete(PushKey::RecoveryIndex(RecoveryIndex::Scheduled, stored.push));
            (stored.closed, stored.ended_at, stored.due_at) = (true, Some(now), now + self.retention_ms());
        } else {
            stored.due_at = now;
        }
        let was_scheduled = stored.closed;
        stored.stage = PushStage::Cancelled;
        let (at, push) = (stored.due_at, stored.push);
        draft.put(PushRow::Timer { at, push });
        draft.put(PushRow::Push(stored));
        self.store_draft(draft)?;
        self.frames.remove(&push);
        if was_scheduled {
            self.scheduled = self.scheduled.saturating_sub(1);
        } else {
            self.jobs.insert(push, Job::end());
        }
        Ok(())
    }

    /// Works on jobs, in at most so many writes.
    pub(super) fn work_on_jobs(&mut self, writes: usize) -> StoreResult<()> {
        for _ in 0..writes {
            let Some((push, job)) = self.jobs.first_key_value().map(|(push, job)| (*push, *job)) else { break };
            let next = match job {
                Job::End { next, any_pending } => self.end_some(push, next, any_pending)?,
                Job::Purge => self.purge_some(push)?,
            };
            match next {
                Some(job) => drop(self.jobs.insert(push, job)),
                None => drop(self.jobs.remove(&push)),
            }
        }
        Ok(())
    }

    fn end_some(&mut self, push: u64, next: u32, mut any_pending: bool) -> StoreResult<Option<Job>> {
        let Some(mut stored) = self.stored_push(push)? else { return Ok(None) };
        let store = self.store.clone();
        let mut draft = Draft::new(&*store);
        if stored.to_many {
            return self.end_to_many(stored);
        }
        let cancelled = stored.stage == PushStage::Cancelled;
        let end_state = if cancelled { TargetState::Cancelled } else { TargetState::Expired };
        let (first, last) = (PushKey::Target(push, DeviceNo(next)), PushKey::Target(push, DeviceNo(u32::MAX)));
        let rows = self.store.push_rows(&first, &last, TARGETS_PER_WRITE)?;
        let more = (rows.len() == TARGETS_PER_WRITE).then_some(());
        let mut after = next;
        let mut ended = Vec::new();
        let pending = rows.iter().filter_map(|row| match row {
            PushRow::Target(StoredTarget { device, state: TargetState::Pending, .. }) => Some(*device),
            _ => None,
        });
        draft.read_ahead(pending.flat_map(|device| {
            let collapse = stored.collapse_key.clone().map(|key| PushKey::Collapse(device, key));
            collapse.into_iter().chain([PushKey::Target(push, device)])
        }))?;
        for row in rows {
            let PushRow::Target(target) = row else { continue };
            after = target.device.0 + 1;
            // An earlier try of this job may have ended the target.
            any_pending |= target.state == TargetState::Expired;
            if target.state != TargetState::Pending {
                continue;
            }
            // A device that has acknowledged the push keeps it, even if the report is not stored yet.
            let report = self.reports.get(&(target.device, push)).copied().unwrap_or_default();
            let end = report.end_or(end_state);
            any_pending |= report.end.is_none();
            self.end_target(&mut draft, target.device, push, stored.collapse_key.as_deref(), end)?;
            ended.push((target.device, push));
        }
        if more.is_none() {
            self.close(&mut draft, &mut stored, any_pending);
        }
        self.store_draft(draft)?;
        for key in &ended {
            self.reports.remove(key);
        }
        if more.is_none() {
            self.frames.remove(&push);
        }
        Ok(more.map(|()| Job::End { next: after, any_pending }))
    }

    fn end_to_many(&mut self, mut stored: StoredPush) -> StoreResult<Option<Job>> {
        let push = stored.push;
        let store = self.store.clone();
        let mut draft = Draft::new(&*store);
        let mut any_pending = stored.stage == PushStage::Cancelled;
        if let Some(audience) = self.audiences.get_mut(&push) {
            let rows = audience.take_dirty(push, PUSH_ROWS_PER_WRITE / 4);
            if !rows.is_empty() {
                let keys: Vec<_> = rows.iter().map(PushRow::key).collect();
                rows.into_iter().for_each(|row| draft.put(row));
                if let Err(error) = draft.write(self.term) {
                    self.mark_chunks_dirty(&keys);
                    return Err(error);
                }
                return Ok(Some(Job::end()));
            }
            any_pending |= !audience.is_done();
            let pending = audience.sets.pending().len();
            let ended = if stored.stage == PushStage::Cancelled {
                &self.metrics.push_cancelled
            } else {
                &self.metrics.push_expired
            };
            ended.inc_by(pending);
            if stored.stage != PushStage::Cancelled {
                self.count_notifications(ChannelEvent::Expired, pending, None);
            }
        }
        draft.delete(PushKey::RecoveryIndex(RecoveryIndex::Live, push));
        self.close(&mut draft, &mut stored, any_pending);
        self.store_draft(draft)?;
        self.audiences.remove(&push);
        Ok(None)
    }

    pub(super) fn mark_chunks_dirty(&mut self, keys: &[PushKey]) {
        for key in keys {
            if let PushKey::Chunk(push, set, chunk) = key
                && let Some(audience) = self.audiences.get_mut(push)
            {
                audience.mark_dirty(*set, *chunk);
            }
        }
    }

    /// The rows of the last write of an end: from here on the push only has a status, until it is purged.
    fn close(&self, draft: &mut Draft<'_>, stored: &mut StoredPush, any_pending: bool) {
        let now = self.now();
        draft.delete(PushKey::Timer(stored.due_at, stored.push));
        if stored.stage != PushStage::Cancelled {
            stored.stage = if any_pending { PushStage::Expired } else { PushStage::Completed };
        }
        (stored.closed, stored.ended_at, stored.due_at) = (true, Some(now), now + self.retention_ms());
        draft.put(PushRow::Timer { at: stored.due_at, push: stored.push });
        draft.put(PushRow::Push(stored.clone()));
    }

    fn purge_some(&mut self, push: u64) -> StoreResult<Option<Job>> {
        let store = self.store.clone();
        let mut draft = Draft::new(&*store);
        self.delete_targets(&mut draft, push)?;
        for row in self.store.push_rows(&PushKey::Part(push, 0), &PushKey::Part(push, u32::MAX), TARGETS_PER_WRITE)? {
            draft.delete(row.key());
        }
        if draft.len() > 0 {
            self.store_draft(draft)?;
            return Ok(Some(Job::Purge));
        }
        let (header, (fallback, last)) = (PushKey::Push(push), PushKey::all_of_fallback(push));
        draft.read_ahead([header, fallback.clone()])?;
        if draft.get(&fallback)?.is_some() {
            let rows = self.store.push_rows(&fallback, &last, TARGETS_PER_WRITE)?;
            // The first row says that there are others: it goes with the last of them.
            let kept = usize::from(rows.len() == TARGETS_PER_WRITE);
            rows.iter().skip(kept).for_each(|row| draft.delete(row.key()));
            self.store_draft(draft)?;
            return Ok(Some(Job::Purge));
        }
        if let Some(PushRow::Push(stored)) = draft.get(&PushKey::Push(push))? {
            draft.delete(PushKey::Timer(stored.due_at, push));
            if let Some(name) = stored.client_push_id.map(PushKey::ClientPushId)
                && matches!(draft.get(&name)?, Some(PushRow::ClientPushId { push: named, .. }) if named == push)
            {
                draft.delete(name);
            }
        }
        for index in [RecoveryIndex::Preparing, RecoveryIndex::Scheduled, RecoveryIndex::Live] {
            draft.delete(PushKey::RecoveryIndex(index, push));
        }
        draft.delete(PushKey::Push(push));
        self.store_draft(draft)?;
        Ok(None)
    }

    /// Deletes some of the rows and chunks of a push's targets.
    fn delete_targets(&self, draft: &mut Draft<'_>, push: u64) -> StoreResult<()> {
        let targets = (PushKey::Target(push, DeviceNo(0)), PushKey::Target(push, DeviceNo(u32::MAX)));
        let chunks =
            (PushKey::Chunk(push, AudienceSet::Targets, 0), PushKey::Chunk(push, AudienceSet::Collapsed, u32::MAX));
        for (first, last) in [targets, chunks] {
            let rows = self.store.push_rows(&first, &last, TARGETS_PER_WRITE)?;
            draft.read_ahead(rows.iter().filter_map(|row| match row {
                PushRow::Target(StoredTarget { device, state: TargetState::Pending, .. }) => {
                    Some(PushKey::Pending(*device, push))
                }
                _ => None,
            }))?;
            for row in rows {
                if let PushRow::Target(StoredTarget { device, state: TargetState::Pending, .. }) = row
                    && draft.get(&PushKey::Pending(device, push))?.is_some()
                {
                    draft.delete_pending(device, push, None)?;
                }
                draft.delete(row.key());
            }
        }
        Ok(())
    }

    /// Removes a device: named pushes that are pending on it are cancelled there.
    pub(super) fn remove_device(&mut self, device: DeviceNo) -> StoreResult<()> {
        let store = self.store.clone();
        loop {
            let (first, last) = (PushKey::Pending(device, 0), PushKey::Pending(device, u64::MAX));
            let rows = self.store.push_rows(&first, &last, TARGETS_PER_WRITE)?;
            let mut draft = Draft::new(&*store);
            let all = rows.len() < TARGETS_PER_WRITE;
            let mut ended = Vec::with_capacity(rows.len());
            draft.read_ahead(
                rows.iter()
                    .filter_map(|row| match row {
                        PushRow::Pending(pending) => Some(pending),
                        _ => None,
                    })
                    .flat_map(|pending| {
                        let collapse = pending.collapse_key.clone().map(|key| PushKey::Collapse(device, key));
                        collapse.into_iter().chain([PushKey::Target(pending.push, device)])
                    }),
            )?;
            for row in rows {
                let PushRow::Pending(pending) = row else { continue };
                ended.push((device, pending.push));
                let report = self.reports.get(&(device, pending.push)).copied().unwrap_or_default();
                let key = pending.collapse_key.as_deref();
                self.end_target(&mut draft, device, pending.push, key, report.end_or(TargetState::Cancelled))?;
            }
            if all {
                draft.delete(PushKey::LastBound(device));
                draft.delete(PushKey::Device(device));
            }
            self.store_draft(draft)?;
            for key in &ended {
                self.reports.remove(key);
            }
            if all {
                break;
            }
        }
        self.audiences.values_mut().for_each(|audience| audience.remove_device(device));
        self.devices.remove(device);
        self.numbers.release(device, self.last_push);
        self.last_bound_dirty.remove(&device);
        self.backlogs.remove(&device);
        Ok(())
    }
}

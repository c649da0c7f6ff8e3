//! What happens to a push at its time: it starts, its time is over, it is removed. Timers stand in the
//! store by the wall clock, so a restart or a clock that jumps changes nothing but the moment.

use super::{
    DeviceNo,
    accept::Aim,
    draft::Draft,
    rows::*,
    start::{Plan, build_frame},
    worker::Worker,
};
use crate::store::{StoreError, StoreResult};

/// Timers looked at in one turn.
const TIMERS_AT_ONCE: usize = 64;
/// Targets that are ended in one write, and rows that are removed in one.
const TARGETS_AT_ONCE: usize = PUSH_ROWS_PER_WRITE / 4;
/// How long a scheduled push waits for another look when too many run.
const START_LATER_MS: u64 = 1_000;

/// How far the end or removal of a push has come.
#[derive(Debug, Clone, Copy)]
pub(super) enum Job {
    /// Its targets up to here are ended; whether any still waited.
    End { next: u32, waited: bool },
    /// Its rows go.
    Forget,
}

impl Job {
    pub(super) fn forget() -> Job {
        Job::Forget
    }

    pub(super) fn end() -> Job {
        Job::End { next: 0, waited: false }
    }
}

impl Worker {
    pub(super) fn look_at_timers(&mut self) -> StoreResult<()> {
        let now = self.now();
        let done = self.audiences.iter().filter(|(push, audience)| audience.is_done() && !self.jobs.contains_key(push));
        let done: Vec<u64> = done.map(|(push, _)| *push).collect();
        self.jobs.extend(done.into_iter().map(|push| (push, Job::end())));
        let rows = self.store.push_rows(&PushKey::Timer(0, 0), &PushKey::Timer(now, u64::MAX), TIMERS_AT_ONCE)?;
        for row in rows {
            let PushRow::Timer { at, push } = row else { continue };
            if self.jobs.contains_key(&push) {
                continue;
            }
            match self.stored_push(push)? {
                Some(stored) if stored.due_at == at => self.is_due(stored)?,
                // A timer that was set anew since.
                _ => {
                    let store = self.store.clone();
                    let mut draft = Draft::new(&*store);
                    draft.drop(PushKey::Timer(at, push));
                    self.store_draft(draft)?;
                }
            }
        }
        Ok(())
    }

    fn is_due(&mut self, stored: StoredPush) -> StoreResult<()> {
        match stored.stage {
            Stage::Scheduled => self.start_scheduled(stored),
            _ => {
                let job = if stored.closed { Job::forget() } else { Job::end() };
                self.jobs.insert(stored.push, job);
                Ok(())
            }
        }
    }

    fn start_scheduled(&mut self, mut stored: StoredPush) -> StoreResult<()> {
        let (push, due_at) = (stored.push, stored.due_at);
        let now = self.now();
        if now >= stored.expires_at {
            // The server was down, or the clock jumped, for longer than it was to live.
            let store = self.store.clone();
            let mut draft = Draft::new(&*store);
            draft.drop(PushKey::Mark(Mark::Scheduled, push));
            self.close(&mut draft, &mut stored, true);
            self.store_draft(draft)?;
            self.scheduled = self.scheduled.saturating_sub(1);
            return Ok(());
        }
        if stored.to_many && self.audiences.len() >= self.config.running_to_many {
            return self.set_timer(stored, now + START_LATER_MS);
        }
        self.undo_start(push)?;
        let (body, aim) = self.parts_of(&stored)?;
        let aim: Aim =
            serde_json::from_slice(&aim).map_err(|error| StoreError::Damaged(format!("push {push}: {error}")))?;
        let frame = build_frame(&stored, &body);
        self.last_push += 1;
        stored.order = self.last_push;
        let mut plan = Plan::new(stored, frame);
        plan.drops = vec![PushKey::Timer(due_at, push), PushKey::Mark(Mark::Scheduled, push)];
        self.aim(&mut plan, &aim, &Default::default())?;
        self.store_in_pieces(plan)?;
        self.scheduled = self.scheduled.saturating_sub(1);
        Ok(())
    }

    /// A start that came to nothing may have left rows for devices that it is not for any more, and each counts once.
    fn undo_start(&mut self, push: u64) -> StoreResult<()> {
        let store = self.store.clone();
        loop {
            let mut draft = Draft::new(&*store);
            self.drop_targets(&mut draft, push)?;
            if draft.len() == 0 {
                return Ok(());
            }
            self.store_draft(draft)?;
        }
    }

    fn set_timer(&mut self, mut stored: StoredPush, at: u64) -> StoreResult<()> {
        let store = self.store.clone();
        let mut draft = Draft::new(&*store);
        draft.drop(PushKey::Timer(stored.due_at, stored.push));
        stored.due_at = at;
        draft.put(PushRow::Timer { at, push: stored.push });
        draft.put(PushRow::Push(stored));
        self.store_draft(draft)
    }

    /// A push goes no further: a scheduled one ends at once, a running one as its targets are ended.
    pub(super) fn cancel(&mut self, mut stored: StoredPush) -> StoreResult<()> {
        let store = self.store.clone();
        let mut draft = Draft::new(&*store);
        let now = self.now();
        draft.drop(PushKey::Timer(stored.due_at, stored.push));
        if stored.stage == Stage::Scheduled {
            draft.drop(PushKey::Mark(Mark::Scheduled, stored.push));
            (stored.closed, stored.ended_at, stored.due_at) = (true, Some(now), now + self.kept_ms());
        } else {
            stored.due_at = now;
        }
        let was_scheduled = stored.closed;
        stored.stage = Stage::Cancelled;
        let (at, push) = (stored.due_at, stored.push);
        draft.put(PushRow::Timer { at, push });
        draft.put(PushRow::Push(stored));
        self.store_draft(draft)?;
        self.frames.remove(&push);
        match was_scheduled {
            true => self.scheduled = self.scheduled.saturating_sub(1),
            false => drop(self.jobs.insert(push, Job::end())),
        }
        Ok(())
    }

    /// Ends and removes what is due, in at most so many writes.
    pub(super) fn work_on_jobs(&mut self, writes: usize) -> StoreResult<()> {
        for _ in 0..writes {
            let Some((push, job)) = self.jobs.first_key_value().map(|(push, job)| (*push, *job)) else { break };
            let next = match job {
                Job::End { next, waited } => self.end_some(push, next, waited)?,
                Job::Forget => self.forget_some(push)?,
            };
            match next {
                Some(job) => drop(self.jobs.insert(push, job)),
                None => drop(self.jobs.remove(&push)),
            }
        }
        Ok(())
    }

    fn end_some(&mut self, push: u64, next: u32, mut waited: bool) -> StoreResult<Option<Job>> {
        let Some(mut stored) = self.stored_push(push)? else { return Ok(None) };
        let store = self.store.clone();
        let mut draft = Draft::new(&*store);
        if stored.to_many {
            return self.end_to_many(stored);
        }
        let fate = if stored.stage == Stage::Cancelled { Fate::Cancelled } else { Fate::Expired };
        let (first, last) = (PushKey::Target(push, DeviceNo(next)), PushKey::Target(push, DeviceNo(u32::MAX)));
        let rows = self.store.push_rows(&first, &last, TARGETS_AT_ONCE)?;
        let more = (rows.len() == TARGETS_AT_ONCE).then_some(());
        let mut after = next;
        let mut ended = Vec::new();
        let waiting = rows.iter().filter_map(|row| match row {
            PushRow::Target(StoredTarget { device, fate: Fate::Waits, .. }) => Some(*device),
            _ => None,
        });
        draft.read_ahead(waiting.flat_map(|device| {
            let collapse = stored.collapse_key.clone().map(|key| PushKey::Collapse(device, key));
            collapse.into_iter().chain([PushKey::Target(push, device)])
        }))?;
        for row in rows {
            let PushRow::Target(target) = row else { continue };
            after = target.device.0 + 1;
            // Also what an earlier try has ended.
            waited |= target.fate == Fate::Expired;
            if target.fate != Fate::Waits {
                continue;
            }
            // A device that has it has it, even if that is not stored yet.
            let note = self.notes.get(&(target.device, push)).copied().unwrap_or_default();
            let end = note.or_else(fate);
            waited |= note.end.is_none();
            self.end_on(&mut draft, target.device, push, stored.collapse_key.as_deref(), end)?;
            ended.push((target.device, push));
        }
        if more.is_none() {
            self.close(&mut draft, &mut stored, waited);
        }
        self.store_draft(draft)?;
        for key in &ended {
            self.notes.remove(key);
        }
        if more.is_none() {
            self.frames.remove(&push);
        }
        Ok(more.map(|()| Job::End { next: after, waited }))
    }

    fn end_to_many(&mut self, mut stored: StoredPush) -> StoreResult<Option<Job>> {
        let push = stored.push;
        let store = self.store.clone();
        let mut draft = Draft::new(&*store);
        let mut waited = stored.stage == Stage::Cancelled;
        if let Some(audience) = self.audiences.get_mut(&push) {
            let rows = audience.take_dirty(push, PUSH_ROWS_PER_WRITE / 4);
            if !rows.is_empty() {
                let keys: Vec<_> = rows.iter().map(PushRow::key).collect();
                rows.into_iter().for_each(|row| draft.put(row));
                if let Err(error) = draft.write(self.term) {
                    self.chunks_not_stored(&keys);
                    return Err(error);
                }
                return Ok(Some(Job::end()));
            }
            waited |= !audience.is_done();
            let left = audience.sets.pending().len();
            let ended = if stored.stage == Stage::Cancelled {
                &self.metrics.push_cancelled
            } else {
                &self.metrics.push_expired
            };
            ended.inc_by(left);
        }
        draft.drop(PushKey::Mark(Mark::Live, push));
        self.close(&mut draft, &mut stored, waited);
        self.store_draft(draft)?;
        self.audiences.remove(&push);
        Ok(None)
    }

    pub(super) fn chunks_not_stored(&mut self, keys: &[PushKey]) {
        for key in keys {
            if let PushKey::Chunk(push, set, chunk) = key
                && let Some(audience) = self.audiences.get_mut(push)
            {
                audience.not_stored(*set, *chunk);
            }
        }
    }

    /// The last write of an end: from here on it is only asked about, until it is removed.
    fn close(&self, draft: &mut Draft<'_>, stored: &mut StoredPush, waited: bool) {
        let now = self.now();
        draft.drop(PushKey::Timer(stored.due_at, stored.push));
        if stored.stage != Stage::Cancelled {
            stored.stage = if waited { Stage::Expired } else { Stage::Completed };
        }
        (stored.closed, stored.ended_at, stored.due_at) = (true, Some(now), now + self.kept_ms());
        draft.put(PushRow::Timer { at: stored.due_at, push: stored.push });
        draft.put(PushRow::Push(stored.clone()));
    }

    fn forget_some(&mut self, push: u64) -> StoreResult<Option<Job>> {
        let store = self.store.clone();
        let mut draft = Draft::new(&*store);
        self.drop_targets(&mut draft, push)?;
        for row in self.store.push_rows(&PushKey::Part(push, 0), &PushKey::Part(push, u32::MAX), TARGETS_AT_ONCE)? {
            draft.drop(row.key());
        }
        if draft.len() > 0 {
            self.store_draft(draft)?;
            return Ok(Some(Job::Forget));
        }
        if let Some(stored) = self.stored_push(push)? {
            draft.drop(PushKey::Timer(stored.due_at, push));
            if let Some(name) = stored.client_push_id.map(PushKey::Name)
                && matches!(draft.get(&name)?, Some(PushRow::Name { push: named, .. }) if named == push)
            {
                draft.drop(name);
            }
        }
        for mark in [Mark::Preparing, Mark::Scheduled, Mark::Live] {
            draft.drop(PushKey::Mark(mark, push));
        }
        draft.drop(PushKey::Push(push));
        self.store_draft(draft)?;
        Ok(None)
    }

    /// Drops a piece of what makes a push its devices' own.
    fn drop_targets(&self, draft: &mut Draft<'_>, push: u64) -> StoreResult<()> {
        let targets = (PushKey::Target(push, DeviceNo(0)), PushKey::Target(push, DeviceNo(u32::MAX)));
        let chunks = (PushKey::Chunk(push, Set::Targets, 0), PushKey::Chunk(push, Set::Collapsed, u32::MAX));
        for (first, last) in [targets, chunks] {
            let rows = self.store.push_rows(&first, &last, TARGETS_AT_ONCE)?;
            draft.read_ahead(rows.iter().filter_map(|row| match row {
                PushRow::Target(StoredTarget { device, fate: Fate::Waits, .. }) => {
                    Some(PushKey::Pending(*device, push))
                }
                _ => None,
            }))?;
            for row in rows {
                if let PushRow::Target(StoredTarget { device, fate: Fate::Waits, .. }) = row
                    && draft.get(&PushKey::Pending(device, push))?.is_some()
                {
                    draft.drop_pending(device, push, None)?;
                }
                draft.drop(row.key());
            }
        }
        Ok(())
    }

    /// Takes a device out of everything: what waits for it by name is cancelled.
    pub(super) fn remove_device(&mut self, device: DeviceNo) -> StoreResult<()> {
        let store = self.store.clone();
        loop {
            let (first, last) = (PushKey::Pending(device, 0), PushKey::Pending(device, u64::MAX));
            let rows = self.store.push_rows(&first, &last, TARGETS_AT_ONCE)?;
            let mut draft = Draft::new(&*store);
            let all = rows.len() < TARGETS_AT_ONCE;
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
                let note = self.notes.get(&(device, pending.push)).copied().unwrap_or_default();
                let key = pending.collapse_key.as_deref();
                self.end_on(&mut draft, device, pending.push, key, note.or_else(Fate::Cancelled))?;
            }
            if all {
                draft.drop(PushKey::Bound(device));
                draft.drop(PushKey::Device(device));
            }
            self.store_draft(draft)?;
            for key in &ended {
                self.notes.remove(key);
            }
            if all {
                break;
            }
        }
        self.audiences.values_mut().for_each(|audience| audience.forget(device));
        self.devices.remove(device);
        self.numbers.removed(device, self.last_push);
        self.bound.remove(&device);
        self.handouts.remove(&device);
        Ok(())
    }
}

//! Memory is rebuilt from the store, in bounded pages: at the start of a term, and after a write whose outcome is unknown.

use super::{StoreState, Worker, jobs::Job};
use crate::{
    PushFrame,
    audience::{Audience, DeviceSets},
    devices::Devices,
};
use std::{collections::BTreeMap, mem, time::Instant};
use tidings_domain::{push_store::*, store::StoreResult};
use tidings_protocol::error::{ErrorCode, Refusal};

/// Rows in one read.
const ROWS_PER_PAGE: usize = 4_096;
/// After a restore numbers go on beyond all that may have been given out: a device takes a number that it
/// has seen for a push that it has. A million restores stay below 2^53, the last whole number of JSON readers.
const NUMBERS_OF_ONE_EPOCH: u64 = (1 << 32) - 1;

/// The state as it was read.
#[derive(Default)]
struct StoredState {
    devices: Devices,
    audiences: BTreeMap<u64, Audience>,
    last_push: u64,
    next_device: u32,
    scheduled: usize,
    /// Pushes that were not accepted: their rows are purged.
    preparing: Vec<u64>,
}

impl Worker {
    /// Reads the state at the start of a term.
    pub(super) fn recover(&mut self) -> StoreResult<()> {
        let stored = self.read_stored()?;
        self.advance_numbers(&stored);
        self.inbox.set_next_fallback(0);
        (self.devices, self.audiences, self.scheduled) = (stored.devices, stored.audiences, stored.scheduled);
        self.jobs = stored.preparing.into_iter().map(|push| (push, Job::Purge)).collect();
        Ok(())
    }

    /// Reads the state anew in the middle of a term, once the outcome of all writes is certain. Sessions and reports
    /// that are not stored yet stay. Pushes of which nobody knew whether they were stored are sent now.
    pub(super) fn reload(&mut self) -> StoreResult<()> {
        self.store.fence_writes(self.term)?;
        let stored = self.read_stored()?;
        self.advance_numbers(&stored);
        self.inbox.set_next_fallback(0);
        self.scheduled = stored.scheduled;
        // The timers show every other job that was under way.
        self.jobs = stored.preparing.into_iter().map(|push| (push, Job::Purge)).collect();
        // A push whose frame is cached may have been cancelled.
        self.frames.clear();
        self.merge_devices(stored.devices);
        self.merge_audiences(stored.audiences);
        // OutcomeUnknown => InSync: memory is what was read.
        self.store_state = StoreState::InSync;
        Ok(())
    }

    /// Numbers only grow: a number that may have been given out is not given out again.
    fn advance_numbers(&mut self, stored: &StoredState) {
        self.last_push = self.last_push.max(stored.last_push);
        let next = self.numbers.next.max(stored.next_device).max(stored.devices.next_no());
        self.numbers.restore(next, stored.devices.all(), self.last_push);
    }

    fn merge_devices(&mut self, devices: Devices) {
        let before = mem::replace(&mut self.devices, devices);
        for (destination, session) in self.devices.adopt_sessions(&before) {
            // The session's device was removed. The session is registered anew: by this worker, by its node, or as it
            // binds again.
            let refusal = Refusal::new(ErrorCode::StoreUnavailable, "the device was removed; connect again");
            match self.local_sessions.id(destination, session) {
                Some(id) => self.unregistered.push(id),
                None => self.outgoing.send_answer(destination, session, Err(refusal.retry_after(1_000))),
            }
        }
        for device in &self.last_bound_dirty {
            self.devices.set_bound(*device, before.bound_ms(*device));
        }
        for no in self.devices.online() {
            if self.devices.pending(DeviceNo(no)) > 0 {
                self.backlogs_due.insert(DeviceNo(no));
                self.backlogs.remove(&DeviceNo(no));
            }
        }
    }

    fn merge_audiences(&mut self, audiences: BTreeMap<u64, Audience>) {
        let before = mem::replace(&mut self.audiences, audiences);
        let mut new = Vec::new();
        for (push, audience) in &mut self.audiences {
            match before.get(push) {
                Some(known) => audience.merge_reports(known),
                None => new.push((*push, audience.start_order, audience.collapse_key.clone())),
            }
        }
        self.collapsing.retain(|push, _| self.audiences.contains_key(push));
        new.sort_unstable_by_key(|(_, start_order, _)| *start_order);
        for (push, start_order, collapse_key) in new {
            let Some(audience) = self.audiences.get(&push) else { continue };
            let receivers = audience.sets.pending() & self.devices.online();
            self.outgoing.send_many(&audience.frame, audience.high, receivers, &self.devices);
            if let Some(collapse_key) = collapse_key {
                let targets = audience.sets.of(AudienceSet::Targets).clone();
                self.collapse_audiences(&collapse_key, start_order, &targets);
                self.collapsing.insert(push, 0);
            }
        }
    }

    fn read_stored(&self) -> StoreResult<StoredState> {
        let began = Instant::now();
        let mut stored = StoredState::default();
        if let Some(PushRow::Counters { push, device, epoch }) = self.store.push_row(&PushKey::Counters)? {
            let same = epoch == self.store.epoch();
            stored.last_push = if same { push } else { (push | NUMBERS_OF_ONE_EPOCH) + 1 };
            stored.next_device = device;
        }
        let (mut pending, devices) = (0_u64, &mut stored.devices);
        self.each_row(PushKey::Device(DeviceNo(0)), PushKey::Device(DeviceNo(u32::MAX)), |row| {
            if let PushRow::Device(device) = row {
                devices.put(device);
            }
        })?;
        self.each_row(PushKey::LastBound(DeviceNo(0)), PushKey::LastBound(DeviceNo(u32::MAX)), |row| {
            if let PushRow::LastBound { device, at } = row {
                devices.set_bound(*device, *at);
            }
        })?;
        let first = PushKey::Pending(DeviceNo(0), 0);
        self.each_row(first, PushKey::Pending(DeviceNo(u32::MAX), u64::MAX), |row| {
            if let PushRow::Pending(row) = row {
                pending += 1;
                devices.change_pending(row.device, 1);
            }
        })?;
        stored.scheduled = self.indexed(RecoveryIndex::Scheduled)?.len();
        stored.preparing = self.indexed(RecoveryIndex::Preparing)?;
        for push in self.indexed(RecoveryIndex::Live)? {
            if let Some(audience) = self.stored_audience(push, &stored.devices)? {
                stored.audiences.insert(push, audience);
            }
        }
        let (devices, to_many, took) = (stored.devices.count(), stored.audiences.len(), began.elapsed());
        tracing::info!(devices, pending, to_many, scheduled = stored.scheduled, ?took, "push has read what is stored");
        Ok(stored)
    }

    fn stored_audience(&self, push: u64, devices: &Devices) -> StoreResult<Option<Audience>> {
        let Some(stored) = self.stored_push(push)?.filter(|stored| stored.stage == PushStage::Running) else {
            return Ok(None);
        };
        let (body, _) = self.read_parts(&stored)?;
        let sets = DeviceSets::read(&*self.store, push)?;
        let frame = PushFrame::encode(&stored, &body);
        let removed = sets.of(AudienceSet::Targets) - devices.all();
        let mut audience = Audience::new(frame, stored.high, stored.collapse_key, stored.start_order, sets);
        // The removal of these devices was stored before the audience's chunks were.
        removed.into_iter().for_each(|device| audience.remove_device(DeviceNo(device)));
        Ok(Some(audience))
    }

    /// The pushes of a recovery index.
    fn indexed(&self, index: RecoveryIndex) -> StoreResult<Vec<u64>> {
        let rows = self.store.push_rows(
            &PushKey::RecoveryIndex(index, 0),
            &PushKey::RecoveryIndex(index, u64::MAX),
            usize::MAX,
        )?;
        let push_of = |row| if let PushRow::RecoveryIndex { push, .. } = row { Some(push) } else { None };
        Ok(rows.into_iter().filter_map(push_of).collect())
    }

    fn each_row(&self, first: PushKey, last: PushKey, mut visit: impl FnMut(&PushRow)) -> StoreResult<()> {
        let mut from = first;
        let mut skip = 0;
        loop {
            let rows = self.store.push_rows(&from, &last, ROWS_PER_PAGE)?;
            rows.iter().skip(skip).for_each(&mut visit);
            match rows.last() {
                Some(row) if rows.len() == ROWS_PER_PAGE => from = row.key(),
                _ => return Ok(()),
            }
            // The last row of a page is the first of the next one.
            skip = 1;
        }
    }
}

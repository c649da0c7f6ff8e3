//! What was stored comes back into memory, in bounded pages: at the start, and after a write of which nobody knows whether it
//! was stored.

use super::{
    DeviceNo,
    audience::{Audience, Sets},
    devices::Devices,
    jobs::Job,
    rows::*,
    start::build_frame,
    worker::Worker,
};
use crate::store::StoreResult;
use std::{collections::BTreeMap, mem, time::Instant};
use tidings_protocol::error::{ErrorCode, Refusal};

/// Rows read at once.
const ROWS_AT_ONCE: usize = 4_096;
/// After a restore numbers go on beyond all that may have been given out: a device takes a number that it
/// has seen for a push that it has. A million restores stay below 2^53, the last whole number of JSON readers.
const NUMBERS_OF_ONE_EPOCH: u64 = (1 << 32) - 1;

/// What was read.
#[derive(Default)]
struct Stored {
    devices: Devices,
    audiences: BTreeMap<u64, Audience>,
    last_push: u64,
    next_device: u32,
    scheduled: usize,
    /// Not accepted: what is there of them goes.
    preparing: Vec<u64>,
}

impl Worker {
    pub(super) fn recover(&mut self) -> StoreResult<()> {
        let stored = self.read_stored()?;
        self.take_numbers(&stored);
        (self.devices, self.audiences, self.scheduled) = (stored.devices, stored.audiences, stored.scheduled);
        self.jobs = stored.preparing.into_iter().map(|push| (push, Job::forget())).collect();
        Ok(())
    }

    /// The same once more, in the middle: who is connected stays so, and reports that are not stored yet are kept. What was
    /// stored and not answered for is handed out.
    pub(super) fn recover_anew(&mut self) -> StoreResult<()> {
        self.store.settle(self.term)?;
        let stored = self.read_stored()?;
        self.take_numbers(&stored);
        self.scheduled = stored.scheduled;
        // What else was being done shows by its timers.
        self.jobs = stored.preparing.into_iter().map(|push| (push, Job::forget())).collect();
        // One may have been cancelled.
        self.frames.clear();
        self.take_devices(stored.devices);
        self.take_audiences(stored.audiences);
        self.is_unsure = false;
        Ok(())
    }

    /// Numbers only grow: one that may have been given is not given again.
    fn take_numbers(&mut self, stored: &Stored) {
        self.last_push = self.last_push.max(stored.last_push);
        let next = self.numbers.next.max(stored.next_device).max(stored.devices.next_no());
        self.numbers.read(next, stored.devices.all(), self.last_push);
    }

    fn take_devices(&mut self, devices: Devices) {
        let before = mem::replace(&mut self.devices, devices);
        for (place, session) in self.devices.take_sessions(&before) {
            // Its device was removed: it is registered anew, here, by its node or by binding again.
            let refusal = Refusal::new(ErrorCode::StoreUnavailable, "the device was removed; connect again");
            match self.held.name(place, session) {
                Some(name) => self.unregistered.push(name),
                None => self.outgoing.answer(place, session, Err(refusal.retry_after(1_000))),
            }
        }
        for device in &self.bound {
            self.devices.set_bound(*device, before.bound_ms(*device));
        }
        for no in self.devices.online() {
            if self.devices.pending(DeviceNo(no)) > 0 {
                self.due.insert(DeviceNo(no));
                self.handouts.remove(&DeviceNo(no));
            }
        }
    }

    fn take_audiences(&mut self, audiences: BTreeMap<u64, Audience>) {
        let before = mem::replace(&mut self.audiences, audiences);
        let mut new = Vec::new();
        for (push, audience) in &mut self.audiences {
            match before.get(push) {
                Some(known) => audience.take_reports(known),
                None => new.push((*push, audience.order, audience.collapse_key.clone())),
            }
        }
        self.collapsing.retain(|push, _| self.audiences.contains_key(push));
        // In the order in which they were started.
        new.sort_unstable_by_key(|(_, order, _)| *order);
        for (push, order, collapse_key) in new {
            let Some(audience) = self.audiences.get(&push) else { continue };
            let receivers = audience.sets.pending() & self.devices.online();
            self.outgoing.put_many(&audience.frame, audience.high, receivers, &self.devices);
            if let Some(collapse_key) = collapse_key {
                let targets = audience.sets.of(Set::Targets).clone();
                self.collapse_audiences(&collapse_key, order, &targets);
                self.collapsing.insert(push, 0);
            }
        }
    }

    fn read_stored(&self) -> StoreResult<Stored> {
        let began = Instant::now();
        let mut stored = Stored::default();
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
        self.each_row(PushKey::Bound(DeviceNo(0)), PushKey::Bound(DeviceNo(u32::MAX)), |row| {
            if let PushRow::Bound { device, at } = row {
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
        stored.scheduled = self.marked(Mark::Scheduled)?.len();
        stored.preparing = self.marked(Mark::Preparing)?;
        for push in self.marked(Mark::Live)? {
            if let Some(audience) = self.stored_audience(push, &stored.devices)? {
                stored.audiences.insert(push, audience);
            }
        }
        let (devices, to_many, took) = (stored.devices.count(), stored.audiences.len(), began.elapsed());
        tracing::info!(devices, pending, to_many, scheduled = stored.scheduled, ?took, "push has read what is stored");
        Ok(stored)
    }

    fn stored_audience(&self, push: u64, devices: &Devices) -> StoreResult<Option<Audience>> {
        let Some(stored) = self.stored_push(push)?.filter(|stored| stored.stage == Stage::Running) else {
            return Ok(None);
        };
        let (body, _) = self.parts_of(&stored)?;
        let sets = stored_sets(&*self.store, push)?;
        let frame = build_frame(&stored, &body);
        let removed = sets.of(Set::Targets) - devices.all();
        let mut audience = Audience::new(frame, stored.high, stored.collapse_key, stored.order, sets);
        // Their removal was stored, and what it takes from here was not.
        removed.into_iter().for_each(|device| audience.forget(DeviceNo(device)));
        Ok(Some(audience))
    }

    fn marked(&self, mark: Mark) -> StoreResult<Vec<u64>> {
        let rows = self.store.push_rows(&PushKey::Mark(mark, 0), &PushKey::Mark(mark, u64::MAX), usize::MAX)?;
        let push_of = |row| if let PushRow::Mark { push, .. } = row { Some(push) } else { None };
        Ok(rows.into_iter().filter_map(push_of).collect())
    }

    fn each_row(&self, first: PushKey, last: PushKey, mut visit: impl FnMut(&PushRow)) -> StoreResult<()> {
        let mut from = first;
        let mut skip = 0;
        loop {
            let rows = self.store.push_rows(&from, &last, ROWS_AT_ONCE)?;
            rows.iter().skip(skip).for_each(&mut visit);
            match rows.last() {
                Some(row) if rows.len() == ROWS_AT_ONCE => from = row.key(),
                _ => return Ok(()),
            }
            // The last of a page is the first of the next.
            skip = 1;
        }
    }
}

/// The sets of a push to many, as they are stored.
pub(super) fn stored_sets(store: &dyn crate::store::Store, push: u64) -> StoreResult<Sets> {
    let mut sets = Sets::default();
    for set in Set::ALL {
        let (first, last) = (PushKey::Chunk(push, set, 0), PushKey::Chunk(push, set, u32::MAX));
        for row in store.push_rows(&first, &last, usize::MAX)? {
            if let PushRow::Chunk { chunk, bytes, .. } = row {
                sets.put_chunk(set, chunk, &bytes);
            }
        }
    }
    Ok(sets)
}

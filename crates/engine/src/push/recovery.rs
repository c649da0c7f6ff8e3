//! The start: what was stored comes back into memory, in bounded pages.

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
use std::time::Instant;

/// Rows read at once.
const ROWS_AT_ONCE: usize = 4_096;
/// After a restore numbers go on beyond all that may have been given out: a device takes a number that it
/// has seen for a push that it has. A million restores stay below 2^53, the last whole number of JSON readers.
const NUMBERS_OF_ONE_EPOCH: u64 = (1 << 32) - 1;

impl Worker {
    pub(super) fn recover(&mut self) -> StoreResult<()> {
        let began = Instant::now();
        self.devices = Devices::default();
        self.audiences.clear();
        self.jobs.clear();
        self.collapsing.clear();
        if let Some(PushRow::Counters { push, device, epoch }) = self.store.push_row(&PushKey::Counters)? {
            let same = epoch == self.store.epoch();
            (self.last_push, self.next_device) = (if same { push } else { (push | NUMBERS_OF_ONE_EPOCH) + 1 }, device);
        }
        let mut pending = 0_u64;
        self.each_row(PushKey::Device(DeviceNo(0)), PushKey::Device(DeviceNo(u32::MAX)), |worker, row| {
            if let PushRow::Device(device) = row {
                worker.devices.put(device);
            }
        })?;
        self.each_row(PushKey::Bound(DeviceNo(0)), PushKey::Bound(DeviceNo(u32::MAX)), |worker, row| {
            if let PushRow::Bound { device, at } = row {
                worker.devices.set_bound(*device, *at);
            }
        })?;
        let first = PushKey::Pending(DeviceNo(0), 0);
        self.each_row(first, PushKey::Pending(DeviceNo(u32::MAX), u64::MAX), |worker, row| {
            if let PushRow::Pending(row) = row {
                pending += 1;
                worker.devices.change_pending(row.device, 1);
            }
        })?;
        self.scheduled = self.marked(Mark::Scheduled)?.len();
        for push in self.marked(Mark::Preparing)? {
            self.jobs.insert(push, Job::forget());
        }
        for push in self.marked(Mark::Live)? {
            self.recover_audience(push)?;
        }
        let (devices, to_many, took) = (self.devices.count(), self.audiences.len(), began.elapsed());
        tracing::info!(devices, pending, to_many, scheduled = self.scheduled, ?took, "push is ready");
        Ok(())
    }

    fn recover_audience(&mut self, push: u64) -> StoreResult<()> {
        let Some(stored) = self.stored_push(push)?.filter(|stored| stored.stage == Stage::Running) else {
            return Ok(());
        };
        let (body, _) = self.parts_of(&stored)?;
        let sets = stored_sets(&*self.store, push)?;
        let frame = build_frame(&stored, &body);
        self.audiences.insert(push, Audience::new(frame, stored.high, stored.collapse_key, stored.order, sets));
        Ok(())
    }

    fn marked(&self, mark: Mark) -> StoreResult<Vec<u64>> {
        let rows = self.store.push_rows(&PushKey::Mark(mark, 0), &PushKey::Mark(mark, u64::MAX), usize::MAX)?;
        let push_of = |row| if let PushRow::Mark { push, .. } = row { Some(push) } else { None };
        Ok(rows.into_iter().filter_map(push_of).collect())
    }

    fn each_row(
        &mut self,
        first: PushKey,
        last: PushKey,
        mut visit: impl FnMut(&mut Worker, &PushRow),
    ) -> StoreResult<()> {
        let mut from = first;
        let mut skip = 0;
        loop {
            let rows = self.store.push_rows(&from, &last, ROWS_AT_ONCE)?;
            rows.iter().skip(skip).for_each(|row| visit(self, row));
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

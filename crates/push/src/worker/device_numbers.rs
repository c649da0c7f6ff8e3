//! Devices' numbers. Sets of devices are bitmaps of them, so numbers must stay small and dense: the number of a removed
//! device is given to another one as soon as no stored row refers to it.
//!
//! A push refers to devices by number until it is purged. The numbers of pushes only grow, so a device's number is free
//! when every push up to the newest at its removal is purged.

use super::Worker;
use roaring::RoaringBitmap;
use std::collections::VecDeque;
use tidings_domain::{
    push_store::{DeviceNo, PushKey, PushRow},
    store::StoreResult,
};

/// Devices that can be known at once, together with those whose numbers are not free yet.
pub(super) const DEVICES_MAX: u32 = 100_000_000;
/// How often the oldest stored push is looked up. An older answer costs a fresh number, no more.
const OLDEST_PUSH_REFRESH_MS: u64 = 1_000;

#[derive(Default)]
pub(super) struct DeviceNumbers {
    /// Above all numbers that were ever given out.
    pub(super) next: u32,
    /// Numbers of removed devices in the order of removal, each with the newest push at that time.
    released: VecDeque<(u32, u64)>,
    /// Numbers that no device had when the store was read, and the newest push at that time.
    unused: RoaringBitmap,
    unused_after: u64,
    /// No stored push has a lower number, as of the last look.
    oldest_push: u64,
    oldest_push_read_at: Option<u64>,
}

impl DeviceNumbers {
    /// After the store was read: devices have the numbers in `used`, which are all below `next`.
    pub(super) fn restore(&mut self, next: u32, used: &RoaringBitmap, last_push: u64) {
        let mut unused = RoaringBitmap::new();
        unused.insert_range(0..next);
        unused -= used;
        *self = DeviceNumbers { next, unused, unused_after: last_push, ..DeviceNumbers::default() };
    }

    pub(super) fn release(&mut self, device: DeviceNo, last_push: u64) {
        self.released.push_back((device.0, last_push));
    }

    /// Takes back a number whose device could not be stored: nothing refers to it.
    pub(super) fn give_back(&mut self, device: DeviceNo) {
        self.released.push_front((device.0, 0));
    }

    /// Whether a number is, or will be, free to be given again.
    fn may_reuse(&self) -> bool {
        !self.released.is_empty() || !self.unused.is_empty()
    }

    fn allocate(&mut self) -> Option<DeviceNo> {
        if let Some((no, _)) = self.released.front().copied().filter(|(_, newest)| *newest < self.oldest_push) {
            self.released.pop_front();
            return Some(DeviceNo(no));
        }
        if let Some(no) = self.unused.min().filter(|_| self.unused_after < self.oldest_push) {
            self.unused.remove(no);
            return Some(DeviceNo(no));
        }
        let next = (self.next < DEVICES_MAX).then_some(DeviceNo(self.next))?;
        self.next += 1;
        Some(next)
    }
}

impl Worker {
    /// A number for a new device; `None`: there are too many devices.
    pub(super) fn allocate_number(&mut self) -> StoreResult<Option<DeviceNo>> {
        let now = self.now();
        let is_due = self.numbers.oldest_push_read_at.is_none_or(|at| now.abs_diff(at) >= OLDEST_PUSH_REFRESH_MS);
        if self.numbers.may_reuse() && is_due {
            self.numbers.oldest_push = self.oldest_push()?;
            self.numbers.oldest_push_read_at = Some(now);
        }
        Ok(self.numbers.allocate())
    }

    /// The lowest number of a push of which any row is stored.
    fn oldest_push(&self) -> StoreResult<u64> {
        let rows = self.store.push_rows(&PushKey::Push(0), &PushKey::Push(u64::MAX), 1)?;
        let stored = rows.iter().find_map(|row| match row {
            PushRow::Push(push) => Some(push.push),
            _ => None,
        });
        // A push that was never accepted has rows and no header until it is purged.
        let jobs = self.jobs.first_key_value().map(|(push, _)| *push);
        Ok(stored.into_iter().chain(jobs).min().unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_removed_devices_number_is_given_again_once_no_push_refers_to_it() {
        let mut numbers = DeviceNumbers::default();
        let allocate = |numbers: &mut DeviceNumbers, oldest_push| {
            numbers.oldest_push = oldest_push;
            numbers.allocate().unwrap().0
        };
        assert_eq!([allocate(&mut numbers, 0), allocate(&mut numbers, 0), allocate(&mut numbers, 0)], [0, 1, 2]);
        numbers.release(DeviceNo(1), 7);
        numbers.release(DeviceNo(0), 9);
        assert_eq!(allocate(&mut numbers, 7), 3, "push 7 is still stored");
        assert_eq!(allocate(&mut numbers, 8), 1);
        assert_eq!(allocate(&mut numbers, 9), 4);
        assert_eq!(allocate(&mut numbers, u64::MAX), 0, "no push is stored");
        assert_eq!(allocate(&mut numbers, u64::MAX), 5);
        numbers.give_back(DeviceNo(5));
        assert_eq!(allocate(&mut numbers, 1), 5);
    }

    #[test]
    fn unused_numbers_of_a_restart_are_given_again_once_no_push_refers_to_them() {
        let mut numbers = DeviceNumbers::default();
        numbers.restore(6, &[0, 2, 5].into_iter().collect(), 20);
        numbers.oldest_push = 20;
        assert_eq!(numbers.allocate(), Some(DeviceNo(6)));
        numbers.oldest_push = 21;
        let taken: Vec<u32> = (0..4).map(|_| numbers.allocate().unwrap().0).collect();
        assert_eq!(taken, [1, 3, 4, 7]);
        numbers.restore(DEVICES_MAX, &(0..DEVICES_MAX).collect(), 0);
        assert_eq!(numbers.allocate(), None);
    }
}

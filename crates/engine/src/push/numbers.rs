//! Devices' numbers. Sets of devices are bitmaps over them, so that they are small and stay dense: a number is given again
//! once its device is removed and nothing that is stored speaks of it any more.
//!
//! A push names devices by their numbers until it is forgotten. Numbers of pushes only grow, so a device's number is free
//! when every push up to the newest at its removal is gone.

use super::{DeviceNo, worker::Worker};
use crate::{
    push::rows::{PushKey, PushRow},
    store::StoreResult,
};
use roaring::RoaringBitmap;
use std::collections::VecDeque;

/// Devices that can be known at once, together with those whose numbers are not free yet.
pub(super) const DEVICES_MAX: u32 = 100_000_000;
/// How often it is asked which push is the oldest: that it is known late costs a number, no more.
const ASK_EVERY_MS: u64 = 1_000;

#[derive(Default)]
pub(super) struct Numbers {
    /// Above all numbers that were ever given.
    pub(super) next: u32,
    /// Those of devices that were removed, in that order, each with the newest push then.
    removed: VecDeque<(u32, u64)>,
    /// Those that nobody had when what is stored was read, and the newest push then.
    unused: RoaringBitmap,
    unused_after: u64,
    /// No stored push has a lower number, as far as was asked.
    oldest_push: u64,
    asked_at: Option<u64>,
}

impl Numbers {
    /// What is stored was read: `used` numbers, all below `next`, are devices'.
    pub(super) fn read(&mut self, next: u32, used: &RoaringBitmap, last_push: u64) {
        let mut unused = RoaringBitmap::new();
        unused.insert_range(0..next);
        unused -= used;
        *self = Numbers { next, unused, unused_after: last_push, ..Numbers::default() };
    }

    pub(super) fn removed(&mut self, device: DeviceNo, last_push: u64) {
        self.removed.push_back((device.0, last_push));
    }

    /// One that was taken and could not be written: nobody has it.
    pub(super) fn give_back(&mut self, device: DeviceNo) {
        self.removed.push_front((device.0, 0));
    }

    /// Whether there is one to wait for.
    fn may_reuse(&self) -> bool {
        !self.removed.is_empty() || !self.unused.is_empty()
    }

    fn take(&mut self) -> Option<DeviceNo> {
        if let Some((no, _)) = self.removed.front().copied().filter(|(_, newest)| *newest < self.oldest_push) {
            self.removed.pop_front();
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
    /// A number for a new device; `None`: there are too many.
    pub(super) fn take_number(&mut self) -> StoreResult<Option<DeviceNo>> {
        let now = self.now();
        let is_due = self.numbers.asked_at.is_none_or(|at| now.abs_diff(at) >= ASK_EVERY_MS);
        if self.numbers.may_reuse() && is_due {
            self.numbers.oldest_push = self.oldest_push()?;
            self.numbers.asked_at = Some(now);
        }
        Ok(self.numbers.take())
    }

    /// The lowest number of a push of which anything is stored.
    fn oldest_push(&self) -> StoreResult<u64> {
        let rows = self.store.push_rows(&PushKey::Push(0), &PushKey::Push(u64::MAX), 1)?;
        let stored = rows.iter().find_map(|row| match row {
            PushRow::Push(push) => Some(push.push),
            _ => None,
        });
        // One that was never accepted has rows and no header until it is forgotten.
        let jobs = self.jobs.first_key_value().map(|(push, _)| *push);
        Ok(stored.into_iter().chain(jobs).min().unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_number_is_given_again_when_no_push_can_speak_of_it() {
        let mut numbers = Numbers::default();
        let take = |numbers: &mut Numbers, oldest_push| {
            numbers.oldest_push = oldest_push;
            numbers.take().unwrap().0
        };
        assert_eq!([take(&mut numbers, 0), take(&mut numbers, 0), take(&mut numbers, 0)], [0, 1, 2]);
        numbers.removed(DeviceNo(1), 7);
        numbers.removed(DeviceNo(0), 9);
        assert_eq!(take(&mut numbers, 7), 3, "push 7 is stored yet");
        assert_eq!(take(&mut numbers, 8), 1);
        assert_eq!(take(&mut numbers, 9), 4);
        assert_eq!(take(&mut numbers, u64::MAX), 0, "no push is stored");
        assert_eq!(take(&mut numbers, u64::MAX), 5);
        numbers.give_back(DeviceNo(5));
        assert_eq!(take(&mut numbers, 1), 5);
    }

    #[test]
    fn numbers_that_were_free_at_the_start_are_given_again_too() {
        let mut numbers = Numbers::default();
        numbers.read(6, &[0, 2, 5].into_iter().collect(), 20);
        numbers.oldest_push = 20;
        assert_eq!(numbers.take(), Some(DeviceNo(6)));
        numbers.oldest_push = 21;
        let taken: Vec<u32> = (0..4).map(|_| numbers.take().unwrap().0).collect();
        assert_eq!(taken, [1, 3, 4, 7]);
        numbers.read(DEVICES_MAX, &(0..DEVICES_MAX).collect(), 0);
        assert_eq!(numbers.take(), None);
    }
}

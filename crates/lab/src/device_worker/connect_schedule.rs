//! The schedule by which devices connect: an open loop at a rate that may change, or a closed one with as many concurrent connects
//! as allowed.

use crate::rate_profile::PlannedTimes;
use std::collections::VecDeque;

/// When the next device is due.
#[derive(Debug, Default)]
enum Pace {
    /// Whenever another may connect (closed loop).
    #[default]
    AsAllowed,
    /// One so many nanoseconds after the other (open loop).
    Every(f64),
    /// Of the times of a profile this part: the first of it, and every so-manieth after that (open loop).
    Planned { times: PlannedTimes, first: u64, of: u64 },
}

/// The devices that have still to connect, with the time at which each is due.
#[derive(Debug, Default)]
pub(crate) struct ConnectSchedule {
    start_ns: u64,
    pace: Pace,
    started: u64,
    planned: VecDeque<u32>,
    /// Devices whose backoff is over.
    ready: VecDeque<u32>,
}

/// A device that must connect now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DueConnect {
    pub(crate) device: u32,
    /// The planned time; `None` for a retry, which keeps the time of the first attempt.
    pub(crate) planned_ns: Option<u64>,
}

impl ConnectSchedule {
    /// Evenly spaced from `now_ns` on, or a closed loop without a rate.
    pub(crate) fn at_rate(now_ns: u64, per_second: Option<f64>, devices: Vec<u32>) -> Self {
        let pace = per_second.map_or(Pace::AsAllowed, |rate| Pace::Every(1e9 / rate));
        ConnectSchedule { start_ns: now_ns, pace, planned: devices.into(), ..ConnectSchedule::default() }
    }

    /// All at the same time.
    pub(crate) fn at_once(at_ns: u64, devices: Vec<u32>) -> Self {
        ConnectSchedule {
            start_ns: at_ns,
            pace: Pace::Every(0.0),
            planned: devices.into(),
            ..ConnectSchedule::default()
        }
    }

    /// By a profile, of which worker `number` of `of` has every so-manieth time. Any device that is free takes the next one.
    pub(crate) fn planned(at_ns: u64, times: PlannedTimes, (number, of): (usize, usize), devices: Vec<u32>) -> Self {
        let pace = Pace::Planned { times, first: number as u64, of: of.max(1) as u64 };
        ConnectSchedule { start_ns: at_ns, pace, planned: devices.into(), ..ConnectSchedule::default() }
    }

    /// The device may take another time.
    pub(crate) fn free(&mut self, device: u32) {
        self.planned.push_back(device);
    }

    pub(crate) fn requeue(&mut self, device: u32) {
        self.ready.push_back(device);
    }

    /// `None`: all times are taken.
    fn next_ns(&self) -> Option<u64> {
        Some(match &self.pace {
            Pace::AsAllowed => self.start_ns,
            Pace::Every(every) => self.start_ns + (every * self.started as f64) as u64,
            Pace::Planned { times, first, of } => self.start_ns + times.due(first + of * self.started)?,
        })
    }

    /// Whether one is due for whom no device is free.
    pub(crate) fn lacks_device(&self, now_ns: u64) -> bool {
        matches!(self.pace, Pace::Planned { .. })
            && self.planned.is_empty()
            && self.next_ns().is_some_and(|at| at <= now_ns)
    }

    /// Whether every time was taken.
    pub(crate) fn is_over(&self) -> bool {
        self.ready.is_empty() && self.next_ns().is_none()
    }

    pub(crate) fn take_due(&mut self, now_ns: u64) -> Option<DueConnect> {
        if let Some(device) = self.ready.pop_front() {
            return Some(DueConnect { device, planned_ns: None });
        }
        let at = self.next_ns().filter(|at| *at <= now_ns)?;
        let device = self.planned.pop_front()?;
        self.started += 1;
        let planned_ns = if matches!(self.pace, Pace::AsAllowed) { now_ns } else { at };
        Some(DueConnect { device, planned_ns: Some(planned_ns) })
    }

    /// The time until the next device is due; `None`: no device has to connect.
    pub(crate) fn wait_ns(&self, now_ns: u64) -> Option<u64> {
        if !self.ready.is_empty() {
            return Some(0);
        }
        self.next_ns().filter(|_| !self.planned.is_empty()).map(|at| at.saturating_sub(now_ns))
    }

    /// Whether devices are due one after the other at a rate.
    pub(crate) fn is_open_loop(&self) -> bool {
        match self.pace {
            Pace::AsAllowed => false,
            Pace::Every(every) => every > 0.0,
            Pace::Planned { .. } => true,
        }
    }

    pub(crate) fn start_ns(&self) -> u64 {
        self.start_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate_profile::RateProfile;

    #[test]
    fn an_open_loop_keeps_planned_times_however_late_devices_are_taken() {
        let mut schedule = ConnectSchedule::at_rate(1_000, Some(1e6), vec![4, 5]);
        assert_eq!(schedule.take_due(999), None);
        assert_eq!(schedule.wait_ns(999), Some(1));
        assert_eq!(schedule.take_due(9_000), Some(DueConnect { device: 4, planned_ns: Some(1_000) }));
        assert_eq!(schedule.take_due(9_000), Some(DueConnect { device: 5, planned_ns: Some(2_000) }));
        assert_eq!((schedule.take_due(9_000), schedule.wait_ns(9_000)), (None, None));
        schedule.requeue(4);
        assert_eq!(schedule.take_due(9_000), Some(DueConnect { device: 4, planned_ns: None }));
    }

    #[test]
    fn workers_share_the_times_of_a_profile_and_free_devices_take_them() {
        let times = || PlannedTimes::of(&RateProfile::constant(1e3, 0.005));
        let mut schedule = ConnectSchedule::planned(0, times(), (1, 2), vec![7]);
        const MS: u64 = 1_000_000;
        assert_eq!(schedule.take_due(MS), Some(DueConnect { device: 7, planned_ns: Some(MS) }));
        assert_eq!((schedule.lacks_device(2 * MS), schedule.lacks_device(3 * MS)), (false, true));
        schedule.free(7);
        assert_eq!(schedule.take_due(4 * MS), Some(DueConnect { device: 7, planned_ns: Some(3 * MS) }));
        assert!(schedule.is_over(), "the other worker has the times 0, 2 and 4");
    }
}

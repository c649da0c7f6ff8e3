//! The schedule by which devices connect: an open loop, or a closed one with as many concurrent connects as allowed.

use std::collections::VecDeque;

/// The devices that have still to connect, with the time at which each is due.
#[derive(Debug, Default)]
pub(crate) struct ConnectSchedule {
    start_ns: u64,
    /// The interval between two devices (open loop); `None`: a device is due whenever another may connect (closed loop).
    every_ns: Option<f64>,
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
        let every_ns = per_second.map(|rate| 1e9 / rate);
        ConnectSchedule { start_ns: now_ns, every_ns, planned: devices.into(), ..ConnectSchedule::default() }
    }

    /// All at the same time.
    pub(crate) fn at_once(at_ns: u64, devices: Vec<u32>) -> Self {
        ConnectSchedule { start_ns: at_ns, every_ns: Some(0.0), planned: devices.into(), ..ConnectSchedule::default() }
    }

    pub(crate) fn requeue(&mut self, device: u32) {
        self.ready.push_back(device);
    }

    fn next_ns(&self) -> u64 {
        self.start_ns + (self.every_ns.unwrap_or(0.0) * self.started as f64) as u64
    }

    pub(crate) fn take_due(&mut self, now_ns: u64) -> Option<DueConnect> {
        if let Some(device) = self.ready.pop_front() {
            return Some(DueConnect { device, planned_ns: None });
        }
        let at = self.next_ns();
        if at > now_ns {
            return None;
        }
        let device = self.planned.pop_front()?;
        self.started += 1;
        let planned_ns = if self.every_ns.is_some() { at } else { now_ns };
        Some(DueConnect { device, planned_ns: Some(planned_ns) })
    }

    /// The time until the next device is due; `None`: no device has to connect.
    pub(crate) fn wait_ns(&self, now_ns: u64) -> Option<u64> {
        if !self.ready.is_empty() {
            return Some(0);
        }
        (!self.planned.is_empty()).then(|| self.next_ns().saturating_sub(now_ns))
    }

    /// Whether devices are due one after the other at a rate.
    pub(crate) fn is_open_loop(&self) -> bool {
        self.every_ns.is_some_and(|every| every > 0.0)
    }

    pub(crate) fn start_ns(&self) -> u64 {
        self.start_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}

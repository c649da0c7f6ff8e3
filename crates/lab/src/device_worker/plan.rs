//! When devices are due to connect: an open-loop schedule, or as many as may be under way.

use std::collections::VecDeque;

/// The devices that are still to be begun, with the time that each is due.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    start_ns: u64,
    /// Between two devices; `None`: due when there is room, which is a closed loop.
    every_ns: Option<f64>,
    begun: u64,
    planned: VecDeque<u32>,
    /// Whose time has come again.
    ready: VecDeque<u32>,
}

/// A device to begin now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) device: u32,
    /// When it was planned; `None`: it has been begun before and keeps the time of its first plan.
    pub(crate) planned_ns: Option<u64>,
}

impl Plan {
    /// Evenly spaced from `now_ns` on, or as fast as it goes.
    pub(crate) fn paced(now_ns: u64, per_second: Option<f64>, devices: Vec<u32>) -> Self {
        let every_ns = per_second.map(|rate| 1e9 / rate);
        Plan { start_ns: now_ns, every_ns, planned: devices.into(), ..Plan::default() }
    }

    /// All at one moment.
    pub(crate) fn at_once(at_ns: u64, devices: Vec<u32>) -> Self {
        Plan { start_ns: at_ns, every_ns: Some(0.0), planned: devices.into(), ..Plan::default() }
    }

    pub(crate) fn again(&mut self, device: u32) {
        self.ready.push_back(device);
    }

    fn next_ns(&self) -> u64 {
        self.start_ns + (self.every_ns.unwrap_or(0.0) * self.begun as f64) as u64
    }

    pub(crate) fn take(&mut self, now_ns: u64) -> Option<Due> {
        if let Some(device) = self.ready.pop_front() {
            return Some(Due { device, planned_ns: None });
        }
        let at = self.next_ns();
        if at > now_ns {
            return None;
        }
        let device = self.planned.pop_front()?;
        self.begun += 1;
        let planned_ns = if self.every_ns.is_some() { at } else { now_ns };
        Some(Due { device, planned_ns: Some(planned_ns) })
    }

    /// How long until the next is due; `None`: nothing is planned.
    pub(crate) fn wait_ns(&self, now_ns: u64) -> Option<u64> {
        if !self.ready.is_empty() {
            return Some(0);
        }
        (!self.planned.is_empty()).then(|| self.next_ns().saturating_sub(now_ns))
    }

    /// Whether each device has a moment of its own.
    pub(crate) fn is_paced(&self) -> bool {
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
    fn a_paced_plan_keeps_its_times_however_late_it_is_asked() {
        let mut plan = Plan::paced(1_000, Some(1e6), vec![4, 5]);
        assert_eq!(plan.take(999), None);
        assert_eq!(plan.wait_ns(999), Some(1));
        assert_eq!(plan.take(9_000), Some(Due { device: 4, planned_ns: Some(1_000) }));
        assert_eq!(plan.take(9_000), Some(Due { device: 5, planned_ns: Some(2_000) }));
        assert_eq!((plan.take(9_000), plan.wait_ns(9_000)), (None, None));
        plan.again(4);
        assert_eq!(plan.take(9_000), Some(Due { device: 4, planned_ns: None }));
    }
}

//! Injects and reverts the faults of a step, each at its time.

use super::{
    fault_kind::FaultKind,
    fault_plan::{ChaosStep, Fault},
};
use crate::{LabError, topology::Topology};
use std::time::{Duration, Instant};

/// How long slow disks stall each time.
const STALL_DURATION: Duration = Duration::from_millis(400);
/// How long slow disks run between two stalls.
const RUN_DURATION: Duration = Duration::from_millis(200);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The times of a step's faults.
#[derive(Debug, Clone, Copy)]
pub(super) struct FaultTimes {
    /// When the first fault was injected.
    pub(super) injected: Instant,
    /// When the reversal of the last fault began.
    pub(super) revert_began: Instant,
    /// When all faults were reverted, and every node was ready.
    pub(super) reverted: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Action {
    Inject(Fault),
    Revert(Fault),
}

/// The actions of a step, with the time of each after the step's beginning.
fn schedule(step: &ChaosStep, hold: Duration, restart: Duration) -> Vec<(Duration, Action)> {
    let first = step.faults.first().map_or(Duration::ZERO, |fault| fault.kind.duration(hold, restart));
    let mut events = Vec::new();
    for fault in &step.faults {
        let starts_at = first.mul_f64(fault.starts_at);
        events.push((starts_at, Action::Inject(*fault)));
        events.push((starts_at + fault.kind.duration(hold, restart), Action::Revert(*fault)));
    }
    // The sort is stable: a fault of no duration is injected before it is reverted.
    events.sort_by_key(|(at, _)| *at);
    events
}

/// Injects and reverts the faults of a step, and returns when every node is ready again.
pub(super) fn inject(
    step: &ChaosStep,
    topology: &mut Topology,
    hold: Duration,
    restart: Duration,
) -> Result<FaultTimes, LabError> {
    let injected = Instant::now();
    let mut revert_began = injected;
    let mut stalls = DiskStalls::default();
    for (at, action) in schedule(step, hold, restart) {
        while injected.elapsed() < at {
            stalls.advance(topology);
            std::thread::sleep(POLL_INTERVAL.min(at.saturating_sub(injected.elapsed())));
        }
        // The next action may take long, and the disks must not be stopped for all of that time.
        stalls.resume(topology);
        match action {
            Action::Inject(fault) => {
                fault.kind.inject(fault.choice, topology)?;
                stalls.is_slow |= fault.kind == FaultKind::DiskSlow;
            }
            Action::Revert(fault) => {
                revert_began = Instant::now();
                stalls.is_slow &= fault.kind != FaultKind::DiskSlow;
                fault.kind.revert(fault.choice, topology)?;
            }
        }
    }
    for fault in step.faults.iter().filter(|fault| fault.kind.targets_node()) {
        topology.wait_for_node(fault.choice % topology.nodes.len())?;
    }
    Ok(FaultTimes { injected, revert_began, reverted: Instant::now() })
}

/// Stalls of the disks under PostgreSQL.
#[derive(Debug, Default)]
pub(crate) struct DiskStalls {
    pub(crate) is_slow: bool,
    is_stopped: bool,
    since: Option<Instant>,
}

impl DiskStalls {
    pub(crate) fn advance(&mut self, topology: &Topology) {
        let lasts = if self.is_stopped { STALL_DURATION } else { RUN_DURATION };
        if self.is_slow && self.since.is_none_or(|since| since.elapsed() >= lasts) {
            self.is_stopped = !self.is_stopped;
            self.since = Some(Instant::now());
            topology.freeze_disks(self.is_stopped);
        }
    }

    pub(crate) fn resume(&mut self, topology: &Topology) {
        if std::mem::take(&mut self.is_stopped) {
            topology.freeze_disks(false);
        }
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(kind: FaultKind, starts_at: f64) -> Fault {
        Fault { kind, choice: 0, starts_at }
    }

    #[test]
    fn the_second_fault_starts_while_the_first_lasts() {
        let step = ChaosStep { faults: vec![fault(FaultKind::RedisEmptied, 0.0), fault(FaultKind::NodeKilled, 0.5)] };
        let [redis, node] = step.faults[..] else { return };
        let seconds = Duration::from_secs;
        assert_eq!(
            schedule(&step, seconds(30), seconds(5)),
            [
                (seconds(0), Action::Inject(redis)),
                (seconds(15), Action::Inject(node)),
                (seconds(20), Action::Revert(node)),
                (seconds(30), Action::Revert(redis)),
            ]
        );
    }

    #[test]
    fn a_fault_of_no_duration_is_injected_before_it_is_reverted() {
        let step = ChaosStep { faults: vec![fault(FaultKind::DatabaseCrashed, 0.0)] };
        let events = schedule(&step, Duration::from_secs(30), Duration::from_secs(5));
        assert_eq!(
            events,
            [(Duration::ZERO, Action::Inject(step.faults[0])), (Duration::ZERO, Action::Revert(step.faults[0]))]
        );
    }
}

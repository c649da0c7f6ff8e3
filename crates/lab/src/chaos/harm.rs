//! Does what a step says, each thing in its time.

use super::{
    kind::Kind,
    plan::{Act, Step},
};
use crate::{LabError, topology::Topology};
use std::time::{Duration, Instant};

/// How long the disks stall, and how long they do not.
const STALL: Duration = Duration::from_millis(400);
const FLOW: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_millis(20);

/// When a step's harm was there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) harmed: Instant,
    /// When the last thing began to be undone.
    pub(super) mended: Instant,
    /// When all was undone, and every node said that it is ready.
    pub(super) undone: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    Begin(Act),
    Undo(Act),
}

/// What is done when, counted from the step's beginning.
fn timeline(step: &Step, hold: Duration, restart: Duration) -> Vec<(Duration, What)> {
    let first = step.acts.first().map_or(Duration::ZERO, |act| act.kind.lasts(hold, restart));
    let mut events = Vec::new();
    for act in &step.acts {
        let begins = first.mul_f64(act.begins);
        events.push((begins, What::Begin(*act)));
        events.push((begins + act.kind.lasts(hold, restart), What::Undo(*act)));
    }
    // Stable: what begins and ends at once begins first.
    events.sort_by_key(|(at, _)| *at);
    events
}

/// Harms, waits, and undoes, until every node is ready again.
pub(super) fn carry_out(
    step: &Step,
    topology: &mut Topology,
    hold: Duration,
    restart: Duration,
) -> Result<Times, LabError> {
    let harmed = Instant::now();
    let mut mended = harmed;
    let mut disk = Disk::default();
    for (at, what) in timeline(step, hold, restart) {
        while harmed.elapsed() < at {
            disk.turn(topology);
            std::thread::sleep(LOOK.min(at.saturating_sub(harmed.elapsed())));
        }
        // Whatever comes next takes its time, and is not meant to find the disks stopped for all of it.
        disk.flow(topology);
        match what {
            What::Begin(act) => {
                act.kind.begin(act.choice, topology)?;
                disk.is_slow |= act.kind == Kind::DiskSlow;
            }
            What::Undo(act) => {
                mended = Instant::now();
                disk.is_slow &= act.kind != Kind::DiskSlow;
                act.kind.undo(act.choice, topology)?;
            }
        }
    }
    for act in step.acts.iter().filter(|act| act.kind.is_of_a_node()) {
        topology.wait_for_node(act.choice % topology.nodes.len())?;
    }
    Ok(Times { harmed, mended, undone: Instant::now() })
}

/// The disks under PostgreSQL.
#[derive(Debug, Default)]
struct Disk {
    is_slow: bool,
    is_stopped: bool,
    since: Option<Instant>,
}

impl Disk {
    fn turn(&mut self, topology: &Topology) {
        let lasts = if self.is_stopped { STALL } else { FLOW };
        if self.is_slow && self.since.is_none_or(|since| since.elapsed() >= lasts) {
            self.is_stopped = !self.is_stopped;
            self.since = Some(Instant::now());
            topology.freeze_disks(self.is_stopped);
        }
    }

    fn flow(&mut self, topology: &Topology) {
        if std::mem::take(&mut self.is_stopped) {
            topology.freeze_disks(false);
        }
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn act(kind: Kind, begins: f64) -> Act {
        Act { kind, choice: 0, begins }
    }

    #[test]
    fn the_second_begins_while_the_first_is_there() {
        let step = Step { acts: vec![act(Kind::RedisEmptied, 0.0), act(Kind::NodeKilled, 0.5)] };
        let [redis, node] = step.acts[..] else { return };
        let seconds = Duration::from_secs;
        assert_eq!(
            timeline(&step, seconds(30), seconds(5)),
            [
                (seconds(0), What::Begin(redis)),
                (seconds(15), What::Begin(node)),
                (seconds(20), What::Undo(node)),
                (seconds(30), What::Undo(redis)),
            ]
        );
    }

    #[test]
    fn what_lasts_for_no_time_begins_before_it_ends() {
        let step = Step { acts: vec![act(Kind::DatabaseCrashed, 0.0)] };
        let events = timeline(&step, Duration::from_secs(30), Duration::from_secs(5));
        assert_eq!(events, [(Duration::ZERO, What::Begin(step.acts[0])), (Duration::ZERO, What::Undo(step.acts[0]))]);
    }
}

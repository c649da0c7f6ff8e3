//! When the messages of a load are due, by its model. Times are nanoseconds after the start of the phase.

use crate::{rate_profile::PlannedTimes, worker_protocol::LoadModel};

#[derive(Debug)]
pub(crate) enum Schedule {
    /// Open loop: the times of a rate.
    Planned(PlannedTimes),
    /// Open loop: the times of a recording.
    Recorded(Vec<u64>),
    /// A message is due whenever fewer than `window` are under way, until a time or a count.
    ClosedLoop { window: u64, until: u64, total: u64 },
    /// One message at a time. So many rounds have ended; the next one may begin at `next_at`.
    Rounds { rounds: u64, pause_ns: u64, ended: u64, next_at: u64 },
}

/// A turn of the loop that sends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlanningTurn {
    pub(crate) now: u64,
    /// Nothing was planned before it, and there is who can send: a closed loop has one window at least, also where its time is over
    /// before the first turn.
    pub(crate) is_first: bool,
}

/// When the next message is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextMessage {
    Due(u64),
    NotYet,
    /// All are planned.
    Never,
}

const MS: u64 = 1_000_000;

impl Schedule {
    /// `recorded`: the times of the content, of a chat.
    pub(crate) fn of(model: &LoadModel, recorded: &[u64]) -> Self {
        match model {
            LoadModel::OpenLoop { profile } => Schedule::Planned(PlannedTimes::of(profile)),
            LoadModel::ClosedLoop { window, duration_ms } => {
                Schedule::ClosedLoop { window: (*window).max(1) as u64, until: duration_ms * MS, total: u64::MAX }
            }
            LoadModel::ClosedLoopOnce { window } => {
                Schedule::ClosedLoop { window: (*window).max(1) as u64, until: u64::MAX, total: recorded.len() as u64 }
            }
            LoadModel::Recorded { speed } => {
                Schedule::Recorded(recorded.iter().map(|at| (*at as f64 / speed) as u64).collect())
            }
            LoadModel::Rounds { rounds, pause_ms } => {
                Schedule::Rounds { rounds: *rounds as u64, pause_ns: pause_ms * MS, ended: 0, next_at: 0 }
            }
        }
    }

    /// Whether message `number` is due, as all before it were. `has_room`: whether a closed loop with this window may send one more.
    /// Latency counts from when a message was due, so that none is due before a sender can send it.
    pub(crate) fn next(&self, number: u64, turn: PlanningTurn, has_room: impl FnOnce(u64) -> bool) -> NextMessage {
        let PlanningTurn { now, is_first } = turn;
        match self {
            Schedule::ClosedLoop { until, total, .. } if now >= *until && !is_first || number >= *total => {
                NextMessage::Never
            }
            Schedule::ClosedLoop { window, .. } if has_room(*window) => NextMessage::Due(now),
            Schedule::ClosedLoop { .. } => NextMessage::NotYet,
            Schedule::Rounds { rounds, .. } if number >= *rounds => NextMessage::Never,
            Schedule::Rounds { .. } => match self.next_at(number) {
                Some(at) if at <= now => NextMessage::Due(now),
                _ => NextMessage::NotYet,
            },
            Schedule::Planned(_) | Schedule::Recorded(_) => match self.next_at(number) {
                None => NextMessage::Never,
                Some(due) if due <= now => NextMessage::Due(due),
                Some(_) => NextMessage::NotYet,
            },
        }
    }

    /// When message `number` is due, as far as that depends on time alone.
    pub(crate) fn next_at(&self, number: u64) -> Option<u64> {
        match self {
            Schedule::Planned(times) => times.due(number),
            Schedule::Recorded(times) => times.get(number as usize).copied(),
            Schedule::ClosedLoop { .. } => None,
            Schedule::Rounds { rounds, ended, next_at, .. } => {
                (number == *ended && number < *rounds).then_some(*next_at)
            }
        }
    }

    /// Whether the message of a round is under way, when so many were planned.
    pub(crate) fn is_round_under_way(&self, planned: u64) -> bool {
        matches!(self, Schedule::Rounds { ended, .. } if planned > *ended)
    }

    /// The messages of all rounds so far have arrived, or are given up: the next one is due after the pause.
    pub(crate) fn end_round(&mut self, planned: u64, now: u64) {
        if let Schedule::Rounds { pause_ns, ended, next_at, .. } = self {
            (*ended, *next_at) = (planned, now + *pause_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(schedule: &Schedule, number: u64, now: u64) -> NextMessage {
        schedule.next(number, PlanningTurn { now, is_first: false }, |_| false)
    }

    #[test]
    fn a_closed_loop_is_due_while_there_is_room_until_its_time_or_its_count() {
        let schedule = Schedule::of(&LoadModel::ClosedLoop { window: 7, duration_ms: 1 }, &[]);
        let first = |now| schedule.next(0, PlanningTurn { now, is_first: true }, |window| window == 7);
        assert_eq!((first(5), first(2 * MS)), (NextMessage::Due(5), NextMessage::Due(2 * MS)), "one window at least");
        assert_eq!((due(&schedule, 1, 5), due(&schedule, 1, MS)), (NextMessage::NotYet, NextMessage::Never));
        let schedule = Schedule::of(&LoadModel::ClosedLoopOnce { window: 7 }, &[0, 1]);
        assert_eq!(schedule.next(2, PlanningTurn { now: 5, is_first: false }, |_| true), NextMessage::Never);
    }

    #[test]
    fn a_round_begins_after_the_pause_behind_the_one_before() {
        let mut schedule = Schedule::of(&LoadModel::Rounds { rounds: 2, pause_ms: 1 }, &[]);
        assert_eq!(due(&schedule, 0, 5), NextMessage::Due(5));
        assert_eq!((due(&schedule, 1, 9), schedule.next_at(1)), (NextMessage::NotYet, None));
        assert!(schedule.is_round_under_way(1));
        schedule.end_round(1, 10);
        assert_eq!((due(&schedule, 1, MS), schedule.next_at(1)), (NextMessage::NotYet, Some(MS + 10)));
        assert_eq!(due(&schedule, 1, MS + 10), NextMessage::Due(MS + 10));
        assert_eq!(due(&schedule, 2, MS + 10), NextMessage::Never);
    }
}

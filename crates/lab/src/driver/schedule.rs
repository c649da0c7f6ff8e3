//! When messages are due.

use crate::{
    LabError,
    delivery_ledger::Ledger,
    rate_profile::{PlannedTimes, RateProfile},
    worker_protocol::LoadModel,
};
use std::{collections::VecDeque, time::Duration};

/// Times are nanoseconds after the start of the phase.
#[derive(Debug)]
pub(super) enum Schedule {
    /// Open loop.
    Planned { times: PlannedTimes, next: u64 },
    /// As many as the server takes, with at most `window` messages between publisher and last receiver; one window at least,
    /// also where the time is over before the first turn.
    ClosedLoop { window: usize, until: u64, has_begun: bool },
    /// One at a time.
    Rounds(Rounds),
}

#[derive(Debug)]
pub(super) struct Rounds {
    left: usize,
    pause_ns: u64,
    next_at: u64,
    is_under_way: bool,
    /// Messages of rounds that were given up, which are still missing.
    given_up: usize,
}

const MS: u64 = 1_000_000;

impl Schedule {
    pub(super) fn of(model: &LoadModel) -> Result<Self, LabError> {
        let planned = |profile: &RateProfile| Schedule::Planned { times: PlannedTimes::of(profile), next: 0 };
        Ok(match model {
            LoadModel::OpenLoop { per_second, duration_ms } => {
                let seconds = Duration::from_millis(*duration_ms).as_secs_f64();
                planned(&RateProfile::constant(*per_second, seconds))
            }
            LoadModel::Varying { profile } => planned(profile),
            LoadModel::ClosedLoop { window, duration_ms } => {
                Schedule::ClosedLoop { window: *window, until: duration_ms * MS, has_begun: false }
            }
            LoadModel::Rounds { rounds, pause_ms } => Schedule::Rounds(Rounds {
                left: *rounds,
                pause_ns: pause_ms * MS,
                next_at: 0,
                is_under_way: false,
                given_up: 0,
            }),
            LoadModel::Recorded { .. } | LoadModel::ClosedLoopOnce { .. } => {
                return Err(LabError::Usage("a driver sends no recorded chat".into()));
            }
        })
    }

    /// Adds the messages that are due now to those that wait. `room`: how many more senders take; `is_answered`: nothing that
    /// was published waits for its answer. Returns whether all messages are planned.
    pub(super) fn plan(
        &mut self,
        now: u64,
        room: usize,
        is_answered: bool,
        ledger: &Ledger,
        waiting: &mut VecDeque<u64>,
    ) -> bool {
        match self {
            Schedule::Planned { times, next } => {
                while let Some(due) = times.due(*next).filter(|due| *due <= now) {
                    waiting.push_back(due);
                    *next += 1;
                }
                times.due(*next).is_none()
            }
            Schedule::ClosedLoop { window, until, has_begun } => {
                if *has_begun && now >= *until {
                    return true;
                }
                // Latency counts from the plan: no message is planned before a sender can send it.
                let open = window.saturating_sub(ledger.outstanding);
                while waiting.len() < open.min(room) {
                    waiting.push_back(now);
                }
                *has_begun |= !waiting.is_empty();
                false
            }
            Schedule::Rounds(rounds) => {
                if rounds.is_under_way && is_answered && waiting.is_empty() && ledger.outstanding <= rounds.given_up {
                    (rounds.is_under_way, rounds.next_at) = (false, now + rounds.pause_ns);
                }
                if !rounds.is_under_way && rounds.left > 0 && now >= rounds.next_at {
                    waiting.push_back(now);
                    (rounds.is_under_way, rounds.left) = (true, rounds.left - 1);
                }
                rounds.left == 0
            }
        }
    }

    /// Nothing has come for too long: of rounds, the next one begins without waiting for what is missing.
    pub(super) fn give_up(&mut self, now: u64, ledger: &Ledger) {
        if let Schedule::Rounds(rounds) = self {
            (rounds.is_under_way, rounds.next_at) = (false, now + rounds.pause_ns);
            rounds.given_up = ledger.outstanding;
        }
    }

    /// When the next message is due, as far as that is known.
    pub(super) fn next_due(&self) -> Option<u64> {
        match self {
            Schedule::Planned { times, next } => times.due(*next),
            Schedule::Rounds(rounds) if !rounds.is_under_way && rounds.left > 0 => Some(rounds.next_at),
            _ => None,
        }
    }
}

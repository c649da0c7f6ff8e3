//! A part of a phase that other load clients run, too: it begins when all begin, and ends when the bench says that every
//! receiver of all of them has everything, since no load client can know that by itself.

use super::{connection_pool::ConnectionPool, report, shared_phase::SharedPhase, shared_state::SharedState};
use crate::{
    LabError,
    phase_part::{PartProgress, PhasePart},
    worker_protocol::{WorkerCommand, WorkerReport},
};
use std::{io, sync::mpsc, time::Duration};

/// How often the loop should come round, at least: the lab's own lag is told by it where nothing is sent.
const TICK_NS: u64 = 10_000_000;
/// The longest sleep of the loop, which is no lag.
const SLEEP_NS_MAX: u64 = 50_000_000;
/// How often progress is reported while it changes.
const REPORT_NS: u64 = 250_000_000;
/// The same once everything is sent and answered, so that the end of a phase is noticed soon.
const REPORT_AT_END_NS: u64 = 10_000_000;

/// How a part reports while it runs.
#[derive(Debug)]
pub(super) struct PartRun {
    start: u64,
    next_tick: u64,
    last_report: u64,
    last: PartProgress,
    planning_stopped: bool,
    rounds_ended: u64,
}

impl PartRun {
    /// Says that the part is ready, and waits until the bench says when all parts begin. No socket is read meanwhile: a message
    /// of the phase can only be judged once the start of the phase is known.
    pub(super) fn await_start(
        part: PhasePart,
        inbox: &mpsc::Receiver<WorkerCommand>,
        shared: &SharedState,
    ) -> io::Result<(PartRun, SharedPhase)> {
        let heads = shared.verifier.heads();
        report(&WorkerReport::Prepared);
        let mut planning_stopped = false;
        let begin = loop {
            match inbox.recv() {
                Ok(WorkerCommand::Begin { at_ns }) => break at_ns,
                Ok(WorkerCommand::StopPlanning) => planning_stopped = true,
                Ok(_) => {}
                Err(_) => return Err(io::Error::other("the bench has ended")),
            }
        };
        let start = shared.at_machine_ns(begin);
        let (next_tick, last_report) = (start, start);
        let run =
            PartRun { start, next_tick, last_report, last: PartProgress::default(), planning_stopped, rounds_ended: 0 };
        Ok((run, SharedPhase::new(part, start, heads)))
    }

    /// Whether the bench said before the start that nothing is to be planned.
    pub(super) fn planning_stopped(&self) -> bool {
        self.planning_stopped
    }

    /// The receivers of all load clients have the message of the round.
    pub(super) fn end_round(&mut self) {
        self.rounds_ended += 1;
    }

    pub(super) fn rounds_ended(&self) -> u64 {
        self.rounds_ended
    }

    /// Serves the connections until the common moment has come.
    pub(super) fn wait(&self, pool: &mut ConnectionPool, shared: &mut SharedState) -> Result<(), LabError> {
        while let Some(early) = self.start.checked_sub(shared.now()).filter(|early| *early > 0) {
            pool.poll_once(Duration::from_nanos(early.min(SLEEP_NS_MAX)), shared)?;
        }
        Ok(())
    }

    /// The loop has come round: records how late it is, and reports how far the part is.
    pub(super) fn come_round(&mut self, all_planned: bool, is_idle: bool, shared: &mut SharedState) {
        let now = shared.now();
        if let Some(phase) = &mut shared.sent_messages.shared_phase {
            while self.next_tick <= now {
                phase.loop_lag.record(self.next_tick + SLEEP_NS_MAX, now);
                self.next_tick += TICK_NS;
            }
        }
        // Nothing more to send for now: the phase, or a round of it, may be over with the next delivery.
        let is_at_end = !is_idle && shared.unanswered == 0;
        if now < self.last_report + if is_at_end { REPORT_AT_END_NS } else { REPORT_NS } {
            return;
        }
        self.last_report = now;
        let tally = &shared.sent_messages.tally;
        let progress = PartProgress {
            all_planned,
            is_idle,
            unanswered: shared.unanswered,
            committed: tally.acknowledged,
            refused: tally.refused,
            delivered: tally.delivered,
            planned: shared.sent_messages.planned_in_phase(),
            last_due_ns: shared.sent_messages.last_due().saturating_sub(self.start),
            last_delivery_ns: tally.last_delivery.saturating_sub(self.start),
            is_settled: is_at_end && shared.receipts.is_settled(&shared.verifier),
        };
        // At the end only what is new; the sign of life is the progress.
        if progress != self.last || !is_at_end {
            self.last = progress;
            report(&WorkerReport::PartProgress(progress));
        }
    }
}

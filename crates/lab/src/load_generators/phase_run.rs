//! A phase while its parts run on all agents: how far they are together, and when it is over.

use super::{ledger::MergedLedger, merge::FinishedPart};
use crate::{
    clock::ClockOffset,
    phase_part::{AgentOutcome, PartProgress},
    series::{SeriesCounts, SeriesRecorder},
    worker_protocol::{PartOutcome, Progress, WorkerReport},
};
use std::time::{Duration, Instant};

/// The interval between two reports of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);
/// How long deliveries are waited for that no count requires: those of messages that were refused and committed all the same.
const REFUSED_SETTLE: Duration = Duration::from_millis(500);

/// One agent's part.
#[derive(Debug)]
pub(super) struct RunningPart {
    progress: PartProgress,
    told: Option<Progress>,
    /// What it has told of its series.
    series: SeriesCounts,
    /// When its load client reported last.
    heard: Instant,
    finished: Option<Box<PartOutcome>>,
    pub(super) clock: ClockOffset,
    /// What is known of the agent before the phase.
    pub(super) agent: AgentOutcome,
}

#[derive(Debug)]
pub(super) struct PhaseRun {
    pub(super) parts: Vec<RunningPart>,
    pub(super) ledger: MergedLedger,
    /// Receivers of each conversation, over all agents.
    receivers: u64,
    patience: Duration,
    changed: Instant,
    total: u64,
    next_progress: Instant,
    /// Of one message at a time: the agent that sends, and how long each message took to the last receiver, in milliseconds.
    rounds: Option<(usize, Vec<f64>)>,
    is_finishing: bool,
}

/// What the coordinator does next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Wait,
    ShowProgress,
    /// Every receiver has the message of the round: tell this agent.
    EndRound(usize),
    /// Every receiver has everything, or nothing has come for too long.
    Finish,
    /// All parts have handed over.
    Merge,
}

impl RunningPart {
    pub(super) fn new(clock: ClockOffset, agent: AgentOutcome) -> Self {
        RunningPart {
            progress: PartProgress::default(),
            told: None,
            series: SeriesCounts::default(),
            heard: Instant::now(),
            finished: None,
            clock,
            agent,
        }
    }
}

impl PhaseRun {
    pub(super) fn new(parts: Vec<RunningPart>, ledger: MergedLedger, receivers: u64, patience: Duration) -> Self {
        let now = Instant::now();
        PhaseRun {
            parts,
            ledger,
            receivers,
            patience,
            changed: now,
            total: 0,
            next_progress: now + PROGRESS_INTERVAL,
            rounds: None,
            is_finishing: false,
        }
    }

    /// Messages are sent one at a time, by this agent.
    pub(super) fn in_rounds_of(self, sender: usize) -> Self {
        PhaseRun { rounds: Some((sender, Vec::new())), ..self }
    }

    /// Takes a report of an agent's load client.
    pub(super) fn take(&mut self, agent: usize, report: WorkerReport) -> Result<(), String> {
        let part = &mut self.parts[agent];
        part.heard = Instant::now();
        match report {
            WorkerReport::PartProgress(progress) => part.progress = progress,
            WorkerReport::Progress(mut progress) => {
                part.series.update(std::mem::take(&mut progress.series));
                part.told = Some(progress);
            }
            WorkerReport::Ledger(line) => return self.ledger.add(agent, &line),
            WorkerReport::PartDone(outcome) => part.finished = Some(outcome),
            other => return Err(format!("reported {other:?} while a phase runs")),
        }
        Ok(())
    }

    /// The first agent whose load client has reported nothing for so long.
    pub(super) fn silent_since(&self, timeout: Duration) -> Option<usize> {
        self.parts.iter().position(|part| part.finished.is_none() && part.heard.elapsed() > timeout)
    }

    fn sum(&self, of: fn(&PartProgress) -> u64) -> u64 {
        self.parts.iter().map(|part| of(&part.progress)).sum()
    }

    pub(super) fn next(&mut self) -> Next {
        let now = Instant::now();
        if self.is_finishing {
            return if self.parts.iter().all(|part| part.finished.is_some()) { Next::Merge } else { Next::Wait };
        }
        let (committed, refused) = (self.sum(|part| part.committed), self.sum(|part| part.refused));
        let delivered = self.sum(|part| part.delivered);
        let is_waiting_for_due = self.parts.iter().any(|part| part.progress.is_idle);
        if committed + refused + delivered != self.total || is_waiting_for_due {
            (self.total, self.changed) = (committed + refused + delivered, now);
        }
        let is_sent = self
            .parts
            .iter()
            .all(|part| part.progress.all_planned && part.progress.unanswered == 0 && part.progress.is_settled);
        let settle = if refused > 0 { REFUSED_SETTLE } else { Duration::ZERO };
        let is_delivered = delivered >= committed * self.receivers && now >= self.changed + settle;
        let planned = self.sum(|part| part.planned);
        if let Some((sender, rounds)) = &mut self.rounds
            && planned > rounds.len() as u64
            && committed + refused >= planned
            && is_delivered
        {
            let last = self.parts.iter().map(|part| part.progress.last_delivery_ns).max().unwrap_or(0);
            rounds.push(last.saturating_sub(self.parts[*sender].progress.last_due_ns) as f64 / 1e6);
            return Next::EndRound(*sender);
        }
        let is_complete = is_sent && is_delivered;
        if is_complete || now > self.changed + self.patience {
            self.is_finishing = true;
            return Next::Finish;
        }
        if now >= self.next_progress {
            self.next_progress = now + PROGRESS_INTERVAL;
            return Next::ShowProgress;
        }
        Next::Wait
    }

    /// The progress of all parts together.
    pub(super) fn progress(&self) -> Progress {
        let mut sum = Progress::default();
        for progress in self.parts.iter().filter_map(|part| part.told.as_ref()) {
            sum.seconds = sum.seconds.max(progress.seconds);
            sum.pause_ms = sum.pause_ms.max(progress.pause_ms);
            counts!(sum += progress: sent, committed, delivered, lagging, reconnects, faults);
            for (code, count) in &progress.refused {
                *sum.refused.entry(code.clone()).or_default() += count;
            }
        }
        if self.parts.iter().any(|part| !part.series.bins().is_empty()) {
            let mut series = SeriesRecorder::new(0);
            self.parts.iter().for_each(|part| series.add(&part.series));
            sum.series = series.counts().into_change();
        }
        sum
    }

    /// How long each round took, in milliseconds.
    pub(super) fn take_rounds(&mut self) -> Vec<f64> {
        self.rounds.take().map(|(_, rounds)| rounds).unwrap_or_default()
    }

    /// The ledgers, and what each part handed over, with the clocks as they were after the phase.
    pub(super) fn finish(self, clocks_after: &[ClockOffset]) -> (MergedLedger, Vec<FinishedPart>, f64) {
        let ms = |ns: f64| ns / 1e6;
        let mut errors = Vec::new();
        let mut finished = Vec::new();
        for (part, after) in self.parts.into_iter().zip(clocks_after) {
            let (drift, error) = part.clock.drift_to(*after);
            errors.push(error);
            let agent = AgentOutcome {
                clock_offset_ms: ms(part.clock.ahead_ns as f64),
                clock_error_ms: ms(error as f64),
                clock_drift_ms: ms(drift as f64),
                ..part.agent
            };
            finished.push(FinishedPart { part: *part.finished.unwrap_or_default(), agent });
        }
        // Between two machines both errors count; on one machine there is one clock.
        errors.sort_unstable_by(|one, other| other.cmp(one));
        let error = if errors.len() > 1 { errors[0] + errors[1] } else { 0 };
        (self.ledger, finished, ms(error as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(patience: Duration) -> PhaseRun {
        let part = || RunningPart::new(ClockOffset { ahead_ns: 0, error_ns: 0 }, AgentOutcome::default());
        PhaseRun::new(vec![part(), part()], MergedLedger::new(Vec::new(), 1), 5, patience)
    }

    fn sent(committed: u64, delivered: u64) -> WorkerReport {
        WorkerReport::PartProgress(PartProgress {
            all_planned: true,
            committed,
            delivered,
            is_settled: true,
            ..PartProgress::default()
        })
    }

    #[test]
    fn a_phase_is_over_when_the_receivers_of_all_agents_have_everything() {
        let mut run = run(Duration::from_secs(3600));
        assert_eq!(run.take(0, sent(2, 4)), Ok(()));
        assert_eq!(run.next(), Next::Wait, "the other has not sent everything");
        assert_eq!(run.take(1, sent(1, 10)), Ok(()));
        assert_eq!(run.next(), Next::Wait, "14 of 15");
        assert_eq!(run.take(1, sent(1, 11)), Ok(()));
        assert_eq!(run.next(), Next::Finish);
        assert_eq!(run.next(), Next::Wait);
        for agent in 0..2 {
            assert_eq!(run.take(agent, WorkerReport::PartDone(Box::default())), Ok(()));
        }
        assert_eq!(run.next(), Next::Merge);
    }

    #[test]
    fn progress_has_the_series_of_all_agents_however_it_was_told() {
        let mut run = run(Duration::from_secs(3600));
        let mut recorders = [SeriesRecorder::new(0), SeriesRecorder::new(0)];
        for second in 0..3 {
            for (agent, recorder) in recorders.iter_mut().enumerate() {
                recorder.planned(second * 1_000_000_000);
                let progress = Progress { sent: second + 1, series: recorder.take_change(), ..Progress::default() };
                assert_eq!(run.take(agent, WorkerReport::Progress(progress)), Ok(()));
            }
        }
        let progress = run.progress();
        let mut told = SeriesCounts::default();
        told.update(progress.series);
        assert_eq!(progress.sent, 6);
        assert_eq!(told.bins().iter().map(|bin| bin.planned).collect::<Vec<_>>(), [2, 0, 0, 0, 2, 0, 0, 0, 2]);
    }

    #[test]
    fn a_round_ends_with_the_last_receiver_of_any_agent() {
        let mut run = run(Duration::from_secs(3600)).in_rounds_of(1);
        let progress = |planned, committed, delivered, last_delivery_ns| {
            let last_due_ns = 1_000_000;
            let all = PartProgress {
                planned,
                committed,
                delivered,
                last_due_ns,
                last_delivery_ns,
                ..PartProgress::default()
            };
            WorkerReport::PartProgress(all)
        };
        for (agent, report) in [(1, progress(1, 1, 2, 3_000_000)), (0, progress(0, 0, 2, 5_000_000))] {
            assert_eq!(run.take(agent, report), Ok(()));
            assert_eq!(run.next(), Next::Wait);
        }
        assert_eq!(run.take(0, progress(0, 0, 3, 7_500_000)), Ok(()));
        assert_eq!((run.next(), run.next()), (Next::EndRound(1), Next::Wait));
        assert_eq!(run.take_rounds(), [6.5]);
    }

    #[test]
    fn without_progress_a_phase_ends_but_not_while_something_is_to_come_due() {
        let mut run = run(Duration::ZERO);
        let idle = PartProgress { is_idle: true, ..PartProgress::default() };
        assert_eq!(run.take(0, WorkerReport::PartProgress(idle)), Ok(()));
        assert_eq!(run.next(), Next::Wait, "nothing is due yet");
        for agent in 0..2 {
            assert_eq!(run.take(agent, sent(1, 0)), Ok(()));
        }
        // The first look sees what has come, a later one that no more has.
        assert!((0..1000).any(|_| run.next() == Next::Finish));
    }

    #[test]
    fn the_error_between_two_machines_is_that_of_both_clocks() {
        let mut run = run(Duration::ZERO);
        run.parts[1].clock.error_ns = 2_000_000;
        let after =
            [(3_000_000, 500_000), (0, 1_000_000)].map(|(ahead_ns, error_ns)| ClockOffset { ahead_ns, error_ns });
        let (_, finished, error) = run.finish(&after);
        assert_eq!(error, 5.5, "a drift of 3 ms measured within 0.5 ms, and an error of 2 ms");
        assert_eq!((finished[0].agent.clock_drift_ms, finished[1].agent.clock_error_ms), (3.0, 2.0));
    }
}

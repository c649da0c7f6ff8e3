//! One phase of load: when messages are due, which connection sends each, and when the phase is over.

use super::{
    connection::{ConnectionState, Role},
    connection_pool::ConnectionPool,
    part_run::PartRun,
    report,
    sent_messages::MessageBodies,
    shared_phase::SharedPhase,
    shared_state::SharedState,
};
use crate::{
    LabError, corpus,
    phase_part::PhasePart,
    process,
    schedule::{NextMessage, PlanningTurn, Schedule},
    series::SeriesChange,
    verification::Findings,
    worker_protocol::{Content, Outcome, Phase, Progress, WorkerCommand, WorkerReport},
};
use std::{io, sync::mpsc, time::Duration};

const PROGRESS_NS: u64 = 250_000_000;
/// How often the views of the mix are compared once everything else has come: reactions are told with some delay.
const SETTLED_CHECK_NS: u64 = 100_000_000;
/// The longest sleep of the loop, which also sends heartbeats.
const POLL_TIMEOUT_MAX: Duration = Duration::from_millis(50);
const MS: u64 = 1_000_000;

/// Runs a phase until every message is delivered to all `receivers` of its conversation, or for `patience_ms` without
/// progress; a part of a phase until the bench says so.
pub(super) fn run(
    phase: &Phase,
    receivers: u64,
    patience_ms: u64,
    part: Option<PhasePart>,
    inbox: &mpsc::Receiver<WorkerCommand>,
    pool: &mut ConnectionPool,
    shared: &mut SharedState,
) -> Result<Outcome, LabError> {
    let (bodies, schedule) = prepare(phase)?;
    let (part, shared_phase) = part.map(|part| PartRun::await_start(part, inbox, shared)).transpose()?.unzip();
    let start = shared_phase.as_ref().map_or_else(|| shared.now(), SharedPhase::start_ns);
    shared.sent_messages.start_phase(bodies, start, shared_phase);
    shared.mix.start_phase();
    shared.receipts.start_phase(start);
    shared.retry = phase.retry;
    (shared.retried, shared.unanswered) = (0, 0);
    let mut run = PhaseRun {
        phase,
        receivers,
        patience_ns: patience_ms * MS,
        start,
        woke_at: start,
        planned_at: start,
        first_planned: 0,
        schedule,
        sent: 0,
        planning_stopped: part.as_ref().is_some_and(PartRun::planning_stopped),
        part,
        reconnects: 0,
        idle_http_senders: Vec::new(),
        ws_senders: Vec::new(),
    };
    for (number, connection) in pool.connections.iter().enumerate() {
        match connection.client.role {
            Role::WsSender { .. } => run.ws_senders.push(number),
            Role::HttpSender { .. } => run.idle_http_senders.push(number),
            Role::Receiver { .. } => {}
        }
    }
    if let Some(part) = &run.part {
        part.wait(pool, shared)?;
    }
    // What came between phases is not of this one.
    shared.verifier.findings = Findings::default();
    let cpu_before = process::cpu_seconds(std::process::id());
    shared.delivery_gaps.reset(shared.verifier.receivers(), run.start);
    run.reconnects = pool.reconnects;
    run.drive(inbox, pool, shared)?;
    if phase.tell_series && run.part.is_none() {
        run.report_rest(pool, shared);
    }
    Ok(run.outcome(pool, shared, cpu_before))
}

fn prepare(phase: &Phase) -> io::Result<(MessageBodies, Schedule)> {
    let (bodies, times) = match &phase.content {
        Content::Generated { body_bytes, senders } => (MessageBodies::generated(*body_bytes, senders, &[]), Vec::new()),
        Content::FirstMessages { body_bytes, senders, recipients } => {
            (MessageBodies::generated(*body_bytes, senders, recipients), Vec::new())
        }
        Content::Corpus { file, limit } => {
            let corpus = corpus::read(file, *limit)?;
            let times = corpus.messages.iter().map(|message| message.after_ms * MS).collect();
            (MessageBodies::Corpus(corpus), times)
        }
    };
    let schedule = Schedule::of(&phase.model, &times);
    Ok((bodies, schedule))
}

struct PhaseRun<'a> {
    phase: &'a Phase,
    receivers: u64,
    patience_ns: u64,
    start: u64,
    /// When the last turn's poll returned: since then the lab could have sent what waited for a sender.
    woke_at: u64,
    /// When this turn planned its messages, and the number of the first of them.
    planned_at: u64,
    first_planned: u32,
    schedule: Schedule,
    sent: u64,
    /// The bench has told the worker to plan no more messages.
    planning_stopped: bool,
    /// Set when other load clients run parts of the phase.
    part: Option<PartRun>,
    /// Reconnects of the pool before the phase began.
    reconnects: u64,
    idle_http_senders: Vec<usize>,
    ws_senders: Vec<usize>,
}

impl PhaseRun<'_> {
    fn drive(
        &mut self,
        inbox: &mpsc::Receiver<WorkerCommand>,
        pool: &mut ConnectionPool,
        shared: &mut SharedState,
    ) -> Result<(), LabError> {
        let mut heads = shared.verifier.heads();
        let mut last_progress = (0, self.start);
        let mut next_settled_check = 0;
        let mut next_report = self.start + PROGRESS_NS;
        loop {
            match inbox.try_recv() {
                Ok(WorkerCommand::StopPlanning) => self.planning_stopped = true,
                Ok(WorkerCommand::EndRound) => self.part.iter_mut().for_each(PartRun::end_round),
                Ok(WorkerCommand::Finish) => return Ok(()),
                Err(mpsc::TryRecvError::Disconnected) if self.part.is_some() => return Ok(()),
                Err(mpsc::TryRecvError::Disconnected) => self.planning_stopped = true,
                Ok(_) | Err(mpsc::TryRecvError::Empty) => {}
            }
            self.planned_at = shared.now();
            self.first_planned = shared.sent_messages.next_number();
            let all_planned = self.planning_stopped || self.plan(shared);
            self.dispatch(pool, shared);
            shared.mix.dispatch(pool, shared.now());
            shared.receipts.tell(pool, &shared.verifier, shared.now());
            pool.flush();
            let now = shared.now();
            let idle = self.is_idle(all_planned, shared);
            if let Some(part) = &mut self.part {
                part.come_round(all_planned, idle, shared);
            } else if all_planned && shared.unanswered == 0 {
                let (sent_messages, tally) = (&shared.sent_messages, &shared.sent_messages.tally);
                // The exact count walks all messages, so it is taken only when the cheap condition holds.
                if tally.delivered >= tally.acknowledged * self.receivers
                    && tally.delivered
                        >= (tally.acknowledged + sent_messages.delivered_unacknowledged()) * self.receivers
                    && now >= next_settled_check
                {
                    if shared.mix.is_settled() && shared.receipts.is_settled(&shared.verifier) {
                        return Ok(());
                    }
                    next_settled_check = now + SETTLED_CHECK_NS;
                }
            }
            let tally = &shared.sent_messages.tally;
            let progress = tally.delivered
                + tally.acknowledged
                + tally.refused
                + shared.mix.progress()
                + shared.receipts.progress();
            if progress != last_progress.0 || idle {
                last_progress = (progress, now);
            } else if self.part.is_none() && now > last_progress.1 + self.patience_ns {
                return Ok(());
            }
            if now >= next_report {
                next_report = now + PROGRESS_NS;
                shared.verifier.trim();
                report(&WorkerReport::Progress(self.progress(pool, shared, &heads)));
                heads = shared.verifier.heads();
            }
            pool.poll_once(self.timeout(shared), shared)?;
            self.woke_at = pool.woke_at;
            self.find_idle_senders(pool);
        }
    }

    fn progress(&self, pool: &ConnectionPool, shared: &mut SharedState, heads: &[u64]) -> Progress {
        let now = shared.now();
        let tally = &mut shared.sent_messages.tally;
        Progress {
            seconds: (now - self.start) as f64 / 1e9,
            sent: self.sent,
            committed: tally.acknowledged,
            delivered: tally.delivered,
            pause_ms: shared.delivery_gaps.take_longest_ns(now) as f64 / 1e6,
            lagging: shared.verifier.lagging_receivers(heads),
            reconnects: pool.reconnects - self.reconnects,
            refused: tally.refused_by_code.clone(),
            faults: shared.verifier.findings.faults.total(),
            series: match self.phase.tell_series {
                true => tally.times.series.take_change(),
                false => SeriesChange::default(),
            },
        }
    }

    /// Reports the bins that have changed since the last report, so that whoever adds them up has all.
    fn report_rest(&self, pool: &ConnectionPool, shared: &mut SharedState) {
        let heads = shared.verifier.heads();
        loop {
            let progress = self.progress(pool, shared, &heads);
            if progress.series.is_empty() {
                return;
            }
            report(&WorkerReport::Progress(progress));
        }
    }

    /// Waiting for the next due message is no lack of progress; waiting for the end of a round is.
    fn is_idle(&self, all_planned: bool, shared: &SharedState) -> bool {
        let awaits_round = self.schedule.is_round_under_way(shared.sent_messages.planned_in_phase());
        !all_planned && !awaits_round && shared.unanswered + shared.mix.unanswered() == 0
    }

    /// When the next message of this load client is due, if that depends on time alone.
    fn next_due(&self, shared: &SharedState) -> Option<u64> {
        self.schedule.next_at(self.next_number(shared)?)
    }

    /// The number in the phase of the next message of this load client; `None` if only others send.
    fn next_number(&self, shared: &SharedState) -> Option<u64> {
        shared.sent_messages.number_of_nth(shared.sent_messages.planned_in_phase())
    }

    /// Plans the messages that are due now. Returns whether all messages of the phase are planned.
    fn plan(&mut self, shared: &mut SharedState) -> bool {
        let now = shared.now() - self.start;
        let planned = shared.sent_messages.planned_in_phase();
        if self.schedule.is_round_under_way(planned) && self.round_has_ended(planned, shared) {
            let due = shared.sent_messages.last_due();
            shared.sent_messages.tally.end_round(due);
            self.schedule.end_round(planned, now);
        }
        let turn = PlanningTurn { now, is_first: planned == 0 && self.capacity() > 0 };
        while let Some(number) = self.next_number(shared) {
            let next = self.schedule.next(number, turn, |window| {
                // Keep every sender busy, but no more.
                let wanted = (self.capacity() * self.phase.batch) as u64;
                self.under_way(shared) < window && (shared.send_queue.len() as u64) < wanted
            });
            match next {
                NextMessage::Due(due) => shared.plan_message(self.start + due, now - due),
                NextMessage::NotYet => return false,
                NextMessage::Never => return true,
            }
        }
        // Other load clients send.
        true
    }

    /// How many messages and operations are between send and last receiver.
    fn under_way(&self, shared: &SharedState) -> u64 {
        let (sent_messages, tally) = (&shared.sent_messages, &shared.sent_messages.tally);
        let delivered = match (&self.part, self.receivers) {
            // Of several load clients one without receivers knows of answers alone.
            (Some(_), 0) => tally.acknowledged,
            (_, receivers) => sent_messages.delivered_own / receivers.max(1),
        };
        sent_messages.planned_in_phase() + shared.mix.unanswered() - tally.refused - delivered.min(tally.acknowledged)
    }

    /// Whether every receiver has the messages of all rounds so far.
    fn round_has_ended(&self, planned: u64, shared: &SharedState) -> bool {
        let tally = &shared.sent_messages.tally;
        match &self.part {
            Some(part) => part.rounds_ended() >= planned,
            None => shared.unanswered == 0 && tally.delivered >= (planned - tally.refused) * self.receivers,
        }
    }

    /// From when a message that is sent in this turn could have been sent. A message of an earlier turn waited for a sender, of
    /// which the lab knows since the poll returned; that wait is the server's.
    fn could_send_from(&self, message: u32) -> u64 {
        if message >= self.first_planned { self.planned_at } else { self.woke_at }
    }

    fn capacity(&self) -> usize {
        if self.ws_senders.is_empty() {
            self.idle_http_senders.len()
        } else {
            self.ws_senders.len() * self.phase.pipeline
        }
    }

    /// Hands queued messages to idle senders.
    fn dispatch(&mut self, pool: &mut ConnectionPool, shared: &mut SharedState) {
        if shared.send_queue.is_empty() || shared.now() < shared.backoff_until {
            return;
        }
        if !self.ws_senders.is_empty() {
            return self.dispatch_over_websocket(pool, shared);
        }
        let mut body = Vec::new();
        while !shared.send_queue.is_empty()
            && let Some(number) = self.idle_http_senders.pop()
        {
            let count = shared.send_queue.len().min(self.phase.batch);
            let messages: Vec<u32> = shared.send_queue.drain(..count).collect();
            body.clear();
            if self.phase.batch == 1 {
                shared.sent_messages.put_message(messages[0], &mut body, false);
                pool.post(number, "/v1/messages", &body, shared.now());
            } else {
                body.extend_from_slice(b"{\"messages\":[");
                for message in &messages {
                    shared.sent_messages.put_message(*message, &mut body, false);
                    body.push(b',');
                }
                body.pop();
                body.extend_from_slice(b"]}");
                pool.post(number, "/v1/messages/batch", &body, shared.now());
            }
            self.sent += count as u64;
            let now = shared.now();
            for message in &messages {
                shared.sent_messages.record_sent(*message, now, now.saturating_sub(self.could_send_from(*message)));
            }
            if let Role::HttpSender { in_flight } = &mut pool.connections[number].client.role {
                *in_flight = messages;
            }
        }
    }

    /// Sends message `n` on the session of sender `n`; the messages of a session whose pipeline is full stay queued.
    fn dispatch_over_websocket(&mut self, pool: &mut ConnectionPool, shared: &mut SharedState) {
        let mut payload = Vec::new();
        for _ in 0..shared.send_queue.len() {
            let Some(message) = shared.send_queue.pop_front() else { break };
            let number = self.ws_senders[(message - shared.sent_messages.phase_start) as usize % self.ws_senders.len()];
            let client = &mut pool.connections[number].client;
            let is_live = client.state == ConnectionState::Live;
            match &mut client.role {
                Role::WsSender { in_flight, .. } if is_live && in_flight.len() < self.phase.pipeline => {
                    in_flight.push_back(message);
                    payload.clear();
                    shared.sent_messages.put_message(message, &mut payload, true);
                    pool.queue_frame(number, &payload);
                    self.sent += 1;
                    let now = shared.now();
                    shared.sent_messages.record_sent(message, now, now.saturating_sub(self.could_send_from(message)));
                }
                _ => shared.send_queue.push_back(message),
            }
        }
    }

    fn find_idle_senders(&mut self, pool: &ConnectionPool) {
        if !self.ws_senders.is_empty() {
            return;
        }
        self.idle_http_senders.clear();
        // The senders are the last connections of the pool.
        for (number, connection) in pool.connections.iter().enumerate().rev() {
            match &connection.client.role {
                Role::HttpSender { in_flight }
                    if in_flight.is_empty() && connection.client.state == ConnectionState::Live =>
                {
                    self.idle_http_senders.push(number);
                }
                Role::HttpSender { .. } => {}
                _ => break,
            }
        }
    }

    /// How long the loop may sleep: until the next message is due.
    fn timeout(&self, shared: &SharedState) -> Duration {
        let now = shared.now();
        if !shared.send_queue.is_empty() && now < shared.backoff_until {
            return Duration::from_nanos(shared.backoff_until - now).min(POLL_TIMEOUT_MAX);
        }
        match self.next_due(shared).filter(|_| !self.planning_stopped) {
            Some(at) if self.start + at > now => Duration::from_nanos(self.start + at - now).min(POLL_TIMEOUT_MAX),
            Some(_) => Duration::ZERO,
            None => POLL_TIMEOUT_MAX,
        }
    }

    fn outcome(self, pool: &ConnectionPool, shared: &mut SharedState, cpu_before: f64) -> Outcome {
        shared.mix.finish_phase();
        let refusals = shared.take_refusal_problems();
        let (sent_messages, findings) = (&mut shared.sent_messages, &mut shared.verifier.findings);
        findings.faults.altered += sent_messages.contradictions;
        findings.problems.extend(refusals);
        let committed = sent_messages.tally.acknowledged + sent_messages.delivered_unacknowledged();
        Outcome {
            planned: sent_messages.planned_in_phase(),
            sent: self.sent,
            retried: shared.retried,
            reconnects: pool.reconnects - self.reconnects,
            pause_ms: shared.delivery_gaps.longest_ns() as f64 / 1e6,
            receipts: shared.receipts.counts(),
            client_cpu_seconds: process::cpu_seconds(std::process::id()) - cpu_before,
            ..sent_messages.tally.outcome(committed, self.receivers, findings)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker_protocol::LoadModel;

    #[test]
    fn recorded_times_are_divided_by_the_speed() {
        let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/ubuntu-irc-sample.jsonl").into();
        let phase = Phase {
            model: LoadModel::Recorded { speed: 60.0 },
            content: Content::Corpus { file: sample, limit: Some(50) },
            batch: 1,
            pipeline: 1,
            retry: true,
            tell_series: false,
        };
        #[allow(clippy::unwrap_used)]
        let (bodies, schedule) = prepare(&phase).unwrap();
        let MessageBodies::Corpus(corpus) = bodies else { panic!("a corpus") };
        for (n, message) in corpus.messages.iter().enumerate() {
            let due = message.after_ms * MS;
            assert_eq!(schedule.next_at(n as u64), Some((due as f64 / 60.0) as u64));
        }
        assert_eq!(schedule.next_at(50), None);
    }
}

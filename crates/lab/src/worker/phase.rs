//! One phase of load: when messages are due, which connection sends each, and when the phase is over.

use super::{
    connection::{ConnectionState, Role},
    connection_pool::ConnectionPool,
    part_run::PartRun,
    report,
    sent_messages::MessageBodies,
    shared_phase::SharedPhase,
    shared_state::SharedState,
    verifier::DeliveryFaults,
};
use crate::{
    LabError, corpus,
    phase_part::PhasePart,
    process,
    rate_profile::PlannedTimes,
    series::SeriesChange,
    worker_protocol::{Content, LoadModel, Outcome, Phase, Progress, WorkerCommand, WorkerReport},
};
use std::{io, sync::mpsc, time::Duration};

const PROGRESS_NS: u64 = 250_000_000;
/// How often the views of the mix are compared once everything else has come: reactions are told with some delay.
const SETTLED_CHECK_NS: u64 = 100_000_000;
/// The longest sleep of the loop, which also sends heartbeats.
const POLL_TIMEOUT_MAX: Duration = Duration::from_millis(50);
const MS: u64 = 1_000_000;

/// The schedule of a phase, by which messages are due.
#[derive(Debug)]
enum Schedule {
    /// Open loop: message `n` of `total` is due at `start + n / per_second`.
    ConstantRate {
        per_second: f64,
        total: u64,
    },
    /// Open loop: a rate that changes over time.
    Varying(PlannedTimes),
    /// Open loop: due times in nanoseconds after the start.
    Recorded(Vec<u64>),
    /// Closed loop: a message is due whenever fewer than `window` are outstanding, until a time or a count.
    ClosedLoop {
        window: u64,
        until: u64,
        total: u64,
    },
    Rounds {
        rounds: u64,
        pause_ns: u64,
        next_at: u64,
    },
}

impl Schedule {
    /// When message `n` is due, in nanoseconds after the start; `None` if that does not depend on time alone.
    fn due(&self, n: u64) -> Option<u64> {
        match self {
            Schedule::ConstantRate { per_second, total } => (n < *total).then(|| (n as f64 * 1e9 / per_second) as u64),
            Schedule::Varying(times) => times.due(n),
            Schedule::Recorded(times) => times.get(n as usize).copied(),
            Schedule::ClosedLoop { .. } | Schedule::Rounds { .. } => None,
        }
    }
}

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
    (shared.retried, shared.refused, shared.unanswered) = (0, 0, 0);
    let mut run = PhaseRun {
        phase,
        receivers,
        patience_ns: patience_ms * MS,
        start,
        woke_at: start,
        planned_at: start,
        first_planned: 0,
        schedule,
        rounds: Vec::new(),
        sent: 0,
        planning_stopped: part.as_ref().is_some_and(PartRun::planning_stopped),
        part,
        reconnects: 0,
        faults: 0,
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
    let before = (shared.verifier.faults, pool.reconnects, process::cpu_seconds(std::process::id()));
    shared.verifier.problems.clear();
    shared.refused_by_code.clear();
    shared.delivery_gaps.reset(shared.verifier.receivers(), run.start);
    (run.reconnects, run.faults) = (pool.reconnects, shared.verifier.faults.total());
    run.drive(inbox, pool, shared)?;
    if phase.tell_series && run.part.is_none() {
        run.report_rest(pool, shared);
    }
    Ok(run.outcome(pool, shared, before))
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
    let schedule = match &phase.model {
        LoadModel::OpenLoop { per_second, duration_ms } => {
            Schedule::ConstantRate { per_second: *per_second, total: (per_second * *duration_ms as f64 / 1e3) as u64 }
        }
        LoadModel::Varying { profile } => Schedule::Varying(PlannedTimes::of(profile)),
        LoadModel::ClosedLoop { window, duration_ms } => {
            Schedule::ClosedLoop { window: *window as u64, until: duration_ms * MS, total: u64::MAX }
        }
        LoadModel::ClosedLoopOnce { window } => {
            Schedule::ClosedLoop { window: *window as u64, until: u64::MAX, total: times.len() as u64 }
        }
        LoadModel::Recorded { speed } => {
            Schedule::Recorded(times.iter().map(|at| (*at as f64 / speed) as u64).collect())
        }
        LoadModel::Rounds { rounds, pause_ms } => {
            Schedule::Rounds { rounds: *rounds as u64, pause_ns: pause_ms * MS, next_at: 0 }
        }
    };
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
    rounds: Vec<f64>,
    sent: u64,
    /// The bench has told the worker to plan no more messages.
    planning_stopped: bool,
    /// Set when other load clients run parts of the phase.
    part: Option<PartRun>,
    /// Reconnects of the pool before the phase began.
    reconnects: u64,
    /// Faults that the verifier had found before the phase began.
    faults: u64,
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
                let sent_messages = &shared.sent_messages;
                // The exact count walks all messages, so it is taken only when the cheap condition holds.
                if sent_messages.delivered >= sent_messages.committed * self.receivers
                    && sent_messages.delivered
                        >= (sent_messages.committed + sent_messages.delivered_unacknowledged()) * self.receivers
                    && now >= next_settled_check
                {
                    if shared.mix.is_settled() && shared.receipts.is_settled(&shared.verifier) {
                        return Ok(());
                    }
                    next_settled_check = now + SETTLED_CHECK_NS;
                }
            }
            let progress = shared.sent_messages.delivered
                + shared.sent_messages.committed
                + shared.refused
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
        Progress {
            seconds: (now - self.start) as f64 / 1e9,
            sent: self.sent,
            committed: shared.sent_messages.committed,
            delivered: shared.sent_messages.delivered,
            pause_ms: shared.delivery_gaps.take_longest_ns(now) as f64 / 1e6,
            lagging: shared.verifier.lagging_receivers(heads),
            reconnects: pool.reconnects - self.reconnects,
            refused: shared.refused_by_code.clone(),
            faults: shared.verifier.faults.total() - self.faults,
            series: match self.phase.tell_series {
                true => shared.sent_messages.times.series.take_change(),
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
        let awaits_round = matches!(self.schedule, Schedule::Rounds { .. })
            && shared.sent_messages.planned_in_phase() as usize > self.rounds.len();
        !all_planned && !awaits_round && shared.unanswered + shared.mix.unanswered() == 0
    }

    /// When the next message of this load client is due, if that depends on time alone.
    fn next_due(&self, shared: &SharedState) -> Option<u64> {
        self.schedule.due(self.next_number(shared)?)
    }

    /// The number in the phase of the next message of this load client; `None` if only others send.
    fn next_number(&self, shared: &SharedState) -> Option<u64> {
        shared.sent_messages.number_of_nth(shared.sent_messages.planned_in_phase())
    }

    /// Plans the messages that are due now. Returns whether all messages of the phase are planned.
    fn plan(&mut self, shared: &mut SharedState) -> bool {
        let now = shared.now() - self.start;
        if let Schedule::ClosedLoop { window, until, total } = self.schedule {
            let batch = self.phase.batch as u64;
            // One window at least, also where the time is over before the first turn.
            let has_begun = shared.sent_messages.planned_in_phase() > 0 || self.capacity() == 0;
            while (now < until || !has_begun) && self.next_number(shared).is_some_and(|number| number < total) {
                let sent_messages = &shared.sent_messages;
                // Of several load clients one without receivers knows of answers alone.
                let delivered = match (&self.part, self.receivers) {
                    (Some(_), 0) => sent_messages.committed,
                    (_, receivers) => sent_messages.delivered_own / receivers.max(1),
                };
                let open = shared.sent_messages.planned_in_phase() + shared.mix.unanswered()
                    - shared.refused
                    - delivered.min(shared.sent_messages.committed);
                // Keep every sender busy, but plan no message before a sender can send it: latency counts from the plan.
                let wanted = self.capacity() as u64 * batch;
                if open >= window || shared.send_queue.len() as u64 >= wanted {
                    return false;
                }
                shared.plan_message(self.start + now, 0);
            }
            return true;
        }
        if let Schedule::Rounds { rounds, pause_ns, next_at } = &mut self.schedule {
            if shared.sent_messages.number_of_nth(0).is_none() {
                // Another load client sends.
                return true;
            }
            let planned = shared.sent_messages.planned_in_phase();
            if planned > 0 && planned as usize > self.rounds.len() {
                let resolved = match &self.part {
                    Some(part) => part.rounds_ended() >= planned,
                    None => {
                        shared.unanswered == 0
                            && shared.sent_messages.delivered >= (planned - shared.refused) * self.receivers
                    }
                };
                if !resolved {
                    return planned == *rounds;
                }
                let due = shared.sent_messages.due(shared.sent_messages.phase_start + planned as u32 - 1);
                self.rounds.push(shared.sent_messages.last_delivery.saturating_sub(due) as f64 / 1e6);
                *next_at = now + *pause_ns;
            }
            if planned < *rounds && now >= *next_at {
                shared.plan_message(self.start + now, 0);
            }
            return shared.sent_messages.planned_in_phase() == *rounds;
        }
        loop {
            match self.next_due(shared) {
                None => return true,
                Some(due) if due > now => return false,
                Some(due) => {
                    shared.plan_message(self.start + due, now - due);
                }
            }
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
        let next = match &self.schedule {
            _ if self.planning_stopped => None,
            Schedule::Rounds { next_at, .. } => Some(*next_at),
            _ => self.next_due(shared),
        };
        match next {
            Some(at) if self.start + at > now => Duration::from_nanos(self.start + at - now).min(POLL_TIMEOUT_MAX),
            Some(_) if !matches!(self.schedule, Schedule::Rounds { .. }) => Duration::ZERO,
            _ => POLL_TIMEOUT_MAX,
        }
    }

    fn outcome(self, pool: &ConnectionPool, shared: &mut SharedState, before: (DeliveryFaults, u64, f64)) -> Outcome {
        let (faults, reconnects, cpu) = before;
        shared.mix.finish_phase();
        let sent_messages = &shared.sent_messages;
        let committed = sent_messages.committed + sent_messages.delivered_unacknowledged();
        let expected = committed * self.receivers;
        let mut problems = std::mem::take(&mut shared.verifier.problems);
        let now_faults = shared.verifier.faults;
        let end = sent_messages.last_delivery.max(self.start + 1);
        let outcome = Outcome {
            planned: sent_messages.planned_in_phase(),
            sent: self.sent,
            committed,
            refused: shared.refused,
            retried: shared.retried,
            expected,
            delivered: sent_messages.delivered,
            lost: expected.saturating_sub(sent_messages.delivered),
            doubled: now_faults.doubled - faults.doubled,
            out_of_order: now_faults.out_of_order - faults.out_of_order,
            altered: now_faults.altered - faults.altered + sent_messages.contradictions,
            reconnects: pool.reconnects - reconnects,
            pause_ms: shared.delivery_gaps.longest_ns() as f64 / 1e6,
            refused_by_code: shared.refused_by_code.clone(),
            seconds: (end - self.start) as f64 / 1e9,
            rounds: self.rounds,
            receipts: shared.receipts.counts(),
            client_cpu_seconds: process::cpu_seconds(std::process::id()) - cpu,
            ..Outcome::of_times(&sent_messages.times)
        };
        problems.extend(shared.take_refusal_problems());
        Outcome { problems, ..outcome }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_due_at_even_times_that_do_not_drift() {
        let schedule = Schedule::ConstantRate { per_second: 3.0, total: 3_000_001 };
        assert_eq!(schedule.due(0), Some(0));
        assert_eq!(schedule.due(1), Some(333_333_333));
        assert_eq!(schedule.due(3_000_000), Some(1_000_000 * 1_000_000_000), "no error adds up");
        assert_eq!(schedule.due(3_000_001), None);
    }

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
            assert_eq!(schedule.due(n as u64), Some((due as f64 / 60.0) as u64));
        }
        assert_eq!(schedule.due(50), None);
    }
}

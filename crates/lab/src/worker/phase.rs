//! One stretch of load: what is due when, who sends it, and when it is over.

use super::{
    connection::{Role, Stage},
    desk::Desk,
    fleet::Fleet,
    ledger::{Texts, histogram, json_string, record},
    report,
    verify::Faults,
};
use crate::{
    corpus,
    job::{Command, Content, Outcome, Pace, Percentiles, Phase, Progress, Report},
    process,
};
use hdrhistogram::Histogram;
use std::{io, sync::mpsc, time::Duration};

const PROGRESS_NS: u64 = 250_000_000;
/// The longest sleep; heartbeats need a turn now and then.
const TURN_MAX: Duration = Duration::from_millis(50);
const MS: u64 = 1_000_000;

/// Decides which messages are due.
#[derive(Debug)]
enum Schedule {
    /// `planned` of `total` were planned; number `n` is due at `start + n / rate`.
    Even {
        per_second: f64,
        total: u64,
    },
    /// Due times, relative to the start.
    Listed(Vec<u64>),
    /// Whenever there is room, until a time or a count.
    Window {
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
    /// When message `n` is due, nanoseconds after the start; `None` if it is not a matter of time.
    fn due(&self, n: u64) -> Option<u64> {
        match self {
            Schedule::Even { per_second, total } => (n < *total).then(|| (n as f64 * 1e9 / per_second) as u64),
            Schedule::Listed(times) => times.get(n as usize).copied(),
            Schedule::Window { .. } | Schedule::Rounds { .. } => None,
        }
    }
}

/// Runs a phase to its end: everything delivered to all `readers` of each message, or no progress for
/// `patience_ms`.
pub(super) fn run(
    phase: &Phase,
    (readers, patience_ms): (u64, u64),
    inbox: &mpsc::Receiver<Command>,
    fleet: &mut Fleet,
    desk: &mut Desk,
) -> io::Result<Outcome> {
    let (texts, schedule) = prepare(phase)?;
    desk.ledger.start_phase(texts);
    desk.retry = phase.retry;
    (desk.retried, desk.refused, desk.unanswered) = (0, 0, 0);
    let mut run = Run {
        phase,
        readers,
        patience_ns: patience_ms * MS,
        start: desk.now(),
        schedule,
        lateness: histogram(),
        rounds: Vec::new(),
        sent: 0,
        enough: false,
        reconnects: 0,
        idle_http: Vec::new(),
        ws: Vec::new(),
    };
    for (number, connection) in fleet.connections.iter().enumerate() {
        match connection.state.role {
            Role::WsSender { .. } => run.ws.push(number),
            Role::HttpSender { .. } => run.idle_http.push(number),
            Role::Receiver { .. } => {}
        }
    }
    let before = (desk.verifier.faults, fleet.reconnects, process::cpu_seconds(std::process::id()));
    desk.verifier.problems.clear();
    desk.refused_by_code.clear();
    desk.pauses.start(desk.verifier.receivers(), run.start);
    run.reconnects = fleet.reconnects;
    run.drive(inbox, fleet, desk)?;
    Ok(run.outcome(fleet, desk, before))
}

fn prepare(phase: &Phase) -> io::Result<(Texts, Schedule)> {
    let (texts, times) = match &phase.content {
        Content::Generated { body_bytes, senders } => {
            let senders = senders.iter().map(|sender| json_string(sender)).collect();
            (Texts::Generated { body_bytes: (*body_bytes).max(24) - 9, senders }, Vec::new())
        }
        Content::Corpus { file, limit } => {
            let corpus = corpus::read(file, *limit)?;
            let times = corpus.messages.iter().map(|message| message.after_ms * MS).collect();
            (Texts::Corpus(corpus), times)
        }
    };
    let schedule = match &phase.pace {
        Pace::Rate { per_second, duration_ms } => {
            Schedule::Even { per_second: *per_second, total: (per_second * *duration_ms as f64 / 1e3) as u64 }
        }
        Pace::Window { window, duration_ms } => {
            Schedule::Window { window: *window as u64, until: duration_ms * MS, total: u64::MAX }
        }
        Pace::All { window } => Schedule::Window { window: *window as u64, until: u64::MAX, total: times.len() as u64 },
        Pace::Recorded { speed } => Schedule::Listed(times.iter().map(|at| (*at as f64 / speed) as u64).collect()),
        Pace::Rounds { rounds, pause_ms } => {
            Schedule::Rounds { rounds: *rounds as u64, pause_ns: pause_ms * MS, next_at: 0 }
        }
    };
    Ok((texts, schedule))
}

struct Run<'a> {
    phase: &'a Phase,
    readers: u64,
    patience_ns: u64,
    start: u64,
    schedule: Schedule,
    lateness: Histogram<u64>,
    rounds: Vec<f64>,
    sent: u64,
    /// Nothing more is to be planned.
    enough: bool,
    /// Of the fleet, when the phase began.
    reconnects: u64,
    idle_http: Vec<usize>,
    ws: Vec<usize>,
}

impl Run<'_> {
    fn drive(&mut self, inbox: &mpsc::Receiver<Command>, fleet: &mut Fleet, desk: &mut Desk) -> io::Result<()> {
        let mut heads = desk.verifier.heads();
        let mut last_progress = (0, self.start);
        let mut next_report = self.start + PROGRESS_NS;
        loop {
            self.enough |= matches!(inbox.try_recv(), Ok(Command::Enough) | Err(mpsc::TryRecvError::Disconnected));
            let all_planned = self.enough || self.plan(desk);
            self.dispatch(fleet, desk);
            fleet.flush();
            let now = desk.now();
            if all_planned && desk.unanswered == 0 {
                let ledger = &desk.ledger;
                // The exact count walks all messages, so it is asked only when the plain one is met.
                if ledger.delivered >= ledger.committed * self.readers
                    && ledger.delivered >= (ledger.committed + ledger.committed_unanswered()) * self.readers
                {
                    return Ok(());
                }
            }
            let progress = desk.ledger.delivered + desk.ledger.committed + desk.refused;
            // Nothing is outstanding while the next message is not yet due.
            let idle = !all_planned && desk.unanswered == 0;
            if progress != last_progress.0 || idle {
                last_progress = (progress, now);
            } else if now > last_progress.1 + self.patience_ns {
                return Ok(());
            }
            if now >= next_report {
                next_report = now + PROGRESS_NS;
                desk.verifier.trim();
                report(&Report::Progress(Progress {
                    seconds: (now - self.start) as f64 / 1e9,
                    sent: self.sent,
                    committed: desk.ledger.committed,
                    delivered: desk.ledger.delivered,
                    pause_ms: desk.pauses.take_longest(now) as f64 / 1e6,
                    lagging: desk.verifier.lagging(&heads),
                    reconnects: fleet.reconnects - self.reconnects,
                    refused: desk.refused_by_code.clone(),
                }));
                heads = desk.verifier.heads();
            }
            fleet.turn(self.timeout(desk), desk)?;
            self.find_idle(fleet);
        }
    }

    /// Plans what is due now. Returns whether nothing more will be.
    fn plan(&mut self, desk: &mut Desk) -> bool {
        let now = desk.now() - self.start;
        if let Schedule::Window { window, until, total } = self.schedule {
            let batch = self.phase.batch as u64;
            while now < until && desk.ledger.planned_in_phase() < total {
                let delivered = desk.ledger.delivered / self.readers.max(1);
                let open = desk.ledger.planned_in_phase() - desk.refused - delivered.min(desk.ledger.committed);
                // Keep every sender supplied, but plan nothing before a sender is about to take it.
                let wanted = self.capacity() as u64 * batch;
                if open >= window || desk.ready.len() as u64 >= wanted {
                    return false;
                }
                desk.plan(self.start + now);
            }
            return true;
        }
        if let Schedule::Rounds { rounds, pause_ns, next_at } = &mut self.schedule {
            let planned = desk.ledger.planned_in_phase();
            if planned > 0 && planned as usize > self.rounds.len() {
                let resolved = desk.unanswered == 0 && desk.ledger.delivered >= (planned - desk.refused) * self.readers;
                if !resolved {
                    return planned == *rounds;
                }
                let due = desk.ledger.due(desk.ledger.phase_start + planned as u32 - 1);
                self.rounds.push(desk.ledger.last_delivery.saturating_sub(due) as f64 / 1e6);
                *next_at = now + *pause_ns;
            }
            if planned < *rounds && now >= *next_at {
                desk.plan(self.start + now);
            }
            return desk.ledger.planned_in_phase() == *rounds;
        }
        loop {
            match self.schedule.due(desk.ledger.planned_in_phase()) {
                None => return true,
                Some(due) if due > now => return false,
                Some(due) => {
                    record(&mut self.lateness, due, now);
                    desk.plan(self.start + due);
                }
            }
        }
    }

    fn capacity(&self) -> usize {
        if self.ws.is_empty() { self.idle_http.len() } else { self.ws.len() * self.phase.pipeline }
    }

    /// Hands what is ready to whoever can send it.
    fn dispatch(&mut self, fleet: &mut Fleet, desk: &mut Desk) {
        if desk.ready.is_empty() || desk.now() < desk.paused_until {
            return;
        }
        if !self.ws.is_empty() {
            return self.dispatch_over_websocket(fleet, desk);
        }
        let mut body = Vec::new();
        while !desk.ready.is_empty()
            && let Some(number) = self.idle_http.pop()
        {
            let count = desk.ready.len().min(self.phase.batch);
            let messages: Vec<u32> = desk.ready.drain(..count).collect();
            body.clear();
            if self.phase.batch == 1 {
                desk.ledger.put_message(messages[0], &mut body, false);
                fleet.post(number, "/v1/messages", &body, desk.now());
            } else {
                body.extend_from_slice(b"{\"messages\":[");
                for message in &messages {
                    desk.ledger.put_message(*message, &mut body, false);
                    body.push(b',');
                }
                body.pop();
                body.extend_from_slice(b"]}");
                fleet.post(number, "/v1/messages/batch", &body, desk.now());
            }
            self.sent += count as u64;
            if let Role::HttpSender { in_flight } = &mut fleet.connections[number].state.role {
                *in_flight = messages;
            }
        }
    }

    /// Message `n` goes out on the session of sender `n`; one that is full leaves its messages ready.
    fn dispatch_over_websocket(&mut self, fleet: &mut Fleet, desk: &mut Desk) {
        let mut payload = Vec::new();
        for _ in 0..desk.ready.len() {
            let Some(message) = desk.ready.pop_front() else { break };
            let number = self.ws[(message - desk.ledger.phase_start) as usize % self.ws.len()];
            let state = &mut fleet.connections[number].state;
            let is_live = state.stage == Stage::Live;
            match &mut state.role {
                Role::WsSender { in_flight, .. } if is_live && in_flight.len() < self.phase.pipeline => {
                    in_flight.push_back(message);
                    payload.clear();
                    desk.ledger.put_message(message, &mut payload, true);
                    fleet.gather(number, &payload);
                    self.sent += 1;
                }
                _ => desk.ready.push_back(message),
            }
        }
    }

    fn find_idle(&mut self, fleet: &Fleet) {
        if !self.ws.is_empty() {
            return;
        }
        self.idle_http.clear();
        // Senders stand at the end of the list; the one that was idle longest is not tracked.
        for (number, connection) in fleet.connections.iter().enumerate().rev() {
            match &connection.state.role {
                Role::HttpSender { in_flight } if in_flight.is_empty() && connection.state.stage == Stage::Live => {
                    self.idle_http.push(number);
                }
                Role::HttpSender { .. } => {}
                _ => break,
            }
        }
    }

    /// How long the loop may sleep: until the next message is due.
    fn timeout(&self, desk: &Desk) -> Duration {
        let now = desk.now();
        if !desk.ready.is_empty() && now < desk.paused_until {
            return Duration::from_nanos(desk.paused_until - now).min(TURN_MAX);
        }
        let next = match &self.schedule {
            _ if self.enough => None,
            Schedule::Rounds { next_at, .. } => Some(*next_at),
            schedule => schedule.due(desk.ledger.planned_in_phase()),
        };
        match next {
            Some(at) if self.start + at > now => Duration::from_nanos(self.start + at - now).min(TURN_MAX),
            Some(_) if !matches!(self.schedule, Schedule::Rounds { .. }) => Duration::ZERO,
            _ => TURN_MAX,
        }
    }

    fn outcome(self, fleet: &Fleet, desk: &mut Desk, before: (Faults, u64, f64)) -> Outcome {
        let (faults, reconnects, cpu) = before;
        let ledger = &desk.ledger;
        let committed = ledger.committed + ledger.committed_unanswered();
        let expected = committed * self.readers;
        let mut problems = std::mem::take(&mut desk.verifier.problems);
        let now_faults = desk.verifier.faults;
        let end = ledger.last_delivery.max(self.start + 1);
        let outcome = Outcome {
            planned: ledger.planned_in_phase(),
            sent: self.sent,
            committed,
            refused: desk.refused,
            retried: desk.retried,
            expected,
            delivered: ledger.delivered,
            lost: expected.saturating_sub(ledger.delivered),
            doubled: now_faults.doubled - faults.doubled,
            out_of_order: now_faults.out_of_order - faults.out_of_order,
            altered: now_faults.altered - faults.altered + ledger.contradictions,
            reconnects: fleet.reconnects - reconnects,
            pause_ms: desk.pauses.longest() as f64 / 1e6,
            refused_by_code: desk.refused_by_code.clone(),
            seconds: (end - self.start) as f64 / 1e9,
            latency: Percentiles::of(&ledger.latency),
            acknowledged: Percentiles::of(&ledger.acknowledged),
            lateness: Percentiles::of(&self.lateness),
            rounds: self.rounds,
            client_cpu_seconds: process::cpu_seconds(std::process::id()) - cpu,
            ..Outcome::default()
        };
        problems.extend(desk.take_refusals());
        Outcome { problems, ..outcome }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_due_at_even_times_that_do_not_drift() {
        let schedule = Schedule::Even { per_second: 3.0, total: 3_000_001 };
        assert_eq!(schedule.due(0), Some(0));
        assert_eq!(schedule.due(1), Some(333_333_333));
        assert_eq!(schedule.due(3_000_000), Some(1_000_000 * 1_000_000_000), "no error adds up");
        assert_eq!(schedule.due(3_000_001), None);
    }

    #[test]
    fn a_recording_is_played_as_many_times_as_fast() {
        let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/ubuntu-irc-sample.jsonl").into();
        let phase = Phase {
            pace: Pace::Recorded { speed: 60.0 },
            content: Content::Corpus { file: sample, limit: Some(50) },
            batch: 1,
            pipeline: 1,
            retry: true,
        };
        #[allow(clippy::unwrap_used)]
        let (texts, schedule) = prepare(&phase).unwrap();
        let Texts::Corpus(corpus) = texts else { panic!("a corpus") };
        for (n, message) in corpus.messages.iter().enumerate() {
            let due = message.after_ms * MS;
            assert_eq!(schedule.due(n as u64), Some((due as f64 / 60.0) as u64));
        }
        assert_eq!(schedule.due(50), None);
    }
}

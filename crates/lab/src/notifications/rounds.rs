//! The course of a run: who moves between rounds, and what happens while messages are under way.

use super::{
    NotificationArgs,
    audit::{Auditor, MARGIN_NS},
    clients::{ClientCommand, ClientThread},
    participants::{AckHabit, Participants, Whereabouts},
    recorder::Recorder,
    senders::{Listener, RoundSenders, read_all},
};
use crate::{
    LabError, interrupt,
    latency::{Latencies, Percentiles},
    offline_push::{
        fake_providers::FakeProviders,
        notice::OfflineChannel,
        provider_state::{ProviderState, ProviderStates},
    },
    process,
    server::Target,
};
use rand::{RngExt, rngs::StdRng, seq::IndexedRandom};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// How often waits look.
const POLL: Duration = Duration::from_millis(20);
/// How often it is looked what is missing: each look goes over all messages.
const AUDIT_INTERVAL: Duration = Duration::from_millis(500);
/// Sessions must be as they are wanted within this.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);
/// Of all users, so many move between two rounds.
const MOVES_PERCENT: u32 = 6;

/// A run under way.
pub(crate) struct Run<'a> {
    args: &'a NotificationArgs,
    recorder: Arc<Recorder>,
    states: Arc<ProviderStates>,
    clients: ClientThread,
    listener: Listener,
    /// Where each user is now.
    whereabouts: Vec<Whereabouts>,
    lateness: Latencies,
}

/// What is to happen in a round, besides messages.
#[derive(Debug, Clone, Copy)]
enum Happening {
    /// A restless user looks elsewhere, or looks again.
    Attention {
        user: usize,
        looks: bool,
    },
    Read {
        user: usize,
        conversation: usize,
    },
    Kill,
    ProviderGoes(OfflineChannel, ProviderState),
    ProviderReturns(OfflineChannel),
}

impl<'a> Run<'a> {
    /// Opens all sessions.
    pub(crate) fn begin(
        args: &'a NotificationArgs,
        target: &Target,
        recorder: &Arc<Recorder>,
        providers: &FakeProviders,
    ) -> Result<Run<'a>, LabError> {
        let (api_key, token_key) = target.keys();
        let listener = Listener { address: target.address(), api_key: api_key.to_owned() };
        let run = Run {
            args,
            recorder: recorder.clone(),
            states: providers.states(),
            clients: ClientThread::start(target.address(), token_key.to_owned(), recorder.clone())?,
            listener,
            whereabouts: recorder.participants.users.iter().map(|user| user.whereabouts).collect(),
            lateness: Latencies::default(),
        };
        run.clients.tell((0..run.whereabouts.len()).map(|user| run.command(user)))?;
        run.settle()?;
        Ok(run)
    }

    /// What the client of a user does to be where the user is.
    fn command(&self, user: usize) -> ClientCommand {
        match self.whereabouts[user] {
            Whereabouts::Away => ClientCommand::Disconnect { user },
            place => ClientCommand::Connect { user, looks: place == Whereabouts::Foreground },
        }
    }

    /// Waits until all sessions are as they are wanted.
    fn settle(&self) -> Result<(), LabError> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        while !self.clients.is_settled()? {
            if Instant::now() > deadline || interrupt::requested() {
                let left = self.clients.unsettled();
                return Err(LabError::Server(format!("did not let {left} sessions become what they were to be")));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    pub(crate) fn round(&mut self, number: usize, target: &mut Target, random: &mut StdRng) -> Result<(), LabError> {
        if number > 0 {
            self.move_some(random)?;
        }
        let participants = self.recorder.participants.clone();
        let seconds = self.args.round.as_secs_f64();
        let plan = participants.plan(self.args.rate, seconds, random);
        let mut happenings = self.happenings(number, &participants, random);
        happenings.sort_by_key(|(at, _)| *at);
        println!("round {}        {} messages", number + 1, plan.len());
        let senders = RoundSenders::start(&self.listener, &format!("r{number}"), plan, &self.recorder);
        let began = Instant::now();
        let mut happenings = happenings.into_iter().peekable();
        loop {
            while let Some((_, happening)) = happenings.next_if(|(at, _)| began.elapsed() >= *at) {
                self.make_happen(happening, target)?;
            }
            if happenings.peek().is_none() && senders.are_done() {
                break;
            }
            std::thread::sleep(POLL);
        }
        self.lateness.add(&senders.finish().counts());
        self.clients.tell((0..self.whereabouts.len()).map(|user| self.command(user)))?;
        self.settle()?;
        self.wait_for_all();
        Ok(())
    }

    /// Some users come, go, or look elsewhere, while nothing is under way.
    fn move_some(&mut self, random: &mut StdRng) -> Result<(), LabError> {
        let places = [Whereabouts::Foreground, Whereabouts::Background, Whereabouts::Away];
        for (user, place) in self.whereabouts.iter_mut().enumerate() {
            // An app that the system has stopped stays where it is.
            if self.recorder.participants.users[user].habit != AckHabit::Freezes
                && random.random_ratio(MOVES_PERCENT, 100)
            {
                *place = *places.choose(random).unwrap_or(place);
            }
        }
        self.clients.tell((0..self.whereabouts.len()).map(|user| self.command(user)))?;
        self.settle()
    }

    fn happenings(
        &self,
        number: usize,
        participants: &Participants,
        random: &mut StdRng,
    ) -> Vec<(Duration, Happening)> {
        let length = self.args.round;
        let mut all = Vec::new();
        let some_time = |random: &mut StdRng| length.mul_f64(random.random_range(0.05..0.95));
        for (user, one) in participants.users.iter().enumerate() {
            if one.restless && self.whereabouts[user] != Whereabouts::Away {
                let (mut first, mut second) = (some_time(random), some_time(random));
                if second < first {
                    (first, second) = (second, first);
                }
                let looks = self.whereabouts[user] == Whereabouts::Foreground;
                all.push((first, Happening::Attention { user, looks: !looks }));
                all.push((second, Happening::Attention { user, looks }));
            }
            if one.reads {
                let of_user: Vec<usize> = (0..participants.conversations.len())
                    .filter(|number| participants.conversations[*number].members.contains(&user))
                    .collect();
                if let Some(conversation) = of_user.choose(random) {
                    all.push((some_time(random), Happening::Read { user, conversation: *conversation }));
                }
            }
        }
        if let Some(every) = self.args.kill {
            let count = (length.as_secs_f64() / every.as_secs_f64()).floor() as u32;
            all.extend(
                (1..=count).map(|kill| (every * kill - every.mul_f64(random.random_range(0.1..0.5)), Happening::Kill)),
            );
        }
        if let Some(away) = self.args.provider_away {
            let provider = OfflineChannel::PROVIDERS[number % OfflineChannel::PROVIDERS.len()];
            let state = if number.is_multiple_of(2) { ProviderState::Refuses } else { ProviderState::Hangs };
            let goes = length / 10;
            all.push((goes, Happening::ProviderGoes(provider, state)));
            all.push((goes + away, Happening::ProviderReturns(provider)));
        }
        all
    }

    fn make_happen(&mut self, happening: Happening, target: &mut Target) -> Result<(), LabError> {
        match happening {
            Happening::Attention { user, looks } => self.clients.tell([ClientCommand::Connect { user, looks }])?,
            Happening::Read { user, conversation } => {
                read_all(&mut self.listener.http(), user, conversation, false, &self.recorder);
            }
            Happening::Kill => {
                let Target::Own(own) = target else { return Ok(()) };
                self.recorder.records().kills.push((process::monotonic_ns(), u64::MAX));
                own.kill()?;
                own.launch()?;
                if let Some((_, back)) = self.recorder.records().kills.last_mut() {
                    *back = process::monotonic_ns();
                }
            }
            Happening::ProviderGoes(provider, state) => {
                let now = process::monotonic_ns();
                self.recorder.records().providers_away.push((provider, now, u64::MAX));
                self.states.set(provider, state);
            }
            Happening::ProviderReturns(provider) => {
                self.states.set(provider, ProviderState::Accepts);
                let now = process::monotonic_ns();
                if let Some(last) = self.recorder.records().providers_away.last_mut() {
                    last.2 = now;
                }
            }
        }
        Ok(())
    }

    /// Waits until nothing is missing, or nothing came for the patience.
    fn wait_for_all(&self) {
        let patience = self.args.patience + Duration::from_secs(self.args.webhook_after);
        let mut progress = (0, Instant::now());
        loop {
            let began = Instant::now();
            let (missing, came) = {
                let records = self.recorder.records();
                let missing = Auditor::new(&self.recorder.participants, &records, self.args.times()).missing();
                (missing, records.arrivals.len() + records.deliveries.len())
            };
            if came != progress.0 {
                progress = (came, Instant::now());
            }
            if missing == 0 || progress.1.elapsed() > patience || interrupt::requested() {
                return;
            }
            // Fakes wait for the records while they are looked at.
            std::thread::sleep(AUDIT_INTERVAL.max(3 * began.elapsed()));
        }
    }

    /// Some users read all that they have, once it is long enough ago that anybody was notified: their devices must be asked to take away
    /// what they show.
    fn read_in_peace(&self) {
        let participants = self.recorder.participants.clone();
        let quiet_ns =
            Auditor::new(&participants, &self.recorder.records(), self.args.times()).decided_within() + MARGIN_NS;
        std::thread::sleep(Duration::from_nanos(quiet_ns));
        let mut http = self.listener.http();
        for (number, conversation) in participants.conversations.iter().enumerate() {
            for user in conversation.members.iter().filter(|user| participants.users[**user].reads) {
                read_all(&mut http, *user, number, true, &self.recorder);
            }
        }
    }

    /// Those who have gone come back and get what they missed; then it is seen what comes though nothing is due any more. Answers how
    /// late clients acknowledged, and how late messages were sent.
    pub(crate) fn finish(mut self) -> Result<(Duration, Percentiles), LabError> {
        let known: Vec<usize> = self.recorder.records().first_bound.keys().copied().collect();
        for user in known {
            if self.whereabouts[user] == Whereabouts::Away {
                self.whereabouts[user] = Whereabouts::Background;
            }
        }
        self.clients.tell((0..self.whereabouts.len()).map(|user| self.command(user)))?;
        self.settle()?;
        self.wait_for_all();
        self.read_in_peace();
        self.wait_for_all();
        std::thread::sleep(
            self.args.ack_timeout.max(Duration::from_secs(self.args.webhook_after)) + Duration::from_secs(1),
        );
        Ok((self.clients.ack_late(), self.lateness.percentiles()))
    }
}

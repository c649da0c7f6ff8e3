//! The load client for a server that a driver describes: receivers that are all subscribed to one topic, and senders that
//! publish to it, on one thread.

use super::{
    description::{Driver, TokenSource},
    link::{Client, Common, Role, Stage},
    message::Message,
    target::{DriverTarget, ReadWrite},
    template::{Placeholder, Values},
};
use crate::{
    LabError,
    client_engine::{
        ConnectionError, HANDSHAKES_MAX,
        http::parse_answer,
        reactor::{Clients, Reactor},
        session::user_token,
    },
    delivery_ledger::{Audience, Ledger, Marking, SendTimes},
    interrupt,
    live::{LiveBlock, WorkLength},
    problems::Problems,
    process::{self, ServerProcesses, monotonic_ns},
    sampler::Sampler,
    schedule::{NextMessage, PlanningTurn, Schedule},
    worker_protocol::{LoadModel, Outcome},
};
use std::{collections::VecDeque, sync::Arc, time::Duration};

/// A sender with so many unwritten bytes waits for the server.
const UNWRITTEN_BYTES_MAX: usize = 64 * 1024;
/// The longest sleep of the loop.
const POLL_TIMEOUT_MAX: Duration = Duration::from_millis(20);
/// So long after the last delivery a second one of the same message is still looked for.
const QUIET_NS: u64 = 200_000_000;

/// The clients of a server that others wrote.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DriverClients {
    pub(crate) audience: Audience,
    pub(crate) receivers: usize,
    pub(crate) senders: usize,
    /// Unanswered publishes on one session.
    pub(crate) pipeline: usize,
}

pub(crate) struct DriverClient {
    run: String,
    phase: u32,
    reactor: Reactor,
    links: Links,
    clients: DriverClients,
    /// The sender whose turn it is.
    turn: usize,
    /// Of pairs: how many messages each sender has published, by which its conversations take turns.
    sent_by: Vec<usize>,
    patience_ns: u64,
    next_heartbeat: u64,
    /// What comes between phases: nothing should.
    between: Ledger,
}

/// All clients, without their sockets.
struct Links {
    common: Common,
    target: DriverTarget,
    /// The receivers, then the senders.
    clients: Vec<Client>,
}

/// A turn of the reactor.
struct Turn<'a> {
    links: &'a mut Links,
    ledger: &'a mut Ledger,
}

impl Clients for Turn<'_> {
    type Error = ConnectionError;

    fn connected(&mut self, number: usize, out: &mut Vec<u8>) {
        let Links { common, clients, .. } = &mut *self.links;
        clients[number].greet(common);
        out.append(&mut clients[number].out);
    }

    fn receive(&mut self, number: usize, bytes: &mut [u8], out: &mut Vec<u8>) -> Result<usize, ConnectionError> {
        let Links { common, clients, .. } = &mut *self.links;
        let taken = clients[number].receive(bytes, common, self.ledger, monotonic_ns());
        out.append(&mut clients[number].out);
        taken
    }

    fn ended(&mut self, reactor: &mut Reactor, number: usize, why: ConnectionError) -> Result<(), LabError> {
        let client = &mut self.links.clients[number];
        match (client.role, client.stage) {
            (Role::Receiver(receiver), Stage::Ready) => {
                client.stage = Stage::Ended;
                self.ledger.findings.problems.note(format!("the connection of receiver {receiver} ended: {why}"));
                Ok(())
            }
            // A server may close connections that it has answered on.
            (Role::HttpSender, Stage::Ready) if client.in_flight.is_empty() => self.links.connect(reactor, number),
            _ => Err(LabError::Server(format!("ended the connection of {}: {why}", client.user))),
        }
    }
}

impl Links {
    fn connect(&self, reactor: &mut Reactor, number: usize) -> Result<(), LabError> {
        let addresses = &self.target.addresses;
        Ok(reactor.connect(number, addresses[number % addresses.len()], self.target.trust.as_ref())?)
    }
}

impl DriverClients {
    /// What is published and delivered from now on.
    fn ledger(&self, marking: Marking, body_bytes: usize) -> Ledger {
        let DriverClients { audience, receivers, senders, .. } = *self;
        match audience {
            Audience::Everybody => Ledger::new(marking, monotonic_ns(), receivers, senders, body_bytes),
            Audience::Pairs => Ledger::of_pairs(marking, monotonic_ns(), receivers, body_bytes),
        }
    }
}

impl DriverClient {
    /// Logs in receivers and senders, and waits until the server has accepted all.
    pub(crate) fn open(driver: Arc<Driver>, target: &DriverTarget, clients: DriverClients) -> Result<Self, LabError> {
        let DriverClients { audience, receivers, mut senders, .. } = clients;
        if audience == Audience::Pairs {
            // A session that is made for one channel cannot publish to others.
            let is_bound = driver.publishes_on_sessions() && driver.binds_sessions_to_channels();
            senders = if is_bound { receivers } else { senders.min(receivers) };
        }
        let clients = DriverClients { senders, ..clients };
        let needs = |placeholder, value: &Option<String>, option: &str| match value {
            None if driver.needs(placeholder) => {
                Err(LabError::Usage(format!("the driver {} needs {option}", driver.name)))
            }
            value => Ok(value.clone().unwrap_or_default()),
        };
        let api_key = needs(Placeholder::ApiKey, &target.api_key, "--api-key")?;
        let token_key = match driver.token {
            Some(_) => String::new(),
            None => needs(Placeholder::Token, &target.token_key, "--token-key, which its tokens are signed with")?,
        };
        let run = process::run_tag();
        let common = Common { driver, host: target.host.clone(), api_key };
        let mut client = DriverClient {
            between: clients.ledger(Marking { run: run.clone(), phase: 0 }, 0),
            phase: 0,
            reactor: Reactor::new()?,
            links: Links { common, target: target.clone(), clients: Vec::with_capacity(receivers + senders) },
            clients,
            turn: 0,
            sent_by: vec![0; senders],
            patience_ns: target.patience.as_nanos() as u64,
            next_heartbeat: u64::MAX,
            run,
        };
        let users = (0..receivers).map(|number| format!("lab-{}-r{number}", client.run));
        let users: Vec<String> =
            users.chain((0..senders).map(|number| format!("lab-{}-s{number}", client.run))).collect();
        let tokens = client.tokens(&users, &token_key)?;
        let mut opened = users.into_iter().zip(tokens);
        let (all, started) = (receivers + senders, monotonic_ns());
        loop {
            let ready = client.links.clients.iter().filter(|client| client.stage == Stage::Ready).count();
            if ready == all {
                break;
            }
            for number in client.links.clients.len()..all.min(ready + HANDSHAKES_MAX) {
                let role = match number.checked_sub(receivers) {
                    None => Role::Receiver(number),
                    Some(_) if client.links.common.driver.publishes_on_sessions() => Role::SessionSender,
                    Some(_) => Role::HttpSender,
                };
                let Some(user) = opened.next() else { break };
                client.links.connect(&mut client.reactor, number)?;
                let channel = client.channel(if number < receivers { number } else { number - receivers });
                client.links.clients.push(Client::new(role, user, channel));
            }
            client.wait(POLL_TIMEOUT_MAX)?;
            if monotonic_ns() - started > client.patience_ns.max(1) * (1 + all as u64 / 1_000) {
                let why = format!("accepted {ready} of {all} connections in time{}", client.stuck());
                return Err(LabError::Server(why));
            }
            if interrupt::requested() {
                return Err(LabError::Environment("Ctrl-C before all connections were open".into()));
            }
        }
        client.schedule_heartbeat(monotonic_ns());
        Ok(client)
    }

    /// What a connection that does not get on waits for.
    fn stuck(&self) -> &'static str {
        match self.links.clients.iter().map(|client| client.stage).find(|stage| *stage != Stage::Ready) {
            Some(Stage::LoggingIn) => ": no message is an answer to `login`",
            Some(Stage::Subscribing) => ": no message is an answer to `subscribe`",
            Some(Stage::Upgrading) => ": the upgrade is not answered",
            _ => "",
        }
    }

    /// What the receiver of this number is subscribed to.
    fn channel(&self, receiver: usize) -> String {
        match self.clients.audience {
            Audience::Everybody => format!("lab-{}", self.run),
            Audience::Pairs => format!("lab-{}-{receiver}", self.run),
        }
    }

    /// The token of each user: from the server, or signed here.
    fn tokens(&self, users: &[String], token_key: &str) -> Result<Vec<String>, LabError> {
        let Links { common, target, .. } = &self.links;
        let Some(TokenSource { request, place }) = &common.driver.token else {
            return Ok(users.iter().map(|user| user_token(token_key, user)).collect());
        };
        let timeout = Duration::from_nanos(self.patience_ns);
        let mut stream: Option<Box<dyn ReadWrite>> = None;
        let mut tokens = Vec::with_capacity(users.len());
        for (number, user) in users.iter().enumerate() {
            let mut bytes = Vec::new();
            let channel = self.channel(number.checked_sub(self.clients.receivers).unwrap_or(number));
            let values = Values { user, api_key: &common.api_key, channel: &channel, ..Values::default() };
            request.put(&values, &common.host, &mut bytes);
            let mut open = match stream.take() {
                Some(open) => open,
                None => target.connect_blocking(timeout)?,
            };
            open.write_all(&bytes)?;
            open.flush()?;
            let mut answer = Vec::new();
            let (status, body, closes) = loop {
                if let Some(answer) = parse_answer(&answer).map_err(LabError::Server)? {
                    let body = String::from_utf8_lossy(&answer.body).into_owned();
                    break (answer.status, body, answer.closes);
                }
                let mut part = [0; 4096];
                match open.read(&mut part)? {
                    0 => return Err(LabError::Server(format!("ended the connection that asked for {user}'s token"))),
                    count => answer.extend_from_slice(&part[..count]),
                }
            };
            let found = place.first(&Message::new(&body));
            let Some(token) = found.filter(|_| (200..300).contains(&status)) else {
                let body: String = body.chars().take(200).collect();
                return Err(LabError::Server(format!("gave no token for {user}: {status} {body}")));
            };
            tokens.push(token);
            stream = (!closes).then_some(open);
        }
        Ok(tokens)
    }

    /// Serves the connections while nothing is published.
    pub(crate) fn idle(&mut self) -> Result<(), LabError> {
        self.wait(POLL_TIMEOUT_MAX)
    }

    /// One turn without a phase.
    fn wait(&mut self, timeout: Duration) -> Result<(), LabError> {
        let nobody = Ledger::new(Marking { run: String::new(), phase: 0 }, 0, 0, 0, 0);
        let mut between = std::mem::replace(&mut self.between, nobody);
        let polled = self.turn(timeout, &mut between);
        self.between = between;
        polled
    }

    /// Publishes by the model and waits for what was published. `server`: its processes, none of one that runs already.
    pub(crate) fn run(
        &mut self,
        title: &str,
        model: &LoadModel,
        body_bytes: usize,
        server: ServerProcesses,
    ) -> Result<Outcome, LabError> {
        if matches!(model, LoadModel::Recorded { .. } | LoadModel::ClosedLoopOnce { .. }) {
            return Err(LabError::Usage("a driver sends no recorded chat".into()));
        }
        let mut schedule = Schedule::of(model, &[]);
        self.phase += 1;
        let marking = |phase| Marking { run: self.run.clone(), phase };
        let mut ledger = self.clients.ledger(marking(self.phase), body_bytes);
        let next = self.clients.ledger(marking(self.phase + 1), 0);
        let stray = std::mem::replace(&mut self.between, next).outcome(false);
        let mut live = LiveBlock::begin(title, WorkLength::of_model(model));
        let sampler = Sampler::start(server, None, Vec::new());
        let cpu = process::cpu_seconds(std::process::id());
        let start = ledger.tally.start;
        let mut waiting: VecDeque<u64> = VecDeque::new();
        let (mut had, mut since) = (ledger.progress(), start);
        // Messages of rounds that were given up, which are still missing.
        let mut given_up = 0;
        loop {
            let now = monotonic_ns();
            let has_arrived = waiting.is_empty() && self.is_answered() && ledger.outstanding <= given_up;
            if schedule.is_round_under_way(ledger.published()) && has_arrived {
                schedule.end_round(ledger.published(), now - start);
            }
            let all_planned = interrupt::requested() || self.plan(&schedule, now - start, &ledger, &mut waiting);
            self.publish_waiting(start, &mut waiting, &mut ledger)?;
            let counts = ledger.counts();
            live.show_series(start, &mut ledger.tally.times.series, || counts);
            let is_settled = waiting.is_empty() && ledger.outstanding == 0 && self.is_answered();
            let is_idle = !all_planned && is_settled;
            if ledger.progress() != had || is_idle {
                (had, since) = (ledger.progress(), now);
            }
            let is_complete = all_planned && is_settled;
            let silent_ns = now - since;
            if all_planned && (is_complete && silent_ns > QUIET_NS || silent_ns > self.patience_ns) {
                break;
            }
            let next = ledger.published() + waiting.len() as u64;
            if silent_ns > self.patience_ns {
                since = now;
                // Of rounds, the next one begins without waiting for what is missing. In the pause before it nothing is given up.
                if schedule.is_round_under_way(next) {
                    schedule.end_round(next, now - start);
                    given_up = ledger.outstanding;
                }
            }
            let until_due = schedule.next_at(next).map(|due| Duration::from_nanos((start + due).saturating_sub(now)));
            self.turn(until_due.unwrap_or(POLL_TIMEOUT_MAX).min(POLL_TIMEOUT_MAX), &mut ledger)?;
        }
        live.export_rest(&mut ledger.tally.times.series);
        let unanswered: usize = self.links.clients.iter_mut().map(|client| client.in_flight.drain(..).count()).sum();
        if unanswered > 0 {
            ledger.findings.problems.note(format!("{unanswered} publishes were never answered"));
        }
        let outcome = ledger.outcome(matches!(model, LoadModel::Rounds { .. }));
        let (samples, server_cpu_seconds, server_rss_bytes) = sampler.finish();
        Ok(Outcome {
            title: title.to_owned(),
            planned: outcome.planned + waiting.len() as u64,
            doubled: outcome.doubled + stray.doubled,
            altered: outcome.altered + stray.altered,
            problems: [stray.problems, outcome.problems].concat(),
            interrupted: interrupt::requested(),
            samples,
            server_cpu_seconds,
            server_rss_bytes,
            client_cpu_seconds: process::cpu_seconds(std::process::id()) - cpu,
            ..outcome
        })
    }

    /// Adds the messages that are due now to those that wait. Returns whether all messages are planned.
    fn plan(&self, schedule: &Schedule, now: u64, ledger: &Ledger, waiting: &mut VecDeque<u64>) -> bool {
        let room = self.room();
        let turn = PlanningTurn { now, is_first: ledger.published() == 0 && waiting.is_empty() };
        loop {
            let number = ledger.published() + waiting.len() as u64;
            let has_room = |window: u64| waiting.len() < room.min((window as usize).saturating_sub(ledger.outstanding));
            match schedule.next(number, turn, has_room) {
                NextMessage::Due(due) => waiting.push_back(due),
                NextMessage::NotYet => return false,
                NextMessage::Never => return true,
            }
        }
    }

    /// Hands due messages to senders that can publish, in turn.
    fn publish_waiting(
        &mut self,
        start: u64,
        waiting: &mut VecDeque<u64>,
        ledger: &mut Ledger,
    ) -> Result<(), LabError> {
        let mut marker = Vec::new();
        while let Some(due) = waiting.front().copied()
            && let Some(sender) = self.free_sender()
        {
            waiting.pop_front();
            let (planned, now) = (start + due, monotonic_ns());
            let source = self.source_of(sender);
            let channel = self.channel(source);
            let index = self.clients.receivers + sender;
            let Links { common, clients, .. } = &mut self.links;
            let client = &mut clients[index];
            let could_send = planned.max(client.free_since).min(now);
            let number = ledger.publish(source, SendTimes { planned, free_since: could_send, now }, &mut marker);
            client.publish(common, number, &channel, &String::from_utf8_lossy(&marker));
            self.reactor.out(index).append(&mut client.out);
            self.reactor.flush();
            self.turn = sender + 1;
            self.sent_by[sender] += 1;
        }
        Ok(())
    }

    /// Whose message this sender publishes next: its own, or of pairs that of the conversation whose turn it is. A conversation
    /// has one sender, so that its messages keep their order.
    fn source_of(&self, sender: usize) -> usize {
        let DriverClients { audience, receivers, senders, .. } = self.clients;
        match audience {
            Audience::Everybody => sender,
            Audience::Pairs => {
                let conversations = (receivers - sender).div_ceil(senders);
                sender + senders * (self.sent_by[sender] % conversations)
            }
        }
    }

    /// How many messages one sender may have under way.
    fn places(&self) -> usize {
        match (self.links.common.driver.publishes_on_sessions(), self.links.common.driver.has_answers()) {
            (true, true) => self.clients.pipeline,
            (true, false) => usize::MAX,
            (false, _) => 1,
        }
    }

    fn room(&self) -> usize {
        let places = self.places();
        let senders = &self.links.clients[self.clients.receivers..];
        let free = senders.iter().map(|client| places.saturating_sub(client.in_flight.len()));
        free.fold(0, usize::saturating_add)
    }

    fn is_answered(&self) -> bool {
        self.links.clients[self.clients.receivers..].iter().all(|client| client.in_flight.is_empty())
    }

    /// The next sender in turn that can publish now.
    fn free_sender(&mut self) -> Option<usize> {
        let (places, senders) = (self.places(), self.clients.senders);
        (0..senders).map(|step| (self.turn + step) % senders).find(|sender| {
            let number = self.clients.receivers + sender;
            let Client { stage, in_flight, .. } = &self.links.clients[number];
            let has_room = self.reactor.unsent(number) <= UNWRITTEN_BYTES_MAX;
            *stage == Stage::Ready && in_flight.len() < places && has_room
        })
    }

    fn schedule_heartbeat(&mut self, now: u64) {
        let every = self.links.common.driver.heartbeat.as_ref().map(|heartbeat| heartbeat.every.as_nanos() as u64);
        self.next_heartbeat = every.map_or(u64::MAX, |every| now + every);
    }

    fn turn(&mut self, timeout: Duration, ledger: &mut Ledger) -> Result<(), LabError> {
        self.reactor.turn(timeout, &mut Turn { links: &mut self.links, ledger })?;
        let now = monotonic_ns();
        if now >= self.next_heartbeat {
            self.schedule_heartbeat(now);
            let Links { common, clients, .. } = &mut self.links;
            for (number, client) in clients.iter_mut().enumerate() {
                client.heartbeat(common);
                self.reactor.out(number).append(&mut client.out);
            }
        }
        Ok(())
    }
}

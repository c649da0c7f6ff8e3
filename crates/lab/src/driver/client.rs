//! The load client for a server that a driver describes: receivers that are all subscribed to one topic, and senders that
//! publish to it, on one thread.

use super::{
    description::Driver,
    link::{Client, Common, Link, Role, Stage, take_answer},
    message::Message,
    schedule::Schedule,
    socket::{LinkError, LinkSocket},
    target::{DriverTarget, ReadWrite},
    template::{Placeholder, Values},
};
use crate::{
    LabError,
    delivery_ledger::{Audience, Ledger, Marking, SendTimes},
    interrupt,
    live::{LiveBlock, WorkLength},
    process::{self, monotonic_ns},
    sampler::{Sampler, Watched},
    worker_protocol::{LoadModel, Outcome},
};
use mio::{Events, Interest, Poll, Token};
use std::{collections::VecDeque, io, sync::Arc, time::Duration};
use tidings_client::{nonblocking::ReadOutcome, token};

/// Concurrent handshakes, as of the load client for Tidings.
const OPENING_MAX: usize = 200;
const BUFFER_BYTES: usize = 1024 * 1024;
/// A sender with so many unwritten bytes waits for the server.
const UNWRITTEN_BYTES_MAX: usize = 64 * 1024;
const TOKEN_LIFETIME: Duration = Duration::from_secs(24 * 3600);
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
    common: Common,
    target: DriverTarget,
    run: String,
    phase: u32,
    poll: Poll,
    events: Option<Events>,
    /// The receivers, then the senders.
    links: Vec<Link>,
    clients: DriverClients,
    /// The sender whose turn it is.
    turn: usize,
    /// Of pairs: how many messages each sender has published, by which its conversations take turns.
    sent_by: Vec<usize>,
    buffer: Vec<u8>,
    patience_ns: u64,
    next_heartbeat: u64,
    /// What comes between phases: nothing should.
    between: Ledger,
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
            between: clients.ledger(Marking::Text { run: run.clone(), phase: 0 }, 0),
            common,
            target: target.clone(),
            phase: 0,
            poll: Poll::new()?,
            events: Some(Events::with_capacity(4096)),
            links: Vec::with_capacity(receivers + senders),
            clients,
            turn: 0,
            sent_by: vec![0; senders],
            buffer: vec![0; BUFFER_BYTES],
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
            let ready = client.links.iter().filter(|link| link.client.stage == Stage::Ready).count();
            if ready == all {
                break;
            }
            for _ in client.links.len()..all.min(ready + OPENING_MAX) {
                let number = client.links.len();
                let role = match number.checked_sub(receivers) {
                    None => Role::Receiver(number),
                    Some(_) if client.common.driver.publishes_on_sessions() => Role::SessionSender,
                    Some(_) => Role::HttpSender,
                };
                let Some(user) = opened.next() else { break };
                let socket = client.connect(number)?;
                let channel = client.channel(if number < receivers { number } else { number - receivers });
                client.links.push(Link { socket, client: Client::new(role, user, channel) });
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
        match self.links.iter().map(|link| link.client.stage).find(|stage| *stage != Stage::Ready) {
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

    fn connect(&mut self, number: usize) -> io::Result<LinkSocket> {
        let addresses = &self.target.addresses;
        let mut socket = LinkSocket::connect(addresses[number % addresses.len()], self.target.trust.as_ref())?;
        self.poll.registry().register(socket.stream(), Token(number), Interest::READABLE | Interest::WRITABLE)?;
        Ok(socket)
    }

    /// The token of each user: from the server, or signed here.
    fn tokens(&self, users: &[String], token_key: &str) -> Result<Vec<String>, LabError> {
        let Some((request, place)) = &self.common.driver.token else {
            return Ok(users.iter().map(|user| token::sign(token_key, user, TOKEN_LIFETIME)).collect());
        };
        let timeout = Duration::from_nanos(self.patience_ns);
        let mut stream: Option<Box<dyn ReadWrite>> = None;
        let mut tokens = Vec::with_capacity(users.len());
        for (number, user) in users.iter().enumerate() {
            let mut bytes = Vec::new();
            let channel = self.channel(number.checked_sub(self.clients.receivers).unwrap_or(number));
            let values = Values { user, api_key: &self.common.api_key, channel: &channel, ..Values::default() };
            request.put(&values, &self.common.host, &mut bytes);
            let mut open = match stream.take() {
                Some(open) => open,
                None => self.target.connect_blocking(timeout)?,
            };
            open.write_all(&bytes)?;
            open.flush()?;
            let mut answer = Vec::new();
            let (status, body, closes) = loop {
                if let Some(answer) = take_answer(&answer).map_err(LabError::Server)? {
                    break answer;
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
        let nobody = Ledger::new(Marking::Bytes, 0, 0, 0, 0);
        let mut between = std::mem::replace(&mut self.between, nobody);
        let polled = self.poll_once(timeout, &mut between);
        self.between = between;
        polled
    }

    /// Publishes by the model and waits for what was published.
    pub(crate) fn run(&mut self, title: &str, model: &LoadModel, body_bytes: usize) -> Result<Outcome, LabError> {
        let mut schedule = Schedule::of(model)?;
        self.phase += 1;
        let marking = |phase| Marking::Text { run: self.run.clone(), phase };
        let mut ledger = self.clients.ledger(marking(self.phase), body_bytes);
        let next = self.clients.ledger(marking(self.phase + 1), 0);
        let stray = std::mem::replace(&mut self.between, next).outcome(false);
        let mut live = LiveBlock::begin(title, WorkLength::of_model(model));
        let sampler = Sampler::start(Watched::default());
        let cpu = process::cpu_seconds(std::process::id());
        let start = ledger.start();
        let mut waiting: VecDeque<u64> = VecDeque::new();
        let (mut had, mut since) = (ledger.progress(), start);
        loop {
            let now = monotonic_ns();
            let all_planned = interrupt::requested() || {
                let room = self.room();
                schedule.plan(now - start, room, self.is_answered(), &ledger, &mut waiting)
            };
            self.publish_waiting(start, &mut waiting, &mut ledger)?;
            let counts = ledger.counts();
            live.show_series(start, &mut ledger.series, || counts);
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
            if silent_ns > self.patience_ns {
                schedule.give_up(now - start, &ledger);
                since = now;
            }
            let until_due = schedule.next_due().map(|due| Duration::from_nanos((start + due).saturating_sub(now)));
            self.poll_once(until_due.unwrap_or(POLL_TIMEOUT_MAX).min(POLL_TIMEOUT_MAX), &mut ledger)?;
        }
        let unanswered: usize = self.links.iter_mut().map(|link| link.client.in_flight.drain(..).count()).sum();
        if unanswered > 0 {
            ledger.note(format!("{unanswered} publishes were never answered"));
        }
        let outcome = ledger.outcome(matches!(model, LoadModel::Rounds { .. }));
        Ok(Outcome {
            title: title.to_owned(),
            planned: outcome.planned + waiting.len() as u64,
            doubled: outcome.doubled + stray.doubled,
            altered: outcome.altered + stray.altered,
            problems: [stray.problems, outcome.problems].concat(),
            interrupted: interrupt::requested(),
            samples: sampler.finish(),
            client_cpu_seconds: process::cpu_seconds(std::process::id()) - cpu,
            ..outcome
        })
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
            let link = &mut self.links[self.clients.receivers + sender];
            let could_send = planned.max(link.client.free_since).min(now);
            let number = ledger.publish(source, SendTimes { planned, free_since: could_send, now }, &mut marker);
            link.client.publish(&self.common, number, &channel, &String::from_utf8_lossy(&marker));
            link.flush()?;
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
        match (self.common.driver.publishes_on_sessions(), self.common.driver.has_answers()) {
            (true, true) => self.clients.pipeline,
            (true, false) => usize::MAX,
            (false, _) => 1,
        }
    }

    fn room(&self) -> usize {
        let places = self.places();
        let free =
            self.links[self.clients.receivers..].iter().map(|link| places.saturating_sub(link.client.in_flight.len()));
        free.fold(0, usize::saturating_add)
    }

    fn is_answered(&self) -> bool {
        self.links[self.clients.receivers..].iter().all(|link| link.client.in_flight.is_empty())
    }

    /// The next sender in turn that can publish now.
    fn free_sender(&mut self) -> Option<usize> {
        let (places, senders) = (self.places(), self.clients.senders);
        (0..senders).map(|step| (self.turn + step) % senders).find(|sender| {
            let link = &mut self.links[self.clients.receivers + sender];
            let Client { stage, in_flight, .. } = &link.client;
            *stage == Stage::Ready && in_flight.len() < places && link.has_room(UNWRITTEN_BYTES_MAX)
        })
    }

    fn schedule_heartbeat(&mut self, now: u64) {
        let every = self.common.driver.heartbeat.as_ref().map(|(every, _)| every.as_nanos() as u64);
        self.next_heartbeat = every.map_or(u64::MAX, |every| now + every);
    }

    fn poll_once(&mut self, timeout: Duration, ledger: &mut Ledger) -> Result<(), LabError> {
        let Some(mut events) = self.events.take() else { return Ok(()) };
        let polled = self.poll.poll(&mut events, Some(timeout));
        let handled = events.iter().try_for_each(|event| self.handle(event.token().0, ledger));
        self.events = Some(events);
        handled?;
        let now = monotonic_ns();
        if now >= self.next_heartbeat {
            self.schedule_heartbeat(now);
            for link in &mut self.links {
                link.client.heartbeat(&self.common);
                // A broken connection is noticed when it is read.
                let _ = link.flush();
            }
        }
        match polled {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn handle(&mut self, number: usize, ledger: &mut Ledger) -> Result<(), LabError> {
        let common = &self.common;
        let Some(link) = self.links.get_mut(number).filter(|link| link.client.stage != Stage::Ended) else {
            return Ok(());
        };
        let Link { socket, client } = link;
        if client.stage == Stage::Connecting {
            client.greet(common);
        }
        let read = socket.read(&mut self.buffer, |bytes| client.receive(bytes, common, ledger, monotonic_ns()));
        let wrote = link.flush();
        let why = match read.and_then(|outcome| wrote.map(|()| outcome).map_err(LinkError::from)) {
            Ok(ReadOutcome::Drained) if !link.client.closes => return Ok(()),
            Ok(_) => LinkError::Protocol("it was closed".into()),
            Err(error) => error,
        };
        match (link.client.role, link.client.stage) {
            (Role::Receiver(receiver), Stage::Ready) => {
                link.client.stage = Stage::Ended;
                self.poll.registry().deregister(link.socket.stream())?;
                ledger.note(format!("the connection of receiver {receiver} ended: {why}"));
                Ok(())
            }
            // A server may close connections that it has answered on.
            (Role::HttpSender, Stage::Ready) if link.client.in_flight.is_empty() => {
                self.poll.registry().deregister(link.socket.stream())?;
                let socket = self.connect(number)?;
                let link = &mut self.links[number];
                (link.socket, link.client.closes) = (socket, false);
                Ok(())
            }
            _ => {
                let user = &link.client.user;
                Err(LabError::Server(format!("ended the connection of {user}: {why}")))
            }
        }
    }
}

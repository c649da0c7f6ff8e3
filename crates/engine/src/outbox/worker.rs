//! The one worker: walks the list, hands out, records, and comes back to what waits.

use super::{
    Command, OutboxConfig, Webhook, WebhookDelivery, WebhookError, backoff,
    events::{Event, Expansion},
    health::Health,
    parking::{self, Parking, STAYS, WAITING},
    sign,
};
use crate::{engine::Engine, model::Position, store::*};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use serde_json::value::RawValue;
use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

/// How often the list is looked at when it was empty.
const POLL: Duration = Duration::from_millis(100);
/// Entries taken from the list at once.
const ITEMS_PER_LOOK: usize = 100;
/// Dead letters delivered again before new entries have their turn.
const REPLAYS_PER_ROUND: usize = 20;
/// Bytes of events after which a delivery is closed.
const DELIVERY_BYTES_MAX: usize = 1024 * 1024;
/// Conversations that are tried again before new entries have their turn, and events of each.
const RETRIES_PER_ROUND: usize = 20;
/// How often is looked for what other nodes noted.
const LOOK_FOR_UNHEARD: Duration = Duration::from_secs(1);

/// What happened while the worker waited.
pub(super) enum Waited {
    TimeIsOver,
    Stop,
}

pub(super) struct Worker {
    pub(super) engine: Arc<Engine>,
    webhook: Arc<dyn Webhook>,
    pub(super) config: OutboxConfig,
    inbox: Receiver<Command>,
    /// Asked for, not tried again yet. A set: asking again and again takes no more room.
    replays: BTreeSet<u64>,
    /// What waits for another attempt, while this node leads.
    parking: Option<Parking>,
    /// When what other nodes noted was last looked for.
    looked: Option<Instant>,
    health: Health,
    /// Told to stop, perhaps in the middle of a wait between two attempts: from then on no wait is one.
    stopping: bool,
}

/// The worker was told to stop in the middle: what is not on record is done again after the restart.
pub(super) struct Stopped;

/// An event that is to be parked, and the attempts that it has had.
struct Left {
    event: Event,
    attempts: u32,
    error: String,
}

impl Worker {
    pub(super) fn new(
        engine: Arc<Engine>,
        webhook: Arc<dyn Webhook>,
        config: OutboxConfig,
        inbox: Receiver<Command>,
    ) -> Self {
        let (replays, health) = (BTreeSet::new(), Health::new());
        Worker { engine, webhook, config, inbox, replays, parking: None, looked: None, health, stopping: false }
    }

    pub(super) fn run(mut self) {
        let mut told = false;
        loop {
            let time = match self.round() {
                Ok(Ok(true)) => Duration::ZERO,
                Ok(Ok(false)) => POLL,
                Ok(Err(Stopped)) => return,
                Err(error) => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(%error, "the outbox could not read; it tries again until it can");
                    }
                    if let Waited::Stop = self.wait(self.config.backoff_min) {
                        return;
                    }
                    continue;
                }
            };
            if std::mem::take(&mut told) {
                tracing::info!("the outbox reads again");
            }
            if let Waited::Stop = self.wait(time) {
                return;
            }
        }
    }

    /// Waits, taking commands meanwhile.
    pub(super) fn wait(&mut self, time: Duration) -> Waited {
        loop {
            if self.stopping {
                return Waited::Stop;
            }
            match self.inbox.recv_timeout(time) {
                Ok(Command::Replay(ids)) => self.replays.extend(ids),
                Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => self.stopping = true,
                Err(RecvTimeoutError::Timeout) => return Waited::TimeIsOver,
            }
        }
    }

    /// Deals with what waits; answers whether there was anything.
    fn round(&mut self) -> StoreResult<Result<bool, Stopped>> {
        let mut worked = match self.replay()? {
            Ok(replayed) => replayed,
            Err(Stopped) => return Ok(Err(Stopped)),
        };
        if !self.engine.is_leader() {
            (self.parking, self.looked) = (None, None);
            self.health = Health::new();
            self.engine.metrics.outbox_lag.set(0);
            self.engine.metrics.outbox_parked.set(0);
            self.engine.metrics.outbox_failing.set(0);
            return Ok(Ok(worked));
        }
        let mut parking = match self.parking.take() {
            Some(parking) => parking,
            None => Parking::load(&*self.engine.store)?,
        };
        let done = self.round_of_leader(&mut parking);
        self.engine.metrics.outbox_parked.set(parking.events() as i64);
        self.engine.metrics.outbox_failing.set(i64::from(self.health.is_out()));
        self.parking = Some(parking);
        Ok(match done? {
            Ok(more) => {
                worked |= more;
                Ok(worked)
            }
            Err(Stopped) => Err(Stopped),
        })
    }

    fn round_of_leader(&mut self, parking: &mut Parking) -> StoreResult<Result<bool, Stopped>> {
        let mut worked = match self.try_again(parking)? {
            Ok(tried) => tried,
            Err(Stopped) => return Ok(Err(Stopped)),
        };
        if self.looked.is_none_or(|at| at.elapsed() >= LOOK_FOR_UNHEARD) && parking.has_room() {
            self.looked = Some(Instant::now());
            match self.take_unheard(parking)? {
                Ok(found) => worked |= found,
                Err(Stopped) => return Ok(Err(Stopped)),
            }
        }
        let store = self.engine.store.clone();
        let items = store.outbox(store.outbox_position()?, ITEMS_PER_LOOK)?;
        let lag = items.first().map_or(0, |first| store.last_position().saturating_sub(first.position) + 1);
        self.engine.metrics.outbox_lag.set(lag as i64);
        // While the webhook is out one that is new is tried now and then.
        let mut items = items;
        items.truncate(if self.health.is_out() { 1 } else { ITEMS_PER_LOOK });
        let may_begin = self.health.takes_new(Instant::now());
        let Some(last) = items.last().map(|item| item.position).filter(|_| may_begin && parking.has_room()) else {
            return Ok(Ok(worked));
        };
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let mut through = None;
        for item in &items {
            let mut expansion = Expansion::of(&self.engine, item, self.config.recipients_per_event.max(1))?;
            while let Some(expansion) = &mut expansion
                && let Some(event) = expansion.next(&self.engine)?
            {
                // Only now, with the next event at hand, is it known which entries the full batch completes.
                if batch.len() >= self.config.events_per_delivery.max(1) || bytes >= DELIVERY_BYTES_MAX {
                    bytes = 0;
                    if let Err(Stopped) = self.hand_out(parking, std::mem::take(&mut batch), through.take()) {
                        return Ok(Err(Stopped));
                    }
                }
                bytes += event.json.get().len();
                batch.push(event);
            }
            through = Some(item.position);
        }
        Ok(self.hand_out(parking, batch, Some(last)).map(|()| true))
    }

    /// Hands out a batch; then moves the mark, and parks what was not taken, in one record.
    fn hand_out(&mut self, parking: &mut Parking, batch: Vec<Event>, through: Option<Position>) -> Result<(), Stopped> {
        // Behind what waits of the same conversation, or it would overtake it.
        let (behind, free): (Vec<Event>, Vec<Event>) =
            batch.into_iter().partition(|event| parking.holds(&event.conversation));
        let mut left: Vec<Left> = Vec::new();
        left.extend(behind.into_iter().map(|event| Left { event, attempts: 0, error: String::new() }));
        self.hand_out_parts(free, &mut left)?;
        let rows = left.into_iter().map(|left| self.row_of(parking, left)).collect();
        self.record_rows(parking, rows, through)
    }

    /// A batch that is not taken is tried in halves, so that one event keeps no other conversation's.
    fn hand_out_parts(&mut self, mut events: Vec<Event>, left: &mut Vec<Left>) -> Result<(), Stopped> {
        if events.is_empty() {
            return Ok(());
        }
        if self.stopping {
            return Err(Stopped);
        }
        if !self.health.takes_new(Instant::now()) {
            left.extend(events.into_iter().map(|event| Left { event, attempts: 0, error: String::new() }));
            return Ok(());
        }
        let was_out = self.health.is_out();
        let Err(error) = self.deliver(&events) else { return Ok(()) };
        self.health.rest_from_new(&self.config, Instant::now());
        // In order of conversations, and within each as they came.
        events.sort_by(|a, b| a.conversation.cmp(&b.conversation));
        let middle = events[events.len() / 2].conversation.clone();
        let half = match events.iter().position(|event| event.conversation == middle) {
            Some(0) => events.iter().position(|event| event.conversation > middle),
            half => half,
        };
        match half {
            Some(half) => {
                let second = events.split_off(half);
                self.hand_out_parts(events, left)?;
                self.hand_out_parts(second, left)
            }
            None => {
                if !was_out {
                    tracing::warn!(
                        conversation = &*middle,
                        error,
                        "the webhook did not take an event; its conversation waits, others go on"
                    );
                }
                let parked = events.into_iter().enumerate().map(|(at, event)| Left {
                    event,
                    attempts: u32::from(at == 0),
                    error: error.clone(),
                });
                left.extend(parked);
                Ok(())
            }
        }
    }

    /// Has what is due of each conversation tried again, one event after the other.
    fn try_again(&mut self, parking: &mut Parking) -> StoreResult<Result<bool, Stopped>> {
        let mut worked = false;
        for _ in 0..RETRIES_PER_ROUND {
            if !self.health.takes_again(Instant::now()) {
                break;
            }
            let Some((conversation, key)) = parking.due(Instant::now()) else { break };
            if self.stopping {
                return Ok(Err(Stopped));
            }
            worked = true;
            let found = self.engine.store.dead_notifications(Some(key - 1), 1)?;
            let Some(row) = found.into_iter().find(|row| row.id == key) else {
                parking.taken(&conversation, key);
                continue;
            };
            let was_out = self.health.is_out();
            self.engine.metrics.outbox_retries.inc();
            match self.deliver(&[parking::event_of(&row)]) {
                Ok(()) => {
                    if let Err(Stopped) = self.record(Proposal::DeleteDeadLetters { ids: vec![key] }) {
                        return Ok(Err(Stopped));
                    }
                    parking.taken(&conversation, key);
                    if was_out {
                        parking.all_due();
                    } else if !parking.holds(&conversation) {
                        tracing::info!(
                            conversation = &*conversation,
                            "the webhook takes this conversation's events again"
                        );
                    }
                }
                Err(error) => {
                    if let Err(Stopped) = self.failed_again(parking, &conversation, row, error) {
                        return Ok(Err(Stopped));
                    }
                }
            }
        }
        Ok(Ok(worked))
    }

    /// Another attempt of a conversation's first event was not taken: it waits longer, or is given up.
    fn failed_again(
        &mut self,
        parking: &mut Parking,
        conversation: &Arc<str>,
        row: DeadNotification,
        error: String,
    ) -> Result<(), Stopped> {
        let (key, attempts) = (row.id, row.attempts + 1);
        let row = DeadNotification {
            failed_at: self.engine.clock.now_ms(),
            attempts,
            last_error: error.chars().take(500).collect(),
            ..row
        };
        if attempts < self.config.attempts_max.max(1) {
            self.record(Proposal::AdvanceOutbox { through: 0, dead: vec![row] })?;
            parking.postpone(conversation, Instant::now() + backoff(&self.config, attempts));
            return Ok(());
        }
        let id = key & !WAITING;
        self.given_up(conversation, id, attempts, &error);
        self.record(Proposal::AdvanceOutbox { through: 0, dead: vec![DeadNotification { id, ..row }] })?;
        self.record(Proposal::DeleteDeadLetters { ids: vec![key] })?;
        parking.taken(conversation, key);
        Ok(())
    }

    fn given_up(&self, conversation: &str, id: u64, attempts: u32, error: &str) {
        self.engine.metrics.outbox_dead.inc();
        tracing::warn!(conversation, id, attempts, error, "an event is given up; it is a dead letter now");
    }

    /// Events that nodes noted for users whose sessions did not answer.
    fn take_unheard(&mut self, parking: &mut Parking) -> StoreResult<Result<bool, Stopped>> {
        let rows = parking::noted_unheard(&*self.engine.store, ITEMS_PER_LOOK)?;
        if rows.is_empty() {
            return Ok(Ok(false));
        }
        let keys: Vec<u64> = rows.iter().map(|row| row.id).collect();
        let mut events: Vec<Event> = Vec::new();
        for row in &rows {
            // Who has come back since was handed it again.
            let came_back = |user: &String| {
                let user = self.engine.directory.user_by_id(user).ok().flatten();
                user.is_some_and(|user| self.engine.presence.has_chat_session(user.no))
            };
            if row.id & STAYS != 0 || !parking::recipients_of(row).iter().all(came_back) {
                events.push(parking::event_of(row));
            }
        }
        if let Err(Stopped) = self.hand_out(parking, events, None) {
            return Ok(Err(Stopped));
        }
        // Those that were not taken are parked under keys of their own by now.
        Ok(self.record(Proposal::DeleteDeadLetters { ids: keys }).map(|()| true))
    }

    /// How an event is kept that was not taken: to be tried again, or as a dead letter if that was the last attempt.
    fn row_of(&self, parking: &mut Parking, left: Left) -> DeadNotification {
        let Left { event, attempts, error } = left;
        let is_dead = attempts >= self.config.attempts_max.max(1);
        if is_dead {
            self.given_up(&event.conversation, event.id, attempts, &error);
        }
        let due = Instant::now() + backoff(&self.config, attempts);
        DeadNotification {
            id: if is_dead { event.id } else { parking.put(&event, due) },
            failed_at: self.engine.clock.now_ms(),
            attempts,
            last_error: error.chars().take(500).collect(),
            event: event.json.get().to_owned(),
        }
    }

    fn record_rows(
        &mut self,
        parking: &mut Parking,
        rows: Vec<DeadNotification>,
        through: Option<Position>,
    ) -> Result<(), Stopped> {
        if rows.is_empty() && through.is_none() {
            return Ok(());
        }
        // Position 0 moves no mark: only the rows are kept.
        let recorded = self.record(Proposal::AdvanceOutbox { through: through.unwrap_or(0), dead: rows });
        self.engine.metrics.outbox_parked.set(parking.events() as i64);
        recorded
    }

    /// Commits what became of a delivery. While senders fill the commit queue, or the disk is full, it
    /// waits: delivering again what was taken would be worse.
    fn record(&mut self, proposal: Proposal) -> Result<(), Stopped> {
        let mut told = false;
        while let Err(refusal) = self.engine.committer.propose_blocking(proposal.clone()) {
            if !std::mem::replace(&mut told, true) {
                tracing::warn!(error = %refusal, "the outbox cannot record its progress; it tries again");
            }
            if let Waited::Stop = self.wait(POLL) {
                return Err(Stopped);
            }
        }
        Ok(())
    }

    /// Tries some of what was asked for again; what is taken is a dead letter no more.
    fn replay(&mut self) -> StoreResult<Result<bool, Stopped>> {
        let mut taken = Vec::new();
        let mut tried = 0;
        while tried < REPLAYS_PER_ROUND
            && !self.stopping
            && let Some(id) = self.replays.pop_first()
        {
            tried += 1;
            let found = self.engine.store.dead_notifications(id.checked_sub(1), 1)?;
            let Some(dead) = found.into_iter().find(|dead| dead.id == id) else { continue };
            let json = RawValue::from_string(dead.event).unwrap_or_else(|_| RawValue::NULL.to_owned());
            if self.call(&[&json]).is_ok() {
                self.engine.metrics.outbox_delivered.inc();
                taken.push(id);
            }
        }
        if !taken.is_empty()
            && let Err(Stopped) = self.record(Proposal::DeleteDeadLetters { ids: taken })
        {
            return Ok(Err(Stopped));
        }
        Ok(Ok(tried > 0))
    }

    /// One attempt.
    fn deliver(&mut self, events: &[Event]) -> Result<(), String> {
        let json: Vec<&RawValue> = events.iter().map(|event| &*event.json).collect();
        match self.call(&json) {
            Ok(()) => {
                self.health.took();
                self.engine.metrics.outbox_delivered.inc_by(events.len() as u64);
                Ok(())
            }
            Err(WebhookError { reason }) => {
                let mut conversations = events.iter().map(|event| &event.conversation);
                // Of several conversations it shows which when they are tried apart.
                let first = conversations.next();
                let only = first.filter(|first| conversations.all(|other| other == *first));
                self.health.failed(only, &reason, &self.config, Instant::now());
                Err(reason)
            }
        }
    }

    fn call(&self, events: &[&RawValue]) -> Result<(), WebhookError> {
        #[derive(serde::Serialize)]
        struct Body<'a> {
            events: &'a [&'a RawValue],
        }
        let body = serde_json::to_vec(&Body { events }).unwrap_or_default();
        let timestamp = self.engine.clock.now_ms() / 1_000;
        let signature = sign(&self.config.secret, timestamp, &body);
        self.webhook.deliver(&WebhookDelivery { body, timestamp, signature })
    }
}

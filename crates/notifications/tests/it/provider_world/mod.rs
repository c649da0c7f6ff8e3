//! An engine with providers and a webhook that answer as a test says.
#![allow(unreachable_pub)]
#![expect(clippy::disallowed_methods, reason = "a channel of a test ends with it")]

use crossbeam_channel::{Receiver, Sender, unbounded};
use serde_json::{Value, json};
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{
    chat_rows::{self, notification_position_key},
    clock::Clock,
    model::{Actor, User},
    providers::{Notification, NotificationSubject, Provider, ProviderAnswer, Retry, Shipment},
    push_store::DeviceNo,
    store::{RowSpace, Store},
};
use tidings_engine::{Engine, EngineParts, config::EngineConfig, presence::PresenceSession, shards::Wake};
use tidings_notifications::{
    NotificationParts, Notifications, NotificationsConfig, QuietHours,
    channel_plan::ChannelPlan,
    provider_push::{ProviderPushConfig, ProviderPushParts},
    webhook::{Webhook, WebhookDelivery, WebhookError},
    webhook_push::WebhookPushConfig,
};
use tidings_protocol::{error::Refusal, http::*};
use tidings_push::{PushItem, Register};
use tidings_testkit::{ManualClock, MemoryStore};

/// 2026-03-01 12:00 UTC.
pub const NOON: u64 = 1_772_366_400_000;
pub const PATIENCE: Duration = Duration::from_secs(300);

pub struct Asleep;
impl Wake for Asleep {
    fn wake(&self) {}
}

/// A provider that answers what it was told to, and accepts when it was told nothing.
pub struct FakeProvider {
    pub provider: PushProvider,
    pub answers: parking_lot::Mutex<VecDeque<ProviderAnswer>>,
    pub is_away: bool,
    pub sent: Sender<Shipment>,
}

impl Provider for FakeProvider {
    fn provider(&self) -> PushProvider {
        self.provider
    }

    fn check_token(&self, token: &PushToken) -> Result<(), Refusal> {
        match token.address() {
            "elsewhere" => Err(Refusal::field("token", "is not ours")),
            _ => Ok(()),
        }
    }

    fn send_all(&self, shipments: Vec<Shipment>) -> Vec<ProviderAnswer> {
        let accepted = ProviderAnswer::Accepted { id: None };
        let answer = |shipment: Shipment| {
            let _ = self.sent.send(shipment);
            match self.is_away {
                true => ProviderAnswer::Unreachable { reason: "away".into(), retry_after: None },
                false => self.answers.lock().pop_front().unwrap_or(accepted.clone()),
            }
        };
        shipments.into_iter().map(answer).collect()
    }

    fn stop(&self) {}
}

/// A webhook that refuses all, or records all.
pub struct FakeWebhook {
    pub refuses: bool,
    /// What it answers first.
    pub answers: parking_lot::Mutex<VecDeque<WebhookError>>,
    pub called: Sender<WebhookDelivery>,
}

impl Webhook for FakeWebhook {
    fn deliver(&self, delivery: &WebhookDelivery) -> Result<(), WebhookError> {
        let _ = self.called.send(delivery.clone());
        if let Some(error) = self.answers.lock().pop_front() {
            return Err(error);
        }
        if self.refuses { Err(WebhookError::new("no")) } else { Ok(()) }
    }
}

/// What a world is made of.
pub struct Setup {
    pub store: Arc<MemoryStore>,
    /// Without providers and without a webhook nobody decides who is told: messages wait for the next engine.
    pub has_providers: bool,
    /// Whether browsers are notified, too.
    pub has_browsers: bool,
    pub answers: Vec<ProviderAnswer>,
    pub is_away: bool,
    /// Whether there is a webhook, and whether it refuses.
    pub webhook: Option<bool>,
    /// What the webhook answers first.
    pub webhook_answers: Vec<WebhookError>,
    /// An event of the webhook is a dead letter after so many attempts.
    pub webhook_attempts_max: u32,
    /// The pause before the webhook is tried again.
    pub webhook_backoff: Duration,
    pub backoff: Duration,
    pub repeat_after: Duration,
    pub plan: ChannelPlan,
    pub quiet_hours: QuietHours,
    /// What is in the feed of events beside chat; empty: there is no feed.
    pub events_also: Vec<EventType>,
}

impl Default for Setup {
    fn default() -> Self {
        let store = Arc::default();
        let (webhook, backoff, plan) = (None, Duration::ZERO, ChannelPlan::default());
        let (has_providers, has_browsers, repeat_after) = (true, false, Duration::ZERO);
        Setup {
            store,
            has_providers,
            has_browsers,
            answers: vec![],
            is_away: false,
            webhook,
            webhook_answers: vec![],
            webhook_attempts_max: WebhookPushConfig::default().attempts_max,
            webhook_backoff: WebhookPushConfig::default().backoff_min,
            backoff,
            repeat_after,
            plan,
            quiet_hours: QuietHours::default(),
            events_also: vec![],
        }
    }
}

pub struct World {
    pub engine: Arc<Engine>,
    pub notifications: Arc<Notifications>,
    pub clock: Arc<ManualClock>,
    pub fcm: Receiver<Shipment>,
    pub apns: Receiver<Shipment>,
    pub web: Receiver<Shipment>,
    pub webhook: Receiver<WebhookDelivery>,
    /// What the one shard is handed.
    pub shard: Receiver<PushItem>,
}

/// An engine with Firebase as the setup says, and Apple and perhaps browsers, who accept all.
pub fn world(setup: Setup) -> World {
    world_on(setup.store.clone(), setup)
}

/// The same on another store than that of the setup.
pub fn world_on(store: Arc<dyn Store>, setup: Setup) -> World {
    let clock = Arc::new(ManualClock::default());
    clock.set(NOON);
    let provider = |provider, answers: Vec<ProviderAnswer>, is_away| {
        let (sent, received) = unbounded();
        let answers = parking_lot::Mutex::new(answers.into());
        (Arc::new(FakeProvider { provider, answers, is_away, sent }) as Arc<dyn Provider>, received)
    };
    let (fcm_provider, fcm) = provider(PushProvider::Fcm, setup.answers, setup.is_away);
    let (apns_provider, apns) = provider(PushProvider::Apns, vec![], false);
    let (web_provider, web) = provider(PushProvider::WebPush, vec![], false);
    let web_provider = setup.has_browsers.then_some(web_provider);
    let providers = [fcm_provider, apns_provider].into_iter().chain(web_provider).collect();
    let backoff = setup.backoff;
    let (backoff_min, backoff_max, repeat_after) = (backoff, backoff, setup.repeat_after);
    let config = ProviderPushConfig { backoff_min, backoff_max, repeat_after, ..ProviderPushConfig::default() };
    let (called, webhook) = unbounded();
    let (attempts_max, answers) = (setup.webhook_attempts_max, setup.webhook_answers.into());
    let answers = parking_lot::Mutex::new(answers);
    let backoff_min = setup.webhook_backoff;
    let webhook_config =
        WebhookPushConfig { secret: "s".into(), attempts_max, backoff_min, ..WebhookPushConfig::default() };
    let events_keep = if setup.events_also.is_empty() { Duration::ZERO } else { Duration::from_secs(86_400) };
    let (engine, mut receivers) = Engine::start(EngineParts {
        // No send is refused because commits are slow.
        config: EngineConfig {
            shards: 1,
            commit_time_max: PATIENCE,
            events_keep,
            events_also: setup.events_also,
            ..EngineConfig::default()
        },
        clock: clock.clone() as Arc<dyn Clock>,
        store,
        wakes: vec![Arc::new(Asleep)],
        cluster: None,
    });
    let parts = NotificationParts {
        config: NotificationsConfig {
            channel_plan: setup.plan,
            quiet_hours: setup.quiet_hours,
            ..NotificationsConfig::default()
        },
        webhook: setup
            .webhook
            .map(|refuses| (Arc::new(FakeWebhook { refuses, answers, called }) as Arc<dyn Webhook>, webhook_config)),
        webhook_caller: None,
        providers: setup.has_providers.then(|| ProviderPushParts { providers, config }),
    };
    let notifications = Notifications::start(&engine, parts);
    World { engine, notifications, clock, fcm, apns, web, webhook, shard: receivers.remove(0).push }
}

pub fn fcm(token: &str) -> PushToken {
    PushToken::Fcm { token: token.into() }
}

pub fn apns(token: &str) -> PushToken {
    PushToken::Apns { token: token.into() }
}

impl World {
    /// What FCM gets next, as time goes on. A pause before another attempt begins when the worker has read the answer, which may be after
    /// the clock was moved.
    pub(crate) fn next_in_time(&self) -> Notification {
        let waited = Instant::now();
        loop {
            self.clock.advance(Duration::from_secs(15 * 60));
            match self.fcm.recv_timeout(Duration::from_millis(20)) {
                Ok(Shipment { notification, .. }) => return notification,
                Err(_) => assert!(waited.elapsed() < PATIENCE, "no notification"),
            }
        }
    }

    /// Whether it is decided of every message who is notified of it.
    pub(crate) fn has_decided_all(&self) -> bool {
        let store = &self.engine.store;
        let row = store.row(RowSpace::Chat, &notification_position_key()).unwrap();
        let decided: u64 = chat_rows::decode(row.as_deref()).unwrap();
        store.outbox(decided, 1).unwrap().is_empty()
    }

    pub(crate) async fn until_decided(&self) {
        let decided = async {
            while !self.has_decided_all() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, decided).await.expect("all messages are decided");
    }

    pub fn stop(&self) {
        self.notifications.stop();
        self.engine.stop();
    }

    pub fn user(&self, id: &str) -> Arc<User> {
        self.engine.directory.require_user(id).unwrap()
    }

    /// Users of whom each has a phone with a token of Firebase that is the user's id, in a group.
    pub async fn with_room(self, members: &[&str]) -> World {
        let world = self.with_users_in_room(members).await;
        for user in members {
            world.register(user, "phone", Some(fcm(user))).await.unwrap();
        }
        world
    }

    /// The same without phones.
    pub async fn with_users_in_room(self, members: &[&str]) -> World {
        let users = members.iter().map(|id| UserUpsert { id: (*id).into(), ..UserUpsert::default() }).collect();
        self.engine.upsert_users(users).await.unwrap();
        let room = json!({ "id": "room", "kind": "group", "name": "Room", "members": members });
        self.engine.create_conversation(&Actor::App, serde_json::from_value(room).unwrap()).await.unwrap();
        self
    }

    pub async fn register(&self, user: &str, device: &str, token: Option<PushToken>) -> Result<(), Refusal> {
        let (user, device) = (self.engine.directory.require_user(user)?, device.to_owned());
        let notifications = self.notifications.clone();
        let register = move || notifications.set_push_token(&user, &device, token.as_ref());
        tokio::task::spawn_blocking(register).await.unwrap()
    }

    /// A device of the user binds for pushes.
    pub fn bind(&self, user: &str, device: &str) -> DeviceNo {
        let user = self.engine.directory.require_user(user).unwrap().no;
        let session = user.0;
        self.engine
            .push
            .register(Register {
                shard: 0,
                session,
                user,
                device_id: device.into(),
                device_kind: "phone".into(),
                app_version: None,
                since: self.clock.now_ms(),
            })
            .unwrap();
        self.engine.push.settle().unwrap();
        let registered = |item| match item {
            PushItem::Registered { session: of, result } if of == session => Some(result.unwrap()),
            _ => None,
        };
        self.shard.try_iter().find_map(registered).expect("the device is registered")
    }

    /// The connection of a device that [`World::bind`] bound ends.
    pub fn unbind(&self, user: &str, device: DeviceNo) {
        let session = self.engine.directory.require_user(user).unwrap().no.0;
        self.engine.push.session_ended(0, session, Some(device));
        self.engine.push.settle().unwrap();
    }

    /// Sends a push; returns its number.
    pub async fn push(&self, request: Value) -> u64 {
        let prepared = self.engine.push.prepare(serde_json::from_str(&request.to_string()).unwrap()).unwrap();
        self.engine.push.accept(prepared).await.unwrap().push
    }

    pub fn devices(&self, user: &str) -> Vec<String> {
        let user = self.engine.directory.require_user(user).unwrap();
        let tokens = self.engine.push_tokens(&user).unwrap().push_tokens;
        tokens.into_iter().map(|card| format!("{} {}", card.device_id, card.provider.name())).collect()
    }

    pub fn connect(&self, user: &str, chat: bool) {
        self.register_session(user, "d", chat);
    }

    /// A session with chat on this device, at which somebody looks.
    pub fn connect_on(&self, user: &str, device: &str) {
        self.register_session(user, device, true);
    }

    fn register_session(&self, user: &str, device: &str, chat: bool) {
        let no = self.engine.directory.require_user(user).unwrap().no;
        let (session, node, device_id, device_kind) = (no.0, Default::default(), device.into(), "phone".into());
        self.engine
            .presence
            .register(no, PresenceSession { session, node, device_id, device_kind, since: 0, chat, background: false });
    }

    /// Waits until this decides what is answered of a user and a message of the group.
    pub async fn until_reached(&self, seq: u64, user: &str, outcome: NotificationOutcome) {
        let reached = async {
            while self.notifications.message_notifications("room", seq, user).unwrap().outcome != outcome {
                tokio::task::yield_now().await;
            }
        };
        let reached = tokio::time::timeout(PATIENCE, reached).await;
        reached.unwrap_or_else(|_| panic!("{:?}", self.notifications.message_notifications("room", seq, user)));
    }

    /// The first page of dead letters.
    pub fn letters(&self, select: SelectDeadLetters) -> Vec<DeadLetter> {
        self.notifications.dead_letters(None, 0, &select).unwrap().dead_letters
    }

    /// Waits for so many dead letters.
    pub async fn until_dead(&self, count: usize) -> Vec<DeadLetter> {
        let dead = async {
            loop {
                let letters = self.letters(SelectDeadLetters::default());
                if letters.len() == count {
                    return letters;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, dead).await.expect("dead letters")
    }

    /// Has the webhook and providers try again what they did not take.
    pub async fn replay(&self, select: SelectDeadLetters) -> Result<DeadLettersReplayed, Refusal> {
        let notifications = self.notifications.clone();
        tokio::task::spawn_blocking(move || notifications.replay_dead_letters(&select)).await.unwrap()
    }

    /// Deletes what the webhook and providers did not take.
    pub async fn delete(&self, select: SelectDeadLetters) -> Result<DeadLettersDeleted, Refusal> {
        let notifications = self.notifications.clone();
        tokio::task::spawn_blocking(move || notifications.delete_dead_letters(&select)).await.unwrap()
    }

    pub async fn send(&self, message: Value) {
        let text = message.to_string();
        self.engine.send(&Actor::App, serde_json::from_str(&text).unwrap()).await.unwrap();
    }

    pub async fn say(&self, text: &str) {
        self.send(json!({ "conversation": "room", "from": "ada", "body": { "text": text } })).await;
    }

    pub fn count(&self, outcome: &str) -> u64 {
        let metrics = self.engine.metrics.render();
        let line = format!("tidings_provider_notifications_total{{provider=\"fcm\",outcome=\"{outcome}\"}} ");
        metrics.lines().find_map(|found| found.strip_prefix(&line)).map_or(0, |count| count.parse().unwrap())
    }

    pub async fn until_counted(&self, outcome: &str, count: u64) {
        let counted = async {
            while self.count(outcome) < count {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, counted).await.expect(outcome);
    }
}

pub fn next(of: &Receiver<Shipment>) -> (String, Notification) {
    let Shipment { notification, token } = of.recv_timeout(PATIENCE).expect("a notification");
    (token.address().to_owned(), notification)
}

/// The number of the message that a notification is about.
pub fn message_of(notification: &Notification) -> u64 {
    match &notification.subject {
        NotificationSubject::Message { seq, .. } => *seq,
        NotificationSubject::Push { push, .. } => panic!("a notification of push {push}"),
    }
}

/// The number of the message that a dead letter is about.
pub fn seq_of(letter: &DeadLetter) -> u64 {
    match &letter.subject {
        DeadLetterSubject::Message { seq, .. } => *seq,
        DeadLetterSubject::Push { push } => panic!("a dead letter of push {push}"),
    }
}

/// The tokens that the next `count` notifications are for, sorted.
pub fn next_tokens(of: &Receiver<Shipment>, count: usize) -> Vec<String> {
    let mut tokens: Vec<String> = (0..count).map(|_| next(of).0).collect();
    tokens.sort();
    tokens
}

pub fn later() -> ProviderAnswer {
    ProviderAnswer::Refused { code: "503".into(), retry: Retry::After(None) }
}

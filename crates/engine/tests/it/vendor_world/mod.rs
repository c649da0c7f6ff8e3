//! An engine with vendors and a webhook that answer as a test says.
#![allow(unreachable_pub)]
#![expect(clippy::disallowed_methods, reason = "a channel of a test ends with it")]

use crossbeam_channel::{Receiver, Sender, unbounded};
use serde_json::{Value, json};
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tidings_domain::{
    clock::Clock,
    model::{Actor, User},
    vendors::{Notification, Retry, Shipment, Vendor, VendorAnswer},
};
use tidings_engine::{
    Engine,
    config::EngineConfig,
    engine::EngineParts,
    outbox::OutboxConfig,
    presence::PresenceSession,
    road_plan::RoadPlan,
    shards::Wake,
    vendor_push::{VendorPushConfig, VendorPushParts},
    webhook::{Webhook, WebhookDelivery, WebhookError},
};
use tidings_protocol::{error::Refusal, http::*};
use tidings_testkit::{ManualClock, MemoryStore};

/// 2026-03-01 12:00 UTC.
pub const NOON: u64 = 1_772_366_400_000;
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Asleep;
impl Wake for Asleep {
    fn wake(&self) {}
}

/// A vendor that answers what it was told to, and accepts when it was told nothing.
pub struct FakeVendor {
    pub vendor: PushVendor,
    pub answers: parking_lot::Mutex<VecDeque<VendorAnswer>>,
    pub is_away: bool,
    pub sent: Sender<Shipment>,
}

impl Vendor for FakeVendor {
    fn vendor(&self) -> PushVendor {
        self.vendor
    }

    fn check_token(&self, token: &PushToken) -> Result<(), Refusal> {
        match token.address() {
            "elsewhere" => Err(Refusal::field("token", "is not ours")),
            _ => Ok(()),
        }
    }

    fn send_all(&self, shipments: Vec<Shipment>) -> Vec<VendorAnswer> {
        let accepted = VendorAnswer::Accepted { id: None };
        let answer = |shipment: Shipment| {
            let _ = self.sent.send(shipment);
            match self.is_away {
                true => VendorAnswer::Unreachable { reason: "away".into(), retry_after: None },
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
    pub called: Sender<WebhookDelivery>,
}

impl Webhook for FakeWebhook {
    fn deliver(&self, delivery: &WebhookDelivery) -> Result<(), WebhookError> {
        let _ = self.called.send(delivery.clone());
        if self.refuses { Err(WebhookError { reason: "no".into() }) } else { Ok(()) }
    }
}

/// What a world is made of.
pub struct Setup {
    pub store: Arc<MemoryStore>,
    /// Without vendors and without a webhook nobody decides who is told: messages wait for the next engine.
    pub has_vendors: bool,
    pub answers: Vec<VendorAnswer>,
    pub is_away: bool,
    /// Whether there is a webhook, and whether it refuses.
    pub webhook: Option<bool>,
    pub backoff: Duration,
    pub repeat_after: Duration,
    pub plan: RoadPlan,
}

impl Default for Setup {
    fn default() -> Self {
        let store = Arc::default();
        let (webhook, backoff, plan) = (None, Duration::ZERO, RoadPlan::default());
        let (has_vendors, repeat_after) = (true, Duration::ZERO);
        Setup { store, has_vendors, answers: vec![], is_away: false, webhook, backoff, repeat_after, plan }
    }
}

pub struct World {
    pub engine: Arc<Engine>,
    pub clock: Arc<ManualClock>,
    pub fcm: Receiver<Shipment>,
    pub apns: Receiver<Shipment>,
    pub webhook: Receiver<WebhookDelivery>,
}

/// An engine with Firebase as the setup says, and Apple, who accepts all.
pub fn world(setup: Setup) -> World {
    let clock = Arc::new(ManualClock::default());
    clock.set(NOON);
    let vendor = |vendor, answers: Vec<VendorAnswer>, is_away| {
        let (sent, received) = unbounded();
        let answers = parking_lot::Mutex::new(answers.into());
        (Arc::new(FakeVendor { vendor, answers, is_away, sent }) as Arc<dyn Vendor>, received)
    };
    let (fcm_vendor, fcm) = vendor(PushVendor::Fcm, setup.answers, setup.is_away);
    let (apns_vendor, apns) = vendor(PushVendor::Apns, vec![], false);
    let backoff = setup.backoff;
    let (backoff_min, backoff_max, repeat_after) = (backoff, backoff, setup.repeat_after);
    let config = VendorPushConfig { backoff_min, backoff_max, repeat_after, ..VendorPushConfig::default() };
    let (called, webhook) = unbounded();
    let outbox = OutboxConfig { secret: "s".into(), ..OutboxConfig::default() };
    let (engine, _receivers) = Engine::start(EngineParts {
        // No send is refused because commits are slow.
        config: EngineConfig { shards: 1, commit_time_max: PATIENCE, road_plan: setup.plan, ..EngineConfig::default() },
        clock: clock.clone() as Arc<dyn Clock>,
        store: setup.store,
        webhook: setup.webhook.map(|refuses| (Arc::new(FakeWebhook { refuses, called }) as Arc<dyn Webhook>, outbox)),
        vendors: setup.has_vendors.then(|| VendorPushParts { vendors: vec![fcm_vendor, apns_vendor], config }),
        wakes: vec![Arc::new(Asleep)],
        cluster: None,
    });
    World { engine, clock, fcm, apns, webhook }
}

pub fn fcm(token: &str) -> PushToken {
    PushToken::Fcm { token: token.into() }
}

pub fn apns(token: &str) -> PushToken {
    PushToken::Apns { token: token.into() }
}

impl World {
    pub fn user(&self, id: &str) -> Arc<User> {
        self.engine.directory.require_user(id).unwrap()
    }

    /// Users of whom each has a phone with a token of Firebase that is the user's id, in a group.
    pub async fn with_room(self, members: &[&str]) -> World {
        let users = members.iter().map(|id| UserUpsert { id: (*id).into(), ..UserUpsert::default() }).collect();
        self.engine.upsert_users(users).await.unwrap();
        let room = json!({ "id": "room", "kind": "group", "name": "Room", "members": members });
        self.engine.create_conversation(&Actor::App, serde_json::from_value(room).unwrap()).await.unwrap();
        for user in members {
            self.register(user, "phone", Some(fcm(user))).await.unwrap();
        }
        self
    }

    pub async fn register(&self, user: &str, device: &str, token: Option<PushToken>) -> Result<(), Refusal> {
        let (engine, user, device) = (self.engine.clone(), user.to_owned(), device.to_owned());
        let register = move || {
            let user = engine.directory.require_user(&user)?;
            engine.set_push_token(&user, &device, token.as_ref())
        };
        tokio::task::spawn_blocking(register).await.unwrap()
    }

    pub fn devices(&self, user: &str) -> Vec<String> {
        let user = self.engine.directory.require_user(user).unwrap();
        let tokens = self.engine.push_tokens(&user).unwrap().push_tokens;
        tokens.into_iter().map(|card| format!("{} {}", card.device_id, card.vendor.name())).collect()
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
    pub async fn until_reached(&self, seq: u64, user: &str, outcome: ReachOutcome) {
        let reached = async {
            while self.engine.message_reach("room", seq, user).unwrap().outcome != outcome {
                tokio::task::yield_now().await;
            }
        };
        let reached = tokio::time::timeout(PATIENCE, reached).await;
        reached.unwrap_or_else(|_| panic!("{:?}", self.engine.message_reach("room", seq, user)));
    }

    /// Has vendors try again what they did not take.
    pub async fn replay(&self, select: SelectVendorDeadLetters) -> Result<VendorDeadLettersReplayed, Refusal> {
        let engine = self.engine.clone();
        tokio::task::spawn_blocking(move || engine.replay_vendor_dead_letters(&select)).await.unwrap()
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
        let line = format!("tidings_vendor_notifications_total{{vendor=\"fcm\",outcome=\"{outcome}\"}} ");
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

/// The tokens that the next `count` notifications are for, sorted.
pub fn next_tokens(of: &Receiver<Shipment>, count: usize) -> Vec<String> {
    let mut tokens: Vec<String> = (0..count).map(|_| next(of).0).collect();
    tokens.sort();
    tokens
}

pub fn later() -> VendorAnswer {
    VendorAnswer::Refused { code: "503".into(), retry: Retry::After(None) }
}

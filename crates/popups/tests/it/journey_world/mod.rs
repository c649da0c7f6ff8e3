//! A popup service on a store in memory, with a clock that tests set and pushes that tests read.
#![allow(unreachable_pub)]

use parking_lot::Mutex;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};
use tidings_domain::{
    clock::Clock,
    gates::OpenGates,
    leadership::Leadership,
    metrics::Metrics,
    model::{Actor, User, UserNo},
    store::Store,
};
use tidings_popups::{
    JourneyPush, JourneyPushes, PopupParts, PopupService, PopupsConfig, Precondition, QuestionBody, UserContextSource,
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
};
use tidings_testkit::{ManualClock, MemoryStore};

pub const NOON: u64 = 1_772_366_400_000;
pub const SECOND: u64 = 1_000;
pub const MINUTE: u64 = 60 * SECOND;
pub const HOUR: u64 = 60 * MINUTE;
pub const DAY: u64 = 24 * HOUR;

struct NoUsers;

impl UserContextSource for NoUsers {
    fn cached_profile(&self, _: &str) -> Option<Arc<User>> {
        None
    }

    fn profile(&self, _: &str) -> Result<Option<Arc<User>>, Refusal> {
        Ok(None)
    }

    fn cached_unread_since(&self, _: UserNo) -> Option<Option<u64>> {
        None
    }

    fn unread_since(&self, _: UserNo) -> Result<Option<u64>, Refusal> {
        Ok(None)
    }
}

/// Pushes as a push service takes them: the second with a name is the first again.
#[derive(Default)]
pub struct Pushes {
    /// By name: the user and the body.
    pub taken: Mutex<BTreeMap<String, (String, String)>>,
    /// How often each name was pushed.
    pub tries: Mutex<HashMap<String, usize>>,
    /// So many pushes are refused, for now.
    pub refuse: Mutex<usize>,
}

impl JourneyPushes for Pushes {
    fn push(&self, pushes: Vec<JourneyPush>) -> Vec<Result<(), Refusal>> {
        let take = |JourneyPush { user, client_push_id, push }: JourneyPush| {
            *self.tries.lock().entry(client_push_id.clone()).or_default() += 1;
            let mut refuse = self.refuse.lock();
            if *refuse > 0 {
                *refuse -= 1;
                return Err(Refusal::new(ErrorCode::QueueFull, "full"));
            }
            let pushed = (user, push.body.get().to_owned());
            let before = self.taken.lock().insert(client_push_id, pushed.clone());
            assert!(before.is_none_or(|before| before == pushed), "one name for two pushes");
            Ok(())
        };
        pushes.into_iter().map(take).collect()
    }
}

pub struct JourneyWorld {
    pub popups: Arc<PopupService>,
    pub clock: Arc<ManualClock>,
    pub pushes: Arc<Pushes>,
    runtime: tokio::runtime::Runtime,
}

impl JourneyWorld {
    pub fn new(store: Arc<dyn Store>, pushes: Arc<Pushes>, now_ms: u64) -> JourneyWorld {
        JourneyWorld::with_gates(store, pushes, now_ms, OpenGates::all())
    }

    pub fn with_gates(store: Arc<dyn Store>, pushes: Arc<Pushes>, now_ms: u64, gates: OpenGates) -> JourneyWorld {
        let clock = Arc::new(ManualClock::default());
        clock.set(now_ms);
        let popups = PopupService::start(PopupParts {
            config: PopupsConfig { users_max: 1, ..PopupsConfig::default() },
            boot: 1,
            lead: Leadership::default(),
            store,
            clock: clock.clone(),
            users: Arc::new(NoUsers),
            gates: Arc::new(gates),
            feed_notes: Arc::default(),
            pushes: pushes.clone(),
            metrics: Arc::new(Metrics::new()),
        });
        popups.flush().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        JourneyWorld { popups, clock, pushes, runtime }
    }

    pub fn start() -> JourneyWorld {
        JourneyWorld::new(Arc::new(MemoryStore::default()), Arc::default(), NOON)
    }

    pub fn now(&self) -> u64 {
        self.clock.now_ms()
    }

    pub fn put_popup(&self, id: &str, parts: Value) {
        let mut spec = json!({"state": "live", "placements": ["home"], "variants": [{"id": "a", "content": {}}]});
        spec.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
        self.popups.put(id, spec.to_string().as_bytes(), None, Precondition::None).unwrap();
    }

    pub fn put_journey(&self, id: &str, spec: &Value) -> Result<PopupJourney, Refusal> {
        Ok(self.popups.put_journey(id, spec.to_string().as_bytes(), None, Precondition::None)?.0)
    }

    pub fn report(&self, event: Value) -> PopupEventsAccepted {
        let event: PopupEvent = serde_json::from_value(event).unwrap();
        self.runtime.block_on(self.popups.report_events(&Actor::App, vec![event])).unwrap()
    }

    pub fn custom(&self, id: &str, user: &str, name: &str) {
        self.report(json!({"id": id, "type": "custom", "user": user, "name": name}));
    }

    /// The popup with the decision's id, or after how many milliseconds to ask again.
    pub fn decide(&self, user: &str, placement: &str) -> Result<(String, String), Option<u64>> {
        let question = json!({"user": user, "placement": placement}).to_string();
        let body = QuestionBody::read(question.as_bytes()).unwrap();
        let decided = self.popups.decide_blocking(&body.for_user(user)).unwrap();
        decided.exposure.map_or(Err(decided.retry_after_ms), |shown| Ok((shown.popup.to_string(), shown.decision)))
    }

    pub fn explain(&self, user: &str) -> Explanation {
        let question = json!({"user": user, "placement": "home"}).to_string();
        let body = QuestionBody::read(question.as_bytes()).unwrap();
        self.popups.explain(&body.for_user(user)).unwrap()
    }

    /// The step at which the user stands in the journey, with the version and since when.
    pub fn standing(&self, user: &str, journey: &str) -> Option<(u32, String, u64)> {
        let all = self.explain(user).journeys.into_iter();
        all.filter(|one| one.journey == journey).map(|one| (one.version, one.step, one.since)).next()
    }

    /// Waits for a condition that the worker brings about.
    pub fn wait_until(&self, what: &str, is_so: impl Fn() -> bool) {
        for _ in 0..20_000 {
            if is_so() {
                return;
            }
            self.popups.flush().unwrap();
        }
        panic!("{what} did not come about");
    }
}

impl Drop for JourneyWorld {
    fn drop(&mut self) {
        self.popups.stop();
    }
}

//! Short helpers for tests of an engine's popups.
#![allow(unreachable_pub)]

use crate::support::World;
use serde_json::{Value, json};
use std::sync::Arc;
use tidings_domain::{model::Actor, store::Store};
use tidings_engine::config::EngineConfig;
use tidings_popups::{DecisionAttempt, EventCursor, PopupDecision, PopupsConfig, Precondition, QuestionBody};
use tidings_protocol::{error::Refusal, http::*};

pub const SECOND: u64 = 1_000;
pub const HOUR: u64 = 3_600 * SECOND;
pub const DAY: u64 = 24 * HOUR;

/// An engine whose popups have recovered from the store.
pub fn start(popups: PopupsConfig, store: Arc<dyn Store>) -> World {
    let world = World::new(EngineConfig { popups, ..EngineConfig::default() }, store);
    world.engine.popups.flush().unwrap();
    world
}

/// The specification of a live popup for everybody at placement `home`, with these parts replaced.
pub fn spec(parts: Value) -> Value {
    let mut spec = json!({"state": "live", "placements": ["home"], "variants": [{"id": "a", "content": {}}]});
    spec.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
    spec
}

impl World {
    pub fn put_popup(&self, id: &str, parts: Value) -> Popup {
        let spec = spec(parts).to_string();
        self.engine.popups.put(id, spec.as_bytes(), None, Precondition::None).unwrap().0
    }

    pub fn set_popup_settings(&self, settings: Value) {
        self.engine.popups.set_settings(settings.to_string().as_bytes()).unwrap();
    }

    /// A question at placement `home`, with these parts replaced.
    pub fn ask<T>(&self, user: &str, parts: Value, ask: impl FnOnce(&QuestionBody<'_>) -> T) -> T {
        let mut question = json!({"user": user, "placement": "home"});
        question.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
        ask(&QuestionBody::read(question.to_string().as_bytes()).unwrap())
    }

    pub fn decide_with(&self, user: &str, parts: Value) -> Result<PopupDecision, Refusal> {
        self.ask(user, parts, |body| self.engine.popups.decide_blocking(&body.for_user(user)))
    }

    /// The decision's id, if a popup is shown.
    pub fn decide(&self, user: &str) -> Option<String> {
        self.decide_with(user, json!({})).unwrap().exposure.map(|exposure| exposure.decision)
    }

    /// Decides without waiting for durability.
    pub fn try_decide(&self, user: &str, parts: Value) -> Result<DecisionAttempt, Refusal> {
        self.ask(user, parts, |body| {
            loop {
                match self.engine.popups.try_decide(&body.for_user(user), None)? {
                    DecisionAttempt::MissingContext(missing) => {
                        drop(self.engine.popups.load_user_context(user, missing)?)
                    }
                    decided => return Ok(decided),
                }
            }
        })
    }

    pub fn explain(&self, user: &str, parts: Value) -> Explanation {
        self.ask(user, parts, |body| self.engine.popups.explain(&body.for_user(user)).unwrap())
    }

    pub fn report(&self, events: Vec<PopupEvent>) -> Result<PopupEventsAccepted, Refusal> {
        self.wait(self.engine.popups.report_events(&Actor::App, events))
    }

    /// Sums over all hours and variants: shown, control, impressions and clicks.
    pub fn counts(&self, popup: &str) -> [u64; 4] {
        let hours = self.engine.popups.counts(popup, None, None).unwrap().hours;
        let one = |hour: &PopupHour| [hour.shown, hour.control, hour.impressions, hour.clicks];
        hours.iter().map(one).fold([0; 4], |sums, one| std::array::from_fn(|at| sums[at] + one[at]))
    }

    /// All pages of an export.
    pub fn export(&self, from: Option<u64>, to: Option<u64>, popup: Option<&str>) -> Vec<ExportedEvent> {
        let mut cursor = EventCursor::new(from, to, popup.map(str::to_owned));
        let mut events = Vec::new();
        loop {
            let (page, more) = self.engine.popups.export_events(&mut cursor).unwrap();
            events.extend(page);
            if !more {
                return events;
            }
        }
    }
}

pub fn event(id: &str, decision: &str, kind: PopupEventKind) -> PopupEvent {
    read_event(json!({"id": id, "decision": decision, "type": kind}))
}

/// An event of the app's own.
pub fn custom(id: &str, user: &str, name: &str) -> PopupEvent {
    read_event(json!({"id": id, "type": "custom", "user": user, "name": name}))
}

pub fn read_event(json: Value) -> PopupEvent {
    serde_json::from_value(json).unwrap()
}

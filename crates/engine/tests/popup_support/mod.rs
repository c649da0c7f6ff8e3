//! Popups of an engine in short words.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use crate::support::World;
use serde_json::{Value, json};
use std::sync::Arc;
use tidings_engine::{
    config::EngineConfig,
    engine::Actor,
    popups::{Decided, DecidedNow, EventCursor, PopupsConfig, Precondition, QuestionBody},
    store::Store,
};
use tidings_protocol::{error::Refusal, http::*};

pub const SECOND: u64 = 1_000;
pub const HOUR: u64 = 3_600 * SECOND;
pub const DAY: u64 = 24 * HOUR;

/// An engine that has read what is stored.
pub fn start(popups: PopupsConfig, store: Arc<dyn Store>) -> World {
    let world = World::new(EngineConfig { popups, ..EngineConfig::default() }, store);
    world.engine.popups.settle().unwrap();
    world
}

/// A live popup for everybody at home, with these parts instead.
pub fn spec(parts: Value) -> Value {
    let mut spec = json!({"state": "live", "placements": ["home"], "variants": [{"id": "a", "content": {}}]});
    spec.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
    spec
}

impl World {
    pub fn put_popup(&self, id: &str, parts: Value) -> Popup {
        let spec = spec(parts).to_string();
        self.engine.put_popup(id, spec.as_bytes(), None, Precondition::None).unwrap().0
    }

    pub fn set_popup_settings(&self, settings: Value) {
        self.engine.set_popup_settings(settings.to_string().as_bytes()).unwrap();
    }

    /// A question at home, with these parts instead.
    pub fn ask<T>(&self, user: &str, parts: Value, ask: impl FnOnce(&QuestionBody<'_>) -> T) -> T {
        let mut question = json!({"user": user, "placement": "home"});
        question.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
        ask(&QuestionBody::read(question.to_string().as_bytes()).unwrap())
    }

    pub fn decide_with(&self, user: &str, parts: Value) -> Result<DecidedNow, Refusal> {
        self.ask(user, parts, |body| self.engine.decide_now(&body.ask(user)))
    }

    /// The decision's id, if something is shown.
    pub fn decide(&self, user: &str) -> Option<String> {
        self.decide_with(user, json!({})).unwrap().show.map(|showing| showing.decision)
    }

    /// Without waiting for durability.
    pub fn decide_at_once(&self, user: &str, parts: Value) -> Result<Decided, Refusal> {
        self.ask(user, parts, |body| {
            loop {
                match self.engine.decide_popup(&body.ask(user), None)? {
                    Decided::Needs(needs) => drop(self.engine.popup_facts(user, needs)?),
                    decided => return Ok(decided),
                }
            }
        })
    }

    pub fn explain(&self, user: &str, parts: Value) -> Explanation {
        self.ask(user, parts, |body| self.engine.explain_popups(&body.ask(user)).unwrap())
    }

    pub fn report(&self, events: Vec<PopupEvent>) -> Result<PopupEventsAccepted, Refusal> {
        self.wait(self.engine.report_popup_events(&Actor::App, events))
    }

    /// Sums over all hours and variants: shown, control, impressions and clicks.
    pub fn counts(&self, popup: &str) -> [u64; 4] {
        let hours = self.engine.popup_counts(popup, None, None).unwrap().hours;
        let one = |hour: &PopupHour| [hour.shown, hour.control, hour.impressions, hour.clicks];
        hours.iter().map(one).fold([0; 4], |sums, one| std::array::from_fn(|at| sums[at] + one[at]))
    }

    /// All pages of an export.
    pub fn export(&self, from: Option<u64>, to: Option<u64>, popup: Option<&str>) -> Vec<ExportedEvent> {
        let mut cursor = EventCursor::new(from, to, popup.map(str::to_owned));
        let mut events = Vec::new();
        loop {
            let (page, more) = self.engine.export_popup_events(&mut cursor).unwrap();
            events.extend(page);
            if !more {
                return events;
            }
        }
    }
}

pub fn event(id: &str, decision: &str, kind: PopupEventKind) -> PopupEvent {
    PopupEvent { id: id.into(), decision: decision.into(), kind, at: None, button: None, value: None }
}

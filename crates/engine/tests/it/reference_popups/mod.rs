//! A slow reference evaluator for popup decisions, written from `docs/popups.md`: it keeps every exposure in a list and
//! counts the list anew for each question, checks the wall clock at every quarter of an hour, and caches nothing.
#![allow(unreachable_pub)]

pub mod random;
pub mod rules;
pub mod wall;

use rules::{Done, Person, What};
use serde_json::{Map, Value};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};
use tidings_popups::{
    UserKey,
    rules::{MarkKind, Rule},
};
use tidings_protocol::http::*;
use wall::{DAY_MS, QUARTER_MS, Wall};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A duration such as `7d`.
fn milliseconds(text: &str) -> u64 {
    let (number, unit) = text.split_at(text.len() - 1);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        _ => 86_400,
    };
    number.parse::<u64>().unwrap() * seconds * 1_000
}

/// The durations after events that a popup's specification has anywhere.
fn collect_durations(json: &Value, to: &mut Vec<u64>) {
    match json {
        Value::Object(fields) => {
            for (name, value) in fields {
                match name.as_str() {
                    "within_s" | "before_s" | "delay_s" => to.extend(value.as_u64().map(|seconds| seconds * 1_000)),
                    "impression" | "click" | "dismiss" | "conversion" => {
                        to.extend(value.as_str().filter(|wait| *wait != "never").map(milliseconds));
                    }
                    _ => collect_durations(value, to),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_durations(item, to)),
        _ => {}
    }
}

pub struct ReferencePopup {
    /// A popup that is deleted and created again has another number.
    pub no: u32,
    pub spec: PopupSpec,
    audience: Option<Rule>,
    condition: Option<Rule>,
}

/// The exposures that caps count together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level<'a> {
    Popup(u32),
    Placement(&'a str),
    All,
}

/// An exposure, or one that the control group was spared: that is counted by the popup's own caps only.
#[derive(Debug, Clone)]
pub struct Shown {
    pub at: u64,
    pub no: u32,
    pub control: bool,
    placement: String,
    session: Option<String>,
    /// For the popup, the placement and all popups: the civil day by the zone of that time, and whether a cap per session
    /// counted the exposure.
    counted: [Counted; 3],
}

#[derive(Debug, Clone, Copy)]
struct Counted {
    /// The latest day of this exposure and all before: days do not run backwards, though a clock may.
    latest_day: i32,
    by_session: bool,
}

impl Shown {
    fn counts(&self, level: Level<'_>) -> Option<Counted> {
        match level {
            Level::Popup(no) => (self.no == no).then_some(self.counted[0]),
            Level::Placement(name) => (!self.control && self.placement == name).then_some(self.counted[1]),
            Level::All => (!self.control).then_some(self.counted[2]),
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    pub user: &'a str,
    pub placement: &'a str,
    pub session: Option<&'a str>,
    pub attributes: &'a Map<String, Value>,
    pub event: Option<(&'a str, &'a Map<String, Value>)>,
    pub now: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Shown { popup: String, variant: String, test: bool },
    Nothing { retry_after_ms: Option<u64> },
}

/// How long a cap forbids an exposure.
enum CapReached {
    ForAWhile,
    ForGood,
    /// Until a later quarter of an hour, at which the next day begins.
    Today,
}

pub struct ReferenceEvaluator {
    base: u64,
    pub popups: BTreeMap<String, ReferencePopup>,
    pub settings: PopupSettings,
    pub segments: BTreeMap<String, BTreeSet<String>>,
    pub cards: BTreeMap<String, Map<String, Value>>,
    pub shown: HashMap<String, Vec<Shown>>,
    /// What users did, in the order in which the server learned of it.
    pub done: HashMap<String, Vec<Done>>,
    last_no: u32,
}

impl ReferenceEvaluator {
    pub fn new(base: u64) -> ReferenceEvaluator {
        ReferenceEvaluator {
            base,
            popups: BTreeMap::new(),
            settings: PopupSettings::default(),
            segments: BTreeMap::new(),
            cards: BTreeMap::new(),
            shown: HashMap::new(),
            done: HashMap::new(),
            last_no: 0,
        }
    }

    pub fn put(&mut self, id: &str, spec: PopupSpec) {
        let no = self.popups.get(id).map_or(self.last_no + 1, |popup| popup.no);
        self.last_no = self.last_no.max(no);
        let audience = spec.audience.as_ref().map(|rule| rules::read(rule));
        let condition = spec.trigger.as_ref().and_then(|trigger| trigger.condition.as_ref());
        let condition = condition.map(|rule| rules::read(rule));
        self.popups.insert(id.to_owned(), ReferencePopup { no, spec, audience, condition });
    }

    fn global_wall(&self) -> Arc<Wall> {
        Wall::of(self.settings.time_zone.as_deref().unwrap_or("UTC"), self.base)
    }

    fn wall(&self, spec: &PopupSpec) -> Arc<Wall> {
        spec.time_zone.as_deref().map_or_else(|| self.global_wall(), |zone| Wall::of(zone, self.base))
    }

    /// The levels of caps, the narrowest first, each with its caps and the wall clock of its days.
    fn levels<'a>(&'a self, popup: &ReferencePopup, placement: &'a str) -> [(Level<'a>, PopupCaps, Arc<Wall>); 3] {
        let of_placement = self.settings.placements.get(placement).copied().unwrap_or_default();
        [
            (Level::Popup(popup.no), popup.spec.caps, self.wall(&popup.spec)),
            (Level::Placement(placement), of_placement, self.global_wall()),
            (Level::All, self.settings.caps, self.global_wall()),
        ]
    }

    // ---- one popup

    /// Records an event with a popup of this number; clicks on buttons are clicks. Impressions are recorded only while some
    /// popup looks at them.
    pub fn report(&mut self, user: &str, no: u32, kind: PopupEventKind, at: u64) {
        let looks_at_impressions = |popup: &ReferencePopup| {
            let audience = popup.spec.audience.as_ref().is_some_and(|rule| rule.get().contains("\"impression\""));
            audience || popup.spec.after.impression.is_some()
        };
        let what = match kind {
            PopupEventKind::Impression if !self.popups.values().any(looks_at_impressions) => return,
            PopupEventKind::Impression => What::WithPopup(no, MarkKind::Impression),
            PopupEventKind::Click | PopupEventKind::Button => What::WithPopup(no, MarkKind::Click),
            PopupEventKind::Dismiss => What::WithPopup(no, MarkKind::Dismiss),
            PopupEventKind::Conversion => What::WithPopup(no, MarkKind::Conversion),
            PopupEventKind::Snooze | PopupEventKind::Custom => unreachable!("these are recorded by themselves"),
        };
        self.did(user, what, at);
    }

    pub fn did(&mut self, user: &str, what: What, at: u64) {
        self.done.entry(user.to_owned()).or_default().push(Done { at, what });
    }

    fn done_by(&self, user: &str) -> &[Done] {
        self.done.get(user).map_or(&[], Vec::as_slice)
    }

    /// Whether what the user did keeps the popup at this time.
    fn reacts(&self, popup: &ReferencePopup, user: &str, at: u64) -> bool {
        let done = self.done_by(user);
        let last = |what: What| done.iter().filter(|done| done.what == what).map(|done| done.at).max();
        let PopupAfter { impression, click, dismiss, conversion } = &popup.spec.after;
        let waits = MarkKind::ALL.into_iter().zip([impression, click, dismiss, conversion]);
        let is_kept = waits.into_iter().any(|(kind, wait)| match (wait, last(What::WithPopup(popup.no, kind))) {
            (Some(wait), Some(last)) => wait == "never" || at < last + milliseconds(wait),
            _ => false,
        });
        let snooze = done.iter().rev().find_map(|done| match done.what {
            What::Snooze(no, until) if no == popup.no => Some(until),
            _ => None,
        });
        let is_delayed = popup.spec.trigger.as_ref().is_some_and(|trigger| {
            let Some(delay_s) = trigger.delay_s else { return false };
            let shown =
                self.shown.get(user).into_iter().flatten().filter(|one| one.no == popup.no).map(|one| one.at).max();
            match last(What::Custom(trigger.event.clone())) {
                Some(last) => shown.is_some_and(|shown| shown > last) || at < last + delay_s * 1_000,
                None => true,
            }
        });
        is_kept || is_delayed || snooze.is_some_and(|until| at < until)
    }

    fn is_for(&self, popup: &ReferencePopup, asked: &Asked<'_>, at: u64) -> bool {
        let numbers = self.popups.iter().map(|(id, popup)| (id.clone(), popup.no)).collect();
        let person = Person {
            key: UserKey::of(asked.user),
            id: asked.user,
            segments: &self.segments,
            done: self.done_by(asked.user),
            own: popup.no,
            numbers: &numbers,
            now: at,
        };
        let published = matches!(popup.spec.state, PopupState::Live | PopupState::Scheduled);
        let nobody = Map::new();
        let card = self.cards.get(asked.user).unwrap_or(&nobody);
        let fits = match (&popup.spec.trigger, asked.event) {
            (None, None) => true,
            (Some(trigger), event) if trigger.delay_s.is_some() => event.is_none(),
            (Some(trigger), Some((event, properties))) => {
                let holds = |rule: &Rule| person.holds(rule, properties, &nobody);
                trigger.event == event && popup.condition.as_ref().is_none_or(holds)
            }
            _ => false,
        };
        published && fits && popup.audience.as_ref().is_none_or(|rule| person.holds(rule, asked.attributes, card))
    }

    /// How many exposures the session has had, and when the last was. A session ends after a day without an exposure.
    fn in_session(shown: &[Shown], level: Level<'_>, session: &str) -> (u32, u64) {
        let (mut count, mut last) = (0, 0);
        for one in shown {
            if one.at >= last + DAY_MS {
                count = 0;
            }
            let is_of_it = one.session.as_deref() == Some(session);
            if one.counts(level).is_some_and(|counted| counted.by_session) && is_of_it {
                (count, last) = (count + 1, if count == 0 { one.at } else { last.max(one.at) });
            }
        }
        (count, last)
    }

    fn cap_reached(
        &self,
        (level, caps, wall): &(Level<'_>, PopupCaps, Arc<Wall>),
        asked: &Asked<'_>,
        at: u64,
    ) -> Option<CapReached> {
        let shown = self.shown.get(asked.user).map_or(&[][..], Vec::as_slice);
        let of_level = || shown.iter().filter_map(|one| Some((one, one.counts(*level)?)));
        if caps.total.is_some_and(|most| of_level().count() >= most as usize) {
            return Some(CapReached::ForGood);
        }
        if let Some(most) = caps.per_session {
            let Some(session) = asked.session else { return Some(CapReached::ForGood) };
            let (count, last) = Self::in_session(shown, *level, session);
            if count >= most && at < last + DAY_MS {
                return Some(CapReached::ForAWhile);
            }
        }
        if let (Some(gap_s), Some(last)) = (caps.gap_s, of_level().map(|(one, _)| one.at).max())
            && at < last + gap_s * 1_000
        {
            return Some(CapReached::ForAWhile);
        }
        if let Some(most) = caps.per_day {
            let latest_day = of_level().map(|(_, counted)| counted.latest_day).max();
            let counts = of_level().filter(|(_, counted)| Some(counted.latest_day) == latest_day).count();
            // The zone may have changed: then the day of the last exposure by the present zone counts too.
            let last_day = of_level().map(|(one, _)| one.at).max().map(|last| wall.day(last));
            if counts >= most as usize && Some(wall.day(at)) <= latest_day.max(last_day) {
                return Some(CapReached::Today);
            }
        }
        None
    }

    fn is_open(&self, spec: &PopupSpec, at: u64) -> bool {
        let begun = spec.starts_at.is_none_or(|start| start <= at);
        begun && spec.ends_at.is_none_or(|end| at < end) && self.wall(spec).is_open(&spec.windows, at)
    }

    fn can_be_shown(&self, popup: &ReferencePopup, asked: &Asked<'_>, at: u64) -> bool {
        self.is_open(&popup.spec, at)
            && self.levels(popup, asked.placement).iter().all(|level| self.cap_reached(level, asked, at).is_none())
            && !self.reacts(popup, asked.user, at)
            && self.is_for(popup, asked, at)
    }

    // ---- all of them

    /// The user's bucket, below `of`.
    fn share(user: &str, purpose: &str, name: &str, of: u64) -> u64 {
        let seed = xxh3_64_with_seed(name.as_bytes(), xxh3_64_with_seed(purpose.as_bytes(), 0));
        xxh3_64_with_seed(&UserKey::of(user).0.to_le_bytes(), seed) % of
    }

    fn is_within(percent: f64, user: &str, purpose: &str, name: &str) -> bool {
        (Self::share(user, purpose, name, 10_000) as f64) < (percent * 100.0).round()
    }

    fn show(id: &str, popup: &ReferencePopup, user: &str, test: bool) -> Answer {
        let variants = &popup.spec.variants;
        let mut place =
            Self::share(user, "variant", id, variants.iter().map(|variant| u64::from(variant.weight)).sum());
        for variant in variants {
            if place < u64::from(variant.weight) {
                return Answer::Shown { popup: id.to_owned(), variant: variant.id.clone(), test };
            }
            place -= u64::from(variant.weight);
        }
        unreachable!("places are below the sum of weights")
    }

    /// Answers a question, and records the exposure.
    pub fn decide(&mut self, asked: &Asked<'_>) -> Answer {
        let mut here: Vec<(&String, &ReferencePopup)> = self.popups.iter().collect();
        here.retain(|(_, popup)| popup.spec.placements.iter().any(|placement| placement == asked.placement));
        here.sort_by_key(|(id, popup)| (std::cmp::Reverse(popup.spec.priority), *id));
        let is_tester = |popup: &ReferencePopup| popup.spec.test_users.iter().any(|user| user == asked.user);
        if let Some((id, popup)) = here.iter().find(|(_, popup)| is_tester(popup)) {
            return Self::show(id, popup, asked.user, true);
        }
        if Self::is_within(self.settings.holdout_percent, asked.user, "holdout", "") {
            return Answer::Nothing { retry_after_ms: None };
        }
        let is_control =
            |id: &str, popup: &ReferencePopup| Self::is_within(popup.spec.control_percent, asked.user, "control", id);
        let (mut counted, mut answer) = (Vec::new(), None);
        for (id, popup) in &here {
            if self.can_be_shown(popup, asked, asked.now) {
                let control = is_control(id, popup);
                counted.push(self.shown_now(popup, asked, control));
                if !control {
                    answer = Some(Self::show(id, popup, asked.user, false));
                    break;
                }
            }
        }
        if answer.is_none() {
            here.retain(|(id, popup)| !is_control(id, popup));
        }
        let answer = answer.unwrap_or_else(|| {
            let next_at = self.next_at(&here, asked);
            Answer::Nothing { retry_after_ms: next_at.map(|at| at - asked.now) }
        });
        self.shown.entry(asked.user.to_owned()).or_default().extend(counted);
        answer
    }

    fn shown_now(&self, popup: &ReferencePopup, asked: &Asked<'_>, control: bool) -> Shown {
        let before = self.shown.get(asked.user).map_or(&[][..], Vec::as_slice);
        let counted = self.levels(popup, asked.placement).map(|(level, caps, wall)| {
            let day = wall.day(asked.now);
            let latest = before.iter().filter_map(|one| Some(one.counts(level)?.latest_day)).max();
            let by_session = caps.per_session.is_some();
            Counted { latest_day: latest.map_or(day, |latest| latest.max(day)), by_session }
        });
        let session = asked.session.map(str::to_owned);
        Shown { at: asked.now, no: popup.no, control, placement: asked.placement.into(), session, counted }
    }

    /// The first instant at which one of these popups could be shown.
    fn next_at(&self, popups: &[(&String, &ReferencePopup)], asked: &Asked<'_>) -> Option<u64> {
        let mut left: Vec<&ReferencePopup> = popups.iter().map(|(_, popup)| *popup).collect();
        let shown = self.shown.get(asked.user).map_or(&[][..], Vec::as_slice);
        // A popup that a cap forbids for good is dropped. For the others nothing changes except at these instants and at
        // quarters of an hour.
        let mut instants = BTreeSet::new();
        left.retain(|popup| {
            // Of an audience that looks at no events, time changes nothing.
            let is_timed = popup.spec.audience.as_ref().is_some_and(|rule| rule.get().contains("event\""));
            if !is_timed && !self.is_for(popup, asked, asked.now) {
                return false;
            }
            instants.extend(popup.spec.starts_at);
            // Any duration after any event, and the end of each snooze.
            let text = serde_json::to_value(&popup.spec).unwrap();
            let mut durations = Vec::new();
            collect_durations(&text, &mut durations);
            for done in self.done_by(asked.user) {
                instants.extend(durations.iter().map(|duration| done.at + duration));
                if let What::Snooze(_, until) = done.what {
                    instants.insert(until);
                }
            }
            self.levels(popup, asked.placement).iter().all(|level| {
                for one in shown {
                    instants.insert(one.at + level.1.gap_s.unwrap_or(0) * 1_000);
                    instants.insert(one.at + DAY_MS);
                }
                !matches!(self.cap_reached(level, asked, asked.now), Some(CapReached::ForGood))
            })
        });
        let mut at = asked.now;
        let last = self.global_wall().last_ms();
        while !left.is_empty() && at < last {
            let quarter = (at / QUARTER_MS + 1) * QUARTER_MS;
            at = instants.range(at + 1..).next().map_or(quarter, |exact| quarter.min(*exact));
            left.retain(|popup| popup.spec.ends_at.is_none_or(|end| at < end));
            if left.iter().any(|popup| self.can_be_shown(popup, asked, at)) {
                return Some(at);
            }
        }
        None
    }

    /// Asserts by the list alone that the newest exposure keeps to the present caps.
    pub fn assert_caps_hold(&self, asked: &Asked<'_>) {
        let shown = &self.shown[asked.user];
        let newest = shown.last().unwrap();
        let popup = self.popups.values().find(|popup| popup.no == newest.no).unwrap();
        for (level, caps, wall) in self.levels(popup, asked.placement) {
            let of_level: Vec<(&Shown, Counted)> =
                shown.iter().filter_map(|one| Some((one, one.counts(level)?))).collect();
            let most = |cap: Option<u32>, count: usize, name: &str| {
                assert!(cap.is_none_or(|cap| count <= cap as usize), "{name} of {level:?}: {count} of {cap:?}");
            };
            most(caps.total, of_level.len(), "total");
            // Exposures counted by the days of an earlier zone do not fit the present days; nor does an exposure after the clock
            // went back over midnight, which counts for the day that had begun.
            let same = |(one, counted): &(&Shown, Counted)| counted.latest_day == wall.day(one.at);
            if of_level.iter().all(same) {
                let today = of_level.iter().filter(|(one, _)| wall.day(one.at) == wall.day(newest.at));
                most(caps.per_day, today.count(), "per_day");
            }
            // Only exposures of the last 24 hours: a session goes on until it has had none for a day.
            let latest = shown.iter().map(|one| one.at).max().unwrap();
            let lately = of_level.iter().filter(|(one, counted)| {
                counted.by_session && one.session == newest.session && latest < one.at + DAY_MS
            });
            if caps.per_session.is_some() {
                most(caps.per_session, lately.count(), "per_session");
            }
            let before = &of_level[..of_level.len() - 1];
            let too_soon =
                caps.gap_s.is_some_and(|gap_s| before.iter().any(|(one, _)| newest.at < one.at + gap_s * 1_000));
            assert!(!too_soon, "gap_s of {level:?}");
        }
    }
}

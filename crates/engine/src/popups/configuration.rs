//! The configuration as decisions read it: compiled, by placement, in the order in which popups are considered.
//! A change makes a new one of what it concerns and shares the rest.

use super::{
    UserKey,
    caps::Caps,
    check::{CheckedSettings, CheckedSpec},
    marks::What,
    rules::{self, Compiled, Index, Names, Segment},
    timetable::{Days, Timetable},
};
use bytes::Bytes;
use jiff::tz::TimeZone;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use tidings_protocol::http::{PopupSpec, PopupState};

pub(super) struct Variant {
    pub(super) id: String,
    /// The user's place among all weights is below this one's and not below that of the variant before.
    pub(super) below: u64,
    /// Of a `Decision` as JSON all that is the same for every user: from `"popup"` on.
    pub(super) rest: Bytes,
    /// The ids of its buttons.
    pub(super) buttons: Box<[Box<str>]>,
}

pub(super) struct Trigger {
    pub(super) event: Box<str>,
    /// With the names of the event's properties.
    pub(super) condition: Option<(Compiled, Names)>,
}

/// One popup, ready to be decided on.
pub(super) struct Popup {
    pub(super) no: u32,
    pub(super) id: Arc<str>,
    pub(super) version: u32,
    pub(super) state: PopupState,
    pub(super) priority: i32,
    pub(super) what: What,
    pub(super) timetable: Timetable,
    pub(super) days: Arc<Days>,
    pub(super) audience: Option<Compiled>,
    pub(super) trigger: Option<Trigger>,
    pub(super) caps: Caps,
    pub(super) variants: Vec<Variant>,
    weights: u64,
    /// In hundredths of a percent.
    control: u32,
    pub(super) strict: bool,
    pub(super) testers: Vec<UserKey>,
}

/// What of the configuration a popup is compiled with.
pub(super) struct Around<'a> {
    pub(super) zone: &'a TimeZone,
    pub(super) now_ms: u64,
    pub(super) segment: &'a dyn Fn(&str) -> Option<Arc<Segment>>,
    pub(super) days: &'a mut FxHashMap<String, Arc<Days>>,
}

fn days_of(around: &mut Around<'_>, zone: &TimeZone) -> Arc<Days> {
    let name = zone.iana_name().unwrap_or("UTC").to_owned();
    let now_ms = around.now_ms;
    around.days.entry(name).or_insert_with(|| Arc::new(Days::new(zone.clone(), now_ms))).clone()
}

impl Popup {
    pub(super) fn compile(
        (no, id, version): (u32, &str, u32),
        spec: &PopupSpec,
        checked: &CheckedSpec,
        names: &mut Names,
        around: &mut Around<'_>,
    ) -> Popup {
        let zone = checked.zone.as_ref().unwrap_or(around.zone).clone();
        let mut below = 0;
        let variants: Vec<Variant> = spec
            .variants
            .iter()
            .zip(&checked.contents)
            .map(|(variant, content)| {
                below += u64::from(variant.weight);
                let word = |text: &str| serde_json::Value::from(text).to_string();
                let (popup, name) = (word(id), word(&variant.id));
                let rest = format!(r#""popup":{popup},"variant":{name},"content":{content}}}"#);
                let buttons = variant.content.buttons.iter().map(|button| button.id.as_str().into()).collect();
                Variant { id: variant.id.clone(), below, rest: rest.into(), buttons }
            })
            .collect();
        let trigger = spec.trigger.as_ref().map(|trigger| Trigger {
            event: trigger.event.as_str().into(),
            condition: checked.condition.as_ref().map(|rule| {
                let mut names = Names::default();
                (rules::compile(rule, &mut names, around.segment), names)
            }),
        });
        Popup {
            no,
            id: id.into(),
            version,
            state: spec.state,
            priority: spec.priority,
            what: What::popup(no),
            timetable: Timetable::new(spec.starts_at, spec.ends_at, &checked.windows, zone.clone(), around.now_ms),
            days: days_of(around, &zone),
            audience: checked.audience.as_ref().map(|rule| rules::compile(rule, names, around.segment)),
            trigger,
            caps: checked.caps,
            variants,
            weights: below,
            control: checked.control,
            strict: spec.strict,
            testers: spec.test_users.iter().map(|user| UserKey::of(user)).collect(),
        }
    }

    /// Whether it may be shown to others than its test users, by its state alone.
    pub(super) fn is_published(&self) -> bool {
        matches!(self.state, PopupState::Live | PopupState::Scheduled)
    }

    /// The user's variant, the same for as long as weights are; by its index.
    pub(super) fn variant_of(&self, user: UserKey) -> usize {
        let place = user.share(("variant", &self.id), self.weights);
        self.variants.partition_point(|variant| variant.below <= place).min(self.variants.len() - 1)
    }

    pub(super) fn is_control(&self, user: UserKey) -> bool {
        self.control > 0 && user.share(("control", &self.id), 10_000) < u64::from(self.control)
    }
}

/// The popups of one placement.
pub(super) struct Placement {
    pub(super) what: What,
    pub(super) caps: Caps,
    /// Published ones as they are considered: higher priority first, then by id.
    pub(super) popups: Vec<Arc<Popup>>,
    pub(super) index: Index,
    /// Those that have test users.
    pub(super) tested: Vec<Arc<Popup>>,
    /// All of them, in the same order.
    pub(super) all: Vec<Arc<Popup>>,
    pub(super) needs_unread: bool,
    pub(super) needs_card: bool,
}

impl Placement {
    pub(super) fn new(name: &str, caps: Caps, mut all: Vec<Arc<Popup>>) -> Self {
        all.sort_by(|a, b| b.priority.cmp(&a.priority).then_with(|| a.id.cmp(&b.id)));
        let popups: Vec<_> = all.iter().filter(|popup| popup.is_published()).cloned().collect();
        let audiences = || popups.iter().filter_map(|popup| popup.audience.as_ref());
        Placement {
            what: What::placement(name),
            caps,
            index: Index::build(popups.iter().map(|popup| popup.audience.as_ref())),
            needs_unread: audiences().any(Compiled::needs_unread),
            needs_card: audiences().any(Compiled::needs_card),
            tested: all.iter().filter(|popup| !popup.testers.is_empty()).cloned().collect(),
            popups,
            all,
        }
    }
}

/// What is above all popups.
pub(super) struct Above {
    pub(super) caps: Caps,
    pub(super) days: Arc<Days>,
    holdout: u32,
}

impl Above {
    pub(super) fn new(settings: &CheckedSettings, days: Arc<Days>) -> Self {
        Above { caps: settings.caps, days, holdout: settings.holdout }
    }

    pub(super) fn is_held_out(&self, user: UserKey) -> bool {
        self.holdout > 0 && user.share(("holdout", ""), 10_000) < u64::from(self.holdout)
    }
}

/// All of it at one time. Decisions hold on to the one that they began with.
#[derive(Clone)]
pub(super) struct Configuration {
    /// Counts changes: an answer that was remembered under another one is not used.
    pub(super) generation: u64,
    pub(super) above: Arc<Above>,
    pub(super) names: Arc<Names>,
    pub(super) placements: FxHashMap<Box<str>, Arc<Placement>>,
    /// All popups, and the highest number that was given to one.
    pub(super) by_no: FxHashMap<u32, Arc<Popup>>,
    pub(super) last_no: u32,
}

//! The configuration as decisions read it: compiled, by placement, in the order in which popups are considered. It is
//! immutable: a change builds a new one, in which the placements that it does not concern are shared.

use super::{
    UserKey,
    caps::Caps,
    check::{CheckedSettings, CheckedSpec},
    conversion::{Conversion, Group},
    frequency::CounterKey,
    journeys::position::Journeys,
    reactions::Reactions,
    rules::{self, AttributeSlots, CompiledRule, MarkKind, RuleIndex, RuleNames, Segment},
    timetable::{Days, Timetable},
    zone_clock::{ClockOfPopup, Schedule, UserClocks, ZoneClock},
};
use bytes::Bytes;
use jiff::tz::TimeZone;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use tidings_protocol::http::{PopupSpec, PopupState};

pub(super) struct Variant {
    pub(super) id: String,
    /// The sum of the weights up to and including this variant's. The user gets the first variant whose sum is above
    /// the user's bucket.
    pub(super) cumulative_weight: u64,
    /// The end of a `Decision` as JSON, from `"popup"` on: it is the same for every user.
    pub(super) json_tail: Bytes,
    /// The ids of its buttons.
    pub(super) buttons: Box<[Box<str>]>,
}

pub(super) struct Trigger {
    pub(super) event: Box<str>,
    /// With the slots of the event's properties, which are not the attributes of the question.
    pub(super) condition: Option<(CompiledRule, AttributeSlots)>,
}

/// One popup, ready to be decided on.
pub(super) struct Popup {
    pub(super) no: u32,
    pub(super) id: Arc<str>,
    pub(super) version: u32,
    pub(super) state: PopupState,
    pub(super) priority: i32,
    pub(super) counter_key: CounterKey,
    /// By the popup's zone, or the settings'.
    clock: ZoneClock,
    /// By the zones of users' profiles.
    user_clocks: Option<UserClocks>,
    pub(super) audience: Option<CompiledRule>,
    pub(super) trigger: Option<Trigger>,
    /// The journey that shows it.
    pub(super) journey: Option<Arc<str>>,
    pub(super) caps: Caps,
    pub(super) reactions: Reactions,
    /// The popup looks at impressions: of this popup or of others.
    pub(super) names_impressions: bool,
    pub(super) variants: Vec<Variant>,
    total_weight: u64,
    /// In hundredths of a percent.
    control: u32,
    /// What it is for: with it, assignments are recorded.
    pub(super) conversion: Option<Conversion>,
    /// Its exposures are durable before they are answered.
    pub(super) strict: bool,
    pub(super) testers: Vec<UserKey>,
}

/// The parts of the configuration that a popup is compiled with.
pub(super) struct CompileContext<'a> {
    pub(super) zone: &'a TimeZone,
    pub(super) now_ms: u64,
    pub(super) segment: &'a dyn Fn(&str) -> Option<Arc<Segment>>,
    /// The number of a popup by its id.
    pub(super) popup: &'a dyn Fn(&str) -> Option<u32>,
    pub(super) days: &'a mut FxHashMap<String, Arc<Days>>,
}

/// The names in the rules of one popup.
struct PopupNames<'a> {
    own: u32,
    segment: &'a dyn Fn(&str) -> Option<Arc<Segment>>,
    popup: &'a dyn Fn(&str) -> Option<u32>,
}

impl RuleNames for PopupNames<'_> {
    fn segment(&self, name: &str) -> Option<Arc<Segment>> {
        (self.segment)(name)
    }

    fn popup(&self, name: Option<&str>) -> Option<u32> {
        name.map_or(Some(self.own), self.popup)
    }
}

fn days_of(context: &mut CompileContext<'_>, zone: &TimeZone) -> Arc<Days> {
    let name = zone.iana_name().unwrap_or("UTC").to_owned();
    let now_ms = context.now_ms;
    context.days.entry(name).or_insert_with(|| Arc::new(Days::new(zone.clone(), now_ms))).clone()
}

/// Which popup it is, in which version.
#[derive(Clone, Copy)]
pub(super) struct PopupVersion<'a> {
    pub no: u32,
    pub id: &'a str,
    pub version: u32,
}

impl Popup {
    pub(super) fn compile(
        popup: PopupVersion<'_>,
        spec: &PopupSpec,
        checked: &CheckedSpec,
        slots: &mut AttributeSlots,
        context: &mut CompileContext<'_>,
    ) -> Popup {
        let PopupVersion { no, id, version } = popup;
        let zone = checked.zone.as_ref().unwrap_or(context.zone).clone();
        let names = PopupNames { own: no, segment: context.segment, popup: context.popup };
        let reactions = Reactions::new(no, &checked.reactions);
        let names_impressions = |rule: &rules::Rule| rule.names_kind(MarkKind::Impression);
        let names_impressions =
            checked.audience.as_ref().is_some_and(names_impressions) || reactions.names_kind(MarkKind::Impression);
        let mut cumulative_weight = 0;
        let variants: Vec<Variant> = spec
            .variants
            .iter()
            .zip(&checked.contents)
            .map(|(variant, content)| {
                cumulative_weight += u64::from(variant.weight);
                let word = |text: &str| serde_json::Value::from(text).to_string();
                let (popup, name) = (word(id), word(&variant.id));
                let json_tail = format!(r#""popup":{popup},"variant":{name},"content":{content}}}"#);
                let buttons = variant.content.buttons.iter().map(|button| button.id.as_str().into()).collect();
                Variant { id: variant.id.clone(), cumulative_weight, json_tail: json_tail.into(), buttons }
            })
            .collect();
        let trigger = spec.trigger.as_ref().map(|trigger| Trigger {
            event: trigger.event.as_str().into(),
            condition: checked.condition.as_ref().map(|rule| {
                let mut slots = AttributeSlots::default();
                (rules::compile_with(rule, &mut slots, &names), slots)
            }),
        });
        Popup {
            no,
            id: id.into(),
            version,
            state: spec.state,
            priority: spec.priority,
            counter_key: CounterKey::popup(no),
            clock: ZoneClock {
                timetable: Timetable::new(spec.starts_at, spec.ends_at, &checked.windows, zone.clone(), context.now_ms),
                days: days_of(context, &zone),
            },
            user_clocks: checked.by_user_zone.then(|| {
                let PopupSpec { starts_at, ends_at, .. } = *spec;
                UserClocks::new(Schedule {
                    starts_at,
                    ends_at,
                    windows: checked.windows.clone(),
                    now_ms: context.now_ms,
                })
            }),
            audience: checked.audience.as_ref().map(|rule| rules::compile_with(rule, slots, &names)),
            trigger,
            journey: spec.journey.as_deref().map(Into::into),
            caps: checked.caps,
            reactions,
            names_impressions,
            variants,
            total_weight: cumulative_weight,
            control: checked.control,
            conversion: spec
                .conversion
                .as_ref()
                .zip(checked.conversion.as_ref())
                .map(|(declared, checked)| Conversion::compile(no, declared, checked, &names)),
            strict: spec.strict,
            testers: spec.test_users.iter().map(|user| UserKey::of(user)).collect(),
        }
    }

    /// About how many nanoseconds its conditions take.
    fn cost(&self) -> u64 {
        let condition = self.trigger.as_ref().and_then(|trigger| trigger.condition.as_ref());
        let condition = condition.map_or(0, |(condition, _)| condition.cost());
        condition.saturating_add(self.audience.as_ref().map_or(0, CompiledRule::cost))
    }

    /// The popup's wall time for a user whose profile names this zone.
    pub(super) fn clock(&self, user_zone: Option<&str>) -> ClockOfPopup<'_> {
        let own = self.user_clocks.as_ref().and_then(|clocks| clocks.of(user_zone?));
        own.map_or(ClockOfPopup::Shared(&self.clock), ClockOfPopup::Own)
    }

    /// Whether the popup's state allows to show it to other users than its test users.
    pub(super) fn is_published(&self) -> bool {
        matches!(self.state, PopupState::Live | PopupState::Scheduled)
    }

    /// The index of the user's variant: the same for as long as the weights stay.
    pub(super) fn variant_of(&self, user: UserKey) -> usize {
        let bucket = user.bucket("variant", &self.id, self.total_weight);
        self.variants.partition_point(|variant| variant.cumulative_weight <= bucket).min(self.variants.len() - 1)
    }

    /// The id of the variant that a group is shown, if the popup has it.
    pub(super) fn variant_of_group(&self, group: Group) -> Option<&str> {
        self.variants.iter().map(|variant| variant.id.as_str()).find(|id| Group::variant(id) == group)
    }

    pub(super) fn is_control(&self, user: UserKey) -> bool {
        self.control > 0 && user.bucket("control", &self.id, 10_000) < u64::from(self.control)
    }
}

/// The popups of one placement.
pub(super) struct Placement {
    pub(super) counter_key: CounterKey,
    pub(super) caps: Caps,
    /// The published popups in the order in which they are considered: higher priority first, then by id.
    pub(super) popups: Vec<Arc<Popup>>,
    pub(super) index: RuleIndex,
    /// About how many nanoseconds the conditions of one question can take: those of all popups that the index can leave over.
    pub(super) cost_max: u64,
    /// Popups that have test users, published or not.
    pub(super) tested: Vec<Arc<Popup>>,
    /// Published and other popups, in the same order.
    pub(super) all: Vec<Arc<Popup>>,
    pub(super) needs_unread: bool,
    pub(super) needs_profile: bool,
    /// Some popup declares its conversion.
    pub(super) is_measured: bool,
}

impl Placement {
    pub(super) fn new(name: &str, caps: Caps, mut all: Vec<Arc<Popup>>) -> Self {
        all.sort_by(|a, b| b.priority.cmp(&a.priority).then_with(|| a.id.cmp(&b.id)));
        let popups: Vec<_> = all.iter().filter(|popup| popup.is_published()).cloned().collect();
        let audiences = || popups.iter().filter_map(|popup| popup.audience.as_ref());
        let index = RuleIndex::build(popups.iter().map(|popup| popup.audience.as_ref()));
        Placement {
            counter_key: CounterKey::placement(name),
            caps,
            cost_max: index.cost_max(|rank| popups[rank as usize].cost()),
            index,
            needs_unread: audiences().any(CompiledRule::needs_unread),
            needs_profile: audiences().any(CompiledRule::needs_profile)
                || popups.iter().any(|popup| popup.user_clocks.is_some()),
            is_measured: popups.iter().any(|popup| popup.conversion.is_some()),
            tested: all.iter().filter(|popup| !popup.testers.is_empty()).cloned().collect(),
            popups,
            all,
        }
    }
}

/// The policy that applies to all popups: caps, the days that they count by, and the holdout.
pub(super) struct GlobalPolicy {
    pub(super) caps: Caps,
    pub(super) days: Arc<Days>,
    /// In hundredths of a percent.
    holdout: u32,
}

impl GlobalPolicy {
    pub(super) fn new(settings: &CheckedSettings, days: Arc<Days>) -> Self {
        GlobalPolicy { caps: settings.caps, days, holdout: settings.holdout }
    }

    pub(super) fn is_held_out(&self, user: UserKey) -> bool {
        self.holdout > 0 && user.bucket("holdout", "", 10_000) < u64::from(self.holdout)
    }
}

/// The whole configuration at one time. A decision keeps the one that it began with.
#[derive(Clone)]
pub(super) struct Configuration {
    /// Counts changes of the configuration: an answer that was cached under another generation is not used.
    pub(super) generation: u64,
    pub(super) global: Arc<GlobalPolicy>,
    pub(super) slots: Arc<AttributeSlots>,
    pub(super) placements: FxHashMap<Box<str>, Arc<Placement>>,
    /// All popups by their numbers.
    pub(super) by_no: FxHashMap<u32, Arc<Popup>>,
    /// The highest number given to a popup so far.
    pub(super) last_no: u32,
    /// Some popup looks at impressions, so they are marked. They are the most frequent events by far, and without such a
    /// popup their marks would be written for nothing.
    pub(super) marks_impressions: bool,
    pub(super) journeys: Arc<Journeys>,
    /// The popups that declare a conversion, by the name of its event.
    pub(super) by_conversion: FxHashMap<Box<str>, Vec<Arc<Popup>>>,
}

impl Configuration {
    /// Whether a popup or journey with this number can exist: counters of others are removed.
    pub(super) fn knows_number(&self, no: u32) -> bool {
        // A later number was given out after this configuration was built.
        no > self.last_no || self.by_no.contains_key(&no) || self.journeys.by_no(no).is_some()
    }
}

/// The popups that declare a conversion, by the name of its event.
pub(super) fn by_conversion<'a>(popups: impl Iterator<Item = &'a Arc<Popup>>) -> FxHashMap<Box<str>, Vec<Arc<Popup>>> {
    let mut by_event: FxHashMap<Box<str>, Vec<Arc<Popup>>> = FxHashMap::default();
    for popup in popups {
        if let Some(conversion) = &popup.conversion {
            by_event.entry(conversion.event.clone()).or_default().push(popup.clone());
        }
    }
    by_event
}

//! A rule compiled for evaluation with each request: attributes are read by slot instead of by name, and cheap
//! conditions come before expensive ones.

use super::{Attributes, Comparison, MarkTest, Predicate, Rule, Scalar, Segment, Value, Values, Version, bucket};
use crate::{
    UserKey,
    frequency::{CounterKey, FrequencyCounters},
    timetable::Window,
};
use jiff::tz::TimeZone;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::sync::Arc;

/// Names with this prefix are attributes of the user's profile. A request cannot set them.
pub(super) const PROFILE_PREFIX: &str = "user.";

/// A slot that no attribute ever fills: that of the names beyond the number of slots.
const SLOT_NONE: u16 = u16::MAX;

/// The slots of the attributes that the rules of a configuration read. A slot is a position in a [`Profile`].
#[derive(Debug, Clone, Default)]
pub struct AttributeSlots {
    request: FxHashMap<Box<str>, u16>,
    /// The names without [`PROFILE_PREFIX`].
    of_profile: FxHashMap<Box<str>, u16>,
    /// By slot: whether a rule compares the attribute as a version.
    versions: Vec<bool>,
}

impl AttributeSlots {
    /// The slot of an attribute by its name in rules. There are 65,535; attributes beyond count as absent.
    pub fn slot_of(&mut self, name: &str) -> u16 {
        let (slots, name) = match name.strip_prefix(PROFILE_PREFIX) {
            Some(name) => (&mut self.of_profile, name),
            None => (&mut self.request, name),
        };
        if let Some(&slot) = slots.get(name) {
            return slot;
        }
        if self.versions.len() == usize::from(SLOT_NONE) {
            return SLOT_NONE;
        }
        let slot = self.versions.len() as u16;
        slots.insert(name.into(), slot);
        self.versions.push(false);
        slot
    }

    fn version_slot_of(&mut self, name: &str) -> u16 {
        let slot = self.slot_of(name);
        if let Some(read_as_version) = self.versions.get_mut(usize::from(slot)) {
            *read_as_version = true;
        }
        slot
    }

    /// Puts the attributes of a request and of the user's profile into their slots. Versions are parsed here, once for all
    /// rules.
    pub fn profile<'p>(
        &self,
        user: UserKey,
        request: &'p Attributes<'p>,
        of_profile: Option<&'p Attributes<'p>>,
        unread_since: Option<u64>,
        now_ms: u64,
    ) -> Profile<'p> {
        let mut slots: SmallVec<[Option<&Value>; SLOTS_INLINE]> = SmallVec::from_elem(None, self.versions.len());
        for (attributes, slot_of) in [(Some(request), &self.request), (of_profile, &self.of_profile)] {
            for (name, value) in attributes.into_iter().flat_map(Attributes::pairs) {
                if let Some(&slot) = slot_of.get(name) {
                    slots[usize::from(slot)] = value;
                }
            }
        }
        let mut versions = SmallVec::new();
        for (slot, value) in slots.iter().enumerate() {
            if let Some(Value::Text(text)) = value
                && self.versions[slot]
                && let Some(version) = Version::parse(text)
            {
                versions.push((slot as u16, version));
            }
        }
        Profile { user, unread_since, now_ms, zone: TimeZone::UTC, marks: None, slots, versions }
    }
}

/// Slots of a profile that need no allocation; the rules of a configuration seldom name more attributes.
const SLOTS_INLINE: usize = 64;

/// The input of rules: a user with attributes, and the time.
#[derive(Debug)]
pub struct Profile<'p> {
    pub user: UserKey,
    /// When the user's oldest unread direct message was sent, in milliseconds since 1970 UTC.
    pub unread_since: Option<u64>,
    pub now_ms: u64,
    /// The zone whose clock decides conditions on the time of day that name none.
    pub zone: TimeZone,
    /// The user's marks of events; absent: there are none.
    marks: Option<&'p FrequencyCounters>,
    slots: SmallVec<[Option<&'p Value<'p>>; SLOTS_INLINE]>,
    versions: SmallVec<[(u16, Version); 2]>,
}

impl<'p> Profile<'p> {
    pub(crate) fn with_marks(self, marks: &'p FrequencyCounters) -> Self {
        Profile { marks: Some(marks), ..self }
    }

    pub(super) fn value(&self, slot: u16) -> Option<&'p Value<'p>> {
        self.slots.get(usize::from(slot)).copied().flatten()
    }

    fn text(&self, slot: u16) -> Option<&str> {
        match self.value(slot) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    fn number(&self, slot: u16) -> Option<f64> {
        match self.value(slot) {
            Some(Value::Number(number)) => Some(*number),
            _ => None,
        }
    }

    fn version(&self, slot: u16) -> Option<&Version> {
        self.versions.iter().find(|(own, _)| *own == slot).map(|(_, version)| version)
    }
}

/// A rule that can be evaluated.
#[derive(Debug)]
pub struct CompiledRule {
    pub(super) root: Node,
    /// The ages of unread messages that its conditions ask for, in milliseconds, ascending.
    unread_ages_ms: Box<[u64]>,
    /// The ages of events that its conditions ask for, in milliseconds.
    mark_ages_ms: Box<[(CounterKey, u64)]>,
    needs_profile: bool,
    needs_marks: bool,
}

/// What the names in a rule stand for.
pub(crate) trait RuleNames {
    /// A segment that does not exist counts as empty.
    fn segment(&self, name: &str) -> Option<Arc<Segment>>;
    /// The number of a popup; without a name: of the popup whose rule it is. Of a popup that does not exist there are no
    /// events.
    fn popup(&self, name: Option<&str>) -> Option<u32>;
}

impl<F: Fn(&str) -> Option<Arc<Segment>> + ?Sized> RuleNames for &F {
    fn segment(&self, name: &str) -> Option<Arc<Segment>> {
        self(name)
    }

    fn popup(&self, _: Option<&str>) -> Option<u32> {
        None
    }
}

/// Compiles a rule for profiles of `slots`. A segment that does not exist counts as empty.
pub fn compile(
    rule: &Rule,
    slots: &mut AttributeSlots,
    segment: &dyn Fn(&str) -> Option<Arc<Segment>>,
) -> CompiledRule {
    compile_with(rule, slots, &segment)
}

/// The same for a rule that may name popups.
pub(crate) fn compile_with(rule: &Rule, slots: &mut AttributeSlots, names: &dyn RuleNames) -> CompiledRule {
    let (mut unread_ages_ms, mut mark_ages_ms) = (Vec::new(), Vec::new());
    let (mut needs_profile, mut needs_marks) = (false, false);
    let mut add_ages = |key: Option<CounterKey>, test: &MarkTest| {
        needs_marks = true;
        let ages = [test.within_s, test.before_s].into_iter().flatten();
        mark_ages_ms
            .extend(key.into_iter().flat_map(|key| ages.clone().map(move |age| (key, age.saturating_mul(1_000)))));
    };
    rule.visit(&mut |rule| match rule {
        Rule::UnreadDirect { older_than_s } => unread_ages_ms.push(older_than_s.saturating_mul(1_000)),
        Rule::Attribute { name, .. } => needs_profile |= name.starts_with(PROFILE_PREFIX),
        Rule::Event { name, test } => add_ages(Some(CounterKey::event(name)), test),
        Rule::PopupEvent { popup, kind, test } => {
            add_ages(names.popup(popup.as_deref()).map(|no| CounterKey::popup_event(no, *kind)), test);
        }
        _ => {}
    });
    unread_ages_ms.sort_unstable();
    unread_ages_ms.dedup();
    mark_ages_ms.sort_unstable();
    mark_ages_ms.dedup();
    CompiledRule {
        root: node(rule, slots, names),
        unread_ages_ms: unread_ages_ms.into(),
        mark_ages_ms: mark_ages_ms.into(),
        needs_profile,
        needs_marks,
    }
}

impl CompiledRule {
    pub fn holds(&self, profile: &Profile) -> bool {
        self.root.holds(profile, profile.now_ms)
    }

    /// Why the rule does not hold: the path of the first condition, in the order of the text, that does not, such as
    /// `all[2]`. Empty if the rule is that condition itself; ends with `any` if none of a list holds. `None`: it holds.
    pub fn why_not(&self, profile: &Profile) -> Option<String> {
        self.why_not_at(profile, profile.now_ms)
    }

    /// The same at another time than the profile's.
    pub(crate) fn why_not_at(&self, profile: &Profile, at: u64) -> Option<String> {
        if self.root.holds(profile, at) {
            return None;
        }
        let mut path = String::new();
        self.root.why_not(profile, at, &mut path);
        Some(path)
    }

    /// Whether the rule depends on `Profile::unread_since`.
    pub fn needs_unread(&self) -> bool {
        !self.unread_ages_ms.is_empty()
    }

    /// Whether the rule depends on the attributes of the user's profile.
    pub fn needs_profile(&self) -> bool {
        self.needs_profile
    }

    /// Whether the rule depends on the user's marks of events.
    pub(crate) fn needs_marks(&self) -> bool {
        self.needs_marks
    }

    /// About how many nanoseconds one evaluation takes that finds out when the rule will hold: the conditions are looked at
    /// now, and once for each age that an unread message or an event may reach.
    pub(crate) fn cost(&self) -> u64 {
        let instants = 1 + self.unread_ages_ms.len() + self.mark_ages_ms.len();
        (self.root.cost() as u64).saturating_mul(instants as u64)
    }

    /// Whether time alone can change what the rule comes to.
    pub(crate) fn is_timed(&self) -> bool {
        !self.unread_ages_ms.is_empty() || !self.mark_ages_ms.is_empty()
    }

    /// The first time from `at` on at which the rule holds, if only time passes. `None`: time alone will not do.
    pub fn holds_from(&self, profile: &Profile, at: u64) -> Option<u64> {
        if self.root.holds(profile, at) {
            return Some(at);
        }
        if !self.is_timed() {
            return None;
        }
        // The result can change only when the message or an event reaches one of these ages.
        let mut instants: SmallVec<[u64; 8]> = SmallVec::new();
        if let Some(since) = profile.unread_since {
            instants.extend(self.unread_ages_ms.iter().map(|age| since.saturating_add(*age)));
        }
        if let Some(marks) = profile.marks {
            let of_mark = |(key, age): &(CounterKey, u64)| Some(marks.get(*key)?.last_at.saturating_add(*age));
            instants.extend(self.mark_ages_ms.iter().filter_map(of_mark));
        }
        instants.retain(|instant| *instant > at);
        instants.sort_unstable();
        instants.into_iter().find(|instant| self.root.holds(profile, *instant))
    }
}

#[derive(Debug)]
pub(super) enum Node {
    All(Box<[Child]>),
    Any(Box<[Child]>),
    Not(Box<Node>),
    Text { slot: u16, value: Box<str>, equal: bool },
    Number { slot: u16, value: f64, equal: bool },
    Bool { slot: u16, value: bool, equal: bool },
    Compare { slot: u16, comparison: Comparison, value: f64 },
    Texts { slot: u16, values: TextSet, member: bool },
    Numbers { slot: u16, values: Box<[f64]>, member: bool },
    Contains { slot: u16, text: Box<str>, has: bool },
    StartsWith { slot: u16, text: Box<str> },
    EndsWith { slot: u16, text: Box<str> },
    Version { slot: u16, comparison: Comparison, value: Version },
    Present { slot: u16, present: bool },
    Percent { salt: Box<str>, from: u32, to: u32 },
    Segment(Arc<Segment>),
    Unread { age_ms: u64 },
    TimeOfDay { window: Window, zone: Option<TimeZone> },
    Mark(Box<MarkNode>),
}

/// A condition on a user's events.
#[derive(Debug)]
pub(super) struct MarkNode {
    /// Absent: of a popup that does not exist.
    key: Option<CounterKey>,
    within_ms: u64,
    before_ms: u64,
    times_gte: u32,
    since: Option<CounterKey>,
}

impl MarkNode {
    fn mark(key: Option<CounterKey>, test: &MarkTest) -> Node {
        Node::Mark(Box::new(MarkNode {
            key,
            within_ms: test.within_s.map_or(u64::MAX, |seconds| seconds.saturating_mul(1_000)),
            before_ms: test.before_s.unwrap_or(0).saturating_mul(1_000),
            times_gte: test.times_gte,
            since: test.since_event.as_deref().map(CounterKey::event),
        }))
    }

    fn holds(&self, marks: &FrequencyCounters, now_ms: u64) -> bool {
        let Some(mark) = self.key.and_then(|key| marks.get(key)) else { return false };
        let is_since = |since: CounterKey| marks.get(since).is_some_and(|since| since.last_at <= mark.last_at);
        // An event after `now_ms`, from before the clock was turned back, is one of just now.
        let is_old_enough = self.before_ms == 0 || mark.last_at.saturating_add(self.before_ms) <= now_ms;
        is_old_enough
            && now_ms < mark.last_at.saturating_add(self.within_ms)
            && mark.total >= self.times_gte
            && self.since.is_none_or(is_since)
    }
}

/// A rule of a list, with its position in the text: rules are evaluated in the order of their cost.
#[derive(Debug)]
pub(super) struct Child {
    position: usize,
    pub(super) node: Node,
}

/// A set of strings.
#[derive(Debug)]
pub(super) enum TextSet {
    /// Few strings are compared one by one: lengths and first bytes cost less than a hash.
    Few(Box<[Box<str>]>),
    Many(FxHashSet<Box<str>>),
}

/// With more strings a hash costs less than comparing each.
const FEW_MAX: usize = 8;

impl TextSet {
    fn of(values: &[String]) -> Self {
        let mut values: Vec<Box<str>> = values.iter().map(|value| value.as_str().into()).collect();
        values.sort_unstable();
        values.dedup();
        if values.len() <= FEW_MAX { TextSet::Few(values.into()) } else { TextSet::Many(values.into_iter().collect()) }
    }

    fn contains(&self, text: &str) -> bool {
        match self {
            TextSet::Few(values) => values.iter().any(|value| value.as_ref() == text),
            TextSet::Many(values) => values.contains(text),
        }
    }

    pub(super) fn iter(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        match self {
            TextSet::Few(values) => Box::new(values.iter().map(AsRef::as_ref)),
            TextSet::Many(values) => Box::new(values.iter().map(AsRef::as_ref)),
        }
    }
}

/// Turns negative zero into zero: the two are equal as numbers, and must be as keys.
pub(super) fn normalize_zero(number: f64) -> f64 {
    number + 0.0
}

fn node(rule: &Rule, slots: &mut AttributeSlots, names: &dyn RuleNames) -> Node {
    match rule {
        Rule::All(rules) => Node::All(children(rules, slots, names)),
        Rule::Any(rules) => Node::Any(children(rules, slots, names)),
        Rule::Not(rule) => Node::Not(Box::new(node(rule, slots, names))),
        Rule::Attribute { name, predicate } => predicate_node(name, predicate, slots),
        Rule::Percent { salt, from, to } => Node::Percent { salt: salt.as_str().into(), from: *from, to: *to },
        Rule::Segment(name) => Node::Segment(names.segment(name).unwrap_or_default()),
        Rule::UnreadDirect { older_than_s } => Node::Unread { age_ms: older_than_s.saturating_mul(1_000) },
        Rule::TimeOfDay { window, zone } => Node::TimeOfDay { window: *window, zone: zone.clone() },
        Rule::Event { name, test } => MarkNode::mark(Some(CounterKey::event(name)), test),
        Rule::PopupEvent { popup, kind, test } => {
            MarkNode::mark(names.popup(popup.as_deref()).map(|no| CounterKey::popup_event(no, *kind)), test)
        }
    }
}

fn children(rules: &[Rule], slots: &mut AttributeSlots, names: &dyn RuleNames) -> Box<[Child]> {
    let child = |(position, rule)| Child { position, node: node(rule, slots, names) };
    let mut children: Vec<Child> = rules.iter().enumerate().map(child).collect();
    children.sort_by_key(|child| child.node.cost());
    children.into()
}

fn predicate_node(name: &str, predicate: &Predicate, slots: &mut AttributeSlots) -> Node {
    let slot = match predicate {
        Predicate::Version(..) => slots.version_slot_of(name),
        _ => slots.slot_of(name),
    };
    match predicate {
        Predicate::Equals(value) => equality(slot, value, true),
        Predicate::NotEquals(value) => equality(slot, value, false),
        Predicate::Number(comparison, value) => Node::Compare { slot, comparison: *comparison, value: *value },
        Predicate::In(values) => membership(slot, values, true),
        Predicate::NotIn(values) => membership(slot, values, false),
        Predicate::Contains(text) => Node::Contains { slot, text: text.as_str().into(), has: true },
        Predicate::NotContains(text) => Node::Contains { slot, text: text.as_str().into(), has: false },
        Predicate::StartsWith(text) => Node::StartsWith { slot, text: text.as_str().into() },
        Predicate::EndsWith(text) => Node::EndsWith { slot, text: text.as_str().into() },
        Predicate::Version(comparison, value) => Node::Version { slot, comparison: *comparison, value: value.clone() },
        Predicate::Exists => Node::Present { slot, present: true },
        Predicate::Absent => Node::Present { slot, present: false },
    }
}

fn equality(slot: u16, value: &Scalar, equal: bool) -> Node {
    match value {
        Scalar::Text(value) => Node::Text { slot, value: value.as_str().into(), equal },
        Scalar::Number(value) => Node::Number { slot, value: *value, equal },
        Scalar::Bool(value) => Node::Bool { slot, value: *value, equal },
    }
}

fn membership(slot: u16, values: &Values, member: bool) -> Node {
    match values {
        Values::Texts(values) => Node::Texts { slot, values: TextSet::of(values), member },
        Values::Numbers(values) => {
            let mut values: Vec<f64> = values.iter().copied().map(normalize_zero).collect();
            values.sort_unstable_by(f64::total_cmp);
            values.dedup();
            Node::Numbers { slot, values: values.into(), member }
        }
    }
}

impl Node {
    /// Evaluates the node at `now_ms` instead of the profile's time.
    fn holds(&self, profile: &Profile, now_ms: u64) -> bool {
        match self {
            Node::All(children) => children.iter().all(|child| child.node.holds(profile, now_ms)),
            Node::Any(children) => children.iter().any(|child| child.node.holds(profile, now_ms)),
            Node::Not(node) => !node.holds(profile, now_ms),
            Node::Text { slot, value, equal } => {
                profile.text(*slot).is_some_and(|text| (text == value.as_ref()) == *equal)
            }
            Node::Number { slot, value, equal } => {
                profile.number(*slot).is_some_and(|number| (number == *value) == *equal)
            }
            Node::Bool { slot, value, equal } => {
                matches!(profile.value(*slot), Some(Value::Bool(truth)) if (truth == value) == *equal)
            }
            Node::Compare { slot, comparison, value } => {
                profile.number(*slot).and_then(|number| number.partial_cmp(value)).is_some_and(|o| comparison.admits(o))
            }
            Node::Texts { slot, values, member } => {
                profile.text(*slot).is_some_and(|text| values.contains(text) == *member)
            }
            Node::Numbers { slot, values, member } => profile.number(*slot).is_some_and(|number| {
                values.binary_search_by(|value| value.total_cmp(&normalize_zero(number))).is_ok() == *member
            }),
            Node::Contains { slot, text, has } => match profile.value(*slot) {
                Some(Value::Text(own)) => own.contains(text.as_ref()) == *has,
                Some(Value::List(items)) => items.iter().any(|item| item == text.as_ref()) == *has,
                _ => false,
            },
            Node::StartsWith { slot, text } => profile.text(*slot).is_some_and(|own| own.starts_with(text.as_ref())),
            Node::EndsWith { slot, text } => profile.text(*slot).is_some_and(|own| own.ends_with(text.as_ref())),
            Node::Version { slot, comparison, value } => {
                profile.version(*slot).is_some_and(|version| comparison.admits(version.precedence(value)))
            }
            Node::Present { slot, present } => profile.value(*slot).is_some() == *present,
            Node::Percent { salt, from, to } => (*from..*to).contains(&bucket(profile.user, salt)),
            Node::Segment(segment) => segment.contains(profile.user),
            Node::Unread { age_ms } => {
                profile.unread_since.is_some_and(|since| since.saturating_add(*age_ms) <= now_ms)
            }
            Node::TimeOfDay { window, zone } => window.shows(zone.as_ref().unwrap_or(&profile.zone), now_ms),
            Node::Mark(mark) => profile.marks.is_some_and(|marks| mark.holds(marks, now_ms)),
        }
    }

    /// Appends the path of the first failing condition of a node that does not hold.
    fn why_not(&self, profile: &Profile, at: u64, path: &mut String) {
        let part = |path: &mut String, name: &str| {
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(name);
        };
        match self {
            Node::All(children) => {
                let failing = children.iter().filter(|child| !child.node.holds(profile, at));
                if let Some(first) = failing.min_by_key(|child| child.position) {
                    part(path, &format!("all[{}]", first.position));
                    first.node.why_not(profile, at, path);
                }
            }
            Node::Any(_) => part(path, "any"),
            Node::Not(_) => part(path, "not"),
            _ => {}
        }
    }

    /// The evaluation's cost in nanoseconds, roughly: conditions are ordered by it, and [`CompiledRule::cost`] adds it up. A
    /// test of a list looks at up to 1,000 strings, one of a text at up to 1,024 bytes.
    fn cost(&self) -> usize {
        match self {
            Node::All(children) | Node::Any(children) => {
                1 + children.iter().map(|child| child.node.cost()).sum::<usize>()
            }
            Node::Not(node) => node.cost(),
            Node::Number { .. } | Node::Bool { .. } | Node::Compare { .. } | Node::Present { .. } => 1,
            Node::Unread { .. } => 1,
            Node::Mark(_) => 8,
            Node::Text { .. } | Node::StartsWith { .. } | Node::EndsWith { .. } => 2,
            Node::Version { .. } => 4,
            Node::Texts { .. } | Node::Numbers { .. } | Node::Percent { .. } => 8,
            Node::Contains { .. } => 600,
            Node::TimeOfDay { .. } => 50,
            // A segment's pages are seldom in the processor's cache.
            Node::Segment(_) => 100,
        }
    }
}

//! What a popup is for, as its app server declares it: a custom event, and for how long after a user's assignment it counts.
//! And the groups that users are assigned to.

use super::{
    UserKey,
    check::CheckedConversion,
    frequency::CounterKey,
    rules::{self, AttributeSlots, Attributes, CompiledRule, RuleNames},
};
use tidings_protocol::http::{AssignmentGroup, PopupConversion};
use xxhash_rust::xxh3::xxh3_64;

/// A popup's declared conversion, compiled.
pub(super) struct Conversion {
    /// A hash of the declaration, of 24 bits: the same declaration is the same measurement, also after another one.
    pub(super) measurement: u32,
    pub(super) mark: CounterKey,
    pub(super) event: Box<str>,
    condition: Option<(CompiledRule, AttributeSlots)>,
    pub(super) within_ms: u64,
    value: Option<Box<str>>,
}

/// A group by its number, as marks and rows have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Group(pub(super) u32);

impl Group {
    pub(super) const CONTROL: Group = Group(0);
    pub(super) const HOLDOUT: Group = Group(1);

    /// Those who are shown a variant: a hash of its id, so that variants may change their order.
    pub(super) fn variant(id: &str) -> Group {
        Group((xxh3_64(id.as_bytes()) as u32).max(Group::HOLDOUT.0 + 1))
    }

    pub(super) fn kind(self) -> AssignmentGroup {
        match self {
            Group::CONTROL => AssignmentGroup::Control,
            Group::HOLDOUT => AssignmentGroup::Holdout,
            _ => AssignmentGroup::Shown,
        }
    }
}

/// The number of the measurement of a declaration.
fn measurement_of(declared: &PopupConversion) -> u32 {
    // By way of a value, so that white space in a rule makes no other measurement.
    let text = serde_json::to_value(declared).map(|value| value.to_string()).unwrap_or_default();
    xxh3_64(text.as_bytes()) as u32 & 0xFF_FFFF
}

impl Conversion {
    pub(super) fn compile(
        no: u32,
        declared: &PopupConversion,
        checked: &CheckedConversion,
        names: &dyn RuleNames,
    ) -> Conversion {
        let measurement = measurement_of(declared);
        Conversion {
            measurement,
            mark: CounterKey::assignment(no, measurement),
            event: declared.event.as_str().into(),
            condition: checked.condition.as_ref().map(|rule| {
                let mut slots = AttributeSlots::default();
                (rules::compile_with(rule, &mut slots, names), slots)
            }),
            within_ms: checked.within_ms,
            value: declared.value.as_deref().map(Into::into),
        }
    }

    /// The value of an event that is such a conversion; `None`: the event is another one.
    pub(super) fn value_of(
        &self,
        user: UserKey,
        properties: Option<&serde_json::Map<String, serde_json::Value>>,
        taken_at: u64,
    ) -> Option<f64> {
        if let Some((condition, slots)) = &self.condition {
            let properties = properties.and_then(|all| Attributes::from_json("properties", all).ok());
            let properties = properties.unwrap_or_default();
            if !condition.holds(&slots.profile(user, &properties, None, None, taken_at)) {
                return None;
            }
        }
        let value = self.value.as_deref().and_then(|name| properties?.get(name)?.as_f64());
        Some(value.unwrap_or(0.0))
    }
}

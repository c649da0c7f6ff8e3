//! Rules, evaluated as they were written.

use serde_json::{Map, Value, value::RawValue};
use std::collections::{BTreeMap, BTreeSet};
use tidings_popups::{
    UserKey,
    rules::{MarkKind, MarkTest, Predicate, Rule, Scalar, Values, Version, bucket, parse},
};

pub fn read(text: &RawValue) -> Rule {
    parse("rule", text).unwrap()
}

/// What a user did, and when the server learned of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    pub at: u64,
    pub what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// With the popup of this number.
    WithPopup(u32, MarkKind),
    Custom(String),
    /// The popup of this number is not to be shown before this time.
    Snooze(u32, u64),
}

pub struct Person<'a> {
    pub key: UserKey,
    pub id: &'a str,
    pub segments: &'a BTreeMap<String, BTreeSet<String>>,
    pub done: &'a [Done],
    /// The number of the popup whose rule it is, and the numbers of all by their ids.
    pub own: u32,
    pub numbers: &'a BTreeMap<String, u32>,
    pub now: u64,
}

impl Person<'_> {
    /// Evaluates a rule; no user of the tests has messages.
    pub fn holds(&self, rule: &Rule, attributes: &Map<String, Value>, card: &Map<String, Value>) -> bool {
        match rule {
            Rule::All(rules) => rules.iter().all(|rule| self.holds(rule, attributes, card)),
            Rule::Any(rules) => rules.iter().any(|rule| self.holds(rule, attributes, card)),
            Rule::Not(rule) => !self.holds(rule, attributes, card),
            Rule::Attribute { name, predicate } => {
                let value = match name.strip_prefix("user.") {
                    Some(name) => card.get(name),
                    None => attributes.get(name),
                };
                passes(value.filter(|value| !value.is_null()), predicate)
            }
            Rule::Percent { salt, from, to } => (*from..*to).contains(&bucket(self.key, salt)),
            Rule::Segment(name) => self.segments.get(name).is_some_and(|users| users.contains(self.id)),
            Rule::UnreadDirect { .. } | Rule::TimeOfDay { .. } => false,
            Rule::Event { name, test } => self.did(&What::Custom(name.clone()), test),
            Rule::PopupEvent { popup, kind, test } => {
                let no = popup.as_ref().map_or(Some(self.own), |id| self.numbers.get(id).copied());
                no.is_some_and(|no| self.did(&What::WithPopup(no, *kind), test))
            }
        }
    }

    fn did(&self, what: &What, test: &MarkTest) -> bool {
        let times =
            |what: &What| self.done.iter().filter(|done| done.what == *what).map(|done| done.at).collect::<Vec<_>>();
        let all = times(what);
        let Some(last) = all.iter().max() else { return false };
        let is_since =
            |name: &String| times(&What::Custom(name.clone())).iter().max().is_some_and(|since| since <= last);
        all.len() >= test.times_gte as usize
            && test.within_s.is_none_or(|seconds| self.now < last + seconds * 1_000)
            && test.before_s.is_none_or(|seconds| seconds == 0 || last + seconds * 1_000 <= self.now)
            && test.since_event.as_ref().is_none_or(is_since)
    }
}

fn passes(value: Option<&Value>, predicate: &Predicate) -> bool {
    let Some(value) = value else { return *predicate == Predicate::Absent };
    match (predicate, value) {
        (Predicate::Exists, _) => true,
        (Predicate::Equals(Scalar::Text(wanted)), Value::String(text)) => text == wanted,
        (Predicate::NotEquals(Scalar::Text(wanted)), Value::String(text)) => text != wanted,
        (Predicate::Equals(Scalar::Number(wanted)), Value::Number(number)) => number.as_f64() == Some(*wanted),
        (Predicate::NotEquals(Scalar::Number(wanted)), Value::Number(number)) => number.as_f64() != Some(*wanted),
        (Predicate::Equals(Scalar::Bool(wanted)), Value::Bool(truth)) => truth == wanted,
        (Predicate::NotEquals(Scalar::Bool(wanted)), Value::Bool(truth)) => truth != wanted,
        (Predicate::Number(comparison, wanted), Value::Number(number)) => {
            comparison.admits(number.as_f64().unwrap().partial_cmp(wanted).unwrap())
        }
        (Predicate::In(Values::Texts(wanted)), Value::String(text)) => wanted.contains(text),
        (Predicate::NotIn(Values::Texts(wanted)), Value::String(text)) => !wanted.contains(text),
        (Predicate::In(Values::Numbers(wanted)), Value::Number(number)) => wanted.contains(&number.as_f64().unwrap()),
        (Predicate::NotIn(Values::Numbers(wanted)), Value::Number(number)) => {
            !wanted.contains(&number.as_f64().unwrap())
        }
        (Predicate::Contains(part), Value::String(text)) => text.contains(part.as_str()),
        (Predicate::NotContains(part), Value::String(text)) => !text.contains(part.as_str()),
        (Predicate::Contains(part), Value::Array(items)) => items.iter().any(|item| item == part),
        (Predicate::NotContains(part), Value::Array(items)) => !items.iter().any(|item| item == part),
        (Predicate::StartsWith(part), Value::String(text)) => text.starts_with(part.as_str()),
        (Predicate::EndsWith(part), Value::String(text)) => text.ends_with(part.as_str()),
        (Predicate::Version(comparison, wanted), Value::String(text)) => {
            Version::parse(text).is_some_and(|version| comparison.admits(version.precedence(wanted)))
        }
        _ => false,
    }
}

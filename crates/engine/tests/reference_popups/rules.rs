//! Rules, evaluated as they were written.

use serde_json::{Map, Value, value::RawValue};
use std::collections::{BTreeMap, BTreeSet};
use tidings_popups::{
    UserKey,
    rules::{Predicate, Rule, Scalar, Values, Version, bucket, parse},
};

pub fn read(text: &RawValue) -> Rule {
    parse("rule", text).unwrap()
}

pub struct Person<'a> {
    pub key: UserKey,
    pub id: &'a str,
    pub segments: &'a BTreeMap<String, BTreeSet<String>>,
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
        }
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

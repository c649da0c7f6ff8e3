//! Rules, read as they were written.

use serde_json::{Map, Value, value::RawValue};
use std::collections::{BTreeMap, BTreeSet};
use tidings_engine::popups::{
    UserKey,
    rules::{Rule, Scalar, Test, Values, Version, parse, place},
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
    /// Nobody here has messages.
    pub fn holds(&self, rule: &Rule, attributes: &Map<String, Value>, card: &Map<String, Value>) -> bool {
        match rule {
            Rule::All(rules) => rules.iter().all(|rule| self.holds(rule, attributes, card)),
            Rule::Any(rules) => rules.iter().any(|rule| self.holds(rule, attributes, card)),
            Rule::Not(rule) => !self.holds(rule, attributes, card),
            Rule::Attribute { name, test } => {
                let value = match name.strip_prefix("user.") {
                    Some(name) => card.get(name),
                    None => attributes.get(name),
                };
                passes(value.filter(|value| !value.is_null()), test)
            }
            Rule::Percent { salt, from, to } => (*from..*to).contains(&place(self.key, salt)),
            Rule::Segment(name) => self.segments.get(name).is_some_and(|users| users.contains(self.id)),
            Rule::UnreadDirect { .. } => false,
        }
    }
}

fn passes(value: Option<&Value>, test: &Test) -> bool {
    let Some(value) = value else { return *test == Test::Absent };
    match (test, value) {
        (Test::Exists, _) => true,
        (Test::Equals(Scalar::Text(wanted)), Value::String(text)) => text == wanted,
        (Test::NotEquals(Scalar::Text(wanted)), Value::String(text)) => text != wanted,
        (Test::Equals(Scalar::Number(wanted)), Value::Number(number)) => number.as_f64() == Some(*wanted),
        (Test::NotEquals(Scalar::Number(wanted)), Value::Number(number)) => number.as_f64() != Some(*wanted),
        (Test::Equals(Scalar::Bool(wanted)), Value::Bool(truth)) => truth == wanted,
        (Test::NotEquals(Scalar::Bool(wanted)), Value::Bool(truth)) => truth != wanted,
        (Test::Number(comparison, wanted), Value::Number(number)) => {
            comparison.admits(number.as_f64().unwrap().partial_cmp(wanted).unwrap())
        }
        (Test::In(Values::Texts(wanted)), Value::String(text)) => wanted.contains(text),
        (Test::NotIn(Values::Texts(wanted)), Value::String(text)) => !wanted.contains(text),
        (Test::In(Values::Numbers(wanted)), Value::Number(number)) => wanted.contains(&number.as_f64().unwrap()),
        (Test::NotIn(Values::Numbers(wanted)), Value::Number(number)) => !wanted.contains(&number.as_f64().unwrap()),
        (Test::Contains(part), Value::String(text)) => text.contains(part.as_str()),
        (Test::NotContains(part), Value::String(text)) => !text.contains(part.as_str()),
        (Test::Contains(part), Value::Array(items)) => items.iter().any(|item| item == part),
        (Test::NotContains(part), Value::Array(items)) => !items.iter().any(|item| item == part),
        (Test::StartsWith(part), Value::String(text)) => text.starts_with(part.as_str()),
        (Test::EndsWith(part), Value::String(text)) => text.ends_with(part.as_str()),
        (Test::Version(comparison, wanted), Value::String(text)) => {
            Version::read(text).is_some_and(|version| comparison.admits(version.precedence(wanted)))
        }
        _ => false,
    }
}

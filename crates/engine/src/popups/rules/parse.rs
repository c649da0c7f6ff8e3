//! JSON text to a rule. What does not fit is refused by its place: `audience.all[2].op: unknown operator …`.
//!
//! Read from the outside in, a level at a time, with what lies deeper left as text: so the depth is known before anything
//! recurses, however deep the text goes.

use super::{
    Comparison, Rule, Scalar, Test, Values, Version,
    value::{Pairs, Text},
};
use serde::de::DeserializeSeed;
use serde_json::value::RawValue;
use std::{borrow::Cow, fmt::Write};
use tidings_protocol::{
    error::Refusal,
    limits::{ATTRIBUTE_VALUE_BYTES_MAX, RULE_CONDITIONS_MAX, RULE_DEPTH_MAX, RULE_NAME_BYTES_MAX, RULE_VALUES_MAX},
};

/// Reads a rule; `field` is what it is called in the request, such as `audience`.
pub fn parse(field: &str, text: &RawValue) -> Result<Rule, Refusal> {
    Reader { path: field.to_owned(), of_event: false, depth: 0, conditions: 0 }.rule(text)
}

/// The same for a condition on what an event tells: of the user it knows who that is, and nothing else.
pub fn parse_of_event(field: &str, text: &RawValue) -> Result<Rule, Refusal> {
    Reader { path: field.to_owned(), of_event: true, depth: 0, conditions: 0 }.rule(text)
}

/// As the operators are told to whom used another one.
const OPERATORS: &str = "eq, ne, lt, lte, gt, gte, in, not_in, contains, not_contains, starts_with, ends_with, version_eq, \
                         version_lt, version_lte, version_gt, version_gte, exists, absent";
const FORMS: &str = "all, any, not, attribute, percent, segment, unread_direct";

struct Reader {
    /// The place that is being read.
    path: String,
    of_event: bool,
    depth: usize,
    conditions: usize,
}

type Fields<'t> = Vec<(Cow<'t, str>, &'t RawValue)>;

impl Reader {
    fn refuse<T>(&self, why: impl std::fmt::Display) -> Result<T, Refusal> {
        Err(Refusal::field(&self.path, why))
    }

    /// Reads a part under its own name.
    fn at<T>(
        &mut self,
        part: std::fmt::Arguments,
        read: impl FnOnce(&mut Self) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let above = self.path.len();
        // Writing to a string cannot fail.
        let _ = self.path.write_fmt(part);
        let result = read(self);
        self.path.truncate(above);
        result
    }

    fn rule(&mut self, text: &RawValue) -> Result<Rule, Refusal> {
        if self.depth == RULE_DEPTH_MAX {
            return self.refuse(format_args!("rules may be nested at most {RULE_DEPTH_MAX} deep"));
        }
        self.depth += 1;
        let rule = self.form(text);
        self.depth -= 1;
        rule
    }

    fn form(&mut self, text: &RawValue) -> Result<Rule, Refusal> {
        let fields = self.fields(text)?;
        if fields.iter().any(|(name, _)| name == "attribute") {
            return self.attribute(fields);
        }
        let [(form, value)] = fields.as_slice() else {
            return match fields.iter().find(|(name, _)| !FORMS.split(", ").any(|form| form == name)) {
                Some((name, _)) => self.unknown(name, FORMS),
                None => self.refuse(format_args!("a rule has exactly one of: {FORMS}")),
            };
        };
        match form.as_ref() {
            "all" => self.at(format_args!(".all"), |reader| reader.rules(value)).map(Rule::All),
            "any" => self.at(format_args!(".any"), |reader| reader.rules(value)).map(Rule::Any),
            "not" => self.at(format_args!(".not"), |reader| reader.rule(value)).map(|rule| Rule::Not(Box::new(rule))),
            "percent" => self.at(format_args!(".percent"), |reader| reader.percent(value)),
            "segment" => self.at(format_args!(".segment"), |reader| {
                reader.count_condition()?;
                reader.name(value).map(Rule::Segment)
            }),
            "unread_direct" => self.at(format_args!(".unread_direct"), |reader| reader.unread_direct(value)),
            name => self.unknown(name, FORMS),
        }
    }

    fn rules(&mut self, text: &RawValue) -> Result<Vec<Rule>, Refusal> {
        let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(text.get()) else {
            return self.refuse("must be a list of rules");
        };
        // An empty list is a condition too: it holds, or does not.
        if items.is_empty() {
            self.count_condition()?;
        }
        let mut rules = Vec::new();
        for (index, item) in items.into_iter().enumerate() {
            rules.push(self.at(format_args!("[{index}]"), |reader| reader.rule(item))?);
        }
        Ok(rules)
    }

    fn attribute(&mut self, fields: Fields) -> Result<Rule, Refusal> {
        self.count_condition()?;
        let [name, op, value] = self.pick(fields, ["attribute", "op", "value"])?;
        let name = self.required(".attribute", name, |reader, text| reader.attribute_name(text))?;
        let op = self.required(".op", op, |reader, text| reader.text(text))?;
        if matches!(op.as_ref(), "exists" | "absent") {
            if value.is_some() {
                return self.at(format_args!(".value"), |reader| reader.refuse(format_args!("{op} takes no value")));
            }
            let test = if op == "exists" { Test::Exists } else { Test::Absent };
            return Ok(Rule::Attribute { name, test });
        }
        // The operator is looked at before its value: one that is unknown has no value that could be right.
        let Some(operator) = Operator::named(&op) else {
            return self.at(format_args!(".op"), |reader| {
                reader.refuse(format_args!("unknown operator {}; known are {OPERATORS}", quoted(&op)))
            });
        };
        let test = self.required(".value", value, |reader, text| reader.operand(operator, text))?;
        Ok(Rule::Attribute { name, test })
    }

    fn operand(&mut self, operator: Operator, text: &RawValue) -> Result<Test, Refusal> {
        Ok(match operator {
            Operator::Equals => Test::Equals(self.scalar(text)?),
            Operator::NotEquals => Test::NotEquals(self.scalar(text)?),
            Operator::Number(comparison) => Test::Number(comparison, self.number(text)?),
            Operator::In => Test::In(self.values(text)?),
            Operator::NotIn => Test::NotIn(self.values(text)?),
            Operator::Text(test) => test(self.value_text(text)?),
            Operator::Version(comparison) => {
                let text = self.text(text)?;
                match Version::read(&text) {
                    Some(version) => Test::Version(comparison, version),
                    None => return self.refuse(format_args!("{} is not a semantic version", quoted(&text))),
                }
            }
        })
    }

    fn scalar(&mut self, text: &RawValue) -> Result<Scalar, Refusal> {
        match text.get().as_bytes().first() {
            Some(b'"') => self.value_text(text).map(Scalar::Text),
            Some(b'-' | b'0'..=b'9') => self.number(text).map(Scalar::Number),
            Some(b't') => Ok(Scalar::Bool(true)),
            Some(b'f') => Ok(Scalar::Bool(false)),
            _ => self.refuse("must be a string, a number or a boolean"),
        }
    }

    fn values(&mut self, text: &RawValue) -> Result<Values, Refusal> {
        const KINDS: &str = "must be a list of strings, or of numbers; not empty";
        let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(text.get()) else { return self.refuse(KINDS) };
        if items.len() > RULE_VALUES_MAX {
            return self.refuse(format_args!("may hold at most {RULE_VALUES_MAX} values, got {}", items.len()));
        }
        let Some(first) = items.first() else { return self.refuse(KINDS) };
        if first.get().starts_with('"') {
            self.each(items, |reader, item| reader.value_text(item)).map(Values::Texts)
        } else {
            self.each(items, |reader, item| reader.number(item)).map(Values::Numbers)
        }
    }

    fn each<T>(
        &mut self,
        items: Vec<&RawValue>,
        read: impl Fn(&mut Self, &RawValue) -> Result<T, Refusal>,
    ) -> Result<Vec<T>, Refusal> {
        let one = |(index, item)| self.at(format_args!("[{index}]"), |reader| read(reader, item));
        items.into_iter().enumerate().map(one).collect()
    }

    fn percent(&mut self, text: &RawValue) -> Result<Rule, Refusal> {
        self.count_condition()?;
        let fields = self.fields(text)?;
        let [salt, from, to] = self.pick(fields, ["salt", "from", "to"])?;
        let salt = self.required(".salt", salt, |reader, text| reader.name(text))?;
        let from = self.required(".from", from, |reader, text| reader.hundredths(text))?;
        let to = self.required(".to", to, |reader, text| reader.hundredths(text))?;
        if from >= to {
            return self.at(format_args!(".to"), |reader| reader.refuse("must be above from"));
        }
        Ok(Rule::Percent { salt, from, to })
    }

    /// A percentage with at most two decimals, in hundredths.
    fn hundredths(&mut self, text: &RawValue) -> Result<u32, Refusal> {
        let percent = self.number(text)?;
        let hundredths = (percent * 100.0).round();
        // `h / 100` is rounded as the decimal itself was when it was read, so that only two decimals come out equal.
        if !(0.0..=10_000.0).contains(&hundredths) || hundredths / 100.0 != percent {
            return self.refuse("must be from 0 to 100, with at most two decimals");
        }
        Ok(hundredths as u32)
    }

    fn unread_direct(&mut self, text: &RawValue) -> Result<Rule, Refusal> {
        self.count_condition()?;
        if self.of_event {
            return self.refuse("a condition on an event is about the event: unread messages are for the audience");
        }
        let fields = self.fields(text)?;
        let [age] = self.pick(fields, ["older_than_s"])?;
        let older_than_s =
            self.required(".older_than_s", age, |reader, text| match serde_json::from_str::<u32>(text.get()) {
                Ok(seconds) => Ok(u64::from(seconds)),
                Err(_) => reader.refuse(format_args!("must be a whole number of seconds, from 0 to {}", u32::MAX)),
            })?;
        Ok(Rule::UnreadDirect { older_than_s })
    }

    // ---- parts of all forms

    fn count_condition(&mut self) -> Result<(), Refusal> {
        self.conditions += 1;
        if self.conditions > RULE_CONDITIONS_MAX {
            return self.refuse(format_args!("a rule may have at most {RULE_CONDITIONS_MAX} conditions"));
        }
        Ok(())
    }

    fn fields<'t>(&mut self, text: &'t RawValue) -> Result<Fields<'t>, Refusal> {
        let Ok(Pairs(mut fields)) = serde_json::from_str::<Pairs<'t>>(text.get()) else {
            return self.refuse("must be an object");
        };
        // Stable, so that a repeated name stands beside its first.
        fields.sort_by(|(left, _), (right, _)| left.cmp(right));
        match fields.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => self.refuse(format_args!("{} is there twice", quoted(&pair[0].0))),
            None => Ok(fields),
        }
    }

    /// The values of the names that an object may have, which are no others.
    fn pick<'t, const N: usize>(
        &mut self,
        fields: Fields<'t>,
        names: [&str; N],
    ) -> Result<[Option<&'t RawValue>; N], Refusal> {
        let mut picked = [None; N];
        for (name, value) in fields {
            match names.iter().position(|known| *known == name) {
                Some(index) => picked[index] = Some(value),
                None => return self.unknown(&name, &names.join(", ")),
            }
        }
        Ok(picked)
    }

    fn unknown<T>(&mut self, name: &str, known: &str) -> Result<T, Refusal> {
        self.refuse(format_args!("unknown name {}; known are {known}", quoted(name)))
    }

    fn required<'t, T>(
        &mut self,
        part: &str,
        value: Option<&'t RawValue>,
        read: impl FnOnce(&mut Self, &'t RawValue) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        self.at(format_args!("{part}"), |reader| match value {
            Some(text) => read(reader, text),
            None => reader.refuse("is missing"),
        })
    }

    fn text<'t>(&mut self, text: &'t RawValue) -> Result<Cow<'t, str>, Refusal> {
        match Text.deserialize(&mut serde_json::Deserializer::from_str(text.get())) {
            Ok(text) => Ok(text),
            Err(_) => self.refuse("must be a string"),
        }
    }

    fn name(&mut self, text: &RawValue) -> Result<String, Refusal> {
        let name = self.text(text)?;
        if name.is_empty() || name.len() > RULE_NAME_BYTES_MAX {
            return self.refuse(format_args!("must have 1 to {RULE_NAME_BYTES_MAX} bytes, has {}", name.len()));
        }
        Ok(name.into_owned())
    }

    fn attribute_name(&mut self, text: &RawValue) -> Result<String, Refusal> {
        let name = self.name(text)?;
        if name == super::compile::CARD_PREFIX {
            return self.refuse("names no attribute of the user's card");
        }
        if self.of_event && name.starts_with(super::compile::CARD_PREFIX) {
            return self
                .refuse("a condition on an event names the event's properties: the user's card is for the audience");
        }
        Ok(name)
    }

    fn value_text(&mut self, text: &RawValue) -> Result<String, Refusal> {
        let text = self.text(text)?;
        if text.len() > ATTRIBUTE_VALUE_BYTES_MAX {
            return self.refuse(format_args!("may have at most {ATTRIBUTE_VALUE_BYTES_MAX} bytes, has {}", text.len()));
        }
        Ok(text.into_owned())
    }

    fn number(&mut self, text: &RawValue) -> Result<f64, Refusal> {
        match serde_json::from_str::<f64>(text.get()) {
            // JSON has no other numbers, and one beyond the range is not read.
            Ok(number) if number.is_finite() => Ok(number),
            _ => self.refuse("must be a number"),
        }
    }
}

/// What somebody wrote, for a refusal: no longer than a name may be.
fn quoted(text: &str) -> String {
    let end = text.char_indices().map(|(at, _)| at).take_while(|at| *at <= RULE_NAME_BYTES_MAX).last().unwrap_or(0);
    if text.len() > RULE_NAME_BYTES_MAX { format!("{:?}…", &text[..end]) } else { format!("{text:?}") }
}

/// An operator that takes a value.
enum Operator {
    Equals,
    NotEquals,
    Number(Comparison),
    In,
    NotIn,
    Text(fn(String) -> Test),
    Version(Comparison),
}

impl Operator {
    fn named(name: &str) -> Option<Operator> {
        Some(match name {
            "eq" => Operator::Equals,
            "ne" => Operator::NotEquals,
            "lt" => Operator::Number(Comparison::Less),
            "lte" => Operator::Number(Comparison::AtMost),
            "gt" => Operator::Number(Comparison::Greater),
            "gte" => Operator::Number(Comparison::AtLeast),
            "in" => Operator::In,
            "not_in" => Operator::NotIn,
            "contains" => Operator::Text(Test::Contains),
            "not_contains" => Operator::Text(Test::NotContains),
            "starts_with" => Operator::Text(Test::StartsWith),
            "ends_with" => Operator::Text(Test::EndsWith),
            "version_eq" => Operator::Version(Comparison::Equal),
            "version_lt" => Operator::Version(Comparison::Less),
            "version_lte" => Operator::Version(Comparison::AtMost),
            "version_gt" => Operator::Version(Comparison::Greater),
            "version_gte" => Operator::Version(Comparison::AtLeast),
            _ => return None,
        })
    }
}

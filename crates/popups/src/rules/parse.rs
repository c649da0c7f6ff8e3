//! Parses a rule from JSON text. A refusal names the part that is wrong: `audience.all[2].op: unknown operator …`.
//!
//! The text is parsed one level at a time, and deeper levels stay text until they are reached: so the depth is checked
//! before the parser recurses, however deep the text goes.

use super::{
    Comparison, MarkKind, MarkTest, Predicate, Rule, Scalar, Values, Version,
    value::{Pairs, TextSeed},
};
use crate::timetable::Window;
use serde::de::DeserializeSeed;
use serde_json::value::RawValue;
use std::{borrow::Cow, fmt::Write};
use tidings_protocol::{
    error::Refusal,
    http::{PopupWindow, Weekday},
    limits::{ATTRIBUTE_VALUE_BYTES_MAX, RULE_CONDITIONS_MAX, RULE_DEPTH_MAX, RULE_NAME_BYTES_MAX, RULE_VALUES_MAX},
};

/// Parses a rule; `field` is its name in the request, such as `audience`.
///
/// # Errors
/// The text is no rule, or goes beyond a limit (`invalid_field`).
pub fn parse(field: &str, text: &RawValue) -> Result<Rule, Refusal> {
    RuleParser::of(field, Subject::User).rule(text)
}

/// Parses a condition on an event. It can test the event's properties, and of the user only segments and percentages.
///
/// # Errors
/// Those of [`parse`], and a condition on the user's profile, unread messages or earlier events.
pub fn parse_event_condition(field: &str, text: &RawValue) -> Result<Rule, Refusal> {
    RuleParser::of(field, Subject::Event).rule(text)
}

/// Parses a condition on a message and a person. It can test these attributes of the message, all that an audience can test of
/// the user, and the time of day.
///
/// # Errors
/// Those of [`parse`], and an attribute that messages do not have.
pub fn parse_message_condition(field: &str, text: &RawValue, known: &'static [&'static str]) -> Result<Rule, Refusal> {
    RuleParser::of(field, Subject::Message(known)).rule(text)
}

/// What a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    /// The user of a question, with any attributes.
    User,
    /// An event, with any properties.
    Event,
    /// A message with these attributes, and a person.
    Message(&'static [&'static str]),
}

impl Subject {
    /// Whether a rule may name earlier events, or gets the reason why not: messages are judged without users' marks.
    fn has_past(self) -> bool {
        !matches!(self, Subject::Message(_))
    }
}

/// The known operators, for a refusal.
const OPERATORS: &str = "eq, ne, lt, lte, gt, gte, in, not_in, contains, not_contains, starts_with, ends_with, version_eq, \
                         version_lt, version_lte, version_gt, version_gte, exists, absent";
const FORMS: &str = "all, any, not, attribute, percent, segment, unread_direct, event, popup_event";
/// The forms of conditions on messages.
const MESSAGE_FORMS: &str = "all, any, not, attribute, percent, segment, unread_direct, time_of_day";

struct RuleParser {
    /// The path of the part that is being parsed.
    path: String,
    subject: Subject,
    depth: usize,
    conditions: usize,
}

type Fields<'t> = Vec<(Cow<'t, str>, &'t RawValue)>;

impl RuleParser {
    fn of(field: &str, subject: Subject) -> RuleParser {
        RuleParser { path: field.to_owned(), subject, depth: 0, conditions: 0 }
    }

    fn forms(&self) -> &'static str {
        match self.subject {
            Subject::User | Subject::Event => FORMS,
            Subject::Message(_) => MESSAGE_FORMS,
        }
    }

    fn refuse<T>(&self, why: impl std::fmt::Display) -> Result<T, Refusal> {
        Err(Refusal::field(&self.path, why))
    }

    /// Parses a part with its name appended to the path.
    fn within<T>(
        &mut self,
        part: std::fmt::Arguments,
        read: impl FnOnce(&mut Self) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let parent_length = self.path.len();
        // Writing to a string cannot fail.
        let _ = self.path.write_fmt(part);
        let result = read(self);
        self.path.truncate(parent_length);
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
            let forms = self.forms();
            return match fields.iter().find(|(name, _)| !forms.split(", ").any(|form| form == name)) {
                Some((name, _)) => self.unknown(name, forms),
                None => self.refuse(format_args!("a rule has exactly one of: {forms}")),
            };
        };
        match form.as_ref() {
            "all" => self.within(format_args!(".all"), |parser| parser.rules(value)).map(Rule::All),
            "any" => self.within(format_args!(".any"), |parser| parser.rules(value)).map(Rule::Any),
            "not" => {
                self.within(format_args!(".not"), |parser| parser.rule(value)).map(|rule| Rule::Not(Box::new(rule)))
            }
            "percent" => self.within(format_args!(".percent"), |parser| parser.percent(value)),
            "segment" => self.within(format_args!(".segment"), |parser| {
                parser.count_condition()?;
                parser.name(value).map(Rule::Segment)
            }),
            "unread_direct" => self.within(format_args!(".unread_direct"), |parser| parser.unread_direct(value)),
            "event" if self.subject.has_past() => self.within(format_args!(".event"), |parser| parser.event(value)),
            "popup_event" if self.subject.has_past() => {
                self.within(format_args!(".popup_event"), |parser| parser.popup_event(value))
            }
            "time_of_day" if matches!(self.subject, Subject::Message(_)) => {
                self.within(format_args!(".time_of_day"), |parser| parser.time_of_day(value))
            }
            name => self.unknown(name, self.forms()),
        }
    }

    fn rules(&mut self, text: &RawValue) -> Result<Vec<Rule>, Refusal> {
        let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(text.get()) else {
            return self.refuse("must be a list of rules");
        };
        // An empty list counts as a condition, since it has a value of its own.
        if items.is_empty() {
            self.count_condition()?;
        }
        let mut rules = Vec::new();
        for (index, item) in items.into_iter().enumerate() {
            rules.push(self.within(format_args!("[{index}]"), |parser| parser.rule(item))?);
        }
        Ok(rules)
    }

    fn attribute(&mut self, fields: Fields) -> Result<Rule, Refusal> {
        self.count_condition()?;
        let [name, op, value] = self.take_fields(fields, ["attribute", "op", "value"])?;
        let name = self.required(".attribute", name, |parser, text| parser.attribute_name(text))?;
        let op = self.required(".op", op, |parser, text| parser.text(text))?;
        if matches!(op.as_ref(), "exists" | "absent") {
            if value.is_some() {
                return self
                    .within(format_args!(".value"), |parser| parser.refuse(format_args!("{op} takes no value")));
            }
            let predicate = if op == "exists" { Predicate::Exists } else { Predicate::Absent };
            return Ok(Rule::Attribute { name, predicate });
        }
        // The operator is checked before its value: with an unknown operator no value could be right.
        let Some(operator) = Operator::named(&op) else {
            return self.within(format_args!(".op"), |parser| {
                parser.refuse(format_args!("unknown operator {}; known are {OPERATORS}", quoted(&op)))
            });
        };
        let predicate = self.required(".value", value, |parser, text| parser.operand(operator, text))?;
        Ok(Rule::Attribute { name, predicate })
    }

    fn operand(&mut self, operator: Operator, text: &RawValue) -> Result<Predicate, Refusal> {
        Ok(match operator {
            Operator::Equals => Predicate::Equals(self.scalar(text)?),
            Operator::NotEquals => Predicate::NotEquals(self.scalar(text)?),
            Operator::Number(comparison) => Predicate::Number(comparison, self.number(text)?),
            Operator::In => Predicate::In(self.values(text)?),
            Operator::NotIn => Predicate::NotIn(self.values(text)?),
            Operator::Text(predicate) => predicate(self.value_text(text)?),
            Operator::Version(comparison) => {
                let text = self.text(text)?;
                match Version::parse(&text) {
                    Some(version) => Predicate::Version(comparison, version),
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
            self.each(items, |parser, item| parser.value_text(item)).map(Values::Texts)
        } else {
            self.each(items, |parser, item| parser.number(item)).map(Values::Numbers)
        }
    }

    fn each<T>(
        &mut self,
        items: Vec<&RawValue>,
        read: impl Fn(&mut Self, &RawValue) -> Result<T, Refusal>,
    ) -> Result<Vec<T>, Refusal> {
        let one = |(index, item)| self.within(format_args!("[{index}]"), |parser| read(parser, item));
        items.into_iter().enumerate().map(one).collect()
    }

    fn percent(&mut self, text: &RawValue) -> Result<Rule, Refusal> {
        self.count_condition()?;
        let fields = self.fields(text)?;
        let [salt, from, to] = self.take_fields(fields, ["salt", "from", "to"])?;
        let salt = self.required(".salt", salt, |parser, text| parser.name(text))?;
        let from = self.required(".from", from, |parser, text| parser.hundredths(text))?;
        let to = self.required(".to", to, |parser, text| parser.hundredths(text))?;
        if from >= to {
            return self.within(format_args!(".to"), |parser| parser.refuse("must be above from"));
        }
        Ok(Rule::Percent { salt, from, to })
    }

    /// A percentage with at most two decimals, in hundredths.
    fn hundredths(&mut self, text: &RawValue) -> Result<u32, Refusal> {
        let percent = self.number(text)?;
        let hundredths = (percent * 100.0).round();
        // The division rounds as the parser did, so the two are equal exactly for numbers with at most two decimals.
        if !(0.0..=10_000.0).contains(&hundredths) || hundredths / 100.0 != percent {
            return self.refuse("must be from 0 to 100, with at most two decimals");
        }
        Ok(hundredths as u32)
    }

    fn unread_direct(&mut self, text: &RawValue) -> Result<Rule, Refusal> {
        self.count_condition()?;
        if self.subject == Subject::Event {
            return self.refuse("a condition on an event is about the event: unread messages are for the audience");
        }
        let fields = self.fields(text)?;
        let [age] = self.take_fields(fields, ["older_than_s"])?;
        let older_than_s = self.required(".older_than_s", age, |parser, text| parser.whole(text, "seconds", 0))?;
        Ok(Rule::UnreadDirect { older_than_s: u64::from(older_than_s) })
    }

    fn whole(&mut self, text: &RawValue, what: &str, least: u32) -> Result<u32, Refusal> {
        match serde_json::from_str::<u32>(text.get()) {
            Ok(number) if number >= least => Ok(number),
            _ => self.refuse(format_args!("must be a whole number of {what}, from {least} to {}", u32::MAX)),
        }
    }

    fn event(&mut self, text: &RawValue) -> Result<Rule, Refusal> {
        self.count_past_condition()?;
        let fields = self.fields(text)?;
        let [name, tests @ ..] =
            self.take_fields(fields, ["name", "within_s", "before_s", "times_gte", "since_event"])?;
        let name = self.required(".name", name, |parser, text| parser.name(text))?;
        Ok(Rule::Event { name, test: self.mark_test(tests)? })
    }

    fn popup_event(&mut self, text: &RawValue) -> Result<Rule, Refusal> {
        self.count_past_condition()?;
        let fields = self.fields(text)?;
        let [popup, kind, tests @ ..] =
            self.take_fields(fields, ["popup", "type", "within_s", "before_s", "times_gte", "since_event"])?;
        let popup = self.optional(".popup", popup, |parser, text| parser.name(text))?;
        let kind = self.required(".type", kind, |parser, text| {
            let name = parser.text(text)?;
            MarkKind::named(&name).map_or_else(
                || {
                    let known = MarkKind::ALL.map(MarkKind::name).join(", ");
                    parser.refuse(format_args!("unknown type {}; known are {known}", quoted(&name)))
                },
                Ok,
            )
        })?;
        Ok(Rule::PopupEvent { popup, kind, test: self.mark_test(tests)? })
    }

    fn count_past_condition(&mut self) -> Result<(), Refusal> {
        self.count_condition()?;
        if self.subject == Subject::Event {
            return self.refuse("a condition on an event is about that event: earlier events are for the audience");
        }
        Ok(())
    }

    fn mark_test(&mut self, [within, before, times, since]: [Option<&RawValue>; 4]) -> Result<MarkTest, Refusal> {
        let within_s = self.optional(".within_s", within, |parser, text| parser.whole(text, "seconds", 1))?;
        let before_s = self.optional(".before_s", before, |parser, text| parser.whole(text, "seconds", 0))?;
        if let (Some(within), Some(before)) = (within_s, before_s)
            && before >= within
        {
            return self.within(format_args!(".before_s"), |parser| parser.refuse("must be below within_s"));
        }
        let times_gte = self.optional(".times_gte", times, |parser, text| parser.whole(text, "times", 1))?.unwrap_or(1);
        let since_event = self.optional(".since_event", since, |parser, text| parser.name(text))?;
        let (within_s, before_s) = (within_s.map(u64::from), before_s.map(u64::from));
        Ok(MarkTest { within_s, before_s, times_gte, since_event })
    }

    fn time_of_day(&mut self, text: &RawValue) -> Result<Rule, Refusal> {
        self.count_condition()?;
        let fields = self.fields(text)?;
        let [from, to, days, zone] = self.take_fields(fields, ["from", "to", "days", "time_zone"])?;
        let from = self.required(".from", from, |parser, text| parser.text(text))?.into_owned();
        let to = self.required(".to", to, |parser, text| parser.text(text))?.into_owned();
        let days = self.within(format_args!(".days"), |parser| match days {
            None => Ok(Vec::new()),
            Some(text) => match serde_json::from_str::<Vec<Weekday>>(text.get()) {
                Ok(days) => Ok(days),
                Err(_) => parser.refuse("must be a list of mon, tue, wed, thu, fri, sat, sun"),
            },
        })?;
        let zone = self.within(format_args!(".time_zone"), |parser| {
            let Some(text) = zone else { return Ok(None) };
            let name = parser.text(text)?;
            crate::timetable::zone(&parser.path, &name).map(Some)
        })?;
        match Window::parse(&PopupWindow { days, from, to }) {
            Ok(window) => Ok(Rule::TimeOfDay { window, zone }),
            Err((part, why)) => self.within(format_args!(".{part}"), |parser| parser.refuse(why)),
        }
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
        // When sorted, repeated names stand beside each other.
        fields.sort_by(|(left, _), (right, _)| left.cmp(right));
        match fields.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => self.refuse(format_args!("{} appears twice", quoted(&pair[0].0))),
            None => Ok(fields),
        }
    }

    /// The values of the known names of an object; any other name is refused.
    fn take_fields<'t, const N: usize>(
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
        self.within(format_args!("{part}"), |parser| match value {
            Some(text) => read(parser, text),
            None => parser.refuse("is missing"),
        })
    }

    fn optional<'t, T>(
        &mut self,
        part: &str,
        value: Option<&'t RawValue>,
        read: impl FnOnce(&mut Self, &'t RawValue) -> Result<T, Refusal>,
    ) -> Result<Option<T>, Refusal> {
        value.map(|text| self.within(format_args!("{part}"), |parser| read(parser, text))).transpose()
    }

    fn text<'t>(&mut self, text: &'t RawValue) -> Result<Cow<'t, str>, Refusal> {
        match TextSeed.deserialize(&mut serde_json::Deserializer::from_str(text.get())) {
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
        if name == super::compile::PROFILE_PREFIX {
            return self.refuse("names no attribute of the user's profile");
        }
        let of_profile = name.starts_with(super::compile::PROFILE_PREFIX);
        match self.subject {
            Subject::Event if of_profile => self
                .refuse("a condition on an event names the event's properties: the user's profile is for the audience"),
            Subject::Message(known) if !of_profile && !known.contains(&name.as_str()) => {
                let known = known.join(", ");
                self.refuse(format_args!(
                    "messages have no attribute {}; known are {known}, and user.x for x of the user's profile",
                    quoted(&name)
                ))
            }
            _ => Ok(name),
        }
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
            // JSON has no infinite numbers; a number beyond the range fails to parse.
            Ok(number) if number.is_finite() => Ok(number),
            _ => self.refuse("must be a number"),
        }
    }
}

/// A text from the request, quoted for a refusal and cut to the length of a name.
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
    Text(fn(String) -> Predicate),
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
            "contains" => Operator::Text(Predicate::Contains),
            "not_contains" => Operator::Text(Predicate::NotContains),
            "starts_with" => Operator::Text(Predicate::StartsWith),
            "ends_with" => Operator::Text(Predicate::EndsWith),
            "version_eq" => Operator::Version(Comparison::Equal),
            "version_lt" => Operator::Version(Comparison::Less),
            "version_lte" => Operator::Version(Comparison::AtMost),
            "version_gt" => Operator::Version(Comparison::Greater),
            "version_gte" => Operator::Version(Comparison::AtLeast),
            _ => return None,
        })
    }
}

//! Texts with placeholders, such as `{user}`: what a client sends.

use serde::{Deserialize, Deserializer, de::Error};
use std::{marker::PhantomData, ops::Deref};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placeholder {
    User,
    Token,
    ApiKey,
    /// The topic of the population: a new name for each run.
    Channel,
    /// 1, 2, 3, … on each connection: for protocols whose frames have numbers.
    Number,
    /// What a receiver tells apart its deliveries by.
    Marker,
    /// Of the delivery that is acknowledged.
    Id,
}

use Placeholder::{ApiKey, Channel, Id, Marker, Number, Token, User};

const NAMES: [(&str, Placeholder); 7] = [
    ("user", User),
    ("token", Token),
    ("api_key", ApiKey),
    ("channel", Channel),
    ("number", Number),
    ("marker", Marker),
    ("id", Id),
];

/// A place of a driver's file, by the placeholders that have values there.
pub(super) trait Known {
    const PLACEHOLDERS: &'static [Placeholder];
    /// Without this one, what stands there would be of no use.
    const NEEDED: Option<Placeholder> = None;
}

macro_rules! places {
    ($($(#[$about:meta])* $name:ident: [$($known:ident),*] $(needs $needed:ident)?;)*) => {$(
        $(#[$about])*
        #[derive(Debug, Default)]
        pub(super) struct $name;

        impl Known for $name {
            const PLACEHOLDERS: &'static [Placeholder] = &[$($known),*];
            $(const NEEDED: Option<Placeholder> = Some($needed);)?
        }
    )*};
}

places! {
    /// Wherever a request is made.
    InRequests: [User, ApiKey, Channel];
    /// Once the token is known.
    InSessions: [User, ApiKey, Channel, Token];
    InFrames: [User, ApiKey, Channel, Token, Number];
    InPublishes: [User, ApiKey, Channel, Token, Number, Marker] needs Marker;
    /// A request has no place among the frames of a session.
    InPublishRequests: [User, ApiKey, Channel, Token, Marker];
    InAcknowledgements: [User, ApiKey, Channel, Token, Number, Id];
}

/// A template as it is written in such a place.
#[derive(Debug, Default)]
pub(super) struct Text<K>(Template, PhantomData<K>);

impl<K> Deref for Text<K> {
    type Target = Template;

    fn deref(&self) -> &Template {
        &self.0
    }
}

impl<K: Known> Text<K> {
    pub(super) fn of(text: &str) -> Result<Self, String> {
        let template = Template::of(text, K::PLACEHOLDERS)?;
        match K::NEEDED {
            Some(needed) if !template.has(needed) => {
                Err("must have {marker}: deliveries are told apart by it".to_owned())
            }
            _ => Ok(Text(template, PhantomData)),
        }
    }
}

impl<'de, K: Known> Deserialize<'de> for Text<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Text::of(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// The values of one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Values<'a> {
    pub(super) user: &'a str,
    pub(super) token: &'a str,
    pub(super) api_key: &'a str,
    pub(super) channel: &'a str,
    pub(super) number: u64,
    pub(super) marker: &'a str,
    pub(super) id: &'a str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Value(Placeholder),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Template {
    parts: Vec<Part>,
}

impl Template {
    /// Reads a text in which these placeholders have values. A brace with anything else than a word is a brace: JSON has many.
    fn of(written: &str, known: &[Placeholder]) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = written;
        let mut text = String::new();
        while let Some(start) = rest.find('{') {
            let (before, after) = (&rest[..=start], &rest[start + 1..]);
            let end = after.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(after.len());
            if end == 0 || !after[end..].starts_with('}') {
                text.push_str(before);
                rest = after;
                continue;
            }
            let name = &after[..end];
            let Some((_, placeholder)) =
                NAMES.iter().find(|(other, placeholder)| *other == name && known.contains(placeholder))
            else {
                let names = NAMES.iter().filter(|(_, placeholder)| known.contains(placeholder));
                let names: Vec<String> = names.map(|(name, _)| format!("{{{name}}}")).collect();
                return Err(format!("there is no {{{name}}} here, but {}", names.join(", ")));
            };
            text.push_str(&before[..start]);
            if !text.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut text)));
            }
            parts.push(Part::Value(*placeholder));
            rest = &after[end + 1..];
        }
        text.push_str(rest);
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        Ok(Template { parts })
    }

    pub(super) fn has(&self, placeholder: Placeholder) -> bool {
        self.parts.contains(&Part::Value(placeholder))
    }

    pub(super) fn is_one_line(&self) -> bool {
        !self.parts.iter().any(|part| matches!(part, Part::Text(text) if text.contains(char::is_control)))
    }

    pub(super) fn fill(&self, values: &Values<'_>) -> String {
        let mut filled = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::Value(User) => filled.push_str(values.user),
                Part::Value(Token) => filled.push_str(values.token),
                Part::Value(ApiKey) => filled.push_str(values.api_key),
                Part::Value(Channel) => filled.push_str(values.channel),
                Part::Value(Number) => filled.push_str(&values.number.to_string()),
                Part::Value(Marker) => filled.push_str(values.marker),
                Part::Value(Id) => filled.push_str(values.id),
            }
        }
        filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str) -> Result<Template, String> {
        Template::of(text, InPublishes::PLACEHOLDERS)
    }

    #[test]
    fn placeholders_are_filled_and_braces_of_json_stay() {
        let text = r#"{"id":{number},"publish":{"channel":"{channel}","data":{"m":"{marker}","x":{}}}}"#;
        let filled = template(text)
            .map(|template| template.fill(&Values { number: 7, channel: "c1", marker: "lab.1", ..Values::default() }));
        let expected = r#"{"id":7,"publish":{"channel":"c1","data":{"m":"lab.1","x":{}}}}"#;
        assert_eq!(filled.as_deref(), Ok(expected));
        assert_eq!(
            template("{{user}}").map(|text| text.fill(&Values { user: "a", ..Values::default() })),
            Ok("{a}".into())
        );
    }

    #[test]
    fn what_has_no_value_here_is_a_mistake() {
        assert!(template("{usr}").is_err_and(|why| why.starts_with("there is no {usr} here, but {user}, {token}")));
        assert!(template("{id}").is_err());
    }
}

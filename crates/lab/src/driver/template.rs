//! Texts with placeholders, such as `{user}`: what a client sends.

use crate::toml_file::Mistake;
use toml::Spanned;

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

/// Known wherever a request is made.
pub(super) const IN_REQUESTS: &[Placeholder] = &[User, ApiKey, Channel];
/// Once the token is known.
pub(super) const IN_SESSIONS: &[Placeholder] = &[User, ApiKey, Channel, Token];
pub(super) const IN_FRAMES: &[Placeholder] = &[User, ApiKey, Channel, Token, Number];
pub(super) const IN_PUBLISHES: &[Placeholder] = &[User, ApiKey, Channel, Token, Number, Marker];
pub(super) const IN_ACKNOWLEDGEMENTS: &[Placeholder] = &[User, ApiKey, Channel, Token, Number, Id];

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
    pub(super) fn of(written: &Spanned<String>, known: &[Placeholder]) -> Result<Self, Mistake> {
        let mut parts = Vec::new();
        let mut rest = written.get_ref().as_str();
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
                let what = format!("there is no {{{name}}} here, but {}", names.join(", "));
                return Err(Mistake::at(written.span(), what));
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

    fn template(text: &str) -> Result<Template, Mistake> {
        Template::of(&Spanned::new(0..text.len(), text.to_owned()), IN_PUBLISHES)
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
        let shown = |text| template(text).map_err(|mistake| mistake.show("d.toml", text));
        assert!(
            shown("{usr}").is_err_and(|why| why.starts_with("d.toml:1:1: there is no {usr} here, but {user}, {token}"))
        );
        assert!(shown("{id}").is_err());
    }
}

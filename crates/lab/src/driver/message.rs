//! What a server has sent, and what is looked for in it.

use serde::Deserialize;
use serde_json::Value;
use std::cell::OnceCell;

/// A message of the server. As JSON it is read only if that is asked for, and once.
#[derive(Debug)]
pub(super) struct Message<'a> {
    pub(super) text: &'a str,
    json: OnceCell<Option<Value>>,
}

impl<'a> Message<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Message { text, json: OnceCell::new() }
    }

    fn json(&self) -> Option<&Value> {
        self.json.get_or_init(|| serde_json::from_str(self.text).ok()).as_ref()
    }
}

/// A JSON pointer (RFC 6901) by its segments, in which `*` stands for every element of an array.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Pointer(Vec<String>);

impl TryFrom<String> for Pointer {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        if !text.is_empty() && !text.starts_with('/') {
            return Err("a JSON pointer begins with `/`, such as `/push/data`");
        }
        let segments = text.split('/').skip(1).map(|segment| segment.replace("~1", "/").replace("~0", "~"));
        Ok(Pointer(segments.collect()))
    }
}

impl Pointer {
    /// Hands each value that it leads to to `take`.
    fn visit<'v>(&self, value: &'v Value, take: &mut impl FnMut(&'v Value)) {
        visit(&self.0, value, take);
    }
}

fn visit<'v>(segments: &[String], value: &'v Value, take: &mut impl FnMut(&'v Value)) {
    let Some((segment, rest)) = segments.split_first() else { return take(value) };
    match value {
        Value::Object(fields) => fields.get(segment).into_iter().for_each(|value| visit(rest, value, take)),
        Value::Array(elements) if segment == "*" => elements.iter().for_each(|value| visit(rest, value, take)),
        Value::Array(elements) => {
            let element = segment.parse::<usize>().ok().and_then(|index| elements.get(index));
            element.into_iter().for_each(|value| visit(rest, value, take));
        }
        _ => {}
    }
}

/// Where something stands in a message.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Place {
    Pointer(Pointer),
    Between(Enclosed),
}

/// The texts before and after.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "[String; 2]")]
pub(super) struct Enclosed(String, String);

impl TryFrom<[String; 2]> for Enclosed {
    type Error = &'static str;

    fn try_from([before, after]: [String; 2]) -> Result<Self, &'static str> {
        let has_both = !before.is_empty() && !after.is_empty();
        has_both.then_some(Enclosed(before, after)).ok_or("needs the text before and the text after")
    }
}

impl Place {
    /// Hands everything that stands there to `take`: several where a frame has several deliveries.
    pub(super) fn find(&self, message: &Message<'_>, take: &mut impl FnMut(&str)) {
        match self {
            Place::Pointer(pointer) => {
                let Some(json) = message.json() else { return };
                pointer.visit(json, &mut |value| match value {
                    Value::String(text) => take(text),
                    Value::Null => {}
                    other => take(&other.to_string()),
                });
            }
            Place::Between(Enclosed(before, after)) => {
                let mut rest = message.text;
                while let Some(start) = rest.find(before.as_str()) {
                    let inside = &rest[start + before.len()..];
                    let Some(end) = inside.find(after.as_str()) else { return };
                    take(&inside[..end]);
                    rest = &inside[end + after.len()..];
                }
            }
        }
    }

    pub(super) fn first(&self, message: &Message<'_>) -> Option<String> {
        let mut first = None;
        self.find(message, &mut |text| {
            first.get_or_insert_with(|| text.to_owned());
        });
        first
    }
}

/// Which messages are meant.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Matcher {
    Is(Words),
    Begins(Words),
    Contains(Words),
    /// There is something at this pointer.
    #[serde(rename = "pointer")]
    Has(Pointer),
}

/// A text that is not empty.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Words(String);

impl TryFrom<String> for Words {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        if text.is_empty() { Err("must not be empty") } else { Ok(Words(text)) }
    }
}

impl Matcher {
    pub(super) fn matches(&self, message: &Message<'_>) -> bool {
        match self {
            Matcher::Is(Words(text)) => message.text == text,
            Matcher::Begins(Words(text)) => message.text.starts_with(text.as_str()),
            Matcher::Contains(Words(text)) => message.text.contains(text.as_str()),
            Matcher::Has(pointer) => {
                let mut found = false;
                if let Some(json) = message.json() {
                    pointer.visit(json, &mut |_| found = true);
                }
                found
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(place: &str, message: &str) -> Vec<String> {
        #[derive(serde::Deserialize)]
        struct File {
            place: Place,
        }
        let file: File = toml::from_str(&format!("place = {place}")).unwrap();
        let mut found = Vec::new();
        file.place.find(&Message::new(message), &mut |text| found.push(text.to_owned()));
        found
    }

    #[test]
    fn markers_are_found_by_pointer_and_between_texts() {
        assert_eq!(found("{ pointer = '/push/pub/data/m' }", r#"{"push":{"pub":{"data":{"m":"a"}}}}"#), ["a"]);
        assert_eq!(found("{ pointer = '/entries/*/b' }", r#"{"entries":[{"b":"1"},{"c":2},{"b":3}]}"#), ["1", "3"]);
        assert_eq!(found("{ pointer = '/0/a~1b' }", r#"[{"a/b":"x"}]"#), ["x"]);
        assert_eq!(found("{ between = ['[\"m\",\"', '\"]'] }", r#"42["m","one"]["m","two"]["m","#), ["one", "two"]);
        assert!(found("{ pointer = '/push' }", "no json").is_empty());
    }
}

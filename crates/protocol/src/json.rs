//! Reading the JSON that callers write, in the same way over HTTP, WebSocket and MIOP.
//!
//! Callers' JSON is read strictly. A field that the operation does not know is refused, so that a misspelt option is
//! noticed instead of ignored; so is a field of another type, an object that is written as an array, and a field that
//! comes twice. Each refusal names the field by its path and says in JSON's terms what is expected. (Clients read the
//! server's JSON leniently: they ignore fields that they do not know.)
//!
//! What is carried as it was written, such as a message's body, is read by the parsers of other callers. So a text that some of
//! them cannot read is refused as a whole, whatever is in it that is stored: see `portable.rs`.

mod error_text;
mod portable;
mod strict;

use crate::{
    depth::is_deeper_than,
    error::{ErrorCode, Refusal},
    limits::JSON_DEPTH_MAX,
};
use portable::{find_unportable, path_at};
use serde::{Deserialize, Deserializer, de::IgnoredAny};
use strict::Strict;

/// The names of whole texts. A field in them is named without this first step of its path.
const ROOT_NAMES: [&str; 2] = ["body", "frame"];
/// The depth at which `serde_json` stops, to bound its recursion.
const PARSED_DEPTH_MAX: usize = 127;
const PARSED_TOO_DEEP: &str = "recursion limit";
/// The length of a field's path in a refusal, in characters: names that the caller made up may be part of it.
const PATH_CHARS_MAX: usize = 200;

/// Reads a whole body or frame.
///
/// # Errors
/// `malformed` if the text is no JSON, `invalid_field` if it is not a `T`, `limit_exceeded` if it is nested too deep.
pub fn read<'de, T: Deserialize<'de>>(text: &'de [u8]) -> Result<T, Refusal> {
    read_part("body", without_mark(text))
}

/// The text behind a byte order mark, with which some programs begin each text.
fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text)
}

/// Reads a part of a body or frame that was left unread at first; `name` is the part's path.
///
/// # Errors
/// As [`read`].
pub fn read_part<'de, T: Deserialize<'de>>(name: &str, text: &'de [u8]) -> Result<T, Refusal> {
    read_from(name, text, &mut serde_json::Deserializer::from_slice(text))
}

/// The same as [`read_part`] for text that is known to be UTF-8.
///
/// # Errors
/// As [`read`].
pub fn read_text<'de, T: Deserialize<'de>>(name: &str, text: &'de str) -> Result<T, Refusal> {
    read_from(name, text.as_bytes(), &mut serde_json::Deserializer::from_str(text))
}

fn read_from<'de, T: Deserialize<'de>, R: serde_json::de::Read<'de>>(
    name: &str,
    text: &'de [u8],
    json: &mut serde_json::Deserializer<R>,
) -> Result<T, Refusal> {
    let read = T::deserialize(Strict(&mut *json)).and_then(|read| json.end().map(|()| read));
    let read = read.map_err(|error| explain::<T>(name, text, &error))?;
    unportable(name, text).map_or(Ok(read), Err)
}

/// The refusal of valid JSON that some parsers cannot read.
fn unportable(name: &str, text: &[u8]) -> Option<Refusal> {
    let found = find_unportable(text)?;
    Some(field_refusal(&join(name, &path_at(text, found.at)), found.why))
}

/// A deserializer that refuses what [`read`] refuses, for callers' input that is not JSON.
pub fn strict<'de, D: Deserializer<'de>>(input: D) -> impl Deserializer<'de, Error = D::Error> {
    Strict(input)
}

/// The refusal of a text that could not be read as a `T`. Reads the text again to find the field's path, which costs more
/// than the first reading.
#[cold]
fn explain<'de, T: Deserialize<'de>>(name: &str, text: &'de [u8], error: &serde_json::Error) -> Refusal {
    if text.trim_ascii().is_empty() {
        return Refusal::new(ErrorCode::Malformed, format!("{name}: is missing: JSON is expected"));
    }
    // JSON that is too deep to be parsed is too deep for any field.
    if is_deeper_than(text, PARSED_DEPTH_MAX) && error.to_string().starts_with(PARSED_TOO_DEEP) {
        let why =
            format!("{name}: arrays and objects may be nested {JSON_DEPTH_MAX} deep in a field; these are deeper");
        return Refusal::new(ErrorCode::LimitExceeded, why);
    }
    // `IgnoredAny` does not decode the strings that it skips, so an invalid string can pass here: then `error` tells.
    let not_json = serde_json::from_slice::<IgnoredAny>(text).err();
    if let Some(error) = not_json.as_ref().or((!error.is_data()).then_some(error)) {
        // The parser fails at half of a surrogate pair and at a number out of range where it decodes them.
        let unportable = not_json.is_none().then(|| unportable(name, text)).flatten();
        return unportable
            .unwrap_or_else(|| Refusal::new(ErrorCode::Malformed, format!("{name}: is not JSON: {error}")));
    }
    let mut json = serde_json::Deserializer::from_slice(text);
    let Err(error) = serde_path_to_error::deserialize::<_, T>(Strict(&mut json)) else {
        return Refusal::new(ErrorCode::Malformed, format!("{name}: {error}"));
    };
    let path = error.path().to_string();
    let (within, why) = error_text::in_json_terms(&error.inner().to_string());
    let mut place = join(name, &path);
    // The path of an unknown field ends with its name already, except in an untagged enum.
    let is_named = |field: &String| error.inner().to_string().starts_with("unknown") && is_last_of(&path, field);
    if let Some(field) = within.filter(|field| !is_named(field)) {
        place = join(&place, &field);
    }
    field_refusal(&place, why)
}

fn field_refusal(place: &str, why: String) -> Refusal {
    let place = ROOT_NAMES.iter().find_map(|root| place.strip_prefix(root)?.strip_prefix('.')).unwrap_or(place);
    Refusal::field(&error_text::truncated(place, PATH_CHARS_MAX), why)
}

fn join(place: &str, path: &str) -> String {
    match path {
        "" | "." => place.to_owned(),
        path if path.starts_with('[') => format!("{place}{path}"),
        path => format!("{place}.{path}"),
    }
}

fn is_last_of(path: &str, field: &str) -> bool {
    path.strip_suffix(field).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// Tells a field that is `null` from one that is absent: for `deserialize_with`.
pub(crate) fn also_null<'de, D: Deserializer<'de>, T: Deserialize<'de>>(json: D) -> Result<Option<T>, D::Error> {
    T::deserialize(json).map(Some)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::http::*;

    #[track_caller]
    fn check<T: serde::de::DeserializeOwned>(text: &str, code: ErrorCode, detail: &str) {
        let Err(refusal) = read::<T>(text.as_bytes()) else { panic!("{text} was read") };
        assert_eq!((refusal.code, &*refusal.detail), (code, detail), "{text}");
    }

    #[track_caller]
    fn field<T: serde::de::DeserializeOwned>(text: &str, detail: &str) {
        check::<T>(text, ErrorCode::InvalidField, detail);
    }

    #[test]
    fn an_error_names_the_field_and_what_is_expected() {
        field::<SendRequest>(
            r#"{"conversation":"g","client_msg_id":7,"body":1}"#,
            "client_msg_id: must be a string, got the number 7",
        );
        field::<SendRequest>(r#"{"silent":"yes","body":1}"#, r#"silent: must be true or false, got the string "yes""#);
        field::<SendRequest>(r#"{"mentions":"bob","body":1}"#, r#"mentions: must be an array, got the string "bob""#);
        field::<SendRequest>(r#"{"mentions":["bob",null],"body":1}"#, "mentions[1]: must be a string, got null");
        field::<SendRequest>("{}", "body: is missing");
        field::<SendRequest>(r#"{"body":1,"body":2}"#, "body: appears twice");
        field::<MarkRead>(r#"{"seq":-1}"#, "seq: must be a whole number of at least 0, got the number -1");
        field::<MarkRead>(r#"{"seq":1.5}"#, "seq: must be a whole number of at least 0, got the number 1.5");
        field::<PushRequest>(r#"{"to":7,"body":1}"#, "to: must be an object, got the number 7");
        field::<UsersUpsert>(r#"{"users":[{"id":"a"},{"name":"b"}]}"#, "users[1].id: is missing");
        field::<UsersUpsert>(
            r#"{"users":[{"id":"a","nmae":"b"}]}"#,
            "users[0].nmae: unknown field; expected one of id, name, avatar, attributes, language, time_zone",
        );
        field::<UsersUpsert>(r#"[{"id":"a"}]"#, "body: must be an object, got an array");
        field::<UsersUpsert>("7", "body: must be an object, got the number 7");
        field::<CreateConversation>(
            r#"{"kind":"band"}"#,
            r#"kind: must be one of direct, group, official, got "band""#,
        );
        field::<CreateConversation>(r#"{"kind":7}"#, "kind: must be one of direct, group, official");
    }

    #[test]
    fn an_object_is_not_written_as_an_array() {
        read::<UsersUpsert>(br#"{"users":[{"id":"a"}]}"#).unwrap();
        for array in [r#"[[{"id":"a"}]]"#, r#"{"users":[["a"]]}"#] {
            assert!(serde_json::from_str::<UsersUpsert>(array).is_ok(), "{array}");
            assert!(read::<UsersUpsert>(array.as_bytes()).is_err(), "{array}");
        }
        field::<PushRequest>(r#"{"to":[],"body":1}"#, "to: must be an object, got an array");
    }

    #[test]
    fn invalid_json_is_malformed() {
        let malformed = ErrorCode::Malformed;
        check::<MarkRead>("", malformed, "body: is missing: JSON is expected");
        check::<MarkRead>(
            r#"{"seq":1"#,
            malformed,
            "body: is not JSON: EOF while parsing an object at line 1 column 8",
        );
        assert_eq!(read::<CreateConversation>(b"{\"kind\":\"group\",\"name\":\"\xff\"}").unwrap_err().code, malformed);
        check::<MarkRead>(r#"{"seq":1} x"#, malformed, "body: is not JSON: trailing characters at line 1 column 11");
    }

    #[test]
    fn json_that_some_parsers_cannot_read_is_refused_with_its_path() {
        const HALF: &str = "holds \\ud83d, half of a surrogate pair, which is not a character";
        const LARGE: &str = "holds a number beyond the range of 64-bit floating point; send it as a string";
        let carried = r#"{"messages":[{"body":1},{"body":{"a":["\ud83d"]}}]}"#;
        field::<SendBatch>(carried, &format!("messages[1].body.a[0]: {HALF}"));
        field::<SendRequest>(r#"{"body":1e400}"#, &format!("body: {LARGE}"));
        field::<SendRequest>(r#"{"body":{"body":1e400}}"#, &format!("body.body: {LARGE}"));
        let decoded = r#"{"kind":"group","name":"\ud83d"}"#;
        field::<CreateConversation>(decoded, &format!("name: {HALF}"));
        let parsed = r#"{"users":[{"id":"a","attributes":{"b":{"c":-1e400}}}]}"#;
        field::<UsersUpsert>(parsed, &format!("users[0].attributes.b.c: {LARGE}"));
        let Err(refusal) = read_text::<crate::frames::RawClientFrame<'_>>("frame", r#"{"t":"send","body":"\ud83d"}"#)
        else {
            panic!("it was read")
        };
        assert_eq!(refusal.detail, format!("body: {HALF}"));
        read::<SendRequest>(br#"{"body":"\ud83d\ude00 1e400"}"#).unwrap();
    }

    #[test]
    fn a_part_is_named_by_its_path() {
        let refusal = read_part::<Vec<PopupEvent>>("events", br#"[{"id":"e","type":7,"decision":"d"}]"#).unwrap_err();
        let kinds = "impression, click, button, dismiss, conversion, snooze, custom";
        assert_eq!(refusal.detail, format!("events[0].type: must be one of {kinds}"));
        let refusal = read_part::<Vec<PopupEvent>>("events", b"7").unwrap_err();
        assert_eq!(refusal.detail, "events: must be an array, got the number 7");
    }

    #[test]
    fn long_input_is_shortened_in_refusals() {
        let text = format!(r#"{{"kind":"{}"}}"#, "x".repeat(10_000));
        assert!(read::<CreateConversation>(text.as_bytes()).unwrap_err().detail.len() < 300);
        let text = format!(r#"{{"{}":1}}"#, "x".repeat(10_000));
        assert!(read::<CreateConversation>(text.as_bytes()).unwrap_err().detail.len() < 500);
    }

    #[test]
    fn bodies_are_carried_verbatim() {
        let sent: SendRequest = read(br#"{"body": {"a":  [1.0, 2e3]}, "mentions": ["b"]}"#).unwrap();
        assert_eq!(sent.body.get(), r#"{"a":  [1.0, 2e3]}"#);
        let frame: crate::frames::RawClientFrame<'_> = read(br#"{"t":"send","to":"a","body":[[1]]}"#).unwrap();
        assert_eq!(frame.body.unwrap().get(), "[[1]]");
    }
}

//! Translates `serde`'s errors for callers, who write JSON: without the names of our Rust types.

/// The length of a caller's own text that a refusal repeats, in characters.
const ECHO_CHARS_MAX: usize = 64;
/// The length of an error of `serde` that is passed on as it is, in characters: it may hold the caller's text.
const ERROR_CHARS_MAX: usize = 500;

/// The field that `serde`'s error names beside the path, if it names one, and what is wrong with it.
pub(super) fn in_json_terms(text: &str) -> (Option<String>, String) {
    let text = text.rfind(" at line ").map_or(text, |end| &text[..end]);
    if let Some(field) = quoted_after(text, "missing field ") {
        return (Some(field), "is missing".into());
    }
    if let Some(field) = quoted_after(text, "duplicate field ") {
        return (Some(field), "appears twice".into());
    }
    let (what, expected) = match text.rfind(", expected ") {
        Some(at) => (&text[..at], &text[at + ", expected ".len()..]),
        None => (text, ""),
    };
    if let Some(field) = quoted_after(what, "unknown field ") {
        return (Some(field), format!("unknown field{}", known("; expected one of ", expected)));
    }
    if let Some(word) = quoted_after(what, "unknown variant ") {
        return (None, format!("must be one of {}, got {word:?}", list(expected)));
    }
    if let Some(got) = what.strip_prefix("invalid type: ").or_else(|| what.strip_prefix("invalid value: ")) {
        return (None, format!("must be {}, got {}", wanted(expected), found(got)));
    }
    if let Some(length) = what.strip_prefix("invalid length ") {
        return (None, format!("must be {}, got {length} of them", wanted(expected)));
    }
    (None, truncated(text, ERROR_CHARS_MAX))
}

/// The text in backticks that follows `before`.
fn quoted_after(text: &str, before: &str) -> Option<String> {
    let rest = text.strip_prefix(before)?.strip_prefix('`')?;
    Some(truncated(&rest[..rest.rfind('`').unwrap_or(rest.len())], ECHO_CHARS_MAX))
}

fn known(before: &str, expected: &str) -> String {
    if expected.is_empty() { String::new() } else { format!("{before}{}", list(expected)) }
}

/// "one of `a`, `b`" and "`a` or `b`" as "a, b".
fn list(expected: &str) -> String {
    expected.trim_start_matches("one of ").replace("` or `", ", ").replace('`', "")
}

/// The first `most` characters of a text.
pub(super) fn truncated(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The JSON type and value that the request has, from `serde`'s description of it.
fn found(got: &str) -> String {
    let (kind, value) = got.split_once(' ').unwrap_or((got, ""));
    let value = value.trim_matches('`');
    match (kind, value) {
        ("integer", number) => format!("the number {}", truncated(number, ECHO_CHARS_MAX)),
        ("floating", point) => format!("the number {}", point.trim_start_matches("point ").trim_matches('`')),
        ("boolean", value) => value.to_owned(),
        ("string", text) => match text.char_indices().nth(ECHO_CHARS_MAX) {
            Some(_) => format!("the string {}\"", truncated(text, ECHO_CHARS_MAX)),
            None => format!("the string {text}"),
        },
        ("sequence", _) => "an array".into(),
        ("map", _) => "an object".into(),
        ("null" | "unit" | "Option", _) => "null".into(),
        _ => "something else".into(),
    }
}

/// The JSON type that is expected, from the Rust type that `serde` names.
fn wanted(expected: &str) -> String {
    const AT_LEAST_0: &str = "a whole number of at least 0";
    match expected {
        "u64" | "usize" => AT_LEAST_0.into(),
        "u32" => format!("a whole number from 0 to {}", u32::MAX),
        "u16" => format!("a whole number from 0 to {}", u16::MAX),
        "u8" => format!("a whole number from 0 to {}", u8::MAX),
        "i32" => format!("a whole number from {} to {}", i32::MIN, i32::MAX),
        "i8" | "i16" | "i64" | "isize" => "a whole number".into(),
        "f32" | "f64" => "a number".into(),
        "a boolean" => "true or false".into(),
        "a borrowed string" | "a character" | "str" => "a string".into(),
        "a sequence" => "an array".into(),
        "a map" => "an object".into(),
        "unit" => "null".into(),
        text if ["struct ", "enum ", "internally tagged ", "adjacently tagged "]
            .iter()
            .any(|kind| text.starts_with(kind)) =>
        {
            "an object".into()
        }
        text => text.to_owned(),
    }
}

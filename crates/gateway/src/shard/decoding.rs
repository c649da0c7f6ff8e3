//! Decodes a client's frame from JSON, or refuses it with the field and the request that are wrong.

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use std::{borrow::Cow, fmt};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    frames::RawClientFrame,
    json,
};

/// Why a frame cannot be decoded, and its request's `ref` if that was readable.
pub(super) struct DecodeError {
    pub reference: Option<u64>,
    pub refusal: Refusal,
}

pub(super) fn decode_frame(text: &str) -> Result<RawClientFrame<'_>, DecodeError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    // serde would accept an array of the struct's fields for the struct.
    if !text.trim_ascii_start().starts_with('{') {
        return Err(DecodeError { reference: None, refusal: malformed("a frame is one JSON object") });
    }
    json::read_text("frame", text).map_err(|refusal| explain(text, refusal))
}

/// The refusal of what cannot be decoded.
pub(super) fn malformed(detail: impl std::fmt::Display) -> Refusal {
    Refusal::new(ErrorCode::Malformed, detail.to_string())
}

/// The refusal of a request that lacks a field.
pub(super) fn missing_field(field: &str, request: &str) -> Refusal {
    Refusal::field(field, format_args!("is required in {request}"))
}

/// Decodes the frame again, for the details that the fast path skipped.
#[cold]
fn explain(text: &str, mut refusal: Refusal) -> DecodeError {
    let reference = reference_of(text);
    // A missing operation has the code of an unknown one.
    if refusal.detail == "t: is missing" {
        refusal.code = ErrorCode::Malformed;
    }
    DecodeError { reference, refusal }
}

/// The `ref` of a frame, if it stands before the first error.
fn reference_of(text: &str) -> Option<u64> {
    struct Seek<'a>(&'a mut Option<u64>);

    impl<'de> Visitor<'de> for Seek<'_> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
            while let Some(name) = fields.next_key::<Cow<'_, str>>()? {
                if name == "ref" {
                    *self.0 = Some(fields.next_value()?);
                } else {
                    fields.next_value::<IgnoredAny>()?;
                }
            }
            Ok(())
        }
    }

    let mut reference = None;
    // A `ref` that was found before an error counts.
    let _ = serde_json::Deserializer::from_str(text).deserialize_map(Seek(&mut reference));
    reference
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The frame is refused with this code and `ref`, and a message that begins with `words`.
    fn check(text: &str, code: ErrorCode, reference: Option<u64>, words: &str) {
        let Err(error) = decode_frame(text) else { panic!("{text} was read") };
        let refusal = &error.refusal;
        assert_eq!((refusal.code, error.reference), (code, reference), "{text}: {refusal}");
        assert!(refusal.detail.starts_with(words), "{text}: {refusal}");
    }

    #[test]
    fn a_refusal_names_the_field_and_the_request() {
        use ErrorCode::{InvalidField, Malformed};
        check(
            r#"{"t":"send","ref":7,"conversation":5}"#,
            InvalidField,
            Some(7),
            "conversation: must be a string, got the",
        );
        check(r#"{"t":"send","conversation":5,"ref":7}"#, InvalidField, Some(7), "conversation: must be a string");
        check(r#"{"t":"read","ref":7,"seq":-1}"#, InvalidField, Some(7), "seq: must be a whole number of at least 0");
        check(r#"{"t":"send","ref":7,"body":{"deep":[1]},"mentions":["a",2]}"#, InvalidField, Some(7), "mentions[1]: ");
        check(
            r#"{"t":"send","body":{"a":["\ud83d"]},"ref":7}"#,
            InvalidField,
            Some(7),
            "body.a[0]: holds \\ud83d, half",
        );
        check(r#"{"t":"stream_append","text":"\ud83d","ref":7}"#, InvalidField, Some(7), "text: holds \\ud83d, half");
        check(r#"{"t":"edit","ref":7,"body":1e400}"#, InvalidField, Some(7), "body: holds a number beyond the range");
        check(
            r#"{"t":"history","ref":7,"to_time":1764238000}"#,
            InvalidField,
            Some(7),
            "to_time: must be in milliseconds",
        );
        check(
            r#"{"t":"read","ref":"7"}"#,
            InvalidField,
            None,
            "ref: must be a whole number of at least 0, got the string",
        );
        check(r#"{"t":5,"ref":7}"#, InvalidField, Some(7), "t: must be a string");
        check(r#"{"ref":7}"#, Malformed, Some(7), "t: is missing");
        check(r#"{"t":"ping","ref":7,"t":"ping"}"#, InvalidField, Some(7), "t: appears twice");
        check(r#"{"t":"send","client_msg_ID":"1","ref":7}"#, InvalidField, Some(7), "client_msg_ID: unknown field");
        check(r#"{"ref":7,"t":"send","body":{"a":}}"#, Malformed, Some(7), "frame: is not JSON: expected value");
        check(r#"{"t":"send","body":{"a":},"ref":7}"#, Malformed, None, "frame: is not JSON: expected value");
        check(r#"{"t":"ping","ref":7} x"#, Malformed, Some(7), "frame: is not JSON: trailing characters");
        for text in ["", " ", "null", r#"["ping"]"#, "7"] {
            check(text, Malformed, None, "a frame is one JSON object");
        }
    }
}

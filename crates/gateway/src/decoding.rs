//! A client's frame from its JSON; from JSON that is none, a refusal that names the field and the request.

use crate::connection::malformed;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use std::{borrow::Cow, fmt};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    frames::RawClientFrame,
    json,
};

/// Why a frame was not read, and which request it was, if that can be seen.
pub(crate) struct Unreadable {
    pub reference: Option<u64>,
    pub refusal: Refusal,
}

pub(crate) fn read_frame(text: &str) -> Result<RawClientFrame<'_>, Unreadable> {
    // A list of a struct's fields would be taken for the struct.
    if !text.trim_ascii_start().starts_with('{') {
        return Err(Unreadable { reference: None, refusal: malformed("a frame is one JSON object") });
    }
    json::read_text("frame", text).map_err(|refusal| why_not(text, refusal))
}

/// A request lacks a field.
pub(crate) fn missing(field: &str, request: &str) -> Refusal {
    Refusal::field(field, format_args!("{request} needs it"))
}

/// Reads it again, for what the first look passed over to be quick.
#[cold]
fn why_not(text: &str, mut refusal: Refusal) -> Unreadable {
    let reference = reference_of(text);
    // No operation is named, as little as by a word that names none.
    if refusal.detail == "t: is missing" {
        refusal.code = ErrorCode::Malformed;
    }
    Unreadable { reference, refusal }
}

/// The `ref` of a frame, if it stands before what cannot be read.
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
    // What was found before an error counts.
    let _ = serde_json::Deserializer::from_str(text).deserialize_map(Seek(&mut reference));
    reference
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The frame is refused with this code, for this request, in words that begin so.
    fn check(text: &str, code: ErrorCode, reference: Option<u64>, words: &str) {
        let Err(unreadable) = read_frame(text) else { panic!("{text} was read") };
        let refusal = &unreadable.refusal;
        assert_eq!((refusal.code, unreadable.reference), (code, reference), "{text}: {refusal}");
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
        check(r#"{"t":"read","ref":7,"seq":-1}"#, InvalidField, Some(7), "seq: must be a whole number from 0 on");
        check(r#"{"t":"send","ref":7,"body":{"deep":[1]},"mentions":["a",2]}"#, InvalidField, Some(7), "mentions[1]: ");
        check(r#"{"t":"read","ref":"7"}"#, InvalidField, None, "ref: must be a whole number from 0 on, got the string");
        check(r#"{"t":5,"ref":7}"#, InvalidField, Some(7), "t: must be a string");
        check(r#"{"ref":7}"#, Malformed, Some(7), "t: is missing");
        check(r#"{"t":"ping","ref":7,"t":"ping"}"#, InvalidField, Some(7), "t: is given twice");
        check(r#"{"t":"send","client_msg_ID":"1","ref":7}"#, InvalidField, Some(7), "client_msg_ID: is no known field");
        check(r#"{"ref":7,"t":"send","body":{"a":}}"#, Malformed, Some(7), "frame: is not JSON: expected value");
        check(r#"{"t":"send","body":{"a":},"ref":7}"#, Malformed, None, "frame: is not JSON: expected value");
        check(r#"{"t":"ping","ref":7} x"#, Malformed, Some(7), "frame: is not JSON: trailing characters");
        for text in ["", " ", "null", r#"["ping"]"#, "7"] {
            check(text, Malformed, None, "a frame is one JSON object");
        }
    }
}

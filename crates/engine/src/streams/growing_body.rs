//! The body of a message that grows: a JSON object, of which only the string `text` changes.

use serde::Deserialize;
use serde_json::value::RawValue;
use tidings_protocol::error::Refusal;

/// A body split around its text, so that nothing but the text is written anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GrowingBody {
    /// The JSON before the text's first quotation mark, and after its last one.
    before: Box<str>,
    after: Box<str>,
    text: String,
    /// Bytes of the text as JSON, without quotation marks.
    encoded: usize,
}

impl GrowingBody {
    /// # Errors
    /// `invalid_field`: the body is no object with a string `text`.
    pub(crate) fn parse(body: &str) -> Result<GrowingBody, Refusal> {
        #[derive(Deserialize)]
        struct WithText<'a> {
            #[serde(borrow)]
            text: &'a RawValue,
        }
        let refusal =
            || Refusal::field("body", "a message that grows has an object with a string \"text\" as its body");
        // serde would take an array of the struct's fields for the struct.
        if !body.trim_ascii_start().starts_with('{') {
            return Err(refusal());
        }
        let found: WithText<'_> = serde_json::from_str(body).map_err(|_| refusal())?;
        let raw = found.text.get();
        let text: String = serde_json::from_str(raw).map_err(|_| refusal())?;
        // The raw text is a part of `body`.
        let start = raw.as_ptr() as usize - body.as_ptr() as usize;
        let (before, after) = (&body[..start], &body[start + raw.len()..]);
        let encoded = encoded_len(&text);
        Ok(GrowingBody { before: before.into(), after: after.into(), text, encoded })
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The text from a byte on; `None` if that is beyond the end or within a character.
    pub(crate) fn text_from(&self, offset: usize) -> Option<&str> {
        self.text.get(offset..)
    }

    /// The length of the whole body as JSON.
    pub(crate) fn bytes(&self) -> usize {
        self.before.len() + self.encoded + 2 + self.after.len()
    }

    /// By how many bytes this chunk lengthens the body.
    pub(crate) fn bytes_of(chunk: &str) -> usize {
        encoded_len(chunk)
    }

    pub(crate) fn push(&mut self, chunk: &str) {
        self.encoded += encoded_len(chunk);
        self.text.push_str(chunk);
    }

    /// The whole body.
    pub(crate) fn json(&self) -> Box<str> {
        let mut json = Vec::with_capacity(self.bytes());
        json.extend_from_slice(self.before.as_bytes());
        // Writing to memory cannot fail.
        let _ = serde_json::to_writer(&mut json, &self.text);
        json.extend_from_slice(self.after.as_bytes());
        String::from_utf8(json).unwrap_or_default().into()
    }
}

/// Bytes of a text as JSON, without quotation marks. A character is written in the same way wherever it stands, so that
/// the lengths of chunks add up.
fn encoded_len(text: &str) -> usize {
    /// Counts bytes instead of keeping them.
    struct Counter(usize);

    impl std::io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let mut counter = Counter(0);
    let _ = serde_json::to_writer(&mut counter, text);
    counter.0.saturating_sub(2)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_rest_of_the_body_stays_as_it_was_written() {
        for (body, after) in [
            (r#"{"text":""}"#, r#"{"text":"né\"w"}"#),
            (
                r#"{ "model" : "m-1",  "text": "a\u00e9", "text2":[1, 2.50] }"#,
                r#"{ "model" : "m-1",  "text": "aéné\"w", "text2":[1, 2.50] }"#,
            ),
        ] {
            let mut growing = GrowingBody::parse(body).unwrap();
            let mut expected = growing.bytes();
            for chunk in ["né", "\"", "w"] {
                expected += GrowingBody::bytes_of(chunk);
                growing.push(chunk);
            }
            assert_eq!(&*growing.json(), after);
            assert_eq!((growing.bytes(), expected), (after.len(), after.len()), "the length is known without writing");
            assert_eq!(GrowingBody::parse(after).unwrap().text(), growing.text());
        }
    }

    #[test]
    fn a_body_without_a_text_cannot_grow() {
        for body in [
            r#""text""#,
            "null",
            r#"["text"]"#,
            "{}",
            r#"{"text":5}"#,
            r#"{"text":null}"#,
            r#"{"text":"a","text":"b"}"#,
        ] {
            assert!(GrowingBody::parse(body).is_err(), "{body}");
        }
    }
}

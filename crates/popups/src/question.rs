//! The body of a question, parsed from JSON without copying.

use super::{
    attempt::Question,
    rules::{Attributes, TextSeed},
};
use serde::{Deserialize, Deserializer, de::DeserializeSeed};
use std::borrow::Cow;
use tidings_protocol::{error::Refusal, json};
use xxhash_rust::xxh3::xxh3_64;

/// The body of a `DecideRequest`.
///
/// ```
/// use tidings_popups::QuestionBody;
///
/// let body = QuestionBody::read(br#"{"user": "alice", "placement": "home"}"#).unwrap();
/// let question = body.for_user("alice");
/// assert_eq!((question.user, question.placement), ("alice", "home"));
/// assert!(QuestionBody::read(br#"{"user": "alice"}"#).is_err(), "a question names a placement");
/// ```
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuestionBody<'a> {
    #[serde(borrow, default)]
    user: Option<Word<'a>>,
    #[serde(borrow)]
    placement: Word<'a>,
    #[serde(borrow, default)]
    session: Option<Word<'a>>,
    #[serde(borrow, default)]
    attributes: Attributes<'a>,
    #[serde(borrow, default)]
    event: Option<EventBody<'a>>,
    #[serde(skip)]
    fingerprint: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EventBody<'a> {
    #[serde(borrow)]
    name: Word<'a>,
    #[serde(borrow, default)]
    properties: Attributes<'a>,
}

/// A string, borrowed unless it has escapes.
#[derive(Debug)]
struct Word<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Word<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        TextSeed.deserialize(deserializer).map(Word)
    }
}

impl<'a> QuestionBody<'a> {
    /// Parses a whole body.
    ///
    /// # Errors
    /// The text is no JSON (`malformed`) or no question (`invalid_field`).
    pub fn read(json: &'a [u8]) -> Result<Self, Refusal> {
        Self::read_part("body", json)
    }

    /// Parses a question that is the part `name` of a larger body.
    ///
    /// # Errors
    /// The text is no JSON (`malformed`) or no question (`invalid_field`).
    pub fn read_part(name: &str, json: &'a [u8]) -> Result<Self, Refusal> {
        let question: QuestionBody<'_> = json::read_part(name, json)?;
        Ok(QuestionBody { fingerprint: xxh3_64(json), ..question })
    }

    /// The user that the body names.
    pub fn user(&self) -> Option<&str> {
        self.user.as_ref().map(|user| &*user.0)
    }

    /// The question about this user, whom the caller has authorized.
    pub fn for_user<'q>(&'q self, user: &'q str) -> Question<'q> {
        Question {
            user,
            placement: &self.placement.0,
            session: self.session.as_ref().map(|session| &*session.0),
            attributes: &self.attributes,
            event: self.event.as_ref().map(|event| (&*event.name.0, &event.properties)),
            fingerprint: self.fingerprint,
        }
    }
}

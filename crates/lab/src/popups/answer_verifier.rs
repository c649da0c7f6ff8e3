//! Verifies every answer, and counts answers and events.

use super::catalogue::Catalogue;
use crate::client_engine::http::HttpAnswer;
use serde::Serialize;
use tidings_protocol::http::{Decision, PopupEventsAccepted};

/// Counts of requests by kind, and of answers by fault.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct AnswerCounts {
    /// Decisions that were requested for users who are not due.
    pub(crate) asked_early: u64,
    /// Decisions that were requested for users who are due.
    pub(crate) asked_due: u64,
    pub(crate) shown: u64,
    /// Users who were due and shown no popup.
    pub(crate) due_but_nothing: u64,
    pub(crate) events: u64,
    /// Answers with status 429 or 503.
    pub(crate) refused: u64,
    /// Connections that broke before an answer: the server may or may not have carried out the request.
    pub(crate) lost: u64,
    /// Popups that were shown before the gap was over.
    pub(crate) too_early: u64,
    /// Answers with a `Retry-After` that is not the rest of the gap.
    pub(crate) wrong_wait: u64,
    /// Answers whose content is not that of a popup of this placement.
    pub(crate) wrong_content: u64,
    /// Answers with any other status, and events that were not accepted as new.
    pub(crate) wrong_answer: u64,
    pub(crate) problems: Vec<String>,
}

impl AnswerCounts {
    /// Whether no answer was wrong, refused or lost.
    pub(crate) fn is_clean(&self) -> bool {
        let wrong = self.too_early + self.wrong_wait + self.wrong_content + self.wrong_answer;
        wrong + self.refused + self.lost == 0
    }

    pub(crate) fn since(&self, before: &AnswerCounts) -> AnswerCounts {
        let mut since = self.clone();
        counts!(since -= before: asked_early, asked_due, shown, due_but_nothing, events, refused, lost);
        counts!(since -= before: too_early, wrong_wait, wrong_content, wrong_answer);
        since
    }
}

/// The fields of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ParsedDecision<'a> {
    pub(crate) decision: &'a [u8],
    pub(crate) popup: &'a [u8],
    pub(crate) variant: &'a [u8],
    pub(crate) content: &'a [u8],
}

/// Parses a decision without blanks whose fields are in the order that the server writes; `None` for any other.
pub(crate) fn parse_decision(body: &[u8]) -> Option<ParsedDecision<'_>> {
    let (decision, rest) = take_string_field(body, br#"{"decision":""#)?;
    let (popup, rest) = take_string_field(rest, br#","popup":""#)?;
    let (variant, rest) = take_string_field(rest, br#","variant":""#)?;
    let content = rest.strip_prefix(br#","content":"#)?.strip_suffix(b"}")?;
    Some(ParsedDecision { decision, popup, variant, content })
}

/// Compares a shown popup with the catalogue, and calls `found` with its decision; the error says what is wrong.
pub(crate) fn verify_decision(
    catalogue: &Catalogue,
    body: &[u8],
    mut found: impl FnMut(&[u8], u16, u8),
) -> Result<(), String> {
    let mut verify = |parsed: ParsedDecision<'_>| {
        let named = || String::from_utf8_lossy(parsed.popup).into_owned();
        let Some((popup, variant)) = catalogue.find(parsed.popup, parsed.variant) else {
            return Err(format!("popup {} was never configured, or has no such variant", named()));
        };
        let known = &catalogue.popups[usize::from(popup)];
        found(parsed.decision, popup, variant);
        if known.variants[usize::from(variant)].1 != parsed.content && !same_json(known, variant, parsed.content) {
            return Err(format!("popup {} shows {}", named(), String::from_utf8_lossy(parsed.content)));
        }
        if known.at_home { Ok(()) } else { Err(format!("popup {} is not for this placement", named())) }
    };
    if let Some(parsed) = parse_decision(body) {
        return verify(parsed);
    }
    // With another order or with blanks a decision is right as well, and parsed more slowly.
    match serde_json::from_slice::<Decision>(body) {
        Ok(decision) => verify(ParsedDecision {
            decision: decision.decision.as_bytes(),
            popup: decision.popup.as_bytes(),
            variant: decision.variant.as_bytes(),
            content: decision.content.get().as_bytes(),
        }),
        Err(error) => Err(format!("no decision: {error}: {}", String::from_utf8_lossy(body))),
    }
}

fn same_json(known: &super::catalogue::ConfiguredPopup, variant: u8, content: &[u8]) -> bool {
    let parsed = |bytes| serde_json::from_slice::<serde_json::Value>(bytes).ok();
    parsed(content).is_some_and(|content| parsed(&known.variants[usize::from(variant)].1) == Some(content))
}

/// Splits off a JSON string: `json` must begin with `before`; returns the string up to the next quote, and the rest.
fn take_string_field<'a>(json: &'a [u8], before: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let rest = json.strip_prefix(before)?;
    let end = rest.iter().position(|byte| *byte == b'"')?;
    let (value, rest) = (&rest[..end], &rest[end + 1..]);
    // A string with escapes is left to a full parser.
    (!value.contains(&b'\\')).then_some((value, rest))
}

/// Whether the answer accepts one event as new.
pub(crate) fn is_one_new_event(answer: &HttpAnswer<'_>) -> bool {
    const USUAL: &[u8] = br#"{"accepted":1,"duplicates":0}"#;
    const TAKEN: PopupEventsAccepted = PopupEventsAccepted { accepted: 1, duplicates: 0 };
    answer.status == 202 && (*answer.body == *USUAL || serde_json::from_slice(&answer.body).ok() == Some(TAKEN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fast_parser_reads_only_the_usual_field_order() {
        let body = br#"{"decision":"d","popup":"p00001","variant":"a","content":{"title":"x"}}"#;
        let parsed = ParsedDecision { decision: b"d", popup: b"p00001", variant: b"a", content: br#"{"title":"x"}"# };
        assert_eq!(parse_decision(body), Some(parsed));
        assert_eq!(parse_decision(br#"{"popup":"p","decision":"d","variant":"a","content":{}}"#), None);
    }
    #[test]
    fn a_string_field_without_escapes_is_split_off() {
        assert_eq!(take_string_field(br#"{"a":"b","c""#, br#"{"a":""#), Some((&b"b"[..], &br#","c""#[..])));
        assert_eq!(take_string_field(br#"{"a":"b\"","#, br#"{"a":""#), None);
    }
}

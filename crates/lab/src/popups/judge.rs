//! Holding every answer against what it must be, and counting what was answered and reported.

use super::{
    catalogue::Catalogue,
    wire::{Answer, take_text},
};
use serde::Serialize;
use tidings_protocol::http::{Decision, PopupEventsAccepted};

const PROBLEMS_MAX: usize = 10;

/// What became of requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Tally {
    /// Questions for users of whom nothing is due.
    pub(crate) asked_early: u64,
    /// Questions for users who are due.
    pub(crate) asked_due: u64,
    pub(crate) shown: u64,
    /// Due, and nevertheless nothing.
    pub(crate) due_but_nothing: u64,
    pub(crate) events: u64,
    /// 429 and 503.
    pub(crate) refused: u64,
    /// Connections that broke before an answer: what they asked may or may not have been done.
    pub(crate) lost: u64,
    /// Shown before the gap was over.
    pub(crate) too_early: u64,
    /// `Retry-After` that is not the rest of the gap.
    pub(crate) wrong_wait: u64,
    /// Not the content of a popup of this placement.
    pub(crate) wrong_content: u64,
    /// Any other status, or an event that was not taken as new.
    pub(crate) wrong_answer: u64,
    pub(crate) problems: Vec<String>,
}

impl Tally {
    pub(crate) fn problem(&mut self, what: impl FnOnce() -> String) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(what());
        }
    }

    /// No answer was wrong and none is missing.
    pub(crate) fn is_clean(&self) -> bool {
        let wrong = self.too_early + self.wrong_wait + self.wrong_content + self.wrong_answer;
        wrong + self.refused + self.lost == 0
    }

    pub(crate) fn since(&self, before: &Tally) -> Tally {
        Tally {
            asked_early: self.asked_early - before.asked_early,
            asked_due: self.asked_due - before.asked_due,
            shown: self.shown - before.shown,
            due_but_nothing: self.due_but_nothing - before.due_but_nothing,
            events: self.events - before.events,
            refused: self.refused - before.refused,
            lost: self.lost - before.lost,
            too_early: self.too_early - before.too_early,
            wrong_wait: self.wrong_wait - before.wrong_wait,
            wrong_content: self.wrong_content - before.wrong_content,
            wrong_answer: self.wrong_answer - before.wrong_answer,
            problems: self.problems.clone(),
        }
    }
}

/// What a decision's answer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shown<'a> {
    pub(crate) decision: &'a [u8],
    pub(crate) popup: &'a [u8],
    pub(crate) variant: &'a [u8],
    pub(crate) content: &'a [u8],
}

/// Reads an answer whose fields stand in their usual order.
pub(crate) fn read_shown(body: &[u8]) -> Option<Shown<'_>> {
    let (decision, rest) = take_text(body, br#"{"decision":""#)?;
    let (popup, rest) = take_text(rest, br#","popup":""#)?;
    let (variant, rest) = take_text(rest, br#","variant":""#)?;
    let content = rest.strip_prefix(br#","content":"#)?.strip_suffix(b"}")?;
    Some(Shown { decision, popup, variant, content })
}

/// Holds a shown popup against the catalogue, calls `found` with its decision; answers what is wrong.
pub(crate) fn judge_shown(
    catalogue: &Catalogue,
    body: &[u8],
    mut found: impl FnMut(&[u8], u16, u8),
) -> Result<(), String> {
    let mut judge = |shown: Shown<'_>| {
        let named = || String::from_utf8_lossy(shown.popup).into_owned();
        let Some((popup, variant)) = catalogue.find(shown.popup, shown.variant) else {
            return Err(format!("popup {} was never configured, or has no such variant", named()));
        };
        let known = &catalogue.popups[usize::from(popup)];
        found(shown.decision, popup, variant);
        match known.variants[usize::from(variant)].1 == shown.content || same_json(known, variant, shown.content) {
            false => Err(format!("popup {} shows {}", named(), String::from_utf8_lossy(shown.content))),
            true if !known.at_home => Err(format!("popup {} is not for this placement", named())),
            true => Ok(()),
        }
    };
    if let Some(shown) = read_shown(body) {
        return judge(shown);
    }
    // In another order, or with blanks: as good, and slower.
    match serde_json::from_slice::<Decision>(body) {
        Ok(decision) => judge(Shown {
            decision: decision.decision.as_bytes(),
            popup: decision.popup.as_bytes(),
            variant: decision.variant.as_bytes(),
            content: decision.content.get().as_bytes(),
        }),
        Err(error) => Err(format!("no decision: {error}: {}", String::from_utf8_lossy(body))),
    }
}

fn same_json(known: &super::catalogue::Known, variant: u8, content: &[u8]) -> bool {
    let parsed = |bytes| serde_json::from_slice::<serde_json::Value>(bytes).ok();
    parsed(content).is_some_and(|content| parsed(&known.variants[usize::from(variant)].1) == Some(content))
}

/// Whether one event was taken, and was new.
pub(crate) fn took_one_event(answer: &Answer<'_>) -> bool {
    const USUAL: &[u8] = br#"{"accepted":1,"duplicates":0}"#;
    const TAKEN: PopupEventsAccepted = PopupEventsAccepted { accepted: 1, duplicates: 0 };
    answer.status == 202 && (answer.body == USUAL || serde_json::from_slice(answer.body).ok() == Some(TAKEN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_is_read_in_its_usual_order_only() {
        let body = br#"{"decision":"d","popup":"p00001","variant":"a","content":{"title":"x"}}"#;
        let shown = Shown { decision: b"d", popup: b"p00001", variant: b"a", content: br#"{"title":"x"}"# };
        assert_eq!(read_shown(body), Some(shown));
        assert_eq!(read_shown(br#"{"popup":"p","decision":"d","variant":"a","content":{}}"#), None);
    }
}

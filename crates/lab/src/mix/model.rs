//! The operations on one message, and the forms of it that they admit.

use super::form::{Form, ReactionCounts, no_body};
use std::collections::{BTreeMap, HashSet};

/// What is known of an operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Answer {
    /// Not answered yet: it may have been done or not.
    Unknown,
    /// Acknowledged, at this time of the lab's clock; `seq` is that of the operation's own entry, 0 if it has none.
    Done { at: u64, seq: u64 },
    /// Refused for good: it was not done.
    Refused,
}

impl Answer {
    fn is_done_before(self, time: u64) -> bool {
        matches!(self, Answer::Done { at, .. } if at < time)
    }
}

/// How a form differs from what the operations admit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// Lacks an operation that was acknowledged.
    Lost,
    /// Has an operation twice, or one that was taken back.
    Doubled,
    /// Shows a message whose recall was acknowledged.
    ShownAfterRecall,
    /// Was asked for after an operation was acknowledged, and does not have it.
    Outdated,
    /// Is no form that the message ever had.
    Altered,
}

#[derive(Debug, PartialEq)]
pub(crate) struct ViewFault {
    pub(crate) kind: FaultKind,
    pub(crate) what: String,
}

fn fault(kind: FaultKind, what: impl Into<String>) -> Result<(), ViewFault> {
    Err(ViewFault { kind, what: what.into() })
}

#[derive(Debug)]
struct Edit {
    body: u64,
    answer: Answer,
}

#[derive(Debug)]
struct ReactionChange {
    remove: bool,
    answer: Answer,
}

/// One message with all operations on it.
#[derive(Debug)]
pub(crate) struct MessageModel {
    original: u64,
    edits: Vec<Edit>,
    recall: Option<Answer>,
    /// By user and key, in order: a user changes a reaction again only after the answer to the change before.
    reactions: BTreeMap<(usize, &'static str), Vec<ReactionChange>>,
}

impl MessageModel {
    pub(crate) fn new(original: u64) -> Self {
        MessageModel { original, edits: Vec::new(), recall: None, reactions: BTreeMap::new() }
    }

    /// The body that the message was sent with.
    pub(crate) fn original(&self) -> u64 {
        self.original
    }

    /// Begins an edit; returns its number, for [`answer_edit`](Self::answer_edit).
    pub(crate) fn begin_edit(&mut self, body: u64) -> usize {
        self.edits.push(Edit { body, answer: Answer::Unknown });
        self.edits.len() - 1
    }

    pub(crate) fn answer_edit(&mut self, number: usize, answer: Answer) {
        self.edits[number].answer = answer;
    }

    pub(crate) fn begin_recall(&mut self) {
        self.recall = Some(Answer::Unknown);
    }

    pub(crate) fn answer_recall(&mut self, answer: Answer) {
        self.recall = Some(answer);
    }

    pub(crate) fn begin_reaction(&mut self, user: usize, key: &'static str, remove: bool) {
        let change = ReactionChange { remove, answer: Answer::Unknown };
        self.reactions.entry((user, key)).or_default().push(change);
    }

    pub(crate) fn answer_reaction(&mut self, user: usize, key: &'static str, answer: Answer) {
        if let Some(last) = self.reactions.get_mut(&(user, key)).and_then(|changes| changes.last_mut()) {
            last.answer = answer;
        }
    }

    /// Whether an edit or a recall is not answered yet.
    pub(crate) fn is_changing(&self) -> bool {
        self.recall == Some(Answer::Unknown) || self.edits.iter().any(|edit| edit.answer == Answer::Unknown)
    }

    /// Whether a recall was sent that was not refused.
    pub(crate) fn may_be_recalled(&self) -> bool {
        self.recall.is_some_and(|answer| answer != Answer::Refused)
    }

    pub(crate) fn edits(&self) -> usize {
        self.edits.len()
    }

    /// Whether the user's last change of this reaction was not answered yet.
    pub(crate) fn is_reacting(&self, user: usize, key: &'static str) -> bool {
        let last = self.reactions.get(&(user, key)).and_then(|changes| changes.last());
        last.is_some_and(|change| change.answer == Answer::Unknown)
    }

    /// Whether the user has given this reaction, as far as answers tell.
    pub(crate) fn has_given(&self, user: usize, key: &'static str) -> bool {
        let mut answered = self.reactions.get(&(user, key)).into_iter().flatten().rev();
        let last = answered.find(|change| matches!(change.answer, Answer::Done { .. }));
        last.is_some_and(|change| !change.remove)
    }

    /// Checks a form that a client was handed. What was acknowledged before `asked_at` must be in it, since the client asked
    /// then; a form that came live (0) may be an earlier one, whose changes follow. Reactions always follow: members are told of
    /// them up to a second later, and a node of a cluster that answers from memory knows no more than they do.
    ///
    /// # Errors
    /// The operations do not admit the form.
    pub(crate) fn check_handed(&self, form: &Form, asked_at: u64) -> Result<(), ViewFault> {
        self.check_content(form, asked_at)?;
        if form.is_recalled { Ok(()) } else { self.check_reactions(&form.reactions, 0) }
    }

    /// Checks all but the reactions of a message that is not recalled.
    fn check_content(&self, form: &Form, asked_at: u64) -> Result<(), ViewFault> {
        if form.is_recalled {
            return self.check_tombstone(form);
        }
        if self.recall.is_some_and(|answer| answer.is_done_before(asked_at)) {
            return fault(FaultKind::ShownAfterRecall, "is shown although its recall was acknowledged");
        }
        let admitted = self.edits.iter().filter(|edit| edit.answer != Answer::Refused);
        let mut bodies: HashSet<u64> = admitted.map(|edit| edit.body).collect();
        let edits = bodies.len() as u32;
        if form.version == 1 {
            bodies = [self.original].into();
        }
        if !bodies.contains(&form.body) {
            return fault(FaultKind::Altered, format!("has a body that version {} never had", form.version));
        }
        if form.version > edits + 1 {
            return fault(FaultKind::Doubled, format!("has version {} after {edits} edits", form.version));
        }
        let done = self.edits.iter().filter(|edit| edit.answer.is_done_before(asked_at)).count() as u32;
        if form.version < done + 1 {
            let what = format!("has version {} although {done} edits were acknowledged", form.version);
            return fault(FaultKind::Outdated, what);
        }
        Ok(())
    }

    fn check_tombstone(&self, form: &Form) -> Result<(), ViewFault> {
        if !self.may_be_recalled() {
            return fault(FaultKind::Altered, "is recalled although nobody recalled it");
        }
        if form.body != no_body() || !form.reactions.is_empty() {
            return fault(FaultKind::ShownAfterRecall, "was recalled and has a body or reactions all the same");
        }
        Ok(())
    }

    fn check_reactions(&self, counts: &ReactionCounts, asked_at: u64) -> Result<(), ViewFault> {
        let (mut lowest, mut highest) = (ReactionCounts::new(), ReactionCounts::new());
        for ((_, key), changes) in &self.reactions {
            let last = changes.iter().rev().find(|change| change.answer != Answer::Refused);
            let Some(last) = last else { continue };
            let is_known = last.answer.is_done_before(asked_at);
            let was_given = changes.iter().any(|change| !change.remove && change.answer != Answer::Refused);
            *lowest.entry((*key).to_owned()).or_default() += u32::from(is_known && !last.remove);
            *highest.entry((*key).to_owned()).or_default() += u32::from(was_given && !(is_known && last.remove));
        }
        for (key, count) in counts {
            let highest = highest.get(key).copied().unwrap_or(0);
            if *count > highest || *count == 0 {
                return fault(FaultKind::Doubled, format!("has {count} of the reaction {key}, not {highest}"));
            }
        }
        for (key, lowest) in lowest {
            let count = counts.get(&key).copied().unwrap_or(0);
            if count < lowest {
                let what = format!("has {count} of the reaction {key}, and {lowest} were acknowledged");
                return fault(FaultKind::Outdated, what);
            }
        }
        Ok(())
    }

    /// Checks what a client shows once everything has reached it.
    ///
    /// # Errors
    /// The operations do not admit the form.
    pub(crate) fn check_final(&self, form: &Form) -> Result<(), ViewFault> {
        let of_reactions = || if form.is_recalled { Ok(()) } else { self.check_reactions(&form.reactions, u64::MAX) };
        self.check_content(form, u64::MAX).and_then(|()| of_reactions()).map_err(|fault| match fault.kind {
            FaultKind::Outdated => ViewFault { kind: FaultKind::Lost, ..fault },
            _ => fault,
        })?;
        let is_known = self.edits.iter().all(|edit| edit.answer != Answer::Unknown);
        if form.is_recalled || !is_known {
            return Ok(());
        }
        let seq = |edit: &&Edit| if let Answer::Done { seq, .. } = edit.answer { seq } else { 0 };
        let newest = self.edits.iter().filter(|edit| seq(edit) > 0).max_by_key(seq);
        match newest {
            Some(newest) if newest.body != form.body => {
                fault(FaultKind::Lost, "has the body of an edit that a later one replaced")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(version: u32, body: u64, reactions: &[(&str, u32)]) -> Form {
        let reactions = reactions.iter().map(|(key, count)| ((*key).to_owned(), *count)).collect();
        Form { version, body, is_recalled: false, reactions }
    }

    fn tombstone() -> Form {
        Form { version: 1, body: no_body(), is_recalled: true, reactions: ReactionCounts::new() }
    }

    fn kind(result: Result<(), ViewFault>) -> Option<FaultKind> {
        result.err().map(|fault| fault.kind)
    }

    const EARLY: u64 = 10;
    const LATE: u64 = 20;

    fn done(at: u64, seq: u64) -> Answer {
        Answer::Done { at, seq }
    }

    #[test]
    fn a_view_that_lost_an_edit_is_found() {
        let mut model = MessageModel::new(1);
        let (first, second) = (model.begin_edit(2), model.begin_edit(3));
        assert_eq!(model.check_final(&form(1, 1, &[])), Ok(()), "not answered yet");
        model.answer_edit(first, done(EARLY, 50));
        model.answer_edit(second, done(EARLY, 40));
        assert_eq!(model.check_final(&form(3, 2, &[])), Ok(()), "the later entry counts, not the later request");
        assert_eq!(kind(model.check_final(&form(1, 1, &[]))), Some(FaultKind::Lost));
        assert_eq!(kind(model.check_final(&form(2, 3, &[]))), Some(FaultKind::Lost));
        assert_eq!(kind(model.check_final(&form(3, 3, &[]))), Some(FaultKind::Lost));
        assert_eq!(kind(model.check_final(&form(3, 9, &[]))), Some(FaultKind::Altered));
        assert_eq!(kind(model.check_final(&form(4, 2, &[]))), Some(FaultKind::Doubled));
    }

    #[test]
    fn a_view_that_shows_a_recalled_body_is_found() {
        let mut model = MessageModel::new(1);
        assert_eq!(kind(model.check_final(&tombstone())), Some(FaultKind::Altered), "nobody recalled it");
        model.begin_recall();
        assert_eq!(model.check_final(&form(1, 1, &[])), Ok(()), "both are admitted until the answer");
        assert_eq!(model.check_final(&tombstone()), Ok(()));
        model.answer_recall(done(LATE, 9));
        assert_eq!(model.check_final(&tombstone()), Ok(()));
        assert_eq!(kind(model.check_final(&form(1, 1, &[]))), Some(FaultKind::ShownAfterRecall));
        let with_body = Form { body: 1, ..tombstone() };
        assert_eq!(kind(model.check_final(&with_body)), Some(FaultKind::ShownAfterRecall));
    }

    #[test]
    fn what_is_handed_out_after_the_recall_must_be_the_tombstone() {
        let mut model = MessageModel::new(1);
        model.begin_recall();
        model.answer_recall(done(EARLY, 9));
        assert_eq!(kind(model.check_handed(&form(1, 1, &[]), LATE)), Some(FaultKind::ShownAfterRecall));
        assert_eq!(model.check_handed(&form(1, 1, &[]), EARLY), Ok(()), "asked for before");
        assert_eq!(model.check_handed(&form(1, 1, &[]), 0), Ok(()), "live: the recall follows");
        let mut model = MessageModel::new(1);
        let edit = model.begin_edit(2);
        model.answer_edit(edit, done(EARLY, 9));
        assert_eq!(kind(model.check_handed(&form(1, 1, &[]), LATE)), Some(FaultKind::Outdated));
        assert_eq!(model.check_handed(&form(1, 1, &[]), 0), Ok(()));
    }

    #[test]
    fn a_doubled_and_a_lost_reaction_are_found() {
        let mut model = MessageModel::new(1);
        for user in [1, 2] {
            model.begin_reaction(user, "x", false);
            model.answer_reaction(user, "x", done(EARLY, 0));
        }
        assert_eq!(model.check_final(&form(1, 1, &[("x", 2)])), Ok(()));
        assert_eq!(kind(model.check_final(&form(1, 1, &[("x", 3)]))), Some(FaultKind::Doubled));
        assert_eq!(kind(model.check_final(&form(1, 1, &[("x", 1)]))), Some(FaultKind::Lost));
        assert_eq!(kind(model.check_final(&form(1, 1, &[("x", 2), ("y", 1)]))), Some(FaultKind::Doubled));
        assert_eq!(
            model.check_handed(&form(1, 1, &[("x", 1)]), LATE),
            Ok(()),
            "members are told of the other one soon"
        );
        assert_eq!(kind(model.check_handed(&form(1, 1, &[("x", 3)]), LATE)), Some(FaultKind::Doubled));
        model.begin_reaction(2, "x", true);
        assert_eq!(model.check_final(&form(1, 1, &[("x", 1)])), Ok(()), "taken back, not answered yet");
        assert_eq!(model.check_final(&form(1, 1, &[("x", 2)])), Ok(()));
        model.answer_reaction(2, "x", done(LATE, 0));
        assert_eq!(kind(model.check_final(&form(1, 1, &[("x", 2)]))), Some(FaultKind::Doubled));
        assert!(model.has_given(1, "x") && !model.has_given(2, "x"));
    }

    #[test]
    fn what_was_refused_must_not_show() {
        let mut model = MessageModel::new(1);
        let edit = model.begin_edit(2);
        model.answer_edit(edit, Answer::Refused);
        model.begin_reaction(1, "x", false);
        model.answer_reaction(1, "x", Answer::Refused);
        assert_eq!(model.check_final(&form(1, 1, &[])), Ok(()));
        assert_eq!(kind(model.check_final(&form(2, 2, &[]))), Some(FaultKind::Altered));
        assert_eq!(kind(model.check_final(&form(1, 1, &[("x", 1)]))), Some(FaultKind::Doubled));
    }
}

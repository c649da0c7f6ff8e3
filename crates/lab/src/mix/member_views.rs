//! What each receiver shows of the messages that were changed.
//!
//! All receivers are handed nearly the same entries, which the verifier compares by their bytes. So the entries that the
//! first receiver got are kept once, and of every other receiver only those that differ: the newest forms that it got when it
//! resumed or read history, or the first forms if the first receiver resumed.

use super::{
    counts::MixCounts,
    form::{DeliveredEntry, Form},
    model::{MessageModel, ViewFault},
};
use std::collections::{BTreeMap, BTreeSet, HashMap};

#[derive(Debug, Default)]
pub(crate) struct MemberViews {
    /// By `seq`: the entries that change messages, and messages in a changed form, as the first receiver got them.
    reference: HashMap<u64, DeliveredEntry>,
    /// By message: the entries that change it.
    changes: HashMap<u64, BTreeSet<u64>>,
    /// By receiver and `seq`: the entries that differ from the reference.
    differing: BTreeMap<usize, HashMap<u64, DeliveredEntry>>,
}

fn is_unchanged(handed: &DeliveredEntry) -> bool {
    match handed {
        DeliveredEntry::Message(form) => *form == Form::original(form.body),
        DeliveredEntry::Other => true,
        DeliveredEntry::Edit { .. } | DeliveredEntry::Recall { .. } | DeliveredEntry::Reactions(_) => false,
    }
}

impl MemberViews {
    /// Records an entry that no receiver has got before.
    pub(crate) fn record_first(&mut self, seq: u64, handed: DeliveredEntry) {
        self.record_targets(seq, &handed);
        if !is_unchanged(&handed) {
            self.reference.insert(seq, handed);
        }
    }

    /// Records an entry that others have got, too, and perhaps in another form.
    pub(crate) fn record_other(&mut self, receiver: usize, seq: u64, handed: DeliveredEntry) {
        self.record_targets(seq, &handed);
        let is_same = match self.reference.get(&seq) {
            Some(reference) => *reference == handed,
            None => is_unchanged(&handed),
        };
        if !is_same {
            self.differing.entry(receiver).or_default().insert(seq, handed);
        }
    }

    fn record_targets(&mut self, seq: u64, handed: &DeliveredEntry) {
        for target in handed.targets() {
            self.changes.entry(target).or_default().insert(seq);
        }
    }

    /// The view of a message that all receivers have who were handed the same as the first one.
    fn common_view(&self, seq: u64, original: u64) -> Form {
        self.view(&HashMap::new(), seq, original)
    }

    fn view(&self, differing: &HashMap<u64, DeliveredEntry>, seq: u64, original: u64) -> Form {
        let handed = |seq: u64| differing.get(&seq).or_else(|| self.reference.get(&seq));
        let mut form = match handed(seq) {
            Some(DeliveredEntry::Message(form)) => form.clone(),
            _ => Form::original(original),
        };
        for change in self.changes.get(&seq).into_iter().flatten().filter_map(|change| handed(*change)) {
            form.apply(seq, change);
        }
        form
    }

    /// The messages of which these entries, or the reference's in their places, make the view.
    fn messages_of(&self, differing: &HashMap<u64, DeliveredEntry>) -> BTreeSet<u64> {
        let of_entry = |(seq, handed): (&u64, &DeliveredEntry)| {
            let mut messages = handed.targets();
            messages.extend(self.reference.get(seq).map(DeliveredEntry::targets).unwrap_or_default());
            messages.insert(*seq);
            messages
        };
        differing.iter().flat_map(of_entry).collect()
    }

    /// Compares the view of every receiver with the models; returns whether all agree. With `counts`, counts each fault.
    pub(crate) fn compare(
        &self,
        models: &HashMap<u64, MessageModel>,
        receivers: usize,
        mut counts: Option<&mut MixCounts>,
    ) -> bool {
        let mut agree = true;
        let mut check = |seq: u64, result: Result<(), ViewFault>, whose: &str| {
            let Err(fault) = result else { return };
            agree = false;
            if let Some(counts) = &mut counts {
                counts.count(&fault, &format!("{whose}: message {seq}"));
            }
        };
        for (seq, model) in models {
            check(*seq, model.check_final(&self.common_view(*seq, model.original())), "all members alike");
        }
        for (receiver, differing) in &self.differing {
            for seq in self.messages_of(differing) {
                let Some(model) = models.get(&seq) else { continue };
                let form = self.view(differing, seq, model.original());
                check(seq, model.check_final(&form), &format!("receiver {receiver}"));
            }
        }
        if let Some(counts) = &mut counts {
            counts.views_compared = (models.len() * receivers) as u64;
        }
        agree
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::{
        form::{ReactionCounts, body_hash, no_body},
        model::Answer,
    };

    const ANSWERED: u64 = 5;

    fn changed(version: u32, body: &str) -> DeliveredEntry {
        DeliveredEntry::Message(Form { version, ..Form::original(body_hash(body)) })
    }

    fn edit(version: u32, body: &str) -> DeliveredEntry {
        DeliveredEntry::Edit { target: 1, version, body: body_hash(body) }
    }

    fn reactions(count: u32) -> DeliveredEntry {
        DeliveredEntry::Reactions([(1, ReactionCounts::from([("x".to_owned(), count)]))].into())
    }

    /// The sheet of two receivers after one edit that was acknowledged, and what `change` adds.
    fn sheet(views: MemberViews, change: impl FnOnce(&mut MessageModel)) -> MixCounts {
        let mut model = MessageModel::new(body_hash("a"));
        let number = model.begin_edit(body_hash("b"));
        model.answer_edit(number, Answer::Done { at: ANSWERED, seq: 2 });
        change(&mut model);
        let mut counts = MixCounts::default();
        let agree = views.compare(&[(1, model)].into(), 2, Some(&mut counts));
        assert_eq!((agree, counts.views_compared), (counts.balances(), 2));
        counts
    }

    fn views(first: &[(u64, DeliveredEntry)], second: &[(u64, DeliveredEntry)]) -> MemberViews {
        let mut views = MemberViews::default();
        first.iter().for_each(|(seq, handed)| views.record_first(*seq, handed.clone()));
        second.iter().for_each(|(seq, handed)| views.record_other(1, *seq, handed.clone()));
        views
    }

    #[test]
    fn a_receiver_that_resumed_and_one_that_was_there_agree() {
        let (live, resumed) = ([(1, changed(1, "a")), (2, edit(2, "b"))], [(1, changed(2, "b")), (2, edit(2, "b"))]);
        assert!(sheet(views(&live, &live), |_| {}).balances());
        assert!(sheet(views(&live, &resumed), |_| {}).balances());
        assert!(sheet(views(&resumed, &live), |_| {}).balances(), "also when the first receiver resumed");
    }

    #[test]
    fn an_edit_that_one_receiver_lost_is_found() {
        let live = [(1, changed(1, "a")), (2, edit(2, "b"))];
        let without_body = [(1, changed(1, "a")), (2, edit(2, "null"))];
        assert_eq!(sheet(views(&live, &without_body), |_| {}).altered, 1);
        assert_eq!(sheet(views(&live[..1], &[]), |_| {}).lost, 1, "nobody was handed the edit");
    }

    #[test]
    fn a_recalled_body_that_one_receiver_shows_is_found() {
        let live = [(1, changed(1, "a")), (2, edit(2, "b")), (3, DeliveredEntry::Recall { target: 1 })];
        let recalled = |model: &mut MessageModel| {
            model.begin_recall();
            model.answer_recall(Answer::Done { at: ANSWERED, seq: 3 });
        };
        assert!(sheet(views(&live, &live), recalled).balances());
        let tombstone = Form { body: no_body(), is_recalled: true, ..Form::original(0) };
        let resumed = [(1, DeliveredEntry::Message(tombstone)), (2, edit(2, "null"))];
        assert!(sheet(views(&live, &resumed), recalled).balances());
        assert_eq!(sheet(views(&live[..2], &[]), recalled).shown_after_recall, 1);
        let other = [(3, DeliveredEntry::Recall { target: 7 })];
        assert_eq!(sheet(views(&live, &other), recalled).shown_after_recall, 1, "one receiver's recall names another");
    }

    #[test]
    fn a_doubled_reaction_is_found() {
        let given = |model: &mut MessageModel| {
            model.begin_reaction(0, "x", false);
            model.answer_reaction(0, "x", Answer::Done { at: ANSWERED, seq: 0 });
        };
        let live = [(1, changed(1, "a")), (2, edit(2, "b")), (3, reactions(1))];
        assert!(sheet(views(&live, &live), given).balances());
        assert_eq!(sheet(views(&live, &[(3, reactions(2))]), given).doubled, 1);
        assert_eq!(sheet(views(&live[..2], &[]), given).lost, 1);
    }
}

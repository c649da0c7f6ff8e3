//! The balance sheet of the mix.

use super::model::{FaultKind, ViewFault};
use crate::{latency::Percentiles, problems::Problems};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The operations of a phase beside its plain messages, and how the clients' views balance with them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MixCounts {
    /// Acknowledged, by kind.
    pub edits: u64,
    pub recalls: u64,
    pub reactions: u64,
    /// Read marks that were acknowledged.
    pub receipts_accepted: u64,
    /// `stored` frames, which have no answer.
    pub stored_told: u64,
    /// Marks and counts in the `receipts` frames that came.
    pub receipts_seen: u64,
    /// Edits of, and reactions to, messages that a racing recall had taken back: refused, as they must be.
    pub overtaken: u64,
    /// Sent once more with the same id, since the answer was lost or the server refused for the moment.
    pub repeated: u64,
    /// Entries of edits and recalls that receivers got, and should have got.
    pub deliveries: u64,
    pub deliveries_expected: u64,
    /// Messages with operations, times the clients whose view of them was compared.
    pub views_compared: u64,
    /// Entries read back from history and compared.
    pub history_compared: u64,
    /// Members whose read mark was read back.
    pub marks_compared: u64,
    /// From planned operation to the server's answer, in milliseconds.
    pub acknowledged: Percentiles,
    pub unanswered: u64,
    pub refused: u64,
    pub lost: u64,
    pub doubled: u64,
    pub shown_after_recall: u64,
    pub outdated: u64,
    pub altered: u64,
    /// Refusals by their code, those included that were sent again.
    pub refused_by_code: BTreeMap<String, u64>,
    /// The first few faults in words.
    pub problems: Vec<String>,
}

impl MixCounts {
    /// No operation is unanswered or refused, and no view differs.
    pub(crate) fn balances(&self) -> bool {
        let faults = [self.unanswered, self.refused, self.lost, self.doubled, self.shown_after_recall];
        faults.iter().sum::<u64>() + self.outdated + self.altered == 0 && self.deliveries == self.deliveries_expected
    }

    pub(crate) fn count(&mut self, fault: &ViewFault, whose: &str) {
        *match fault.kind {
            FaultKind::Lost => &mut self.lost,
            FaultKind::Doubled => &mut self.doubled,
            FaultKind::ShownAfterRecall => &mut self.shown_after_recall,
            FaultKind::Outdated => &mut self.outdated,
            FaultKind::Altered => &mut self.altered,
        } += 1;
        self.problems.note(format!("{whose} {}", fault.what));
    }

    pub(crate) fn count_refusal(&mut self, code: &str) {
        *self.refused_by_code.entry(code.to_owned()).or_default() += 1;
    }
}

/// The lines of the mix.
pub(crate) const EDITS: (&str, &str) = (
    "mix",
    "edits {mix.edits}  recalls {mix.recalls}  reactions {mix.reactions}  receipts accepted {mix.receipts_accepted} \
     (and stored told {mix.stored_told})  seen {mix.receipts_seen}",
);
pub(crate) const ANSWERS: (&str, &str) = (
    "mix answers",
    "overtaken by a recall {mix.overtaken}  sent again {mix.repeated}  refused {mix.refused}  unanswered \
     {mix.unanswered}  ms p50 {mix.acknowledged.p50:2}  p99 {mix.acknowledged.p99:2}  p100 {mix.acknowledged.max:2}",
);
pub(crate) const REFUSALS: (&str, &str) = ("mix refusals", "{mix.refused_by_code}");
pub(crate) const VIEWS: (&str, &str) = (
    "mix views",
    "lost {mix.lost}  doubled {mix.doubled}  shown after recall {mix.shown_after_recall}  outdated {mix.outdated}  \
     altered {mix.altered}  entries {mix.deliveries} of {mix.deliveries_expected}",
);
pub(crate) const COMPARED: (&str, &str) = (
    "compared",
    "views {mix.views_compared}  entries of history {mix.history_compared}  read marks {mix.marks_compared}",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_of_a_view_unbalances_the_sheet() {
        assert!(MixCounts { edits: 3, overtaken: 1, repeated: 2, ..MixCounts::default() }.balances());
        for kind in
            [FaultKind::Lost, FaultKind::Doubled, FaultKind::ShownAfterRecall, FaultKind::Outdated, FaultKind::Altered]
        {
            let mut counts = MixCounts::default();
            counts.count(&ViewFault { kind, what: "differs".into() }, "member 1: message 2");
            assert!(!counts.balances(), "{kind:?}");
            assert_eq!(counts.problems, ["member 1: message 2 differs"]);
        }
        assert!(!MixCounts { unanswered: 1, ..MixCounts::default() }.balances());
        assert!(!MixCounts { refused: 1, ..MixCounts::default() }.balances());
        assert!(!MixCounts { deliveries: 2, deliveries_expected: 3, ..MixCounts::default() }.balances());
    }
}

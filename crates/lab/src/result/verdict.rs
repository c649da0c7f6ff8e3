//! How a run ended.

/// How a run ended. Each verdict has its own exit code; wrong usage is 2, processes that could not be set up are 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed = 0,
    /// All counts balance, and a figure misses a `--threshold`.
    ThresholdMissed = 5,
    /// The run is invalid: the lab could not keep its schedule, so the figures are the lab's limit, not the server's.
    LabFellBehind = 3,
    /// Ctrl-C ended the run early.
    Interrupted = 130,
    /// The server failed: a count does not balance.
    Failed = 1,
}

/// From the best to the worst: a fault of the server is one also in a run that was ended early, or that measured nothing.
const BY_SEVERITY: [Verdict; 5] =
    [Verdict::Passed, Verdict::ThresholdMissed, Verdict::LabFellBehind, Verdict::Interrupted, Verdict::Failed];

impl Verdict {
    /// The worse of two verdicts.
    pub(crate) fn and(self, other: Verdict) -> Verdict {
        BY_SEVERITY.into_iter().rfind(|verdict| [self, other].contains(verdict)).unwrap_or(self)
    }

    /// The verdict in a word, as reports have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Verdict::Passed => "passed",
            Verdict::ThresholdMissed => "threshold missed",
            Verdict::LabFellBehind => "invalid",
            Verdict::Interrupted => "partial",
            Verdict::Failed => "failed",
        }
    }

    pub(crate) fn sentence(self) -> &'static str {
        match self {
            Verdict::Passed => "Every count balances and every threshold is met.",
            Verdict::ThresholdMissed => "Every count balances, but a figure missed its threshold.",
            Verdict::LabFellBehind => {
                "The lab could not keep its own schedule, so the figures are the lab's limit and say nothing about the server."
            }
            Verdict::Interrupted => "The run was ended early: what was planned until then is counted and verified.",
            Verdict::Failed => "The server failed: a count does not balance, or an answer was wrong.",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_the_server_outweighs_a_lab_that_fell_behind() {
        assert_eq!(Verdict::Passed.and(Verdict::LabFellBehind), Verdict::LabFellBehind);
        assert_eq!(Verdict::LabFellBehind.and(Verdict::Failed), Verdict::Failed);
        assert_eq!(Verdict::Failed.and(Verdict::LabFellBehind), Verdict::Failed);
        assert_eq!(Verdict::Interrupted.and(Verdict::ThresholdMissed), Verdict::Interrupted);
    }
}

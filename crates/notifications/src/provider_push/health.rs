//! Whether a provider takes notifications at all.

use tidings_domain::providers::{ProviderAnswer, Retry};

/// So many refusals for good in a row, without a notification that is taken, are no matter of single messages any more: the
/// app's settings at the provider are wrong, for example its topic.
const REFUSALS_MAX: u32 = 20;

#[derive(Debug, Default)]
pub(super) struct Health {
    is_failing: bool,
    /// Refusals for good since a notification was taken.
    refusals: u32,
}

impl Health {
    /// Takes note of the answers of a round; answers why the provider takes nothing, if so.
    pub(super) fn note(&mut self, answers: &[ProviderAnswer]) -> String {
        let (mut is_up, mut cause) = (false, None);
        for answer in answers {
            match answer {
                ProviderAnswer::Accepted { .. } | ProviderAnswer::TokenGone { .. } => {
                    (is_up, self.refusals) = (true, 0);
                }
                // One message that the provider will never take says that the provider answers, and no more.
                ProviderAnswer::Refused { retry: Retry::Never, code } => {
                    self.refusals = self.refusals.saturating_add(1);
                    if self.refusals >= REFUSALS_MAX {
                        cause.get_or_insert_with(|| code.clone());
                    }
                }
                ProviderAnswer::Refused { code: reason, .. } | ProviderAnswer::Unreachable { reason, .. } => {
                    cause.get_or_insert_with(|| reason.clone());
                }
            }
        }
        match (is_up, &cause) {
            (true, _) => self.is_failing = false,
            (false, Some(_)) => self.is_failing = true,
            // Refusals for good, and fewer than would be a sign.
            (false, None) => {}
        }
        cause.filter(|_| !is_up).unwrap_or_default()
    }

    pub(super) fn is_failing(&self) -> bool {
        self.is_failing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> ProviderAnswer {
        ProviderAnswer::Refused { code: "413".into(), retry: Retry::Never }
    }

    fn away() -> ProviderAnswer {
        ProviderAnswer::Unreachable { reason: "away".into(), retry_after: None }
    }

    const ACCEPTED: ProviderAnswer = ProviderAnswer::Accepted { id: None };

    #[test]
    fn a_message_that_is_refused_for_good_says_nothing_about_the_provider() {
        let mut health = Health::default();
        health.note(&[refused()]);
        assert!(!health.is_failing());
        assert_eq!(health.note(&[away()]), "away");
        assert!(health.is_failing());
        health.note(&[refused()]);
        assert!(health.is_failing(), "nothing was taken since");
        health.note(&[ACCEPTED, away()]);
        assert!(!health.is_failing());
        health.note(&[]);
        assert!(!health.is_failing());
    }

    #[test]
    fn a_provider_that_refuses_everything_for_good_is_failing() {
        let mut health = Health::default();
        (1..REFUSALS_MAX).for_each(|_| drop(health.note(&[refused()])));
        assert!(!health.is_failing());
        assert_eq!(health.note(&[refused()]), "413");
        assert!(health.is_failing());
        health.note(&[ProviderAnswer::TokenGone { since: None }]);
        assert!(!health.is_failing());
    }
}

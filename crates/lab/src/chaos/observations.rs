//! What is seen of a step beside the outcome of the group's messages, and what it is held to.

use super::{
    client_monitor::ClientImpact, feature_traffic::FeatureResult, presence_verifier::PresenceResult,
    push_verifier::PushResult,
};
use crate::{
    result::{Check, filled},
    worker_protocol::Outcome,
};

/// The results of a step beside the outcome of the group's messages.
pub(super) struct Observations {
    pub(super) impact: ClientImpact,
    pub(super) healed: bool,
    pub(super) presence: PresenceResult,
    pub(super) pushes: PushResult,
    pub(super) without_pushes: usize,
    pub(super) features: FeatureResult,
}

/// What a step is held to beside the messages' counts.
pub(super) fn checks_of(outcome: &Outcome, observations: &Observations, ended: &[String]) -> [Check; 6] {
    let Observations { healed, presence, pushes, features, .. } = observations;
    let value = |ok: bool| if ok { "so it was" } else { "not so" };
    [
        Check::of_server("recovery", "the cluster is well again in time", *healed).value(value(*healed)),
        Check::of_server("processes", "no process ends that the step did not kill", ended.is_empty())
            .value(ended.join("; ")),
        Check::of_server("answers", "no message is refused for good", outcome.refused == 0)
            .value(format!("refused {}", outcome.refused)),
        Check::of_server("presence", "every node is right again in time", presence.passes()).value(presence.in_words()),
        Check::of_server("pushes", "every push reaches each of its devices once", pushes.passes())
            .value(filled("reached {reached} of {expected}, lost {lost}, left out {left_out}", pushes)),
        Check::of_server("features", "every node has what was acknowledged", features.passes())
            .value(filled("wrong on a node {problem_count}", features)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::client_monitor::ClientMonitor;
    use std::time::Instant;

    fn observations() -> Observations {
        Observations {
            impact: ClientMonitor::default().impact(Instant::now(), Instant::now()),
            healed: true,
            presence: PresenceResult {
                right_s: Some(20.0),
                since_ready_s: Some(1.0),
                bound_s: 9.5,
                told_offline: Vec::new(),
                told_changes: 0,
                offline_forbidden: true,
                wrong: Vec::new(),
                two_versions: false,
            },
            pushes: PushResult { asked: 1, accepted: 1, expected: 2, reached: 2, ..PushResult::default() },
            without_pushes: 0,
            features: FeatureResult::default(),
        }
    }

    #[test]
    fn a_step_passes_only_if_every_result_passes() {
        let outcome = Outcome::default();
        let is_failed = |change: &dyn Fn(&mut Observations)| {
            let mut observations = observations();
            change(&mut observations);
            !checks_of(&outcome, &observations, &[]).iter().all(Check::is_met)
        };
        assert!(!is_failed(&|_| {}));
        assert!(is_failed(&|observations| observations.healed = false));
        assert!(is_failed(&|observations| observations.presence.since_ready_s = None), "a wrong answer at the end");
        assert!(is_failed(&|observations| observations.presence.since_ready_s = Some(9.6)), "later than the bound");
        assert!(is_failed(&|observations| observations.presence.told_offline.push("ann".into())));
        let with_two_versions = |observations: &mut Observations| {
            (observations.presence.two_versions, observations.pushes.two_versions) = (true, true);
            (observations.presence.since_ready_s, observations.pushes.lost) = (None, 1);
        };
        assert!(!is_failed(&with_two_versions), "what is only told between nodes may wait for one version");
        assert!(is_failed(&|observations| {
            with_two_versions(observations);
            observations.presence.told_offline.push("ann".into());
        }));
        assert!(is_failed(&|observations| observations.pushes.lost = 1));
        assert!(is_failed(&|observations| observations.pushes.accepted = 0));
        assert!(is_failed(&|observations| observations.pushes.copies.doubled = 1));
        assert!(is_failed(&|observations| observations.features.problem_count = 1));
        let ended = checks_of(&outcome, &observations(), &["a node".to_owned()]);
        assert!(!ended.iter().all(Check::is_met), "a process ended");
    }
}

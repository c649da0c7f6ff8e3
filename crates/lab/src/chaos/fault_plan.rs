//! The faults of a run, chosen by its options and its seed.

use super::{
    args::ChaosArgs,
    fault_kind::{Component, FaultKind},
};
use crate::topology::node_name;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use std::time::Duration;

/// The second of two faults starts within this part of the first one's duration.
const SECOND_STARTS_WITHIN: std::ops::Range<f64> = 0.2..0.7;

/// One fault: a kind with its target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Fault {
    pub(super) kind: FaultKind,
    /// The number of the target, modulo the number of possible targets.
    pub(super) choice: usize,
    /// When the fault starts, as a fraction of the duration of the step's first fault.
    pub(super) starts_at: f64,
}

/// The faults between two verifications: one, or two that overlap.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ChaosStep {
    pub(super) faults: Vec<Fault>,
}

impl ChaosStep {
    pub(super) fn of(kind: FaultKind, choice: usize) -> Self {
        ChaosStep { faults: vec![Fault { kind, choice, starts_at: 0.0 }] }
    }

    pub(super) fn kinds(&self) -> impl Iterator<Item = FaultKind> + Clone {
        self.faults.iter().map(|fault| fault.kind)
    }

    pub(super) fn title(&self, nodes: usize) -> String {
        let of = |fault: &Fault| {
            if fault.kind.targets_node() {
                format!("{} {}", fault.kind.name(), node_name(fault.choice % nodes))
            } else {
                fault.kind.name()
            }
        };
        self.faults.iter().map(of).collect::<Vec<_>>().join(" and ")
    }
}

/// The steps of a run: random sequences; or each kind once, some for each node in turn; or each pair of kinds once.
pub(super) fn plan_steps(args: &ChaosArgs, can_partition: bool, seed: u64) -> Vec<ChaosStep> {
    let is_possible = |kind: &FaultKind| {
        // A node is set back while others still run the former program: the new one may use what that does not know once all
        // nodes know it.
        let may_set_back = args.from.is_some() && args.sequences == 0 && !args.overlap;
        (can_partition || !kind.needs_partitions()) && (may_set_back || !kind.needs_former_program())
    };
    let mut kinds: Vec<FaultKind> = args.kinds().into_iter().filter(is_possible).collect();
    kinds.sort_by_key(|kind| !kind.needs_former_program());
    let mut random = StdRng::seed_from_u64(seed);
    let pairs = if args.overlap { compatible_pairs(&kinds, args) } else { Vec::new() };
    let mut overlapping = |pair: (FaultKind, FaultKind)| overlapping_step(pair, args.nodes, &mut random);
    match (args.sequences, args.overlap) {
        (0, true) => pairs.into_iter().map(overlapping).collect(),
        (0, false) => {
            let of = |kind: FaultKind| {
                let choices = if kind.runs_once_per_node() { args.nodes } else { 1 };
                (0..choices).map(move |choice| ChaosStep::of(kind, choice))
            };
            kinds.into_iter().flat_map(of).collect()
        }
        (sequences, true) => {
            let mut which = StdRng::seed_from_u64(seed.rotate_left(32));
            let count = sequences * args.steps;
            (0..count).filter_map(|_| pairs.choose(&mut which).copied()).map(&mut overlapping).collect()
        }
        (sequences, false) => {
            let step = |_| {
                let kind = *kinds.choose(&mut random)?;
                Some(ChaosStep::of(kind, random.random_range(0..1000)))
            };
            (0..sequences * args.steps).filter_map(step).collect()
        }
    }
}

/// All pairs of faults that may overlap, the one that lasts longer first.
///
/// At least one node must be without a fault: with none left, the impact on clients would say nothing about the product. Each
/// component but nodes has at most one fault: Redis cannot lose a primary twice, and a stopped PostgreSQL has no slow disk.
fn compatible_pairs(kinds: &[FaultKind], args: &ChaosArgs) -> Vec<(FaultKind, FaultKind)> {
    let duration = |kind: FaultKind| kind.duration(args.hold, args.restart);
    let mut pairs = Vec::new();
    for (number, one) in kinds.iter().enumerate() {
        for other in &kinds[number + 1..] {
            let both_nodes =
                one.component() == Component::Node && other.component() == Component::Node && args.nodes > 2;
            let (first, second) = if duration(*one) >= duration(*other) { (*one, *other) } else { (*other, *one) };
            if (one.component() != other.component() || both_nodes) && duration(first) > Duration::ZERO {
                pairs.push((first, second));
            }
        }
    }
    pairs
}

fn overlapping_step((first, second): (FaultKind, FaultKind), nodes: usize, random: &mut StdRng) -> ChaosStep {
    let choice = random.random_range(0..1000);
    let other = if first.targets_node() && second.targets_node() {
        // Never the same node.
        choice + random.random_range(1..nodes)
    } else {
        random.random_range(0..1000)
    };
    let starts_at = random.random_range(SECOND_STARTS_WITHIN);
    ChaosStep {
        faults: vec![Fault { kind: first, choice, starts_at: 0.0 }, Fault { kind: second, choice: other, starts_at }],
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        args: ChaosArgs,
    }

    fn args(line: &str) -> ChaosArgs {
        CommandLine::parse_from(std::iter::once("chaos").chain(line.split_whitespace())).args
    }

    #[test]
    fn a_seed_repeats_a_run_and_another_does_not() {
        for line in ["--sequences 5", "--sequences 5 --overlap"] {
            assert_eq!(plan_steps(&args(line), true, 7), plan_steps(&args(line), true, 7));
            assert_ne!(plan_steps(&args(line), true, 7), plan_steps(&args(line), true, 8));
        }
    }

    #[test]
    fn overlapping_faults_affect_different_components_or_nodes() {
        let args = args("--sequences 100 --overlap");
        let steps = plan_steps(&args, true, 1);
        assert_eq!(steps.len(), 300);
        for step in &steps {
            let [one, other] = step.faults[..] else { panic!("{step:?}") };
            assert_ne!(one.kind, other.kind);
            if one.kind.component() == other.kind.component() {
                assert_eq!(one.kind.component(), Component::Node);
                assert_ne!(one.choice % args.nodes, other.choice % args.nodes, "{step:?}");
            }
            let lasts = one.kind.duration(args.hold, args.restart);
            assert!(lasts >= other.kind.duration(args.hold, args.restart) && lasts > Duration::ZERO);
            assert!(other.starts_at > 0.0 && other.starts_at < 1.0, "starts while the other lasts");
        }
    }

    #[test]
    fn with_two_nodes_one_is_always_without_a_fault() {
        let both = |step: &ChaosStep| step.faults.iter().all(|fault| fault.kind.component() == Component::Node);
        assert!(!plan_steps(&args("--sequences 100 --overlap --nodes 2"), true, 1).iter().any(both));
        assert!(plan_steps(&args("--sequences 100 --overlap"), true, 1).iter().any(both));
    }

    #[test]
    fn without_sequences_each_fault_comes_once() {
        // Three nodes each.
        let again = 2 * FaultKind::ALL.iter().filter(|kind| kind.runs_once_per_node()).count();
        let steps = |line: &str| plan_steps(&args(line), true, 1);
        assert_eq!(steps("--sequences 0 --from former").len(), FaultKind::ALL.len() + again);
        let is_rollback = |step: &ChaosStep| step.kinds().any(FaultKind::needs_former_program);
        assert!(!steps("--sequences 0").iter().any(is_rollback), "there is nothing to go back to");
        assert!(!steps("--sequences 100 --from former").iter().any(is_rollback), "all nodes may be upgraded by then");
        let rehearsal = steps("--sequences 0 --only node-restarted,node-rolled-back --from former");
        assert_eq!(rehearsal.iter().map(is_rollback).collect::<Vec<_>>(), [true, true, true, false, false, false]);
        let pairs = plan_steps(&args("--sequences 0 --overlap --only node-killed,redis-emptied,disk-slow"), true, 1);
        let titles: Vec<_> = pairs.iter().map(|step| step.kinds().collect::<Vec<_>>()).collect();
        assert_eq!(titles.len(), 3);
        assert_eq!(titles[0], [FaultKind::RedisEmptied, FaultKind::NodeKilled], "what lasts longer first");
    }
}

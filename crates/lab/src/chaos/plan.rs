//! Which harms a run does, from its options and its seed.

use super::{
    args::ChaosArgs,
    kind::{Kind, Part},
};
use crate::topology::node_name;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use std::time::Duration;

/// The second of two harms begins within this part of the first one's time.
const BEGINS_WITHIN: std::ops::Range<f64> = 0.2..0.7;

/// One kind, done to one of the parts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Act {
    pub(super) kind: Kind,
    /// Which of the parts that it may be done to.
    pub(super) choice: usize,
    /// When it begins, as a part of the time that the step's first one lasts.
    pub(super) begins: f64,
}

/// What is done between two counts: one harm, or two that are there at the same time.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Step {
    pub(super) acts: Vec<Act>,
}

impl Step {
    fn of(kind: Kind, choice: usize) -> Self {
        Step { acts: vec![Act { kind, choice, begins: 0.0 }] }
    }

    pub(super) fn kinds(&self) -> impl Iterator<Item = Kind> + Clone {
        self.acts.iter().map(|act| act.kind)
    }

    pub(super) fn title(&self, nodes: usize) -> String {
        let of = |act: &Act| match act.kind.is_of_a_node() {
            true => format!("{} {}", act.kind.name(), node_name(act.choice % nodes)),
            false => act.kind.name(),
        };
        self.acts.iter().map(of).collect::<Vec<_>>().join(" and ")
    }
}

/// Random sequences, or everything once: some of it to each node in turn, or every pair.
pub(super) fn steps(args: &ChaosArgs, can_cut: bool, seed: u64) -> Vec<Step> {
    let kinds: Vec<Kind> = args.kinds().into_iter().filter(|kind| can_cut || !kind.needs_cuts()).collect();
    let mut random = StdRng::seed_from_u64(seed);
    let pairs = if args.overlap { pairs(&kinds, args) } else { Vec::new() };
    let mut together = |pair: (Kind, Kind)| overlap(pair, args.nodes, &mut random);
    match (args.sequences, args.overlap) {
        (0, true) => pairs.into_iter().map(together).collect(),
        (0, false) => {
            let of = |kind: Kind| {
                let choices = if kind.is_done_to_each() { args.nodes } else { 1 };
                (0..choices).map(move |choice| Step::of(kind, choice))
            };
            kinds.into_iter().flat_map(of).collect()
        }
        (sequences, true) => {
            let mut which = StdRng::seed_from_u64(seed.rotate_left(32));
            let count = sequences * args.steps;
            (0..count).filter_map(|_| pairs.choose(&mut which).copied()).map(&mut together).collect()
        }
        (sequences, false) => {
            let step = |_| {
                let kind = *kinds.choose(&mut random)?;
                Some(Step::of(kind, random.random_range(0..1000)))
            };
            (0..sequences * args.steps).filter_map(step).collect()
        }
    }
}

/// All pairs that can be there at a time, the one that lasts longer first.
///
/// One node must be left that nothing is done to: what clients notice of none at all says nothing about the product. Of one part
/// only one harm: Redis cannot lose a primary that is gone, and a PostgreSQL that is stopped has no disk to be slow.
fn pairs(kinds: &[Kind], args: &ChaosArgs) -> Vec<(Kind, Kind)> {
    let lasts = |kind: Kind| kind.lasts(args.hold, args.restart);
    let mut pairs = Vec::new();
    for (number, one) in kinds.iter().enumerate() {
        for other in &kinds[number + 1..] {
            let both_nodes = one.part() == Part::Node && other.part() == Part::Node && args.nodes > 2;
            let (first, second) = if lasts(*one) >= lasts(*other) { (*one, *other) } else { (*other, *one) };
            if (one.part() != other.part() || both_nodes) && lasts(first) > Duration::ZERO {
                pairs.push((first, second));
            }
        }
    }
    pairs
}

fn overlap((first, second): (Kind, Kind), nodes: usize, random: &mut StdRng) -> Step {
    let choice = random.random_range(0..1000);
    let other = match first.is_of_a_node() && second.is_of_a_node() {
        // Never the same one.
        true => choice + random.random_range(1..nodes),
        false => random.random_range(0..1000),
    };
    let begins = random.random_range(BEGINS_WITHIN);
    Step { acts: vec![Act { kind: first, choice, begins: 0.0 }, Act { kind: second, choice: other, begins }] }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ChaosArgs,
    }

    fn args(line: &str) -> ChaosArgs {
        Line::parse_from(std::iter::once("chaos").chain(line.split_whitespace())).args
    }

    #[test]
    fn a_seed_repeats_a_run_and_another_does_not() {
        for line in ["--sequences 5", "--sequences 5 --overlap"] {
            assert_eq!(steps(&args(line), true, 7), steps(&args(line), true, 7));
            assert_ne!(steps(&args(line), true, 7), steps(&args(line), true, 8));
        }
    }

    #[test]
    fn two_at_a_time_are_of_different_parts_or_of_different_nodes() {
        let args = args("--sequences 100 --overlap");
        let steps = steps(&args, true, 1);
        assert_eq!(steps.len(), 300);
        for step in &steps {
            let [one, other] = step.acts[..] else { panic!("{step:?}") };
            assert_ne!(one.kind, other.kind);
            if one.kind.part() == other.kind.part() {
                assert_eq!(one.kind.part(), Part::Node);
                assert_ne!(one.choice % args.nodes, other.choice % args.nodes, "{step:?}");
            }
            let lasts = one.kind.lasts(args.hold, args.restart);
            assert!(lasts >= other.kind.lasts(args.hold, args.restart) && lasts > Duration::ZERO);
            assert!(other.begins > 0.0 && other.begins < 1.0, "begins while the other is there");
        }
    }

    #[test]
    fn of_two_nodes_one_is_left_alone() {
        let both = |step: &Step| step.acts.iter().all(|act| act.kind.part() == Part::Node);
        assert!(!steps(&args("--sequences 100 --overlap --nodes 2"), true, 1).iter().any(both));
        assert!(steps(&args("--sequences 100 --overlap"), true, 1).iter().any(both));
    }

    #[test]
    fn without_sequences_each_comes_once() {
        // Three nodes each.
        let again = 2 * Kind::ALL.iter().filter(|kind| kind.is_done_to_each()).count();
        assert_eq!(steps(&args("--sequences 0"), true, 1).len(), Kind::ALL.len() + again);
        let pairs = steps(&args("--sequences 0 --overlap --only node-killed,redis-emptied,disk-slow"), true, 1);
        let titles: Vec<_> = pairs.iter().map(|step| step.kinds().collect::<Vec<_>>()).collect();
        assert_eq!(titles.len(), 3);
        assert_eq!(titles[0], [Kind::RedisEmptied, Kind::NodeKilled], "what lasts longer first");
    }
}

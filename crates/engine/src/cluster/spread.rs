//! How the functions of the cluster are spread over its nodes. Every node computes the same from the same view, so that at most
//! one tries to lead a function, or to hand one over; the store decides if views differ.
//!
//! A function that nobody leads goes to the node with the least to do. One that is led moves only if that leaves neither node with
//! more than the other had: so moves come to an end, and the death of a node moves nothing but its own functions.

use tidings_domain::function::Function;

/// The nodes that may lead, by boot id, and who leads what.
pub(super) struct Spread {
    nodes: Vec<Load>,
    leases: Vec<Lease>,
}

#[derive(Debug, Clone, Copy)]
struct Load {
    boot_id: u64,
    weight: u32,
}

/// A function with a lease of its own.
#[derive(Debug, Clone, Copy)]
struct Lease {
    function: Function,
    /// With those that are led under it.
    weight: u32,
    leader: Option<u64>,
}

/// A function that another node should lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) function: Function,
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Spread {
    /// `leased`: the functions that have leases; the first of all has those of the others under it.
    pub(super) fn new(
        nodes: impl IntoIterator<Item = u64>,
        leased: &[Function],
        leader: impl Fn(Function) -> Option<u64>,
    ) -> Spread {
        let mut nodes: Vec<Load> = nodes.into_iter().map(|boot_id| Load { boot_id, weight: 0 }).collect();
        nodes.sort_unstable_by_key(|node| node.boot_id);
        // Each adds one, whatever it weighs by itself: so pushes weigh 4 with popups, as programs take it that know them as one.
        let under_the_first = (Function::COUNT - leased.len().min(Function::COUNT)) as u32;
        let is_node = |leader: &u64| nodes.iter().any(|node| node.boot_id == *leader);
        let lease = |function: Function| Lease {
            function,
            weight: function.weight() + if function == Function::ALL[0] { under_the_first } else { 0 },
            leader: leader(function).filter(is_node),
        };
        let leases: Vec<Lease> =
            Function::ALL.into_iter().filter(|function| leased.contains(function)).map(lease).collect();
        for lease in &leases {
            for node in nodes.iter_mut().filter(|node| lease.leader == Some(node.boot_id)) {
                node.weight += lease.weight;
            }
        }
        Spread { nodes, leases }
    }

    /// The functions that nobody leads, with the nodes that are to take them.
    pub(super) fn successors(&self) -> Vec<(Function, u64)> {
        let mut nodes = self.nodes.clone();
        let mut successors = Vec::new();
        for lease in self.leases.iter().filter(|lease| lease.leader.is_none()) {
            if let Some(node) = nodes.iter_mut().min_by_key(|node| node.weight) {
                node.weight += lease.weight;
                successors.push((lease.function, node.boot_id));
            }
        }
        successors
    }

    /// The function that is to move next, if every function is led.
    pub(super) fn next_move(&self) -> Option<Move> {
        let to = self.nodes.iter().min_by_key(|node| node.weight)?;
        if self.leases.iter().any(|lease| lease.leader.is_none()) {
            return None;
        }
        let mut givers = self.nodes.clone();
        givers.sort_by_key(|node| std::cmp::Reverse(node.weight));
        givers.iter().find_map(|from| {
            let fits =
                |lease: &&Lease| lease.leader == Some(from.boot_id) && to.weight + 2 * lease.weight <= from.weight;
            let lease = self.leases.iter().find(fits)?;
            Some(Move { function: lease.function, from: from.boot_id, to: to.boot_id })
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// By function.
    type Leaders = [Option<u64>; Function::COUNT];

    /// The functions as programs know them that have popups led with pushes.
    const BEFORE_POPUPS: [Function; Function::COUNT - 1] = [
        Function::Push,
        Function::ScheduledMessages,
        Function::EventConsumers,
        Function::Outboxes,
        Function::Presence,
        Function::Housekeeping,
    ];

    fn spread(nodes: &[u64], leased: &[Function], leaders: &Leaders) -> Spread {
        Spread::new(nodes.to_vec(), leased, |function| leaders[function as usize])
    }

    /// Moves functions until none is to move. Answers the moves.
    fn settle(nodes: &[u64], leased: &[Function], leaders: &mut Leaders) -> usize {
        let mut moves = 0;
        while let Some(Move { function, from, to }) = spread(nodes, leased, leaders).next_move() {
            assert_eq!(leaders[function as usize].replace(to), Some(from));
            moves += 1;
            assert!(moves < 20, "moves come to an end");
        }
        moves
    }

    fn weights(nodes: &[u64], leased: &[Function], leaders: &Leaders) -> Vec<u32> {
        spread(nodes, leased, leaders).nodes.iter().map(|node| node.weight).collect()
    }

    #[test]
    fn one_node_leads_all() {
        let (unled, led) = ([None; Function::COUNT], [Some(7); Function::COUNT]);
        let successors = spread(&[7], &Function::ALL, &unled).successors();
        assert_eq!(successors, Function::ALL.map(|function| (function, 7)));
        assert_eq!(spread(&[7], &Function::ALL, &led).next_move(), None);
        assert!(spread(&[], &Function::ALL, &led).successors().is_empty());
    }

    #[test]
    fn a_node_that_comes_gets_its_share() {
        for (nodes, of_all, before_popups) in [
            (&[1, 2][..], vec![6, 5], vec![5, 4]),
            (&[1, 2, 3], vec![4, 4, 3], vec![3, 4, 2]),
            (&[1, 2, 3, 4, 5], vec![2, 3, 3, 2, 1], vec![2, 4, 1, 1, 1]),
        ] {
            for (leased, expected) in [(&Function::ALL[..], of_all), (&BEFORE_POPUPS, before_popups)] {
                let mut leaders = [Some(1); Function::COUNT];
                settle(nodes, leased, &mut leaders);
                assert_eq!(weights(nodes, leased, &leaders), expected);
                assert_eq!(settle(nodes, leased, &mut leaders), 0, "nothing moves back");
            }
        }
    }

    #[test]
    fn only_the_functions_of_a_node_that_is_gone_are_taken() {
        let mut leaders = [Some(1); Function::COUNT];
        settle(&[1, 2, 3], &Function::ALL, &mut leaders);
        for gone in [1, 2, 3] {
            let left: Vec<u64> = [1, 2, 3].into_iter().filter(|node| *node != gone).collect();
            let taken = spread(&left, &Function::ALL, &leaders).successors();
            let lost = Function::ALL.into_iter().filter(|function| leaders[*function as usize] == Some(gone));
            assert_eq!(taken.iter().map(|(function, _)| *function).collect::<Vec<_>>(), lost.collect::<Vec<_>>());
            assert!(taken.iter().all(|(_, node)| left.contains(node)));
        }
        let left = spread(&[1, 3], &Function::ALL, &leaders);
        assert_eq!(left.next_move(), None, "nothing moves while a function is not led");
    }

    #[test]
    fn a_function_without_a_lease_is_led_with_the_first() {
        let mut leaders = [Some(1); Function::COUNT];
        leaders[Function::Push as usize] = None;
        leaders[Function::Popups as usize] = None;
        assert_eq!(spread(&[1, 2], &BEFORE_POPUPS, &leaders).successors(), [(Function::Push, 2)]);
        leaders[Function::Push as usize] = Some(2);
        assert_eq!(spread(&[1, 2], &BEFORE_POPUPS, &leaders).next_move(), None, "nobody waits for popups");
    }

    #[test]
    fn whatever_the_leaders_are_moves_come_to_an_end() {
        for case in 0..4_u64.pow(Function::COUNT as u32) {
            let mut leaders: Leaders = std::array::from_fn(|place| Some(case / 4_u64.pow(place as u32) % 4));
            let nodes = [0, 1, 2, 3];
            settle(&nodes, &Function::ALL, &mut leaders);
            let weights = weights(&nodes, &Function::ALL, &leaders);
            assert!(weights.iter().all(|weight| *weight > 0), "{leaders:?}");
        }
    }
}

//! How the functions of the cluster are spread over its nodes. Every node computes the same from the same view, so that at most
//! one tries to lead a function, or to hand one over; the store decides if views differ.
//!
//! A function that nobody leads goes to the node with the least to do. One that is led moves only if that leaves neither node with
//! more than the other had: so moves come to an end, and the death of a node moves nothing but its own functions.

use tidings_domain::function::Function;

/// The nodes that may lead, by boot id, and who leads what.
pub(super) struct Spread {
    nodes: Vec<Load>,
    leaders: [Option<u64>; Function::COUNT],
}

#[derive(Debug, Clone, Copy)]
struct Load {
    boot_id: u64,
    weight: u32,
}

/// A function that another node should lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) function: Function,
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Spread {
    /// `leaders`: by function.
    pub(super) fn new(nodes: impl IntoIterator<Item = u64>, leaders: [Option<u64>; Function::COUNT]) -> Spread {
        let mut nodes: Vec<Load> = nodes.into_iter().map(|boot_id| Load { boot_id, weight: 0 }).collect();
        nodes.sort_unstable_by_key(|node| node.boot_id);
        let is_node = |leader: &u64| nodes.iter().any(|node| node.boot_id == *leader);
        let leaders = leaders.map(|leader| leader.filter(is_node));
        for (function, leader) in Function::ALL.into_iter().zip(leaders) {
            for node in nodes.iter_mut().filter(|node| leader == Some(node.boot_id)) {
                node.weight += function.weight();
            }
        }
        Spread { nodes, leaders }
    }

    /// The functions that nobody leads, with the nodes that are to take them.
    pub(super) fn successors(&self) -> Vec<(Function, u64)> {
        let mut nodes = self.nodes.clone();
        let mut successors = Vec::new();
        for (function, _) in Function::ALL.into_iter().zip(self.leaders).filter(|(_, leader)| leader.is_none()) {
            if let Some(node) = nodes.iter_mut().min_by_key(|node| node.weight) {
                node.weight += function.weight();
                successors.push((function, node.boot_id));
            }
        }
        successors
    }

    /// The function that is to move next, if every function is led.
    pub(super) fn next_move(&self) -> Option<Move> {
        let to = self.nodes.iter().min_by_key(|node| node.weight)?;
        if self.leaders.contains(&None) {
            return None;
        }
        let mut givers = self.nodes.clone();
        givers.sort_by_key(|node| std::cmp::Reverse(node.weight));
        givers.iter().find_map(|from| {
            let fits = |(function, leader): &(Function, Option<u64>)| {
                *leader == Some(from.boot_id) && to.weight + 2 * function.weight() <= from.weight
            };
            let mut own = Function::ALL.into_iter().zip(self.leaders);
            own.find(fits).map(|(function, _)| Move { function, from: from.boot_id, to: to.boot_id })
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Moves functions until none is to move. Answers the moves.
    fn settle(nodes: &[u64], leaders: &mut [Option<u64>; Function::COUNT]) -> usize {
        let mut moves = 0;
        while let Some(Move { function, from, to }) = Spread::new(nodes.to_vec(), *leaders).next_move() {
            assert_eq!(leaders[function as usize].replace(to), Some(from));
            moves += 1;
            assert!(moves < 20, "moves come to an end");
        }
        moves
    }

    fn weights(nodes: &[u64], leaders: &[Option<u64>; Function::COUNT]) -> Vec<u32> {
        Spread::new(nodes.to_vec(), *leaders).nodes.iter().map(|node| node.weight).collect()
    }

    #[test]
    fn one_node_leads_all() {
        let spread = Spread::new([7], [None; Function::COUNT]);
        assert_eq!(spread.successors(), Function::ALL.map(|function| (function, 7)));
        assert_eq!(Spread::new([7], [Some(7); Function::COUNT]).next_move(), None);
        assert!(Spread::new([], [Some(7); Function::COUNT]).successors().is_empty());
    }

    #[test]
    fn a_node_that_comes_gets_its_share() {
        for (nodes, expected) in
            [(&[1, 2][..], vec![5, 4]), (&[1, 2, 3], vec![3, 4, 2]), (&[1, 2, 3, 4, 5], vec![2, 4, 1, 1, 1])]
        {
            let mut leaders = [Some(1); Function::COUNT];
            settle(nodes, &mut leaders);
            assert_eq!(weights(nodes, &leaders), expected);
            assert_eq!(settle(nodes, &mut leaders), 0, "nothing moves back");
        }
    }

    #[test]
    fn only_the_functions_of_a_node_that_is_gone_are_taken() {
        let mut leaders = [Some(1); Function::COUNT];
        settle(&[1, 2, 3], &mut leaders);
        for gone in [1, 2, 3] {
            let left: Vec<u64> = [1, 2, 3].into_iter().filter(|node| *node != gone).collect();
            let taken = Spread::new(left.clone(), leaders).successors();
            let lost = Function::ALL.into_iter().filter(|function| leaders[*function as usize] == Some(gone));
            assert_eq!(taken.iter().map(|(function, _)| *function).collect::<Vec<_>>(), lost.collect::<Vec<_>>());
            assert!(taken.iter().all(|(_, node)| left.contains(node)));
        }
        assert_eq!(Spread::new([1, 3], leaders).next_move(), None, "nothing moves while a function is not led");
    }

    #[test]
    fn whatever_the_leaders_are_moves_come_to_an_end() {
        for case in 0..4_u64.pow(Function::COUNT as u32) {
            let mut leaders: [Option<u64>; Function::COUNT] =
                std::array::from_fn(|place| Some(case / 4_u64.pow(place as u32) % 4));
            settle(&[0, 1, 2, 3], &mut leaders);
            let weights = weights(&[0, 1, 2, 3], &leaders);
            assert_eq!(*weights.iter().min().unwrap(), 1, "{leaders:?}");
        }
    }
}

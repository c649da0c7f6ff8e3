//! An index of many rules: which of them may hold for a profile.
//!
//! Each rule is filed under equalities of which one must hold for the rule to hold ("access predicates": Fabret,
//! Jacobsen, Llirbat, Pereira, Ross and Shasha, "Filtering Algorithms and Implementation for Very Fast
//! Publish/Subscribe Systems", SIGMOD 2001). A request then looks only at the rules filed under its own values.

use super::{
    CompiledRule, Profile, Value,
    compile::{Node, normalize_zero},
};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

/// Rules by their access predicates. A rule's rank is its position among the rules that the index was built from.
#[derive(Debug, Default)]
pub struct RuleIndex {
    slots: Vec<Slot>,
    /// The ranks of rules without an access predicate, ascending.
    always: Vec<u32>,
}

/// The ranks filed under the values of a slot.
#[derive(Debug, Default)]
struct Slot {
    slot: u16,
    texts: FxHashMap<Box<str>, Vec<u32>>,
    /// By the bits of the number, which is never negative zero.
    numbers: FxHashMap<u64, Vec<u32>>,
    bools: [Vec<u32>; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Key<'r> {
    Text(&'r str),
    Number(u64),
    Bool(bool),
}

/// Equalities of slots and values, of which one must hold for the rule to hold.
type AccessPredicate<'r> = Vec<(u16, Key<'r>)>;

impl RuleIndex {
    /// Builds the index. `None` stands for no rule, which holds for everybody.
    pub fn build<'r>(rules: impl Iterator<Item = Option<&'r CompiledRule>>) -> RuleIndex {
        let alternatives: Vec<Vec<AccessPredicate>> =
            rules.map(|rule| rule.map(|rule| access_predicates(&rule.root)).unwrap_or_default()).collect();
        // The number of different values that rules compare a slot with: the more there are, the fewer requests have a
        // given one, and the more rules an equality with it excludes.
        let mut seen: FxHashSet<(u16, Key)> = FxHashSet::default();
        let mut distinct: FxHashMap<u16, u32> = FxHashMap::default();
        for (slot, key) in alternatives.iter().flatten().flatten() {
            if seen.insert((*slot, *key)) {
                *distinct.entry(*slot).or_default() += 1;
            }
        }
        let weight = |predicate: &AccessPredicate| {
            predicate.iter().map(|(slot, _)| 1.0 / f64::from(distinct[slot])).sum::<f64>()
        };

        let mut index = RuleIndex::default();
        for (rank, alternatives) in alternatives.into_iter().enumerate() {
            let rank = rank as u32;
            match alternatives.into_iter().min_by(|left, right| weight(left).total_cmp(&weight(right))) {
                Some(predicate) => predicate.into_iter().for_each(|(slot, key)| index.file(rank, slot, key)),
                None => index.always.push(rank),
            }
        }
        index
    }

    fn file(&mut self, rank: u32, slot: u16, key: Key) {
        let at = self.slots.iter().position(|own| own.slot == slot).unwrap_or_else(|| {
            self.slots.push(Slot { slot, ..Slot::default() });
            self.slots.len() - 1
        });
        let slot = &mut self.slots[at];
        match key {
            Key::Text(text) => slot.texts.entry(text.into()).or_default().push(rank),
            Key::Number(bits) => slot.numbers.entry(bits).or_default().push(rank),
            Key::Bool(truth) => slot.bools[usize::from(truth)].push(rank),
        }
    }

    /// The most that the candidates of one profile can cost together, where `cost` is that of a rank: for each slot the
    /// value with the dearest rules, and the rules that are always candidates.
    pub(crate) fn cost_max(&self, cost: impl Fn(u32) -> u64) -> u64 {
        let sum = |ranks: &Vec<u32>| ranks.iter().map(|rank| cost(*rank)).fold(0, u64::saturating_add);
        let of_slot = |slot: &Slot| {
            let filed = slot.texts.values().chain(slot.numbers.values()).chain(&slot.bools);
            filed.map(sum).max().unwrap_or(0)
        };
        self.slots.iter().map(of_slot).fold(sum(&self.always), u64::saturating_add)
    }

    /// Replaces `out` with the ranks of all rules that may hold, ascending: a superset of those that do.
    pub fn candidates(&self, profile: &Profile, out: &mut Vec<u32>) {
        let mut matched: SmallVec<[u32; 128]> = SmallVec::new();
        for slot in &self.slots {
            matched.extend_from_slice(slot.ranks(profile));
        }
        matched.sort_unstable();
        matched.dedup();

        out.clear();
        out.reserve(matched.len() + self.always.len());
        let mut always = self.always.as_slice();
        for rank in matched {
            // A rank is in only one of the two lists.
            let before = always.partition_point(|own| *own < rank);
            out.extend_from_slice(&always[..before]);
            out.push(rank);
            always = &always[before..];
        }
        out.extend_from_slice(always);
    }
}

impl Slot {
    fn ranks(&self, profile: &Profile) -> &[u32] {
        match profile.value(self.slot) {
            Some(Value::Text(text)) => self.texts.get(text.as_ref()).map_or(&[], Vec::as_slice),
            Some(Value::Number(number)) => {
                self.numbers.get(&normalize_zero(*number).to_bits()).map_or(&[], Vec::as_slice)
            }
            Some(Value::Bool(truth)) => &self.bools[usize::from(*truth)],
            _ => &[],
        }
    }
}

/// The access predicates under any one of which the rule can be filed.
fn access_predicates(node: &Node) -> Vec<AccessPredicate<'_>> {
    match node {
        Node::All(children) => children.iter().flat_map(|child| access_predicates(&child.node)).collect(),
        // One branch must hold, so the rule is filed under an access predicate of every branch: the one with the fewest
        // equalities of each.
        Node::Any(children) => {
            let mut union = Vec::new();
            for child in children {
                match access_predicates(&child.node).into_iter().min_by_key(Vec::len) {
                    Some(predicate) => union.extend(predicate),
                    None => return Vec::new(),
                }
            }
            union.sort_unstable();
            union.dedup();
            vec![union]
        }
        Node::Text { slot, value, equal: true } => vec![vec![(*slot, Key::Text(value))]],
        Node::Number { slot, value, equal: true } => vec![vec![(*slot, Key::Number(normalize_zero(*value).to_bits()))]],
        Node::Bool { slot, value, equal } => vec![vec![(*slot, Key::Bool(value == equal))]],
        Node::Texts { slot, values, member: true } => {
            vec![values.iter().map(|value| (*slot, Key::Text(value))).collect()]
        }
        Node::Numbers { slot, values, member: true } => {
            vec![values.iter().map(|value| (*slot, Key::Number(value.to_bits()))).collect()]
        }
        _ => Vec::new(),
    }
}

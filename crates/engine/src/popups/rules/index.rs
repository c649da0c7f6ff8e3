//! Which of many rules may hold at all.
//!
//! Each rule is filed under equalities of which it needs one ("access predicates": Fabret, Jacobsen, Llirbat, Pereira, Ross
//! and Shasha, "Filtering Algorithms and Implementation for Very Fast Publish/Subscribe Systems", SIGMOD 2001), so that a
//! request looks only at those filed under its own values.

use super::{
    Compiled, Profile, Value,
    compile::{Node, plain},
};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

/// Rules by what they cannot hold without. A rule's rank is its position in what the index was built from.
#[derive(Debug, Default)]
pub struct Index {
    slots: Vec<Slot>,
    /// Those that need no equality, ascending.
    always: Vec<u32>,
}

/// The ranks filed under the values of a slot.
#[derive(Debug, Default)]
struct Slot {
    slot: u16,
    texts: FxHashMap<Box<str>, Vec<u32>>,
    /// By the bits of the number.
    numbers: FxHashMap<u64, Vec<u32>>,
    bools: [Vec<u32>; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Key<'r> {
    Text(&'r str),
    Number(u64),
    Bool(bool),
}

/// Equalities of which one must hold for the rule to hold.
type Access<'r> = Vec<(u16, Key<'r>)>;

impl Index {
    /// `None` is no rule: it holds for everybody.
    pub fn build<'r>(rules: impl Iterator<Item = Option<&'r Compiled>>) -> Index {
        let accesses: Vec<Vec<Access>> =
            rules.map(|rule| rule.map(|rule| accesses(&rule.root)).unwrap_or_default()).collect();
        // How many values rules tell apart in a slot: the more, the fewer requests have a given one.
        let mut seen: FxHashSet<(u16, Key)> = FxHashSet::default();
        let mut distinct: FxHashMap<u16, u32> = FxHashMap::default();
        for (slot, key) in accesses.iter().flatten().flatten() {
            if seen.insert((*slot, *key)) {
                *distinct.entry(*slot).or_default() += 1;
            }
        }
        let weight = |access: &Access| access.iter().map(|(slot, _)| 1.0 / f64::from(distinct[slot])).sum::<f64>();

        let mut index = Index::default();
        for (rank, accesses) in accesses.into_iter().enumerate() {
            let rank = rank as u32;
            match accesses.into_iter().min_by(|left, right| weight(left).total_cmp(&weight(right))) {
                Some(access) => access.into_iter().for_each(|(slot, key)| index.file(rank, slot, key)),
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

    /// Replaces `out` by the ranks of all rules that may hold, ascending: a superset of those that do.
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
            // A rule is in one of the two lists only.
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
            Some(Value::Number(number)) => self.numbers.get(&plain(*number).to_bits()).map_or(&[], Vec::as_slice),
            Some(Value::Bool(truth)) => &self.bools[usize::from(*truth)],
            _ => &[],
        }
    }
}

/// The ways in which a rule can be filed.
fn accesses(node: &Node) -> Vec<Access<'_>> {
    match node {
        Node::All(children) => children.iter().flat_map(|child| accesses(&child.node)).collect(),
        // Every branch needs one of its own; the first way of each is taken.
        Node::Any(children) => {
            let mut together = Vec::new();
            for child in children {
                match accesses(&child.node).into_iter().min_by_key(Vec::len) {
                    Some(access) => together.extend(access),
                    None => return Vec::new(),
                }
            }
            together.sort_unstable();
            together.dedup();
            vec![together]
        }
        Node::Text { slot, value, equal: true } => vec![vec![(*slot, Key::Text(value))]],
        Node::Number { slot, value, equal: true } => vec![vec![(*slot, Key::Number(plain(*value).to_bits()))]],
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

//! An ordered map in blocks of a few entries, for many small values: it takes little more memory than they do. Where keys come in
//! ascending order its blocks are full, while the nodes of the standard library's tree stay half empty. No insertion moves
//! more than a block, and blocks give memory back that they do not need.

/// The most entries of a block.
const BLOCK: usize = 32;
/// A block grows and shrinks by so many entries.
const STEP: usize = 8;

pub(crate) struct BlockMap<K, V> {
    /// In the order of their keys, none of them empty.
    blocks: Vec<Vec<(K, V)>>,
    len: usize,
}

impl<K, V> Default for BlockMap<K, V> {
    fn default() -> Self {
        BlockMap { blocks: Vec::new(), len: 0 }
    }
}

impl<K: Ord + Copy, V> BlockMap<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The block that has the key if any has, and the key's place there; `Err`: the place where it belongs.
    fn place(&self, key: K) -> (usize, Result<usize, usize>) {
        let begun = self.blocks.partition_point(|block| block.first().is_some_and(|(first, _)| *first <= key));
        let block = begun.saturating_sub(1);
        let entries = self.blocks.get(block).map_or(&[] as &[_], Vec::as_slice);
        (block, entries.binary_search_by_key(&key, |(key, _)| *key))
    }

    pub(crate) fn get(&self, key: K) -> Option<&V> {
        let (block, place) = self.place(key);
        place.ok().map(|at| &self.blocks[block][at].1)
    }

    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        let (block, place) = self.place(key);
        place.ok().map(|at| &mut self.blocks[block][at].1)
    }

    /// Adds a value, or replaces the one that the key has.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        let (mut block, mut at) = match self.place(key) {
            (block, Ok(at)) => return self.blocks[block][at].1 = value,
            (block, Err(at)) => (block, at),
        };
        self.len += 1;
        let is_last = block + 1 >= self.blocks.len();
        match self.blocks.get_mut(block) {
            Some(entries) if entries.len() < BLOCK => {}
            // Keys that ascend leave full blocks behind.
            Some(_) if is_last && at == BLOCK => {
                self.blocks.push(Vec::new());
                (block, at) = (block + 1, 0);
            }
            Some(entries) => {
                let upper = entries.split_off(BLOCK / 2);
                entries.shrink_to(BLOCK / 2);
                self.blocks.insert(block + 1, upper);
                if at > BLOCK / 2 {
                    (block, at) = (block + 1, at - BLOCK / 2);
                }
            }
            None => self.blocks.push(Vec::new()),
        }
        let entries = &mut self.blocks[block];
        if entries.len() == entries.capacity() {
            entries.reserve_exact(STEP);
        }
        entries.insert(at, (key, value));
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<V> {
        let (block, Ok(at)) = self.place(key) else { return None };
        self.len -= 1;
        let (_, value) = self.blocks[block].remove(at);
        self.shrink(block);
        Some(value)
    }

    /// Gives back what the block does not need since an entry was removed.
    fn shrink(&mut self, block: usize) {
        let entries = &mut self.blocks[block];
        if entries.is_empty() {
            self.blocks.remove(block);
            if self.blocks.capacity() > 2 * self.blocks.len() {
                self.blocks.shrink_to_fit();
            }
            return;
        }
        if entries.capacity() - entries.len() >= 2 * STEP {
            entries.shrink_to(entries.len() + STEP);
        }
        self.merge(block);
        if let Some(former) = block.checked_sub(1) {
            self.merge(former);
        }
    }

    /// Joins the block with the next one if they are half a block together: so many entries more before it is split again.
    fn merge(&mut self, block: usize) {
        let [first, second, ..] = &mut self.blocks[block..] else { return };
        if first.len() + second.len() <= BLOCK / 2 {
            first.reserve_exact(second.len());
            first.append(second);
            self.blocks.remove(block + 1);
        }
    }

    /// The entries behind this key, in order; `None`: all.
    pub(crate) fn after(&self, key: Option<K>) -> impl Iterator<Item = (K, &V)> {
        let (block, from) = key.map_or((0, 0), |key| {
            let (block, place) = self.place(key);
            (block, place.map_or_else(|at| at, |at| at + 1))
        });
        let blocks = self.blocks.iter().skip(block).enumerate();
        blocks.flat_map(move |(number, block)| &block[if number == 0 { from } else { 0 }..]).map(|(key, v)| (*key, v))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn room(map: &BlockMap<u64, u64>) -> usize {
        map.blocks.iter().map(Vec::capacity).sum()
    }

    #[test]
    fn ascending_keys_fill_their_blocks() {
        let mut map = BlockMap::default();
        (0..10 * BLOCK as u64).for_each(|key| map.insert(key, key));
        assert_eq!((map.blocks.len(), room(&map)), (10, 10 * BLOCK));
    }

    #[test]
    fn what_is_removed_gives_its_memory_back() {
        let mut map = BlockMap::default();
        (0..1_000).for_each(|key| map.insert(key * 7_919 % 1_000, key));
        assert!(room(&map) <= 2_000, "{}", room(&map));
        for key in (0..1_000).filter(|key| key % 10 > 0) {
            assert!(map.remove(key).is_some());
        }
        assert_eq!(map.len(), 100);
        assert!(room(&map) <= 400 && map.blocks.len() <= 20, "{} in {} blocks", room(&map), map.blocks.len());
        assert_eq!((0..1_000).filter_map(|key| map.remove(key)).count(), 100);
        assert_eq!((room(&map), map.blocks.capacity()), (0, 0));
    }

    proptest! {
        /// Against the standard library's map.
        #[test]
        fn it_holds_what_a_tree_holds(steps in proptest::collection::vec((0..5_u8, 0..400_u64), 0..3_000)) {
            let (mut map, mut tree) = (BlockMap::default(), BTreeMap::new());
            for (at, (kind, key)) in steps.into_iter().enumerate() {
                match kind {
                    0 | 1 => {
                        map.insert(key, at);
                        tree.insert(key, at);
                    }
                    2 => prop_assert_eq!(map.remove(key), tree.remove(&key)),
                    3 => {
                        prop_assert_eq!(map.get(key), tree.get(&key));
                        prop_assert_eq!(map.get_mut(key), tree.get_mut(&key));
                    }
                    _ => {
                        let behind = tree.range(key + 1..).map(|(key, value)| (*key, value));
                        prop_assert!(map.after(Some(key)).eq(behind));
                    }
                }
                prop_assert!(map.blocks.iter().all(|block| (1..=BLOCK).contains(&block.len())));
            }
            prop_assert_eq!(map.len(), tree.len());
            prop_assert!(map.after(None).eq(tree.iter().map(|(key, value)| (*key, value))));
        }
    }
}

//! A slab in chunks: it grows without copying what it holds, which would stall a thread with a million sessions and leave the
//! allocator with the room of all former sizes. A chunk whose last value goes gives its memory back.

use slab::Slab;
use std::ops::{Index, IndexMut};

/// The memory of a chunk: a size that allocators have. Of a size in between they give the next one.
const CHUNK_BYTES: usize = 16 * 1024;

pub struct ChunkedSlab<T> {
    chunks: Vec<Slab<T>>,
    /// The chunks with room for another value.
    with_room: Vec<usize>,
}

/// The place of the next value.
pub struct VacantEntry<'a, T> {
    entry: slab::VacantEntry<'a, T>,
    chunk: usize,
    with_room: &'a mut Vec<usize>,
    fills: bool,
}

impl<T> Default for ChunkedSlab<T> {
    fn default() -> Self {
        ChunkedSlab { chunks: Vec::new(), with_room: Vec::new() }
    }
}

impl<T> ChunkedSlab<T> {
    /// Values of a chunk. A slab's entry is a value, or the key of the next vacant entry.
    const CHUNK: usize = match CHUNK_BYTES / size_of::<Result<T, usize>>() {
        0 => 1,
        values => values,
    };

    pub fn vacant_entry(&mut self) -> VacantEntry<'_, T> {
        let chunk = match self.with_room.last() {
            Some(chunk) => *chunk,
            None => {
                self.chunks.push(Slab::new());
                self.with_room.push(self.chunks.len() - 1);
                self.chunks.len() - 1
            }
        };
        let values = &mut self.chunks[chunk];
        if values.capacity() == 0 {
            values.reserve_exact(Self::CHUNK);
        }
        let fills = values.len() + 1 == Self::CHUNK;
        VacantEntry { entry: values.vacant_entry(), chunk, with_room: &mut self.with_room, fills }
    }

    pub fn insert(&mut self, value: T) -> usize {
        let entry = self.vacant_entry();
        let key = entry.key();
        entry.insert(value);
        key
    }

    pub fn get(&self, key: usize) -> Option<&T> {
        self.chunks.get(key / Self::CHUNK)?.get(key % Self::CHUNK)
    }

    pub fn get_mut(&mut self, key: usize) -> Option<&mut T> {
        self.chunks.get_mut(key / Self::CHUNK)?.get_mut(key % Self::CHUNK)
    }

    /// Takes a value out.
    ///
    /// # Panics
    /// No value has this key.
    pub fn remove(&mut self, key: usize) -> T {
        let chunk = key / Self::CHUNK;
        let values = &mut self.chunks[chunk];
        if values.len() == Self::CHUNK {
            self.with_room.push(chunk);
        }
        let value = values.remove(key % Self::CHUNK);
        if values.is_empty() {
            *values = Slab::new();
        }
        value
    }

    /// The values with their keys, in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        let chunks = self.chunks.iter().enumerate();
        chunks.flat_map(|(chunk, values)| values.iter().map(move |(key, value)| (chunk * Self::CHUNK + key, value)))
    }

    /// Above all keys.
    pub fn keys_end(&self) -> usize {
        self.chunks.len() * Self::CHUNK
    }

    pub fn is_empty(&self) -> bool {
        self.chunks.iter().all(Slab::is_empty)
    }
}

impl<'a, T> VacantEntry<'a, T> {
    pub fn key(&self) -> usize {
        self.chunk * ChunkedSlab::<T>::CHUNK + self.entry.key()
    }

    pub fn insert(self, value: T) -> &'a mut T {
        if self.fills {
            // It was the last one.
            self.with_room.pop();
        }
        self.entry.insert(value)
    }
}

impl<T> Index<usize> for ChunkedSlab<T> {
    type Output = T;

    fn index(&self, key: usize) -> &T {
        &self.chunks[key / Self::CHUNK][key % Self::CHUNK]
    }
}

impl<T> IndexMut<usize> for ChunkedSlab<T> {
    fn index_mut(&mut self, key: usize) -> &mut T {
        &mut self.chunks[key / Self::CHUNK][key % Self::CHUNK]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_chunk_without_values_takes_no_memory() {
        const CHUNK: usize = ChunkedSlab::<usize>::CHUNK;
        let mut slab = ChunkedSlab::default();
        let keys: Vec<usize> = (0..3 * CHUNK).map(|value| slab.insert(value)).collect();
        assert_eq!((slab.keys_end(), slab.with_room.len()), (3 * CHUNK, 0));
        for key in &keys[..2 * CHUNK] {
            assert_eq!(slab.remove(*key), *key);
        }
        assert_eq!(slab.chunks.iter().map(Slab::capacity).collect::<Vec<_>>(), [0, 0, CHUNK]);
        assert_eq!(slab.iter().map(|(_, value)| *value).collect::<Vec<_>>(), keys[2 * CHUNK..]);
        // What comes next takes the room that there is, and a chunk holds as many as before.
        let again: Vec<usize> = (0..2 * CHUNK).map(|value| slab.insert(value)).collect();
        assert!(again.iter().all(|key| *key < 2 * CHUNK));
        assert_eq!(slab.chunks.iter().map(Slab::capacity).collect::<Vec<_>>(), [CHUNK; 3]);
    }

    proptest! {
        /// Against a map from keys to values, with about twenty values in a chunk.
        #[test]
        fn it_holds_what_a_map_holds(steps in proptest::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 0..2_000)) {
            let (mut slab, mut map) = (ChunkedSlab::default(), BTreeMap::new());
            for (at, (inserts, which)) in steps.into_iter().enumerate() {
                if inserts || map.is_empty() {
                    let key = slab.insert([at; 100]);
                    prop_assert!(map.insert(key, at).is_none() && key < slab.keys_end());
                } else {
                    let key = *map.keys().nth(which.index(map.len())).unwrap();
                    prop_assert_eq!(Some(slab.remove(key)[0]), map.remove(&key));
                    prop_assert!(slab.get(key).is_none());
                }
            }
            prop_assert_eq!(slab.is_empty(), map.is_empty());
            prop_assert!(slab.iter().map(|(key, value)| (key, value[0])).eq(map));
        }
    }
}

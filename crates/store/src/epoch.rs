//! Epochs: the names of stores' histories.

/// A random epoch: the name of a store's history.
pub(crate) fn fresh_epoch() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // The seed of a hasher is the standard library's own source of randomness.
    RandomState::new().hash_one(std::time::SystemTime::now()) >> 16
}

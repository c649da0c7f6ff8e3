//! Who is in an uploaded list, and where a user stands under a salt: both go by the user's key alone.

use crate::popups::UserKey;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The user's place under a salt, from 0 to 9,999: hundredths of a percent. `XXH3-64(salt, seed = low 64 bits of the key)
/// modulo 10,000`; it may never change, since users would move between variants and shares.
pub fn place(user: UserKey, salt: &str) -> u32 {
    (xxh3_64_with_seed(salt.as_bytes(), user.0 as u64) % 10_000) as u32
}

/// A list of users, by the low 64 bits of their keys: 8 MB for a million. A user who is not in a list of a million is taken
/// to be with a probability of 1 in 10^13.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Segment {
    /// Ascending, each once.
    users: Box<[u64]>,
}

impl Segment {
    pub fn from_unsorted(mut users: Vec<u64>) -> Self {
        users.sort_unstable();
        users.dedup();
        Segment { users: users.into_boxed_slice() }
    }

    pub(crate) fn users(&self) -> &[u64] {
        &self.users
    }

    pub fn len(&self) -> usize {
        self.users.len()
    }

    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// Interpolation search. Keys are hashes, thus spread evenly: in a list of n users a key is about `√n / 2` places from
    /// where its value alone would put it, so that the first look already lands within a page or two.
    pub fn contains(&self, user: UserKey) -> bool {
        let key = user.0 as u64;
        let count = self.users.len();
        if count == 0 {
            return false;
        }
        let guess = ((u128::from(key) * count as u128) >> 64) as usize;
        // Doubling steps away from the guess until the key is between `low` and `high`.
        let (mut low, mut high, mut step) = (guess, guess + 1, 8);
        while low > 0 && self.users[low] > key {
            low = low.saturating_sub(step);
            step *= 2;
        }
        while high < count && self.users[high] <= key {
            high = (high + step).min(count);
            step *= 2;
        }
        self.users[low..high].binary_search(&key).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn places_never_change() {
        // Written down when the function was: a change here moves every user.
        let places = [(0, ""), (1, ""), (1, "december"), (u128::MAX, "december"), (1 << 64, "x"), (0, "x")];
        assert_eq!(places.map(|(key, salt)| place(UserKey(key), salt)), [3138, 6211, 4841, 2541, 5425, 5425]);
    }

    #[test]
    fn places_are_spread_evenly_and_independently() {
        let mut both = [[0u32; 4]; 4];
        for user in 0..40_000u64 {
            // Keys are hashes themselves.
            let key = UserKey(u128::from(xxh3_64_with_seed(&user.to_le_bytes(), 0)));
            both[place(key, "a") as usize / 2_500][place(key, "b") as usize / 2_500] += 1;
        }
        // 2,500 expected in each; the standard deviation is 48.
        assert!(both.iter().flatten().all(|&count| (2_250..2_750).contains(&count)), "{both:?}");
    }

    proptest! {
        #[test]
        fn a_segment_has_exactly_its_users(
            users in prop::collection::vec(prop_oneof![any::<u64>(), 0u64..50, (u64::MAX - 50)..=u64::MAX], 0..300),
            others in prop::collection::vec(prop_oneof![any::<u64>(), 0u64..60, (u64::MAX - 60)..=u64::MAX], 0..100),
        ) {
            let segment = Segment::from_unsorted(users.clone());
            let set: std::collections::BTreeSet<u64> = users.iter().copied().collect();
            prop_assert_eq!(segment.len(), set.len());
            for key in users.into_iter().chain(others) {
                prop_assert_eq!(segment.contains(UserKey(u128::from(key) | (7 << 64))), set.contains(&key));
            }
        }
    }
}

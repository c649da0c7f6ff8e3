//! Segments and buckets: whether a user is in an uploaded list, and which bucket a salt puts a user into. Both depend
//! on the user's key alone.

use crate::UserKey;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The bucket that a salt puts the user into, from 0 to 9,999: hundredths of a percent. It is `XXH3-64(salt, seed = low
/// 64 bits of the key) modulo 10,000`. This function may never change, or users would move between the shares of
/// campaigns that are running.
pub fn bucket(user: UserKey, salt: &str) -> u32 {
    (xxh3_64_with_seed(salt.as_bytes(), user.0 as u64) % 10_000) as u32
}

/// A set of users by the low 64 bits of their keys: 8 MB for a million. With a million users in the set, another user
/// is taken for one of them with a probability of 1 in 10^13.
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

    /// Interpolation search. Keys are hashes and so spread evenly: in a list of n users a key is about `√n / 2`
    /// positions from where its value alone would put it, so the first probe already lands within a page or two.
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
    fn buckets_equal_those_of_the_first_release() {
        // These values were recorded when the function was written: a change moves every user.
        let users = [(0, ""), (1, ""), (1, "december"), (u128::MAX, "december"), (1 << 64, "x"), (0, "x")];
        assert_eq!(users.map(|(key, salt)| bucket(UserKey(key), salt)), [3138, 6211, 4841, 2541, 5425, 5425]);
    }

    #[test]
    fn buckets_of_two_salts_are_uniform_and_independent() {
        let mut both = [[0u32; 4]; 4];
        for user in 0..40_000u64 {
            // Keys are hashes themselves.
            let key = UserKey(u128::from(xxh3_64_with_seed(&user.to_le_bytes(), 0)));
            both[bucket(key, "a") as usize / 2_500][bucket(key, "b") as usize / 2_500] += 1;
        }
        // 2,500 expected in each; the standard deviation is 48.
        assert!(both.iter().flatten().all(|&count| (2_250..2_750).contains(&count)), "{both:?}");
    }

    proptest! {
        #[test]
        fn contains_finds_exactly_the_users_of_the_segment(
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

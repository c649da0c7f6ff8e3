//! Popups: which in-app message suits this user now.

// pub mod rules;
// pub mod timetable;

/// A user as popups know one: 128 bits of a stable hash (XXH3, unseeded) of the id. Two of a hundred million users
/// share one with a probability of about 1 in 10^23 (the birthday bound).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserKey(pub u128);

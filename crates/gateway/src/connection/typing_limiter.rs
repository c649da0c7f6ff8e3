//! Limits the typing notifications of a session.

use crate::timer_wheel::ticks;
use rustc_hash::FxHasher;
use smallvec::SmallVec;
use std::{hash::Hasher, time::Duration};

/// A session may notify once in this time per conversation, and in at most this many conversations.
const TYPING_INTERVAL: Duration = Duration::from_secs(1);
const CONVERSATIONS_MAX: usize = 5;

/// The conversations in which a session typed a moment ago: the tick, and the hash of the conversation's id. When two
/// conversations of a session share a hash, one notification is lost.
#[derive(Default)]
pub(crate) struct TypingLimiter(SmallVec<[(u32, u64); CONVERSATIONS_MAX]>);

impl TypingLimiter {
    /// Whether this notification is within the limits; counts it if so.
    pub(crate) fn admit(&mut self, conversation: &str, tick: u32) -> bool {
        let mut hasher = FxHasher::default();
        hasher.write(conversation.as_bytes());
        let hash = hasher.finish();
        self.0.retain(|(at, _)| tick.saturating_sub(*at) < ticks(TYPING_INTERVAL));
        if self.0.len() == CONVERSATIONS_MAX || self.0.iter().any(|(_, typed)| *typed == hash) {
            return false;
        }
        self.0.push((tick, hash));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timer_wheel::TICK;

    #[test]
    fn typing_is_limited_to_once_a_second_in_a_few_conversations() {
        let second = ticks(TYPING_INTERVAL);
        assert_eq!(TICK * second, TYPING_INTERVAL);
        let mut limiter = TypingLimiter::default();
        assert!(limiter.admit("a", 7));
        assert!(!limiter.admit("a", 7) && !limiter.admit("a", 6 + second));
        assert!(limiter.admit("a", 7 + second));
        let admitted =
            |limiter: &mut TypingLimiter, tick| (0..20).filter(|n| limiter.admit(&n.to_string(), tick)).count();
        assert_eq!(admitted(&mut limiter, 8 + second), CONVERSATIONS_MAX - 1);
        assert_eq!(admitted(&mut limiter, 7 + 2 * second), 1);
        assert_eq!(admitted(&mut limiter, 100 + 2 * second), CONVERSATIONS_MAX);
    }
}

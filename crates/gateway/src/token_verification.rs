//! The port through which sessions have tokens verified.

use tidings_engine::access::TokenClaims;
use tidings_listen::ThrottleKey;
use tidings_protocol::error::Refusal;

/// Verifies the tokens that clients bind with.
pub trait VerifyToken: Send + Sync + 'static {
    /// The user that the token is for, and what it allows.
    ///
    /// # Errors
    /// `unauthorized`: the token is malformed, expired or not signed with a known key. Other codes: it cannot be verified
    /// now.
    fn verify(&self, token: &str) -> Result<TokenClaims, Refusal>;

    /// Counts a rejected token. Answers after how many milliseconds the next may be tried, if there were too many.
    fn count_failure(&self, _throttle_key: ThrottleKey) -> Option<u64> {
        None
    }
}

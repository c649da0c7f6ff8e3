//! What stands for a push token where the token itself is not needed.

use sha2::{Digest, Sha256};
use tidings_protocol::http::PushToken;

/// Tells tokens apart, without being one: half a SHA-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenDigest([u8; 16]);

impl TokenDigest {
    /// The digest of a token.
    pub fn of(token: &PushToken) -> TokenDigest {
        let hash = Sha256::new().chain_update([token.provider() as u8]).chain_update(token.address()).finalize();
        let mut digest = [0; 16];
        digest.copy_from_slice(&hash[..16]);
        TokenDigest(digest)
    }

    /// The digest with these bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> TokenDigest {
        TokenDigest(bytes)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

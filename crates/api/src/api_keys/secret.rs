//! Secrets of API keys: 256 random bits behind a prefix that scanners of repositories and logs can find. The store has only their hash.

use ring::{
    digest::{SHA256, digest},
    rand::{SecureRandom, SystemRandom},
};
use std::fmt::Write;
use tidings_protocol::error::Refusal;

/// Begins every secret: `tidings_` and 64 hexadecimal digits.
pub const SECRET_PREFIX: &str = "tidings_";
/// Begins every public id: `key_` and 16 hexadecimal digits.
const ID_PREFIX: &str = "key_";

/// The SHA-256 of a secret. Nobody finds 256 random bits by trying, so that a slow hash would protect nothing and cost every request.
pub(super) type SecretHash = [u8; 32];

pub(super) fn hash(secret: &str) -> SecretHash {
    let mut hash = SecretHash::default();
    hash.copy_from_slice(digest(&SHA256, secret.as_bytes()).as_ref());
    hash
}

/// Whether a credential may be a secret of a stored key: others cost no hash.
pub(super) fn is_secret(credential: &str) -> bool {
    credential.starts_with(SECRET_PREFIX)
}

pub(super) fn new_secret() -> Result<String, Refusal> {
    Ok(format!("{SECRET_PREFIX}{}", to_hex(&random::<32>()?)))
}

/// The number of a new key. It is random: after a restore no key gets the id of one that the backup does not know.
pub(super) fn new_number() -> Result<u64, Refusal> {
    Ok(u64::from_be_bytes(random()?))
}

fn random<const BYTES: usize>() -> Result<[u8; BYTES], Refusal> {
    let mut bytes = [0; BYTES];
    SystemRandom::new().fill(&mut bytes).map_err(|_| crate::internal(&"the system has no random numbers"))?;
    Ok(bytes)
}

pub(super) fn id_of(number: u64) -> String {
    format!("{ID_PREFIX}{number:016x}")
}

/// The number of a public id; `None`: no key has this id.
pub(super) fn number_of(id: &str) -> Option<u64> {
    let number = u64::from_str_radix(id.strip_prefix(ID_PREFIX)?, 16).ok()?;
    (id_of(number) == id).then_some(number)
}

pub(super) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(super) fn from_hex(text: &str) -> Option<SecretHash> {
    let mut hash = SecretHash::default();
    if text.len() != hash.len() * 2 || !text.is_ascii() {
        return None;
    }
    for (place, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[place * 2..place * 2 + 2], 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn secrets_differ_and_are_recognised() {
        let (one, other) = (new_secret().unwrap(), new_secret().unwrap());
        assert!(one != other && one.len() == SECRET_PREFIX.len() + 64 && is_secret(&one), "{one}");
        assert!(hash(&one) != hash(&other));
        assert_eq!(from_hex(&to_hex(&hash(&one))), Some(hash(&one)));
        for no_hash in ["", "00", &"g".repeat(64), &"é".repeat(32)] {
            assert_eq!(from_hex(no_hash), None, "{no_hash}");
        }
    }

    #[test]
    fn an_id_is_that_of_one_number() {
        for number in [0, 7, u64::MAX] {
            assert_eq!(number_of(&id_of(number)), Some(number));
        }
        for other in ["me", "key_", "key_7", "key_+000000000000007", "key_000000000000000A", "7"] {
            assert_eq!(number_of(other), None, "{other}");
        }
    }
}

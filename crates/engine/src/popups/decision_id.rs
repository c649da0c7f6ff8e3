//! A decision's id: all that an event of it needs to be counted, sealed, so that nothing is looked up and nothing
//! that was not decided can be reported.
//!
//! ```text
//! form (1)  popup (4)  at (8)  chance (4)  variant's length (1)  variant  user  seal (8)        base64url
//! ```

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

const COUNTED_FORM: u8 = 1;
/// Of a decision for a test user: events of it are not counted.
const TEST_FORM: u8 = 2;
const HEAD_BYTES: usize = 18;
const SEAL_BYTES: usize = 8;
/// Longer text is not looked at: form, both ids at their longest, seal.
const TEXT_BYTES_MAX: usize = 256;

#[derive(Clone)]
pub(super) struct Seal(Hmac<Sha256>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DecisionId {
    pub(super) popup: u32,
    pub(super) at: u64,
    /// Tells two decisions within a millisecond apart.
    pub(super) chance: u32,
    pub(super) variant: String,
    pub(super) user: String,
    pub(super) test: bool,
}

impl Seal {
    pub(super) fn new(secret: &[u8; 32]) -> Self {
        // An HMAC takes keys of any length.
        Seal(Hmac::new_from_slice(secret).unwrap_or_else(|_| Hmac::new(&Default::default())))
    }

    fn over(&self, bytes: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(bytes);
        mac
    }

    pub(super) fn write(&self, id: &DecisionId) -> String {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + id.variant.len() + id.user.len() + SEAL_BYTES);
        bytes.push(if id.test { TEST_FORM } else { COUNTED_FORM });
        bytes.extend_from_slice(&id.popup.to_be_bytes());
        bytes.extend_from_slice(&id.at.to_be_bytes());
        bytes.extend_from_slice(&id.chance.to_be_bytes());
        bytes.push(id.variant.len() as u8);
        bytes.extend_from_slice(id.variant.as_bytes());
        bytes.extend_from_slice(id.user.as_bytes());
        let seal = self.over(&bytes).finalize().into_bytes();
        bytes.extend_from_slice(&seal[..SEAL_BYTES]);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Absent: it was not written here.
    pub(super) fn read(&self, text: &str) -> Option<DecisionId> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (content, seal) = bytes.split_last_chunk::<SEAL_BYTES>()?;
        self.over(content).verify_truncated_left(seal).ok()?;
        let (head, names) = content.split_first_chunk::<HEAD_BYTES>()?;
        let test = match head[0] {
            COUNTED_FORM => false,
            TEST_FORM => true,
            _ => return None,
        };
        let (variant, user) = names.split_at_checked(usize::from(head[17]))?;
        Some(DecisionId {
            popup: u32::from_be_bytes(std::array::from_fn(|at| head[1 + at])),
            at: u64::from_be_bytes(std::array::from_fn(|at| head[5 + at])),
            chance: u32::from_be_bytes(std::array::from_fn(|at| head[13 + at])),
            variant: std::str::from_utf8(variant).ok()?.to_owned(),
            user: std::str::from_utf8(user).ok()?.to_owned(),
            test,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_written_here_is_read() {
        let seal = Seal::new(&[7; 32]);
        let id = DecisionId {
            popup: 9,
            at: 1_764_547_200_000,
            chance: 3,
            variant: "a".into(),
            user: "anné".into(),
            test: false,
        };
        let text = seal.write(&id);
        assert_eq!(seal.read(&text), Some(id));
        assert_eq!(Seal::new(&[8; 32]).read(&text), None);
        for at in 0..text.len() {
            let mut other = text.clone().into_bytes();
            other[at] = if other[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(String::from_utf8(other).ok().and_then(|other| seal.read(&other)), None, "byte {at}");
        }
        for bad in ["", "A", "....", &text[1..], &"A".repeat(300)] {
            assert_eq!(seal.read(bad), None, "{bad}");
        }
    }
}

//! A decision's id: everything that is needed to count an event of it, signed with a truncated HMAC. So an event needs
//! no look-up, and a client cannot report an event of a decision that the server did not make.
//!
//! ```text
//! format (1)  popup (4)  at (8)  nonce (4)  variant's length (1)  variant  user  mac (8)        base64url
//! ```

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

const COUNTED_FORMAT: u8 = 1;
/// The format of decisions for test users, whose events are not counted.
const TEST_FORMAT: u8 = 2;
const HEAD_BYTES: usize = 18;
const MAC_BYTES: usize = 8;
/// A longer text is refused unread: the head, both ids at their longest and the MAC fit.
const TEXT_BYTES_MAX: usize = 256;

#[derive(Clone)]
pub(super) struct DecisionSigner(Hmac<Sha256>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DecisionId {
    pub(super) popup: u32,
    pub(super) at: u64,
    /// Tells two decisions within one millisecond apart.
    pub(super) nonce: u32,
    pub(super) variant: String,
    pub(super) user: String,
    pub(super) test: bool,
}

impl DecisionSigner {
    pub(super) fn new(secret: &[u8; 32]) -> Self {
        // An HMAC takes keys of any length.
        DecisionSigner(Hmac::new_from_slice(secret).unwrap_or_else(|_| Hmac::new(&Default::default())))
    }

    fn mac_of(&self, bytes: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(bytes);
        mac
    }

    pub(super) fn sign(&self, id: &DecisionId) -> String {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + id.variant.len() + id.user.len() + MAC_BYTES);
        bytes.push(if id.test { TEST_FORMAT } else { COUNTED_FORMAT });
        bytes.extend_from_slice(&id.popup.to_be_bytes());
        bytes.extend_from_slice(&id.at.to_be_bytes());
        bytes.extend_from_slice(&id.nonce.to_be_bytes());
        bytes.push(id.variant.len() as u8);
        bytes.extend_from_slice(id.variant.as_bytes());
        bytes.extend_from_slice(id.user.as_bytes());
        let mac = self.mac_of(&bytes).finalize().into_bytes();
        bytes.extend_from_slice(&mac[..MAC_BYTES]);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads a decision's id; `None` if this signer did not sign it.
    pub(super) fn verify(&self, text: &str) -> Option<DecisionId> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (content, mac) = bytes.split_last_chunk::<MAC_BYTES>()?;
        self.mac_of(content).verify_truncated_left(mac).ok()?;
        let (head, names) = content.split_first_chunk::<HEAD_BYTES>()?;
        let test = match head[0] {
            COUNTED_FORMAT => false,
            TEST_FORMAT => true,
            _ => return None,
        };
        let (variant, user) = names.split_at_checked(usize::from(head[17]))?;
        Some(DecisionId {
            popup: u32::from_be_bytes(std::array::from_fn(|at| head[1 + at])),
            at: u64::from_be_bytes(std::array::from_fn(|at| head[5 + at])),
            nonce: u32::from_be_bytes(std::array::from_fn(|at| head[13 + at])),
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
    fn verify_accepts_only_what_the_same_key_signed() {
        let signer = DecisionSigner::new(&[7; 32]);
        let id = DecisionId {
            popup: 9,
            at: 1_764_547_200_000,
            nonce: 3,
            variant: "a".into(),
            user: "anné".into(),
            test: false,
        };
        let text = signer.sign(&id);
        assert_eq!(signer.verify(&text), Some(id));
        assert_eq!(DecisionSigner::new(&[8; 32]).verify(&text), None);
        for at in 0..text.len() {
            let mut other = text.clone().into_bytes();
            other[at] = if other[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(String::from_utf8(other).ok().and_then(|other| signer.verify(&other)), None, "byte {at}");
        }
        for bad in ["", "A", "....", &text[1..], &"A".repeat(300)] {
            assert_eq!(signer.verify(bad), None, "{bad}");
        }
    }
}

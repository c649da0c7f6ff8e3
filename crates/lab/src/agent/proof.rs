//! Both sides prove that they know the token, without saying it: an HMAC over numbers that each side has drawn for this
//! connection. It keeps strangers from using an agent; it does not encrypt what follows.

use ring::hmac::{self, HMAC_SHA256, Key};

/// A token with fewer characters could be found by trying, from one recorded greeting.
pub(crate) const TOKEN_CHARACTERS_MIN: usize = 16;

/// The numbers that both sides have drawn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nonces<'a> {
    pub(crate) agent: &'a str,
    pub(crate) coordinator: &'a str,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Side {
    Coordinator,
    Agent,
}

pub(crate) fn draw_nonce() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// What a side signs with the token.
fn statement(side: Side, nonces: Nonces<'_>) -> Vec<u8> {
    // The side is part of it, so that neither side's proof can be sent back as the other's.
    let side = match side {
        Side::Coordinator => "tidings lab coordinator",
        Side::Agent => "tidings lab agent",
    };
    let parts = [side, nonces.agent, nonces.coordinator];
    parts.map(|part| [&(part.len() as u64).to_le_bytes(), part.as_bytes()].concat()).concat()
}

/// The proof that this side knows the token.
pub(crate) fn prove(token: &str, side: Side, nonces: Nonces<'_>) -> String {
    let proof = hmac::sign(&Key::new(HMAC_SHA256, token.as_bytes()), &statement(side, nonces));
    proof.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether the other side's proof is right; the time that this takes says nothing about the right one.
pub(crate) fn is_proof(proof: &str, token: &str, side: Side, nonces: Nonces<'_>) -> bool {
    let hex = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = proof.as_bytes().chunks(2).map(hex).collect();
    let key = Key::new(HMAC_SHA256, token.as_bytes());
    bytes.is_some_and(|bytes| hmac::verify(&key, &statement(side, nonces), &bytes).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_its_token_side_and_connection_alone() {
        let nonces = Nonces { agent: "a", coordinator: "c" };
        let proof = prove("token", Side::Agent, nonces);
        assert!(is_proof(&proof, "token", Side::Agent, nonces));
        assert!(!is_proof(&proof, "Token", Side::Agent, nonces));
        assert!(!is_proof(&proof, "token", Side::Coordinator, nonces));
        for other in [Nonces { agent: "b", ..nonces }, Nonces { agent: "ac", coordinator: "" }] {
            assert!(!is_proof(&proof, "token", Side::Agent, other));
        }
        for wrong in ["", "zz", "é", &proof[2..], &format!("{proof}00")] {
            assert!(!is_proof(wrong, "token", Side::Agent, nonces), "{wrong}");
        }
    }
}

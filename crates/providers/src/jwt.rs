//! Signed tokens in the compact form of RFC 7515, by which providers know the sender.

use crate::SetupError;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    rand::SystemRandom,
    rsa,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, RSA_PKCS1_SHA256},
};
use rustls::pki_types::{PrivatePkcs8KeyDer, pem::PemObject};
use serde::Serialize;

/// A private key with its one algorithm.
pub(crate) enum SigningKey {
    /// ES256: ECDSA on P-256.
    Es256(EcdsaKeyPair),
    /// RS256: RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256(rsa::KeyPair),
}

impl SigningKey {
    /// The ES256 key of a PEM file (PKCS#8), as Apple hands it out; `what` names it in an error.
    pub(crate) fn es256_from_pem(pem: &[u8], what: &str) -> Result<SigningKey, SetupError> {
        let der = pkcs8(pem, what)?;
        let random = SystemRandom::new();
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der.secret_pkcs8_der(), &random)
            .map(SigningKey::Es256)
            .map_err(|error| SetupError::Credentials(format!("{what} is not a private key of P-256: {error}")))
    }

    /// The ES256 key of raw bytes, as tools for Web Push print them. Some leave out a private key's leading zeros, which one key of 256
    /// has.
    pub(crate) fn es256_from_bytes(private: &[u8], public: &[u8]) -> Result<SigningKey, SetupError> {
        const PRIVATE_BYTES: usize = 32;
        let zeros = PRIVATE_BYTES.saturating_sub(private.len());
        let private = [&[0; PRIVATE_BYTES][..zeros], private].concat();
        let random = SystemRandom::new();
        EcdsaKeyPair::from_private_key_and_public_key(&ECDSA_P256_SHA256_FIXED_SIGNING, &private, public, &random)
            .map(SigningKey::Es256)
            .map_err(|error| {
                SetupError::Credentials(format!("the private key and the public key are not a pair of P-256: {error}"))
            })
    }

    /// The RS256 key of a PEM text (PKCS#8), as Google hands it out.
    pub(crate) fn rs256_from_pem(pem: &[u8], what: &str) -> Result<SigningKey, SetupError> {
        let der = pkcs8(pem, what)?;
        rsa::KeyPair::from_pkcs8(der.secret_pkcs8_der())
            .map(SigningKey::Rs256)
            .map_err(|error| SetupError::Credentials(format!("{what} is not an RSA private key: {error}")))
    }

    /// A token with these claims. `None`: the system has no randomness.
    pub(crate) fn sign(&self, key_id: Option<&str>, claims: &impl Serialize) -> Option<String> {
        #[derive(Serialize)]
        struct Header<'a> {
            alg: &'static str,
            typ: &'static str,
            #[serde(skip_serializing_if = "Option::is_none")]
            kid: Option<&'a str>,
        }
        let alg = match self {
            SigningKey::Es256(_) => "ES256",
            SigningKey::Rs256(_) => "RS256",
        };
        let header = serde_json::to_vec(&Header { alg, typ: "JWT", kid: key_id }).ok()?;
        let claims = serde_json::to_vec(claims).ok()?;
        let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let random = SystemRandom::new();
        let signature = match self {
            SigningKey::Es256(key) => key.sign(&random, signed.as_bytes()).ok()?.as_ref().to_vec(),
            SigningKey::Rs256(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, signed.as_bytes(), &mut signature).ok()?;
                signature
            }
        };
        Some(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

fn pkcs8(pem: &[u8], what: &str) -> Result<PrivatePkcs8KeyDer<'static>, SetupError> {
    PrivatePkcs8KeyDer::from_pem_slice(pem)
        .map_err(|_| SetupError::Credentials(format!("{what} is not a private key in PEM (PKCS#8)")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn key(text: &str) -> Vec<u8> {
        URL_SAFE_NO_PAD.decode(text).unwrap()
    }

    #[test]
    fn a_private_key_is_the_same_with_its_leading_zeros_and_without_them() {
        let (private, public) = (key(PRIVATE), key(PUBLIC));
        assert_eq!((private.len(), private[0]), (32, 0));
        for private in [&private[..], &private[1..]] {
            assert!(SigningKey::es256_from_bytes(private, &public).is_ok());
        }
        for wrong in [&private[2..], &[], &[&private[..], &[0]].concat()] {
            assert!(SigningKey::es256_from_bytes(wrong, &public).is_err());
        }
    }

    /// Made by Node's `ECDH`, which prints the private key without its first byte.
    const PRIVATE: &str = "AKHnyJh8_0n-iR6HG82tBXkrdnI2d-Hhuay8LSd3z1Y";
    const PUBLIC: &str = "BGY8da0R80q7uGnpITqr2zp4b4EA5gY2uJuINX8c3bhnZ4QaPzmxp9Qylf8s8juNkhtshPOvo_-9B4xnxWm23NE";
}

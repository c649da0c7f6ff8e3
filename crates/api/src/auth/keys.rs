//! Public keys that verify tokens, from the key sets of RFC 7517. Each key verifies one algorithm only.

use super::jwt::{Jwt, from_base64};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;
use std::collections::HashMap;

/// Keys of one set. A larger set is refused: a token without `kid` is checked against all of them.
pub(super) const KEYS_MAX: usize = 100;
/// The length of an RSA modulus, in bytes: keys have from 2,048 to 8,192 bits.
const RSA_BYTES: std::ops::RangeInclusive<usize> = 256..=1_024;

/// A key set that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeySetError {
    #[error("the key set is not JSON of RFC 7517: {0}")]
    Json(#[from] serde_json::Error),
    #[error("key {0:?} of the key set is not usable: {1}")]
    Key(String, &'static str),
    #[error("the key set holds no RSA, P-256 or Ed25519 key for signatures")]
    Empty,
    #[error("the key set holds {0} keys; {KEYS_MAX} are the limit")]
    TooMany(usize),
}

enum PublicKey {
    /// Modulus and exponent, for RS256.
    Rsa { n: Vec<u8>, e: Vec<u8> },
    /// A point that is not compressed, for ES256.
    P256(Vec<u8>),
    /// For EdDSA.
    Ed25519(Vec<u8>),
}

impl PublicKey {
    fn is_for(&self, algorithm: &str) -> bool {
        match self {
            PublicKey::Rsa { .. } => algorithm == "RS256",
            PublicKey::P256(_) => algorithm == "ES256",
            // RFC 9864 gives the algorithm a name of its own.
            PublicKey::Ed25519(_) => algorithm == "EdDSA" || algorithm == "Ed25519",
        }
    }

    fn verify(&self, token: &Jwt<'_>) -> bool {
        let (signed, signature) = (token.signed(), token.signature());
        let is_good = match self {
            PublicKey::Rsa { n, e } => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PKCS1_2048_8192_SHA256, signed, signature)
            }
            PublicKey::P256(point) => UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(signed, signature),
            PublicKey::Ed25519(key) => UnparsedPublicKey::new(&ED25519, key).verify(signed, signature),
        };
        is_good.is_ok()
    }
}

/// A key as the set's JSON has it.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

#[derive(Deserialize)]
struct Jwks {
    keys: Vec<serde_json::Value>,
}

impl Jwk {
    /// `None`: a key of another kind or for another purpose, which a set may hold.
    fn public_key(&self) -> Result<Option<PublicKey>, &'static str> {
        let is_for_signatures = self.usage.as_deref().is_none_or(|usage| usage == "sig")
            && self.key_ops.as_ref().is_none_or(|operations| operations.iter().any(|one| one == "verify"));
        if !is_for_signatures {
            return Ok(None);
        }
        let bytes = |field: &Option<String>, why| field.as_deref().and_then(from_base64).ok_or(why);
        let key = match (self.kty.as_str(), self.crv.as_deref()) {
            ("RSA", _) => {
                let mut n = bytes(&self.n, "`n` is not base64url")?;
                let e = bytes(&self.e, "`e` is not base64url")?;
                // Some libraries write a leading zero byte, as for a signed number.
                n.drain(..n.iter().take_while(|byte| **byte == 0).count());
                if !RSA_BYTES.contains(&n.len()) {
                    return Err("an RSA key has from 2,048 to 8,192 bits");
                }
                PublicKey::Rsa { n, e }
            }
            ("EC", Some("P-256")) => {
                let (x, y) = (bytes(&self.x, "`x` is not base64url")?, bytes(&self.y, "`y` is not base64url")?);
                if x.len() != 32 || y.len() != 32 {
                    return Err("`x` and `y` of P-256 are 32 bytes each");
                }
                PublicKey::P256([&[4][..], &x, &y].concat())
            }
            ("OKP", Some("Ed25519")) => {
                let x = bytes(&self.x, "`x` is not base64url")?;
                if x.len() != 32 {
                    return Err("`x` of Ed25519 is 32 bytes");
                }
                PublicKey::Ed25519(x)
            }
            // Other curves are not supported, and a secret has no place in a public set.
            _ => return Ok(None),
        };
        // A key for another algorithm of its kind (PS256, say) verifies no token that we accept.
        Ok(self.alg.as_deref().is_none_or(|algorithm| key.is_for(algorithm)).then_some(key))
    }
}

/// Keys by their ids, and keys without an id.
#[derive(Default)]
pub(super) struct KeySet {
    by_id: HashMap<String, Vec<PublicKey>>,
    unnamed: Vec<PublicKey>,
}

impl KeySet {
    /// Reads a set that an operator wrote: any unusable key is an error.
    pub(super) fn from_file(text: &str) -> Result<KeySet, KeySetError> {
        KeySet::read(text.as_bytes(), |id, why| Err(KeySetError::Key(id.into(), why)))
    }

    /// Reads a set that another service publishes: unusable keys are left out.
    pub(super) fn from_service(text: &[u8]) -> Result<KeySet, KeySetError> {
        KeySet::read(text, |id, why| {
            tracing::warn!(key = id, why, "a key of the fetched key set is left out");
            Ok(())
        })
    }

    fn read(
        text: &[u8],
        mut unusable: impl FnMut(&str, &'static str) -> Result<(), KeySetError>,
    ) -> Result<KeySet, KeySetError> {
        let Jwks { keys } = serde_json::from_slice(text)?;
        if keys.len() > KEYS_MAX {
            return Err(KeySetError::TooMany(keys.len()));
        }
        let mut set = KeySet::default();
        for value in keys {
            let Ok(jwk) = Jwk::deserialize(value) else {
                unusable("", "it is not a JSON Web Key")?;
                continue;
            };
            let id = jwk.kid.clone();
            match jwk.public_key() {
                Err(why) => unusable(id.as_deref().unwrap_or_default(), why)?,
                Ok(None) => {}
                Ok(Some(key)) => match id {
                    Some(id) => set.by_id.entry(id).or_default().push(key),
                    None => set.unnamed.push(key),
                },
            }
        }
        if set.is_empty() { Err(KeySetError::Empty) } else { Ok(set) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty() && self.unnamed.is_empty()
    }

    /// Whether the set has the key with this id; without an id, whether it has any key.
    pub(super) fn knows(&self, id: Option<&str>) -> bool {
        id.map_or(!self.is_empty(), |id| self.by_id.contains_key(id))
    }

    /// Whether a key of the set has signed the token: the key that the token names or a key without an id; for a token that
    /// names no key, any.
    pub(super) fn verify(&self, token: &Jwt<'_>) -> bool {
        let header = token.header();
        let mut named: Box<dyn Iterator<Item = &PublicKey>> = match &header.kid {
            Some(id) => Box::new(self.by_id.get(id).into_iter().flatten()),
            None => Box::new(self.by_id.values().flatten()),
        };
        let mut is_good = |key: &PublicKey| key.is_for(&header.alg) && key.verify(token);
        named.any(&mut is_good) || self.unnamed.iter().any(is_good)
    }
}

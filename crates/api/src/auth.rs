//! Who is calling: an app server by its API key, or a user by a token that the app has signed.

use jsonwebtoken::{
    Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, decode_header, encode,
    errors::ErrorKind,
    get_current_timestamp,
    jwk::{AlgorithmParameters, JwkSet},
};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use subtle::ConstantTimeEq;
use tidings_protocol::error::{ErrorCode, Refusal};

/// Two clocks may differ by this much before a fresh token counts as expired, in seconds.
const CLOCK_SKEW_S: u64 = 5;
/// A token longer than this is refused unread.
const TOKEN_BYTES_MAX: usize = 8 * 1024;

/// The keys of app servers. Several may be valid at once, so that one can be replaced without a pause.
#[derive(Default)]
pub struct ApiKeys(Vec<String>);

impl ApiKeys {
    /// Empty keys are left out: an unset variable must not open the door.
    pub fn new(keys: impl IntoIterator<Item = String>) -> Self {
        ApiKeys(keys.into_iter().filter(|key| !key.is_empty()).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Compares with every key in full, so that the time taken says nothing about how close a guess was.
    pub fn contain(&self, key: &str) -> bool {
        let found =
            self.0.iter().fold(subtle::Choice::from(0), |found, known| found | known.as_bytes().ct_eq(key.as_bytes()));
        found.into()
    }
}

/// A key that signs tokens, with the one algorithm it is for: a public RSA key must never be
/// taken for a shared secret.
struct TokenKey {
    key: DecodingKey,
    validation: Validation,
}

impl TokenKey {
    fn new(key: DecodingKey, algorithm: Algorithm) -> Self {
        let mut validation = Validation::new(algorithm);
        validation.leeway = CLOCK_SKEW_S;
        validation.validate_nbf = true;
        // The audience is the app's own business; one that is present must not fail the token.
        validation.validate_aud = false;
        validation.set_required_spec_claims(&["exp", "sub"]);
        TokenKey { key, validation }
    }
}

/// Verifies user tokens: JWTs with `sub` (the user's id) and `exp`.
#[derive(Default)]
pub struct Tokens {
    shared: Option<TokenKey>,
    by_id: HashMap<String, TokenKey>,
    unnamed: Vec<TokenKey>,
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
}

/// Names the key that nodes sign with.
const NODES_KEY_ID: &str = "tidings-nodes";
/// As long as a request from node to node may be on its way, in seconds.
const NODE_TOKEN_S: u64 = 60;

/// Tokens that one node of a cluster signs for another: a user whose session it holds asks something that the other answers.
#[derive(Clone)]
pub struct NodeTokens {
    key_text: String,
}

#[derive(Serialize)]
struct NodeClaims<'a> {
    sub: &'a str,
    exp: u64,
}

impl NodeTokens {
    /// `secret`: that of the cluster.
    pub fn new(secret: &str) -> Self {
        // Not the secret itself: what is signed for one purpose is of no use for another.
        NodeTokens { key_text: format!("{NODES_KEY_ID} {secret}") }
    }

    pub(crate) fn sign(&self, user: &str) -> Result<String, jsonwebtoken::errors::Error> {
        let header = Header { kid: Some(NODES_KEY_ID.into()), ..Header::new(Algorithm::HS256) };
        let claims = NodeClaims { sub: user, exp: get_current_timestamp() + NODE_TOKEN_S };
        encode(&header, &claims, &EncodingKey::from_secret(self.key_text.as_bytes()))
    }
}

/// A key set that cannot be used; the server must not start with it.
#[derive(Debug, thiserror::Error)]
pub enum KeySetError {
    #[error("the key set is not JSON of RFC 7517: {0}")]
    Json(#[from] serde_json::Error),
    #[error("key {0:?} of the key set is not usable: {1}")]
    Key(String, jsonwebtoken::errors::Error),
    #[error("the key set holds no RSA or Ed25519 key for signatures")]
    Empty,
}

impl Tokens {
    /// `secret`: of HS256 tokens. `key_set`: the text of a JWKS with the public keys of RS256 and EdDSA tokens.
    pub fn new(secret: Option<&str>, key_set: Option<&str>) -> Result<Self, KeySetError> {
        let shared = secret
            .filter(|secret| !secret.is_empty())
            .map(|secret| TokenKey::new(DecodingKey::from_secret(secret.as_bytes()), Algorithm::HS256));
        let mut tokens = Tokens { shared, ..Tokens::default() };
        if let Some(text) = key_set {
            tokens.add_key_set(&serde_json::from_str(text)?)?;
        }
        Ok(tokens)
    }

    /// Also takes what nodes of the cluster sign for users whose sessions they hold.
    pub fn trust(&mut self, nodes: &NodeTokens) {
        let key = DecodingKey::from_secret(nodes.key_text.as_bytes());
        self.by_id.insert(NODES_KEY_ID.into(), TokenKey::new(key, Algorithm::HS256));
    }

    fn add_key_set(&mut self, keys: &JwkSet) -> Result<(), KeySetError> {
        for jwk in &keys.keys {
            let algorithm = match &jwk.algorithm {
                AlgorithmParameters::RSA(_) => Algorithm::RS256,
                AlgorithmParameters::OctetKeyPair(_) => Algorithm::EdDSA,
                // Elliptic curves are not taken, and a secret has no place in a public set.
                _ => continue,
            };
            let id = jwk.common.key_id.clone();
            let name = || id.clone().unwrap_or_default();
            let key = DecodingKey::from_jwk(jwk).map_err(|error| KeySetError::Key(name(), error))?;
            let key = TokenKey::new(key, algorithm);
            match id {
                Some(id) => drop(self.by_id.insert(id, key)),
                None => self.unnamed.push(key),
            }
        }
        if self.by_id.is_empty() && self.unnamed.is_empty() { Err(KeySetError::Empty) } else { Ok(()) }
    }

    /// Whether any token could be valid.
    pub fn is_empty(&self) -> bool {
        self.shared.is_none() && self.by_id.is_empty() && self.unnamed.is_empty()
    }

    /// The id of the token's user. `token_expired` when only its time is over, `unauthorized` for all else.
    pub fn verify(&self, token: &str) -> Result<String, Refusal> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(Refusal::limit("token (bytes)", TOKEN_BYTES_MAX as u64, token.len() as u64));
        }
        let header =
            decode_header(token).map_err(|_| invalid("it is neither an API key nor a JWT of a known algorithm"))?;
        let named = header.kid.as_ref().and_then(|id| self.by_id.get(id));
        let candidates = named.into_iter().chain(self.shared.as_ref()).chain(&self.unnamed);
        let mut why = invalid("it is signed by none of our keys");
        for key in candidates.filter(|key| key.validation.algorithms.contains(&header.alg)) {
            match decode::<Claims>(token, &key.key, &key.validation) {
                Ok(data) => return Ok(data.claims.sub),
                Err(error) => match error.kind() {
                    ErrorKind::ExpiredSignature => {
                        return Err(Refusal::new(ErrorCode::TokenExpired, "the token has expired; get a new one"));
                    }
                    ErrorKind::ImmatureSignature => why = invalid("its time has not come (`nbf`)"),
                    ErrorKind::MissingRequiredClaim(claim) => why = invalid(&format!("it has no `{claim}`")),
                    ErrorKind::InvalidSignature => {}
                    _ => why = invalid("its claims are not valid"),
                },
            }
        }
        Err(why)
    }
}

fn invalid(why: &str) -> Refusal {
    Refusal::new(ErrorCode::Unauthorized, format!("the token is not valid: {why}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use jsonwebtoken::{EncodingKey, Header, encode};
    use serde_json::{Value, json};

    const SECRET: &str = "a secret of the app that is long enough";

    fn signed(algorithm: Algorithm, secret: &str, claims: Value) -> String {
        encode(&Header::new(algorithm), &claims, &EncodingKey::from_secret(secret.as_bytes())).unwrap()
    }

    fn check(token: &str, expected: Result<&str, ErrorCode>) {
        let tokens = Tokens::new(Some(SECRET), None).unwrap();
        assert_eq!(tokens.verify(token).as_deref().map_err(|refusal| refusal.code), expected, "{token}");
    }

    #[test]
    fn only_a_token_of_our_key_and_time_names_a_user() {
        let far = 4_000_000_000u64;
        check(&signed(Algorithm::HS256, SECRET, json!({"sub": "alice", "exp": far})), Ok("alice"));
        check(&signed(Algorithm::HS256, SECRET, json!({"sub": "alice", "exp": far, "aud": "x"})), Ok("alice"));
        let unauthorized = Err(ErrorCode::Unauthorized);
        check(&signed(Algorithm::HS256, SECRET, json!({"sub": "alice", "exp": 1})), Err(ErrorCode::TokenExpired));
        check(&signed(Algorithm::HS256, SECRET, json!({"sub": "alice"})), unauthorized);
        check(&signed(Algorithm::HS256, SECRET, json!({"exp": far})), unauthorized);
        check(&signed(Algorithm::HS256, SECRET, json!({"sub": 7, "exp": far})), unauthorized);
        check(&signed(Algorithm::HS256, SECRET, json!({"sub": "alice", "exp": far, "nbf": far - 1})), unauthorized);
        check(&signed(Algorithm::HS256, "another secret", json!({"sub": "alice", "exp": far})), unauthorized);
        check(&signed(Algorithm::HS512, SECRET, json!({"sub": "alice", "exp": far})), unauthorized);
        // {"alg":"none"}.{"sub":"alice","exp":4000000000}, unsigned
        check("eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSIsImV4cCI6NDAwMDAwMDAwMH0.", unauthorized);
        for broken in ["", ".", "..", "a.b.c", "eyJhbGciOiJIUzI1NiJ9", "\u{0}"] {
            check(broken, unauthorized);
        }
        check(&"x".repeat(TOKEN_BYTES_MAX + 1), Err(ErrorCode::LimitExceeded));
    }

    /// An Ed25519 key of 32 bytes as PKCS #8.
    fn ed25519(seed: [u8; 32]) -> EncodingKey {
        const HEAD: &[u8] = &[0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
        EncodingKey::from_ed_der(&[HEAD, &seed].concat())
    }

    fn key_set(key: &EncodingKey, algorithm: Algorithm, id: Option<&str>) -> String {
        let mut jwk = jsonwebtoken::jwk::Jwk::from_encoding_key(key, algorithm).unwrap();
        jwk.common.key_id = id.map(str::to_owned);
        json!({ "keys": [jwk] }).to_string()
    }

    #[test]
    fn a_token_of_a_key_in_the_set_is_valid_with_or_without_a_name() {
        let (ours, theirs) = (ed25519([7; 32]), ed25519([8; 32]));
        let claims = json!({"sub": "alice", "exp": 4_000_000_000u64});
        let signed = |key: &EncodingKey, id: Option<&str>| {
            let header = Header { kid: id.map(str::to_owned), ..Header::new(Algorithm::EdDSA) };
            encode(&header, &claims, key).unwrap()
        };
        for (set_id, token_id) in [(None, None), (Some("k1"), Some("k1")), (None, Some("k1"))] {
            let set = key_set(&ours, Algorithm::EdDSA, set_id);
            let tokens = Tokens::new(Some(SECRET), Some(&set)).unwrap();
            assert_eq!(tokens.verify(&signed(&ours, token_id)).as_deref(), Ok("alice"), "{set_id:?} {token_id:?}");
            let foreign = tokens.verify(&signed(&theirs, token_id)).unwrap_err();
            assert_eq!(foreign.code, ErrorCode::Unauthorized);
            // The secret goes on being valid beside the set.
            let shared = super::tests::signed(Algorithm::HS256, SECRET, claims.clone());
            assert_eq!(tokens.verify(&shared).as_deref(), Ok("alice"));
        }
    }

    #[test]
    fn a_public_key_is_no_secret() {
        let set = key_set(&ed25519([7; 32]), Algorithm::EdDSA, Some("k1"));
        let tokens = Tokens::new(None, Some(&set)).unwrap();
        let public: Value = serde_json::from_str(&set).unwrap();
        let public = public["keys"][0]["x"].as_str().unwrap();
        let header = Header { kid: Some("k1".into()), ..Header::new(Algorithm::HS256) };
        let claims = json!({"sub": "alice", "exp": 4_000_000_000u64});
        let forged = encode(&header, &claims, &EncodingKey::from_secret(public.as_bytes())).unwrap();
        assert_eq!(tokens.verify(&forged).unwrap_err().code, ErrorCode::Unauthorized);
    }

    #[test]
    fn a_key_set_without_a_usable_key_is_refused() {
        for bad in ["", "{}", r#"{"keys":[]}"#, r#"{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}"#] {
            assert!(Tokens::new(None, Some(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_unset_key_opens_nothing() {
        let keys = ApiKeys::new(["".to_owned(), "k1".to_owned(), "k2".to_owned()]);
        assert!(keys.contain("k1") && keys.contain("k2"));
        assert!(!keys.contain("") && !keys.contain("k") && !keys.contain("k11"));
        assert!(Tokens::new(Some(""), None).unwrap().is_empty());
    }
}

//! Who is calling: an app server by its API key, or a user by a token that the app has signed.
//!
//! In reading order: [`TokenVerifier`] (the keys and rules that tokens are checked against), `jwt` (parsing tokens), `keys`
//! (public keys), [`remote_keys`] (keys that are fetched by URL).

mod jwt;
mod keys;
pub mod remote_keys;
#[cfg(test)]
mod tests;

pub use keys::KeySetError;

use jwt::Jwt;
use keys::KeySet;
use remote_keys::{RemoteKeys, RemoteVerdict};
use ring::hmac;
use serde::Serialize;
use std::{sync::Arc, time::SystemTime, time::UNIX_EPOCH};
use subtle::ConstantTimeEq;
use tidings_engine::access::{Scopes, TokenClaims};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::KeyScope,
};

/// How much the clocks of the signer and this server may differ.
const CLOCK_SKEW_MS: u64 = 5_000;
/// How far `iat` may lie ahead. A later one is in another unit, or is meant to outlive a revocation.
const ISSUED_AHEAD_MS_MAX: u64 = 5 * 60 * 1_000;
/// A shorter API key can be guessed. 16 hexadecimal digits are 64 random bits: a million guesses a second find them in 300,000 years.
pub const API_KEY_BYTES_MIN: usize = 16;
/// A key of fewer different characters was not made at random.
const API_KEY_CHARACTERS_MIN: usize = 8;
/// A token longer than this is refused unread.
const TOKEN_BYTES_MAX: usize = 8 * 1024;

/// The keys of app servers. Several may be valid at once, so that one can be replaced without a pause.
#[derive(Default)]
pub struct ApiKeys(Vec<String>);

impl ApiKeys {
    /// Leaves out empty keys: an unset variable must not let everybody in.
    pub fn new(keys: impl IntoIterator<Item = String>) -> Self {
        ApiKeys(keys.into_iter().filter(|key| !key.is_empty()).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Compares with every key in full, so that the time taken does not show how close a guess was.
    pub fn contain(&self, key: &str) -> bool {
        is_among(self.0.iter(), key)
    }

    /// Whether this is one of the keys that nobody guesses, however often they try. Such a key is let in from any address; guesses
    /// at another one must be few.
    pub fn contain_unguessable(&self, key: &str) -> bool {
        is_among(self.0.iter().filter(|known| is_unguessable(known)), key)
    }
}

fn is_among<'a>(keys: impl Iterator<Item = &'a String>, key: &str) -> bool {
    keys.fold(subtle::Choice::from(0), |found, known| found | known.as_bytes().ct_eq(key.as_bytes())).into()
}

/// Whether a key can be taken for one that was made at random: long enough, and of more than a few characters.
pub fn is_unguessable(key: &str) -> bool {
    let mut characters: Vec<u8> = key.bytes().collect();
    characters.sort_unstable();
    characters.dedup();
    key.len() >= API_KEY_BYTES_MIN && characters.len() >= API_KEY_CHARACTERS_MIN
}

/// What a token must claim to be accepted.
#[derive(Debug, Clone)]
pub struct TokenRules {
    /// `aud` must name one of these. Empty: `aud` is not checked.
    pub audience: Vec<String>,
    /// `iss` must be one of these. Empty: `iss` is not checked.
    pub issuer: Vec<String>,
    /// How far `exp` may lie ahead, in seconds.
    pub lifetime_s_max: u64,
    /// The scopes of a token without `scope`.
    pub default_scopes: Scopes,
}

impl Default for TokenRules {
    fn default() -> Self {
        TokenRules {
            audience: Vec::new(),
            issuer: Vec::new(),
            lifetime_s_max: 366 * 24 * 60 * 60,
            default_scopes: Scopes::ALL,
        }
    }
}

/// Verifies user tokens: JWTs with `sub` (the user's id) and `exp`.
#[derive(Default)]
pub struct TokenVerifier {
    rules: TokenRules,
    /// The key of HS256. Public keys are kept apart from it, so that none can be used as this secret.
    shared_key: Option<hmac::Key>,
    /// The key that nodes of this cluster sign with.
    node_key: Option<hmac::Key>,
    keys: KeySet,
    remote: Option<Arc<RemoteKeys>>,
}

/// The `kid` of the key that nodes sign with.
const NODES_KEY_ID: &str = "tidings-nodes";
/// The lifetime of a node's token, in seconds: as long as a request from node to node may take.
const NODE_TOKEN_S: u64 = 60;

/// The `sub` of a node that calls for itself. No user has this id.
pub(crate) const NODE_ITSELF: &str = "";
/// What a node may do that calls for itself: no more than its work needs.
pub(crate) const NODE_SCOPES: [KeyScope; 2] = [KeyScope::Push, KeyScope::Popups];

/// Signs the tokens with which one node of a cluster calls another: for a user whose session it holds, or for itself.
#[derive(Clone)]
pub struct NodeTokenSigner {
    key: hmac::Key,
}

#[derive(Serialize)]
struct NodeClaims<'a> {
    sub: &'a str,
    exp: u64,
}

impl NodeTokenSigner {
    /// `secret`: that of the cluster.
    pub fn new(secret: &str) -> Self {
        // A key derived from the secret: a signature made for another purpose is no token.
        let text = format!("{NODES_KEY_ID} {secret}");
        NodeTokenSigner { key: hmac::Key::new(hmac::HMAC_SHA256, text.as_bytes()) }
    }

    /// `user`: on whose behalf; `None`: for the node itself.
    pub(crate) fn sign(&self, user: Option<&str>) -> Result<String, serde_json::Error> {
        let header = format!(r#"{{"alg":"HS256","kid":"{NODES_KEY_ID}"}}"#);
        let sub = user.unwrap_or(NODE_ITSELF);
        let claims = serde_json::to_vec(&NodeClaims { sub, exp: now_ms() / 1_000 + NODE_TOKEN_S })?;
        let mut token = format!("{}.{}", jwt::to_base64(header.as_bytes()), jwt::to_base64(&claims));
        let signature = hmac::sign(&self.key, token.as_bytes());
        token.push('.');
        token.push_str(&jwt::to_base64(signature.as_ref()));
        Ok(token)
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl TokenVerifier {
    /// `secret`: of HS256 tokens. `key_set`: the text of a JWKS with the public keys of RS256, ES256 and EdDSA tokens.
    ///
    /// # Errors
    /// The key set cannot be read, or a key of it cannot be used.
    pub fn new(secret: Option<&str>, key_set: Option<&str>) -> Result<Self, KeySetError> {
        let shared_key = secret
            .filter(|secret| !secret.is_empty())
            .map(|secret| hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()));
        let keys = key_set.map(KeySet::from_file).transpose()?.unwrap_or_default();
        Ok(TokenVerifier { shared_key, keys, ..TokenVerifier::default() })
    }

    /// The same verifier with these rules.
    #[must_use]
    pub fn with_rules(mut self, rules: TokenRules) -> Self {
        self.rules = rules;
        self
    }

    /// Also accepts the tokens that nodes of the cluster sign.
    pub fn trust_nodes(&mut self, nodes: &NodeTokenSigner) {
        self.node_key = Some(nodes.key.clone());
    }

    /// Also accepts tokens that are signed with keys that are fetched by URL.
    pub fn use_remote_keys(&mut self, remote: Arc<RemoteKeys>) {
        self.remote = Some(remote);
    }

    /// Whether any token could be valid.
    pub fn is_empty(&self) -> bool {
        self.shared_key.is_none() && self.keys.is_empty() && self.remote.is_none()
    }

    /// The user and the scopes of a token.
    ///
    /// # Errors
    /// `token_expired` if the token is good but for `exp`, `node_unavailable` while its key is being fetched, `limit_exceeded` if it
    /// is too long, `unauthorized` otherwise.
    pub fn verify(&self, token: &str) -> Result<TokenClaims, Refusal> {
        self.verify_at(token, now_ms())
    }

    fn verify_at(&self, token: &str, now_ms: u64) -> Result<TokenClaims, Refusal> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(Refusal::limit("token (bytes)", TOKEN_BYTES_MAX as u64, token.len() as u64));
        }
        let token = Jwt::read(token)?;
        let signed_by_node = self.check_signature(&token)?;
        let claims = token.claims()?;
        let expires_at = claims.exp()?;
        // Checked before the other claims: the client can mend an expired token by itself, with a new one.
        if now_ms >= expires_at.saturating_add(CLOCK_SKEW_MS) {
            return Err(Refusal::new(ErrorCode::TokenExpired, "the token has expired (`exp`); get a new one"));
        }
        let issued_at = claims.iat()?;
        if !signed_by_node {
            self.check_times(expires_at, issued_at, claims.nbf()?, now_ms)?;
            claims.check_names("aud", &self.rules.audience)?;
            claims.check_names("iss", &self.rules.issuer)?;
        }
        let scopes = if signed_by_node { Scopes::ALL } else { claims.scopes()?.unwrap_or(self.rules.default_scopes) };
        Ok(TokenClaims { user: claims.sub()?, scopes, issued_at, expires_at, signed_by_node })
    }

    fn check_times(
        &self,
        expires_at: u64,
        issued_at: Option<u64>,
        not_before: Option<u64>,
        now_ms: u64,
    ) -> Result<(), Refusal> {
        if not_before.is_some_and(|at| at > now_ms + CLOCK_SKEW_MS) {
            return Err(invalid("its time has not come (`nbf`)"));
        }
        let most = self.rules.lifetime_s_max;
        if expires_at > now_ms.saturating_add(most.saturating_mul(1_000)).saturating_add(CLOCK_SKEW_MS) {
            let why = format!(
                "`exp` lies more than {most} s ahead, the longest lifetime; it counts seconds since 1970, not milliseconds"
            );
            return Err(invalid(&why));
        }
        if issued_at.is_some_and(|at| at > now_ms + ISSUED_AHEAD_MS_MAX) {
            return Err(invalid("`iat` lies ahead; it counts seconds since 1970, not milliseconds"));
        }
        Ok(())
    }

    /// Checks that one of our keys signed the token. Returns whether it was the key of the cluster's nodes.
    fn check_signature(&self, token: &Jwt<'_>) -> Result<bool, Refusal> {
        let wrong = || invalid("it is signed by none of our keys");
        let header = token.header();
        let id = header.kid.as_deref();
        if header.alg == "HS256" {
            if let Some(node_key) = self.node_key.as_ref().filter(|_| id == Some(NODES_KEY_ID)) {
                return token.is_by_secret(node_key).then_some(true).ok_or_else(wrong);
            }
            let is_good = self.shared_key.as_ref().is_some_and(|key| token.is_by_secret(key));
            return is_good.then_some(false).ok_or_else(wrong);
        }
        if self.keys.verify(token) {
            return Ok(false);
        }
        match self.remote.as_ref().map(|remote| remote.verify(token)) {
            Some(RemoteVerdict::Valid) => Ok(false),
            Some(RemoteVerdict::RetryLater { after_ms }) => {
                let why = "the token's key is not known yet: the key set is being fetched; try again";
                Err(Refusal::new(ErrorCode::NodeUnavailable, why).retry_after(after_ms))
            }
            Some(RemoteVerdict::Invalid) | None => Err(wrong()),
        }
    }
}

fn invalid(why: &str) -> Refusal {
    Refusal::new(ErrorCode::Unauthorized, format!("the token is not valid: {why}"))
}

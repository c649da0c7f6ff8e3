//! Who is calling: an app server by its API key, or a user by a token that the app has signed.
//!
//! In reading order: [`Tokens`] (which keys and rules a token is held to), `jwt` (what a token says), `keys` (what it is
//! signed with), [`remote`] (keys that are fetched by URL).

mod jwt;
mod keys;
pub mod remote;
#[cfg(test)]
mod tests;

pub use keys::KeySetError;

use jwt::Jwt;
use keys::KeySet;
use remote::{Found, RemoteKeys};
use ring::hmac;
use serde::Serialize;
use std::{sync::Arc, time::SystemTime, time::UNIX_EPOCH};
use subtle::ConstantTimeEq;
use tidings_engine::pass::{Pass, Scopes};
use tidings_protocol::error::{ErrorCode, Refusal};

/// Two clocks may differ by this much before a fresh token counts as expired.
const CLOCK_SKEW_MS: u64 = 5_000;
/// A token that says that it was issued later than this from now says it in another unit, or to outlive a revocation.
const ISSUED_AHEAD_MS_MAX: u64 = 5 * 60 * 1_000;
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

/// What a token must say to be taken.
#[derive(Debug, Clone)]
pub struct TokenRules {
    /// `aud` names one of these. Empty: it is not looked at.
    pub audience: Vec<String>,
    /// `iss` is one of these. Empty: it is not looked at.
    pub issuer: Vec<String>,
    /// `exp` lies no further ahead, in seconds.
    pub lifetime_s_max: u64,
    /// What a token without `scope` allows.
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
pub struct Tokens {
    rules: TokenRules,
    /// Of HS256. A public key is never taken for it: keys are kept by their kinds.
    shared: Option<hmac::Key>,
    /// Nodes of this cluster sign with it.
    nodes: Option<hmac::Key>,
    keys: KeySet,
    remote: Option<Arc<RemoteKeys>>,
}

/// Names the key that nodes sign with.
const NODES_KEY_ID: &str = "tidings-nodes";
/// As long as a request from node to node may be on its way, in seconds.
const NODE_TOKEN_S: u64 = 60;

/// Tokens that one node of a cluster signs for another: a user whose session it holds asks something that the other answers.
#[derive(Clone)]
pub struct NodeTokens {
    key: hmac::Key,
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
        let text = format!("{NODES_KEY_ID} {secret}");
        NodeTokens { key: hmac::Key::new(hmac::HMAC_SHA256, text.as_bytes()) }
    }

    pub(crate) fn sign(&self, user: &str) -> Result<String, serde_json::Error> {
        let header = format!(r#"{{"alg":"HS256","kid":"{NODES_KEY_ID}"}}"#);
        let claims = serde_json::to_vec(&NodeClaims { sub: user, exp: now_ms() / 1_000 + NODE_TOKEN_S })?;
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

impl Tokens {
    /// `secret`: of HS256 tokens. `key_set`: the text of a JWKS with the public keys of RS256, ES256 and EdDSA tokens.
    pub fn new(secret: Option<&str>, key_set: Option<&str>) -> Result<Self, KeySetError> {
        let shared = secret
            .filter(|secret| !secret.is_empty())
            .map(|secret| hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()));
        let keys = key_set.map(KeySet::of_file).transpose()?.unwrap_or_default();
        Ok(Tokens { shared, keys, ..Tokens::default() })
    }

    #[must_use]
    pub fn held_to(mut self, rules: TokenRules) -> Self {
        self.rules = rules;
        self
    }

    /// Also takes what nodes of the cluster sign for users whose sessions they hold.
    pub fn trust(&mut self, nodes: &NodeTokens) {
        self.nodes = Some(nodes.key.clone());
    }

    /// Also takes tokens by keys that are fetched.
    pub fn fetch_from(&mut self, remote: Arc<RemoteKeys>) {
        self.remote = Some(remote);
    }

    /// Whether any token could be valid.
    pub fn is_empty(&self) -> bool {
        self.shared.is_none() && self.keys.is_empty() && self.remote.is_none()
    }

    /// What the token allows. `token_expired` when only its time is over, `unauthorized` for all else.
    pub fn verify(&self, token: &str) -> Result<Pass, Refusal> {
        self.verify_at(token, now_ms())
    }

    fn verify_at(&self, token: &str, now_ms: u64) -> Result<Pass, Refusal> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(Refusal::limit("token (bytes)", TOKEN_BYTES_MAX as u64, token.len() as u64));
        }
        let token = Jwt::read(token)?;
        let of_node = self.check_signature(&token)?;
        let claims = token.claims()?;
        let expires_at = claims.exp()?;
        // Told before anything else that is wrong: a new token is what mends it.
        if now_ms >= expires_at.saturating_add(CLOCK_SKEW_MS) {
            return Err(Refusal::new(ErrorCode::TokenExpired, "the token has expired (`exp`); get a new one"));
        }
        let issued_at = claims.iat()?;
        if !of_node {
            self.check_times(expires_at, issued_at, claims.nbf()?, now_ms)?;
            claims.check_names("aud", &self.rules.audience)?;
            claims.check_names("iss", &self.rules.issuer)?;
        }
        let scopes = match of_node {
            true => Scopes::ALL,
            false => claims.scopes()?.unwrap_or(self.rules.default_scopes),
        };
        Ok(Pass { user: claims.sub()?, scopes, issued_at, expires_at, of_node })
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

    /// Whether one of our keys signed it; the flag says that it was a node's.
    fn check_signature(&self, token: &Jwt<'_>) -> Result<bool, Refusal> {
        let wrong = || invalid("it is signed by none of our keys");
        let header = token.header();
        let id = header.kid.as_deref();
        if header.alg == "HS256" {
            if let Some(nodes) = self.nodes.as_ref().filter(|_| id == Some(NODES_KEY_ID)) {
                return token.is_by_secret(nodes).then_some(true).ok_or_else(wrong);
            }
            let is_good = self.shared.as_ref().is_some_and(|key| token.is_by_secret(key));
            return is_good.then_some(false).ok_or_else(wrong);
        }
        if self.keys.verify(token) {
            return Ok(false);
        }
        match self.remote.as_ref().map(|remote| remote.verify(token)) {
            Some(Found::Good) => Ok(false),
            Some(Found::Later { after_ms }) => {
                let why = "the token's key is not known yet: the key set is being fetched; try again";
                Err(Refusal::new(ErrorCode::NodeUnavailable, why).retry_after(after_ms))
            }
            Some(Found::Wrong) | None => Err(wrong()),
        }
    }
}

fn invalid(why: &str) -> Refusal {
    Refusal::new(ErrorCode::Unauthorized, format!("the token is not valid: {why}"))
}

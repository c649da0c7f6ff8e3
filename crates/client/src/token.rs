//! The client token: a JWT that the app's servers sign and the user's app binds with.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use serde::Serialize;
use sha2::Sha256;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The claims of the tokens that this module signs.
#[derive(Debug, Clone, Serialize)]
pub struct Claims<'a> {
    /// The user's id.
    pub sub: &'a str,
    /// When the token was issued, in seconds since 1970 UTC.
    pub iat: u64,
    /// When the token expires, in seconds since 1970 UTC.
    pub exp: u64,
    /// The scopes of the token, with spaces between them; absent: those of the server's settings, by default all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<&'a str>,
}

/// Seconds since 1970 UTC.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// An HS256 token for `user`, valid for `lifetime` from now.
pub fn sign(key: &str, user: &str, lifetime: Duration) -> String {
    let iat = now_s();
    sign_claims(key, &Claims { sub: user, iat, exp: iat + lifetime.as_secs(), scope: None })
}

/// An HS256 token for `user` that allows only these scopes, with spaces between them.
pub fn sign_scoped(key: &str, user: &str, lifetime: Duration, scope: &str) -> String {
    let iat = now_s();
    sign_claims(key, &Claims { sub: user, iat, exp: iat + lifetime.as_secs(), scope: Some(scope) })
}

/// An HS256 token with any claims.
pub fn sign_claims(key: &str, claims: &impl Serialize) -> String {
    sign_text(key, r#"{"alg":"HS256","typ":"JWT"}"#, &serde_json::to_string(claims).unwrap_or_default())
}

/// A token of this header and these claims, signed with HMAC-SHA256 whatever algorithm the header names: for tests of what
/// the server must refuse.
pub fn sign_text(key: &str, header: &str, claims: &str) -> String {
    let mut token = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    // HMAC accepts a key of any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key.as_bytes()) else { return String::new() };
    mac.update(token.as_bytes());
    let signature = URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes());
    token.push('.');
    token.push_str(&signature);
    token
}

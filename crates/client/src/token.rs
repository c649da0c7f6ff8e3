//! The client token: a JWT that the app's servers sign and the user's app binds with.

use jsonwebtoken::{EncodingKey, Header};
use serde::Serialize;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[derive(Serialize)]
struct Claims<'a> {
    sub: &'a str,
    exp: u64,
}

/// An HS256 token for `user`, valid for `lifetime` from now.
pub fn sign(key: &str, user: &str, lifetime: Duration) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let claims = Claims { sub: user, exp: now + lifetime.as_secs() };
    // Signing with a shared secret fails only when the claims do not serialize, and these do.
    jsonwebtoken::encode(&Header::default(), &claims, &EncodingKey::from_secret(key.as_bytes())).unwrap_or_default()
}

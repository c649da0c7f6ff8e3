//! VAPID (RFC 8292): how a push service knows the sender. A signed token for each service, used until shortly before its end.

use crate::{SetupError, jwt::SigningKey};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::HashMap;

/// A token is valid for this long, in seconds. RFC 8292 allows a day.
const VALID_S: u64 = 12 * 60 * 60;
/// A token is replaced when it is valid for less than this, in seconds: clocks differ.
const RENEWED_S: u64 = 60 * 60;
/// Services with a token in memory. Full: all are forgotten, and signed anew.
const SERVICES_MAX: usize = 1_000;

/// The sender's key pair.
pub(super) struct Vapid {
    key: SigningKey,
    /// In base64url, as browsers take it.
    public: String,
    subject: String,
    tokens: Mutex<HashMap<String, (String, u64)>>,
}

impl Vapid {
    /// `private` and `public` in base64url, as tools for Web Push print them; `subject` a `mailto:` or `https:` address.
    pub(super) fn new(private: &str, public: &str, subject: String) -> Result<Vapid, SetupError> {
        let wrong = |what| SetupError::Credentials(format!("the {what} key is not in base64url"));
        let read = |text: &str| URL_SAFE_NO_PAD.decode(text.trim().trim_end_matches('=')).ok();
        let private = read(private).ok_or_else(|| wrong("private"))?;
        let public = read(public).ok_or_else(|| wrong("public"))?;
        let key = SigningKey::es256_from_bytes(&private, &public)?;
        Ok(Vapid { key, public: URL_SAFE_NO_PAD.encode(public), subject, tokens: Mutex::default() })
    }

    /// The header `Authorization` for a service. `None`: the system has no randomness.
    pub(super) fn authorization(&self, origin: &str, now_ms: u64) -> Option<String> {
        #[derive(Serialize)]
        struct Claims<'a> {
            aud: &'a str,
            exp: u64,
            sub: &'a str,
        }
        let now = now_ms / 1_000;
        let mut tokens = self.tokens.lock();
        if let Some((token, expires)) = tokens.get(origin)
            // Neither almost over nor from a clock that was ahead.
            && (now + RENEWED_S..=now + VALID_S).contains(expires)
        {
            return Some(self.header(token));
        }
        let exp = now + VALID_S;
        let token = self.key.sign(None, &Claims { aud: origin, exp, sub: &self.subject })?;
        if tokens.len() >= SERVICES_MAX {
            tokens.clear();
        }
        let header = self.header(&token);
        tokens.insert(origin.to_owned(), (token, exp));
        Some(header)
    }

    fn header(&self, token: &str) -> String {
        format!("vapid t={token}, k={}", self.public)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The key pair of RFC 8291, appendix A: any will do.
    fn vapid() -> Vapid {
        let private = "q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94";
        let public = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";
        Vapid::new(private, public, "mailto:ops@example.com".into()).unwrap()
    }

    #[test]
    fn a_token_is_used_until_shortly_before_its_end_and_for_one_service() {
        let vapid = vapid();
        let noon = 1_772_366_400_000;
        let at = |origin: &str, after_s: u64| vapid.authorization(origin, noon + after_s * 1_000).unwrap();
        let first = at("https://a", 0);
        assert_eq!(at("https://a", VALID_S - RENEWED_S), first);
        assert_ne!(at("https://b", 0), first);
        let second = at("https://a", VALID_S - RENEWED_S + 1);
        assert_ne!(second, first);
        // The clock was ahead, and is set back: the token would be valid for longer than is allowed.
        assert_ne!(at("https://a", 0), second);
    }

    #[test]
    fn keys_that_are_no_pair_are_refused_without_being_told() {
        let private = "yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw";
        let public = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";
        for (private, public) in [(private, public), ("?", public), (private, "?"), ("", "")] {
            let error = Vapid::new(private, public, "mailto:a@b.c".into()).err().unwrap().to_string();
            assert!(private.len() < 2 || !error.contains(private), "{error}");
        }
    }
}

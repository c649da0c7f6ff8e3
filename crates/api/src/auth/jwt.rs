//! Parsing tokens: RFC 7515's compact form and RFC 7519's claims, read strictly.

use super::invalid;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::hmac;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;
use tidings_engine::access::Scopes;
use tidings_protocol::error::Refusal;

/// The largest time: numbers beyond are not exact in JSON.
const SECONDS_MAX: f64 = 9_007_199_254_740_991.0;

pub(super) fn to_base64(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

pub(super) fn from_base64(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// Reads a JSON object. `serde` alone would accept an array of the struct's fields for the struct.
fn read_object<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Option<T> {
    text.trim_ascii_start().starts_with(b"{").then(|| serde_json::from_slice(text).ok()).flatten()
}

#[derive(Deserialize)]
pub(super) struct Header {
    pub(super) alg: String,
    #[serde(default)]
    pub(super) kid: Option<String>,
    /// Extensions that a verifier must understand; this one understands none.
    #[serde(default)]
    crit: Option<IgnoredAny>,
    /// RFC 7797: a payload that is not encoded.
    #[serde(default)]
    b64: Option<bool>,
}

/// A parsed token. None of its claims may be used before its signature is verified.
pub(super) struct Jwt<'a> {
    header: Header,
    /// Header and claims in base64, which the signature covers.
    signed: &'a str,
    claims: &'a str,
    signature: Vec<u8>,
}

impl<'a> Jwt<'a> {
    pub(super) fn read(token: &'a str) -> Result<Self, Refusal> {
        let no_token = || invalid("it is neither an API key nor a JWT of a known algorithm");
        let mut parts = token.split('.');
        let (Some(header), Some(claims), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(no_token());
        };
        let header_text = from_base64(header).ok_or_else(no_token)?;
        let read: Header = read_object(&header_text).ok_or_else(no_token)?;
        if !["HS256", "RS256", "ES256", "EdDSA", "Ed25519"].contains(&read.alg.as_str()) {
            return Err(no_token());
        }
        if read.crit.is_some() || read.b64 == Some(false) {
            return Err(invalid("it asks for extensions (`crit`), and none are known here"));
        }
        let signed = &token[..header.len() + 1 + claims.len()];
        Ok(Jwt { header: read, signed, claims, signature: from_base64(signature).ok_or_else(no_token)? })
    }

    pub(super) fn header(&self) -> &Header {
        &self.header
    }

    pub(super) fn signed(&self) -> &[u8] {
        self.signed.as_bytes()
    }

    pub(super) fn signature(&self) -> &[u8] {
        &self.signature
    }

    pub(super) fn is_by_secret(&self, key: &hmac::Key) -> bool {
        hmac::verify(key, self.signed(), &self.signature).is_ok()
    }

    pub(super) fn claims(&self) -> Result<Claims, Refusal> {
        let text = from_base64(self.claims).ok_or_else(|| invalid("its claims are not valid"))?;
        read_object(&text).ok_or_else(|| invalid("its claims are not a JSON object with each claim once"))
    }
}

/// The claims as JSON; each is checked when it is read.
#[derive(Deserialize)]
pub(super) struct Claims {
    sub: Option<Value>,
    exp: Option<Value>,
    nbf: Option<Value>,
    iat: Option<Value>,
    aud: Option<Value>,
    iss: Option<Value>,
    scope: Option<Value>,
}

impl Claims {
    pub(super) fn sub(&self) -> Result<String, Refusal> {
        match &self.sub {
            Some(Value::String(user)) => Ok(user.clone()),
            Some(_) => Err(invalid("`sub` is not a text")),
            None => Err(invalid("it has no `sub`")),
        }
    }

    /// In milliseconds since 1970 UTC, like the other times.
    pub(super) fn exp(&self) -> Result<u64, Refusal> {
        time("exp", self.exp.as_ref())?.ok_or_else(|| invalid("it has no `exp`"))
    }

    pub(super) fn nbf(&self) -> Result<Option<u64>, Refusal> {
        time("nbf", self.nbf.as_ref())
    }

    pub(super) fn iat(&self) -> Result<Option<u64>, Refusal> {
        time("iat", self.iat.as_ref())
    }

    /// Checks that `aud` or `iss` names one of the wanted values, if there are any.
    pub(super) fn check_names(&self, claim: &str, wanted: &[String]) -> Result<(), Refusal> {
        if wanted.is_empty() {
            return Ok(());
        }
        let value = if claim == "aud" { &self.aud } else { &self.iss };
        let named = match value {
            Some(Value::String(one)) => wanted.contains(one),
            // Only an audience may be several (RFC 7519, 4.1.3).
            Some(Value::Array(several)) if claim == "aud" => {
                several.iter().filter_map(Value::as_str).any(|one| wanted.iter().any(|name| name == one))
            }
            _ => false,
        };
        if named { Ok(()) } else { Err(invalid(&format!("`{claim}` names none of those that this server takes"))) }
    }

    /// `scope` is a string of words with spaces between them (RFC 8693, 4.2), or a list of words. `None`: the claim is absent, or
    /// names scopes of other services alone.
    pub(super) fn scopes(&self) -> Result<Option<Scopes>, Refusal> {
        let wrong = || invalid("`scope` is neither a text nor a list of texts");
        match &self.scope {
            None => Ok(None),
            Some(Value::String(words)) => Ok(Scopes::of_words(words.split(' '))),
            Some(Value::Array(words)) => {
                let words: Option<Vec<&str>> = words.iter().map(Value::as_str).collect();
                Ok(Scopes::of_words(words.ok_or_else(wrong)?))
            }
            Some(_) => Err(wrong()),
        }
    }
}

/// A NumericDate: seconds since 1970, which may have a fraction.
fn time(claim: &str, value: Option<&Value>) -> Result<Option<u64>, Refusal> {
    let Some(value) = value else { return Ok(None) };
    let seconds = value.as_f64().filter(|seconds| (0.0..=SECONDS_MAX).contains(seconds));
    let seconds = seconds.ok_or_else(|| invalid(&format!("`{claim}` is not a time in seconds since 1970")))?;
    Ok(Some((seconds * 1_000.0) as u64))
}

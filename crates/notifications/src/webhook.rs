//! The `Webhook` port: signed requests to the app, for messages and for presence. And [`WebhookCaller`], the port of requests to
//! addresses that are named over HTTP, many at once.

use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use std::{pin::Pin, time::Duration};

/// Sends deliveries to the app. It blocks: the channel of messages and presence call it from threads of their own.
pub trait Webhook: Send + Sync + 'static {
    /// Sends one delivery.
    ///
    /// # Errors
    /// The receiver did not answer that it has taken the delivery; it may have.
    fn deliver(&self, delivery: &WebhookDelivery) -> Result<(), WebhookError>;
}

/// One request to the webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookDelivery {
    /// `{"events":[…]}`.
    pub body: Vec<u8>,
    /// Seconds since 1970 UTC; part of what is signed, so that an old request cannot be sent again.
    pub timestamp: u64,
    /// HMAC-SHA256 over the timestamp, a dot and the body, in hex.
    pub signature: String,
}

/// Why a delivery failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct WebhookError {
    pub reason: String,
    /// For how long the receiver asked to be left alone.
    pub retry_after: Option<Duration>,
}

impl WebhookError {
    /// Without a wish of the receiver's.
    pub fn new(reason: impl Into<String>) -> WebhookError {
        WebhookError { reason: reason.into(), retry_after: None }
    }
}

/// The signature that a receiver verifies: HMAC-SHA256 over `timestamp.body`, in hex.
pub fn sign(secret: &str, timestamp: u64, body: &[u8]) -> String {
    // HMAC takes a key of any length.
    let Ok(mut mac) = Hmac::<sha2::Sha256>::new_from_slice(secret.as_bytes()) else { return String::new() };
    mac.update(format!("{timestamp}.").as_bytes());
    mac.update(body);
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Makes requests to addresses that app servers have named.
pub trait WebhookCaller: Send + Sync + 'static {
    /// Sends a request, and answers with the body of a 2xx answer.
    fn call(&self, request: WebhookRequest) -> PendingCall;
}

/// The answer to a request, some time.
pub type PendingCall = Pin<Box<dyn Future<Output = Result<Vec<u8>, CallError>> + Send>>;

/// A request to an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookRequest {
    pub url: String,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    pub timeout: Duration,
}

/// Why a request was not answered with 2xx.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct CallError {
    pub reason: String,
    /// No server was reached, or it asked to be left alone: the content of the request is not the cause.
    pub is_away: bool,
    /// For how long the receiver asked to be left alone.
    pub retry_after: Option<Duration>,
}

/// What secrets of Standard Webhooks begin with.
const SECRET_PREFIX: &str = "whsec_";
/// Bytes of a secret.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// A secret by which requests are signed as [Standard Webhooks](https://www.standardwebhooks.com) has it.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookSecret(Vec<u8>);

impl WebhookSecret {
    /// The secret of this text; `None`: it is none.
    pub fn parse(text: &str) -> Option<WebhookSecret> {
        let bytes = STANDARD.decode(text.strip_prefix(SECRET_PREFIX)?).ok()?;
        SECRET_BYTES.contains(&bytes.len()).then_some(WebhookSecret(bytes))
    }

    /// The text of a new secret.
    pub fn new_text() -> String {
        format!("{SECRET_PREFIX}{}", STANDARD.encode(rand::random::<[u8; 32]>()))
    }

    /// The signature of a request with this id and time, in seconds since 1970 UTC.
    pub fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        // HMAC takes a key of any length.
        let Ok(mut mac) = Hmac::<sha2::Sha256>::new_from_slice(&self.0) else { return String::new() };
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

/// The headers of a request that is signed with all of these secrets.
pub fn signed_headers(secrets: &[WebhookSecret], id: &str, timestamp: u64, body: &[u8]) -> Vec<(&'static str, String)> {
    let signatures: Vec<String> = secrets.iter().map(|secret| secret.sign(id, timestamp, body)).collect();
    vec![
        ("webhook-id", id.to_owned()),
        ("webhook-timestamp", timestamp.to_string()),
        ("webhook-signature", signatures.join(" ")),
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The example of the specification.
    #[test]
    fn a_request_is_signed_as_the_standard_shows() {
        let secret = WebhookSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signature = secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_secret_is_a_prefix_and_24_to_64_bytes_as_base64() {
        let of = |bytes: usize| format!("whsec_{}", STANDARD.encode(vec![1; bytes]));
        for (text, is_secret) in [
            (of(23), false),
            (of(24), true),
            (of(64), true),
            (of(65), false),
            (WebhookSecret::new_text(), true),
            ("whsec_?".into(), false),
            ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into(), false),
        ] {
            assert_eq!(WebhookSecret::parse(&text).is_some(), is_secret, "{text}");
        }
    }
}

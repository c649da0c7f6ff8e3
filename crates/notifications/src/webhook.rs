//! The `Webhook` port: signed requests to the app, for messages and for presence.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use hmac::{Hmac, KeyInit, Mac};
use std::time::Duration;

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
    let code = code_of(secret.as_bytes(), &format!("{timestamp}."), body);
    code.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The signature of Standard Webhooks: `v1,` and HMAC-SHA256 over `id.timestamp.body`, in Base64.
pub fn sign_standard(key: &[u8], id: &str, timestamp: u64, body: &[u8]) -> String {
    format!("v1,{}", BASE64.encode(code_of(key, &format!("{id}.{timestamp}."), body)))
}

/// HMAC-SHA256 over a text and a body.
fn code_of(key: &[u8], before: &str, body: &[u8]) -> Vec<u8> {
    // HMAC takes a key of any length.
    let Ok(mut mac) = Hmac::<sha2::Sha256>::new_from_slice(key) else { return Vec::new() };
    mac.update(before.as_bytes());
    mac.update(body);
    mac.finalize().into_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification, whose other implementations verify it.
    #[test]
    fn a_standard_signature_is_that_of_the_specification() {
        let key = BASE64.decode(b"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap_or_default();
        let (id, body) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", br#"{"test": 2432232314}"#);
        let signature = sign_standard(&key, id, 1_614_265_330, body);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }
}

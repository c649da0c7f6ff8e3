//! The `Webhook` port: signed requests to the app, for messages and for presence.

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
    // HMAC takes a key of any length.
    let Ok(mut mac) = Hmac::<sha2::Sha256>::new_from_slice(secret.as_bytes()) else { return String::new() };
    mac.update(format!("{timestamp}.").as_bytes());
    mac.update(body);
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

//! The push services of providers: Apple's (APNs), Firebase's (FCM HTTP v1), Huawei's (Push Kit) and those of browsers (Web Push).
//!
//! This crate speaks the providers' protocols. It knows neither chat nor users nor stores: who is notified, of what and how often is
//! decided by the caller of the port [`Provider`](tidings_domain::providers::Provider). In reading order:
//! - `pool`: what the providers share: one HTTP client each, bounds for requests in flight and rate, circuit breakers;
//! - [`apns`], [`fcm`], [`huawei`], [`web_push`]: a provider each: its request, its credentials, what its answers mean;
//! - `jwt`, `access_token`: by which providers know the sender; `pacer`, [`circuit_breaker`], [`retry_after`], [`base_url`]: parts of these.
//!
//! No error of this crate holds a device's token, a key or a body: errors are logged.
#![warn(missing_docs)]

mod access_token;
pub mod apns;
pub mod base_url;
pub mod circuit_breaker;
pub mod fcm;
pub mod huawei;
mod jwt;
mod pacer;
mod pool;
pub mod retry_after;
pub mod web_push;

pub use pool::PoolConfig;
use tidings_domain::providers::NotificationSubject;

/// A JSON object without the fields that have no value.
fn without_nulls(mut object: serde_json::Value) -> serde_json::Value {
    object.as_object_mut().into_iter().for_each(|fields| fields.retain(|_, value| !value.is_null()));
    object
}

/// A JSON object with what a notification is about.
fn with_subject(mut object: serde_json::Value, subject: &NotificationSubject) -> serde_json::Value {
    // Writing to memory cannot fail for this type.
    let fields = serde_json::to_value(subject).unwrap_or_default();
    if let (Some(object), serde_json::Value::Object(fields)) = (object.as_object_mut(), fields) {
        object.extend(fields);
    }
    object
}

/// Why a provider cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A key or a certificate cannot be used; the text says which and why, and has nothing of it.
    #[error("{0}")]
    Credentials(String),
    /// An address is not one that may be used.
    #[error(transparent)]
    Address(#[from] base_url::BaseUrlError),
    /// The HTTP client cannot be built.
    #[error("preparing the HTTP client: {0}")]
    Client(#[source] reqwest::Error),
}

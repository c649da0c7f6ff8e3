//! The app's webhook, called over HTTP.
//!
//! ```text
//! POST <url>
//! Tidings-Timestamp: 1767225600
//! Tidings-Signature: <hex HMAC-SHA256 of "1767225600." and the body>
//! ```
//! Any 2xx answer means that the app has taken the event. Redirects are not followed: the signature is for this address alone.

use anyhow::{Context, Result};
use std::time::Duration;
use tidings_domain::clock::{Clock, SystemClock};
use tidings_notifications::webhook::{Webhook, WebhookDelivery, WebhookError};
use tidings_providers::retry_after::retry_after;
use tokio::runtime::Handle;

pub(crate) struct HttpWebhook {
    url: reqwest::Url,
    client: reqwest::Client,
    runtime: Handle,
}

impl HttpWebhook {
    /// Call within the runtime that is to do the requests.
    pub(crate) fn new(url: &str, timeout: Duration) -> Result<Self> {
        // Err: it is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let url = url.parse().with_context(|| format!("[webhook] url {url:?}"))?;
        let client = reqwest::Client::builder()
            .timeout(timeout)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("tidings/", env!("CARGO_PKG_VERSION")))
            .build()
            .context("preparing the webhook's client")?;
        Ok(HttpWebhook { url, client, runtime: Handle::current() })
    }
}

impl Webhook for HttpWebhook {
    fn deliver(&self, delivery: &WebhookDelivery) -> Result<(), WebhookError> {
        let request = self
            .client
            .post(self.url.clone())
            .header("content-type", "application/json")
            .header("tidings-timestamp", delivery.timestamp)
            .header("tidings-signature", &delivery.signature)
            .body(delivery.body.clone());
        // The future is made within the runtime: `send` sets a timer at once, and callers are plain threads.
        let answered = self.runtime.block_on(async { request.send().await });
        // The error leaves out the address, which may carry a secret.
        match answered {
            Ok(answer) if answer.status().is_success() => Ok(()),
            Ok(answer) => {
                let may_ask = matches!(answer.status().as_u16(), 429 | 503);
                let retry_after = may_ask.then(|| retry_after(answer.headers(), SystemClock.now_ms())).flatten();
                Err(WebhookError { reason: format!("the webhook answered {}", answer.status()), retry_after })
            }
            Err(error) => Err(WebhookError::new(error.without_url().to_string())),
        }
    }
}

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
use tidings_notifications::webhook::{
    CallError, PendingCall, Webhook, WebhookCaller, WebhookDelivery, WebhookError, WebhookRequest,
};
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
        let url = url.parse().with_context(|| format!("[webhook] url {url:?}"))?;
        let client = client().timeout(timeout).build().context("preparing the webhook's client")?;
        Ok(HttpWebhook { url, client, runtime: Handle::current() })
    }
}

/// The client for addresses of the app: it follows no redirects, for a signature is for its address alone.
fn client() -> reqwest::ClientBuilder {
    // Err: it is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("tidings/", env!("CARGO_PKG_VERSION")))
}

/// How long the receiver asks to be left alone.
fn asked_to_wait(answer: &reqwest::Response) -> Option<Duration> {
    let may_ask = matches!(answer.status().as_u16(), 429 | 503);
    may_ask.then(|| retry_after(answer.headers(), SystemClock.now_ms())).flatten()
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
                let retry_after = asked_to_wait(&answer);
                Err(WebhookError { reason: format!("the webhook answered {}", answer.status()), retry_after })
            }
            Err(error) => Err(WebhookError::new(error.without_url().to_string())),
        }
    }
}

/// The longest answer that is read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Calls the webhooks of consumers of events, over kept connections.
pub(crate) struct HttpCaller(reqwest::Client);

impl HttpCaller {
    pub(crate) fn new() -> Result<Self> {
        Ok(HttpCaller(client().tcp_nodelay(true).build().context("preparing the client of webhooks")?))
    }
}

impl WebhookCaller for HttpCaller {
    fn call(&self, WebhookRequest { url, headers, body, timeout }: WebhookRequest) -> PendingCall {
        let request = self.0.post(url).timeout(timeout).body(body);
        let request = headers.into_iter().fold(request, |request, (name, value)| request.header(name, value));
        Box::pin(async move {
            // The error leaves out the address, which may carry a secret.
            let failed = |error: reqwest::Error| {
                let (is_away, error) = (error.is_connect(), error.without_url());
                let mut cause: &dyn std::error::Error = &error;
                while let Some(below) = cause.source() {
                    cause = below;
                }
                CallError { is_away, reason: format!("no answer of the webhook: {cause}"), retry_after: None }
            };
            let mut answer = request.send().await.map_err(failed)?;
            if !answer.status().is_success() {
                let (retry_after, reason) =
                    (asked_to_wait(&answer), format!("the webhook answered {}", answer.status()));
                return Err(CallError { reason, is_away: retry_after.is_some(), retry_after });
            }
            let mut body = Vec::new();
            while body.len() < ANSWER_BYTES_MAX
                && let Some(chunk) = answer.chunk().await.map_err(failed)?
            {
                body.extend_from_slice(&chunk);
            }
            Ok(body)
        })
    }
}

//! The app's webhook, called over HTTP; the webhooks of consumers of events; and the app's hook, which is asked before.
//!
//! ```text
//! POST <url>
//! Tidings-Timestamp: 1767225600
//! Tidings-Signature: <hex HMAC-SHA256 of "1767225600." and the body>
//! ```
//! Any 2xx answer means that the app has taken the event. Redirects are not followed: the signature is for this address alone.

use anyhow::{Context, Result};
use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::clock::{Clock, SystemClock};
use tidings_engine::hook::{HookCall, HookTransport};
use tidings_notifications::webhook::{
    CallError, PendingCall, Webhook, WebhookCaller, WebhookDelivery, WebhookError, WebhookRequest, WebhookSecret,
    signed_headers,
};
use tidings_providers::{circuit_breaker::CircuitBreakers, retry_after::retry_after};
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
pub(crate) struct HttpCaller {
    client: reqwest::Client,
    answer_bytes_max: usize,
}

impl HttpCaller {
    pub(crate) fn new() -> Result<Self> {
        HttpCaller::reading(ANSWER_BYTES_MAX)
    }

    /// One that reads so much of an answer.
    fn reading(answer_bytes_max: usize) -> Result<Self> {
        let client = client().tcp_nodelay(true).build().context("preparing the client of webhooks")?;
        Ok(HttpCaller { client, answer_bytes_max })
    }
}

impl WebhookCaller for HttpCaller {
    fn call(&self, WebhookRequest { url, headers, body, timeout }: WebhookRequest) -> PendingCall {
        let answer_bytes_max = self.answer_bytes_max;
        let request = self.client.post(url).timeout(timeout).body(body);
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
            while body.len() < answer_bytes_max
                && let Some(chunk) = answer.chunk().await.map_err(failed)?
            {
                body.extend_from_slice(&chunk);
            }
            Ok(body)
        })
    }
}

/// The most that is read of the hook's answer: as many of the longest bodies as a request has questions, and something for each.
const HOOK_ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The name of the hook among the services that have circuit breakers.
const HOOK: &str = "hook";

/// The app's hook, asked over HTTP.
#[derive(Clone)]
pub(crate) struct HttpHook(Arc<HookParts>);

struct HookParts {
    caller: HttpCaller,
    url: String,
    secret: WebhookSecret,
    timeout: Duration,
    breakers: CircuitBreakers,
    runtime: Handle,
}

impl fmt::Debug for HttpHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HttpHook")
    }
}

impl HttpHook {
    /// Call within the runtime that is to do the requests.
    pub(crate) fn new(url: String, secret: WebhookSecret, timeout: Duration) -> Result<Self> {
        let (caller, breakers) = (HttpCaller::reading(HOOK_ANSWER_BYTES_MAX)?, CircuitBreakers::default());
        Ok(HttpHook(Arc::new(HookParts { caller, url, secret, timeout, breakers, runtime: Handle::current() })))
    }

    /// Asks, unless the hook has failed several times in a row: then it is tried now and again.
    async fn ask(&self, body: Vec<u8>) -> Result<Vec<u8>, String> {
        let HookParts { caller, url, secret, timeout, breakers, .. } = &*self.0;
        let timeout = match breakers.allow(HOOK, Instant::now()) {
            Ok(patience) => patience.map_or(*timeout, |patience| patience.min(*timeout)),
            Err(_) => return Err("it has failed several times in a row, and is asked again later".into()),
        };
        let (id, timestamp) = (format!("msg_{:032x}", rand::random::<u128>()), SystemClock.now_ms() / 1_000);
        let mut headers = signed_headers(std::slice::from_ref(secret), &id, timestamp, &body);
        headers.push(("content-type", "application/json".into()));
        let answer = caller.call(WebhookRequest { url: url.clone(), headers, body, timeout }).await;
        match &answer {
            Ok(_) => breakers.record_answer(HOOK),
            Err(_) => breakers.record_failure(HOOK, Instant::now()),
        }
        answer.map_err(|error| error.reason)
    }
}

impl HookTransport for HttpHook {
    fn send(&self, mut call: HookCall) {
        let hook = self.clone();
        self.0.runtime.spawn(async move {
            let answer = hook.ask(std::mem::take(&mut call.body)).await;
            // What follows may wait for a queue.
            tokio::task::spawn_blocking(move || call.answer(answer));
        });
    }
}

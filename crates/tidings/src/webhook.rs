//! Requests to the app: its webhook, which is notified of what has happened, and its hook, which is asked before.
//!
//! ```text
//! POST <url of the webhook>                   POST <url of the hook>
//! Tidings-Timestamp: 1767225600               webhook-id: msg_01f…
//! Tidings-Signature: <hex HMAC-SHA256 of      webhook-timestamp: 1767225600
//!   "1767225600." and the body>               webhook-signature: v1,<Base64 HMAC-SHA256 of "msg_01f….1767225600." and the body>
//! ```
//! Any 2xx answer of the webhook means that the app has taken the event; the hook answers 200 with its answers. Redirects are not
//! followed: the signature is for this address alone.

use anyhow::{Context, Result, bail};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::clock::{Clock, SystemClock};
use tidings_engine::hook::{HookCall, HookTransport};
use tidings_notifications::webhook::{Webhook, WebhookDelivery, WebhookError, sign_standard};
use tidings_providers::{circuit_breaker::CircuitBreakers, retry_after::retry_after};
use tokio::runtime::Handle;

/// A client with kept connections for one address.
fn client(table: &str, url: &str, timeout: Duration) -> Result<(reqwest::Url, reqwest::Client)> {
    // Err: it is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = url.parse().with_context(|| format!("[{table}] url {url:?}"))?;
    let client = reqwest::Client::builder()
        .timeout(timeout)
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("tidings/", env!("CARGO_PKG_VERSION")))
        .build()
        .with_context(|| format!("preparing the client of [{table}]"))?;
    Ok((url, client))
}

pub(crate) struct HttpWebhook {
    url: reqwest::Url,
    client: reqwest::Client,
    runtime: Handle,
}

impl HttpWebhook {
    /// Call within the runtime that is to do the requests.
    pub(crate) fn new(url: &str, timeout: Duration) -> Result<Self> {
        let (url, client) = client("webhook", url, timeout)?;
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

/// The most that is read of the hook's answer: as many of the longest bodies as a request has questions, and something for each.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The name of the hook among the services that have circuit breakers.
const HOOK: &str = "hook";

/// The app's hook, asked over HTTP.
#[derive(Clone)]
pub(crate) struct HttpHook(Arc<HookParts>);

struct HookParts {
    url: reqwest::Url,
    client: reqwest::Client,
    key: Vec<u8>,
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
    pub(crate) fn new(url: &str, secret: &str, timeout: Duration) -> Result<Self> {
        let (url, client) = client("hook", url, timeout)?;
        let (key, breakers, runtime) = (HttpHook::key(secret)?, CircuitBreakers::default(), Handle::current());
        Ok(HttpHook(Arc::new(HookParts { url, client, key, timeout, breakers, runtime })))
    }

    /// The key of a secret.
    pub(crate) fn key(secret: &str) -> Result<Vec<u8>> {
        let key = secret.strip_prefix("whsec_").and_then(|text| BASE64.decode(text).ok()).unwrap_or_default();
        if !(24..=64).contains(&key.len()) {
            bail!(
                "[hook] secret must be whsec_ and Base64 of 24 to 64 random bytes, such as what \
                 `echo whsec_$(head -c 32 /dev/urandom | base64)` prints"
            );
        }
        Ok(key)
    }

    /// Asks, unless the hook has failed several times in a row: then it is tried now and again.
    async fn ask(&self, body: Vec<u8>) -> Result<Vec<u8>, String> {
        let HookParts { timeout, breakers, .. } = &*self.0;
        let patience = match breakers.allow(HOOK, Instant::now()) {
            Ok(patience) => patience.map_or(*timeout, |patience| patience.min(*timeout)),
            Err(_) => return Err("it has failed several times in a row, and is asked again later".into()),
        };
        let answer = self.post(body, patience).await;
        match &answer {
            Ok(_) => breakers.record_answer(HOOK),
            Err(_) => breakers.record_failure(HOOK, Instant::now()),
        }
        answer
    }

    async fn post(&self, body: Vec<u8>, patience: Duration) -> Result<Vec<u8>, String> {
        let HookParts { url, client, key, .. } = &*self.0;
        let (id, timestamp) = (format!("msg_{:032x}", rand::random::<u128>()), SystemClock.now_ms() / 1_000);
        let request = client
            .post(url.clone())
            .timeout(patience)
            .header("content-type", "application/json")
            .header("webhook-id", &id)
            .header("webhook-timestamp", timestamp)
            .header("webhook-signature", sign_standard(key, &id, timestamp, &body))
            .body(body);
        // The error leaves out the address, which may carry a secret.
        let failed = |error: reqwest::Error| error.without_url().to_string();
        let mut answer = request.send().await.map_err(failed)?;
        if answer.status() != reqwest::StatusCode::OK {
            return Err(format!("it answered {}", answer.status()));
        }
        let mut read = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(failed)? {
            if read.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(format!("its answer has more than {ANSWER_BYTES_MAX} bytes"));
            }
            read.extend_from_slice(&chunk);
        }
        Ok(read)
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

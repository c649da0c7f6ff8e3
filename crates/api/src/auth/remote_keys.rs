//! Keys that are fetched by URL: refreshed in the background, fetched at once when a token names an unknown key, and kept
//! while the URL cannot be reached.

use super::{jwt::Jwt, keys::KeySet};
use parking_lot::{Mutex, RwLock};
use reqwest::Url;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Notify;

/// A key set is a few kilobytes.
const BYTES_MAX: usize = 512 * 1024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(10);
/// Unknown keys cause no more than one fetch in this time: anybody can name one.
const UNKNOWN_KEY_INTERVAL: Duration = Duration::from_secs(10);
/// The first wait after a fetch that failed; it doubles up to the regular interval.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// When a caller whose key is being fetched may try again.
const RETRY_AFTER_MS: u64 = 1_000;

/// Whether the fetched keys verify a token.
pub(super) enum RemoteVerdict {
    Valid,
    Invalid,
    /// The token's key may be among those that are being fetched.
    RetryLater {
        after_ms: u64,
    },
}

/// A key set that is fetched by URL.
pub struct RemoteKeys {
    url: Url,
    refresh_every: Duration,
    client: reqwest::Client,
    keys: RwLock<Arc<KeySet>>,
    state: Mutex<FetchState>,
    fetch_requested: Notify,
}

#[derive(Default)]
struct FetchState {
    /// A fetch for an unknown key is requested or under way.
    pending: bool,
    requested_at: Option<Instant>,
    /// Whether the last fetch failed, so that a run of failures is logged once.
    failing: bool,
}

/// Why keys cannot be fetched at all.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The text leaves out the address, which may carry a secret.
    #[error("the address of the key set is neither http nor https")]
    Address,
    #[error("preparing to fetch keys: {0}")]
    Client(#[from] reqwest::Error),
}

impl RemoteKeys {
    /// Nothing is fetched before [`RemoteKeys::start`].
    ///
    /// # Errors
    /// `url` is not an http or https address, or the HTTP client cannot be made.
    pub fn new(url: &str, refresh_every: Duration) -> Result<Arc<Self>, RemoteError> {
        let parsed: Option<Url> = url.parse().ok();
        let url = parsed.filter(|url| matches!(url.scheme(), "http" | "https")).ok_or(RemoteError::Address)?;
        // Err: a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT)
            // The keys decide who is who: they come from this address and no other.
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("tidings/", env!("CARGO_PKG_VERSION")))
            .pool_max_idle_per_host(0)
            .build()?;
        Ok(Arc::new(RemoteKeys {
            url,
            refresh_every,
            client,
            keys: RwLock::default(),
            state: Mutex::new(FetchState { pending: true, ..FetchState::default() }),
            fetch_requested: Notify::new(),
        }))
    }

    /// Fetches now, and again from time to time, until the runtime ends.
    pub fn start(self: &Arc<Self>) {
        let remote = self.clone();
        tokio::spawn(async move { remote.run().await });
    }

    async fn run(&self) {
        let mut retry = RETRY_MIN;
        loop {
            let fetched = self.fetch().await;
            let wait = match &fetched {
                Ok(()) => {
                    retry = RETRY_MIN;
                    self.refresh_every
                }
                Err(_) => {
                    retry = (retry * 2).min(self.refresh_every);
                    retry
                }
            };
            self.record(fetched);
            // Err: the time is over.
            let _ = tokio::time::timeout(wait, self.fetch_requested.notified()).await;
        }
    }

    /// The errors leave out the address, which may carry a secret.
    async fn fetch(&self) -> Result<(), String> {
        let describe = |error: reqwest::Error| error.without_url().to_string();
        let mut answer = self.client.get(self.url.clone()).send().await.map_err(describe)?;
        if !answer.status().is_success() {
            return Err(format!("the answer was {}", answer.status()));
        }
        let mut text = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(describe)? {
            if text.len() + chunk.len() > BYTES_MAX {
                return Err(format!("the key set is longer than {BYTES_MAX} bytes"));
            }
            text.extend_from_slice(&chunk);
        }
        let keys = KeySet::from_service(&text).map_err(|error| error.to_string())?;
        *self.keys.write() = Arc::new(keys);
        Ok(())
    }

    fn record(&self, fetched: Result<(), String>) {
        let mut state = self.state.lock();
        state.pending = false;
        match fetched {
            Ok(()) if std::mem::take(&mut state.failing) => tracing::info!("the key set is fetched again"),
            Err(why) if !std::mem::replace(&mut state.failing, true) => {
                tracing::warn!(why, "the key set could not be fetched; the keys of the last one stay good");
            }
            _ => {}
        }
    }

    pub(super) fn verify(&self, token: &Jwt<'_>) -> RemoteVerdict {
        let keys = self.keys.read().clone();
        if keys.verify(token) {
            return RemoteVerdict::Valid;
        }
        // Only a token that names its key can name a new one: a token without `kid` was checked against every key.
        if keys.knows(token.header().kid.as_deref()) {
            return RemoteVerdict::Invalid;
        }
        if self.request_fetch() {
            RemoteVerdict::RetryLater { after_ms: RETRY_AFTER_MS }
        } else {
            RemoteVerdict::Invalid
        }
    }

    /// Requests a fetch, unless one was requested a moment ago. Returns whether a fetch is pending.
    fn request_fetch(&self) -> bool {
        let mut state = self.state.lock();
        if state.pending {
            return true;
        }
        if state.requested_at.is_some_and(|at| at.elapsed() < UNKNOWN_KEY_INTERVAL) {
            return false;
        }
        (state.pending, state.requested_at) = (true, Some(Instant::now()));
        self.fetch_requested.notify_one();
        true
    }
}

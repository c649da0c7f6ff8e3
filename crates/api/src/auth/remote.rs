//! Keys that are fetched by URL: kept fresh in the background, asked for anew when a token names one that is not known,
//! and the last good ones kept while the URL is away.

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
/// Unknown keys are asked for no more often than this: anybody can name one.
const ASKED_EVERY: Duration = Duration::from_secs(10);
/// The first wait after a fetch that failed; it doubles up to the regular interval.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// When a caller whose key is being fetched may try again.
const RETRY_AFTER_MS: u64 = 1_000;

/// What the fetched keys say of a token.
pub(super) enum Found {
    Good,
    Wrong,
    /// Its key may be among those that are being fetched.
    Later {
        after_ms: u64,
    },
}

/// A key set at an address.
pub struct RemoteKeys {
    url: Url,
    refresh_every: Duration,
    client: reqwest::Client,
    keys: RwLock<Arc<KeySet>>,
    asking: Mutex<Asking>,
    wanted: Notify,
}

#[derive(Default)]
struct Asking {
    /// A fetch for a key that was not known is to be made, or under way.
    open: bool,
    asked_at: Option<Instant>,
    /// Whether the last fetch failed: told once.
    fails: bool,
}

/// Why there is no way to a key set.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// Told without the address: it may carry a secret.
    #[error("the address of the key set is neither http nor https")]
    Address,
    #[error("preparing to fetch keys: {0}")]
    Client(#[from] reqwest::Error),
}

impl RemoteKeys {
    /// Nothing is fetched before [`RemoteKeys::start`].
    pub fn new(url: &str, refresh_every: Duration) -> Result<Arc<Self>, RemoteError> {
        let parsed: Option<Url> = url.parse().ok();
        let url = parsed.filter(|url| matches!(url.scheme(), "http" | "https")).ok_or(RemoteError::Address)?;
        // Err: it is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT)
            // What is fetched decides who is who: from this address and no other.
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("tidings/", env!("CARGO_PKG_VERSION")))
            .pool_max_idle_per_host(0)
            .build()?;
        Ok(Arc::new(RemoteKeys {
            url,
            refresh_every,
            client,
            keys: RwLock::default(),
            asking: Mutex::new(Asking { open: true, ..Asking::default() }),
            wanted: Notify::new(),
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
            self.note(fetched);
            // Err: the time is over.
            let _ = tokio::time::timeout(wait, self.wanted.notified()).await;
        }
    }

    /// The errors are told without the address: it may carry a secret.
    async fn fetch(&self) -> Result<(), String> {
        let told = |error: reqwest::Error| error.without_url().to_string();
        let mut answer = self.client.get(self.url.clone()).send().await.map_err(told)?;
        if !answer.status().is_success() {
            return Err(format!("the answer was {}", answer.status()));
        }
        let mut text = Vec::new();
        while let Some(piece) = answer.chunk().await.map_err(told)? {
            if text.len() + piece.len() > BYTES_MAX {
                return Err(format!("the key set is longer than {BYTES_MAX} bytes"));
            }
            text.extend_from_slice(&piece);
        }
        let keys = KeySet::of_service(&text).map_err(|error| error.to_string())?;
        *self.keys.write() = Arc::new(keys);
        Ok(())
    }

    fn note(&self, fetched: Result<(), String>) {
        let mut asking = self.asking.lock();
        asking.open = false;
        match fetched {
            Ok(()) if std::mem::take(&mut asking.fails) => tracing::info!("the key set is fetched again"),
            Err(why) if !std::mem::replace(&mut asking.fails, true) => {
                tracing::warn!(why, "the key set could not be fetched; the keys of the last one stay good");
            }
            _ => {}
        }
    }

    pub(super) fn verify(&self, token: &Jwt<'_>) -> Found {
        let keys = self.keys.read().clone();
        if keys.verify(token) {
            return Found::Good;
        }
        // A token without a name is held against all that there are: only a name can be new.
        if keys.knows(token.header().kid.as_deref()) {
            return Found::Wrong;
        }
        match self.ask() {
            true => Found::Later { after_ms: RETRY_AFTER_MS },
            false => Found::Wrong,
        }
    }

    /// Has the set fetched anew, unless that was asked for a moment ago. Answers whether it is on its way.
    fn ask(&self) -> bool {
        let mut asking = self.asking.lock();
        if asking.open {
            return true;
        }
        if asking.asked_at.is_some_and(|at| at.elapsed() < ASKED_EVERY) {
            return false;
        }
        (asking.open, asking.asked_at) = (true, Some(Instant::now()));
        self.wanted.notify_one();
        true
    }
}

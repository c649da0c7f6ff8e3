//! API keys that are made over HTTP: what each may do, until when, and who made it. The keys of the settings are
//! [`ApiKeys`](crate::auth::ApiKeys).
//!
//! Every node has all keys in memory, by the hash of their secrets, so that a request reads no store. The leader writes; the others
//! look once a second whether there is a newer version of the keys, which is one read of a small row. When a key was used is noted in
//! memory, and stored once a minute by each node.
//!
//! In reading order: [`permissions`] (which operation needs which scope), [`StoredKeys`] (who has which key), `changes` (what is done
//! to keys), `secret` (secrets and ids), `stored` (the rows).

mod changes;
pub mod permissions;
mod secret;
mod stored;

pub use changes::Author;
pub use secret::SECRET_PREFIX;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use parking_lot::{Mutex, RwLock};
use secret::SecretHash;
use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};
use stored::StoredKey;
use tidings_domain::{
    clock::Clock,
    end_reason::required,
    failure_log::FailureLog,
    function::Function,
    gates::OpenGates,
    leadership::Leadership,
    refusals::STORE_RETRY_AFTER_MS,
    store::{Proposal, Store, StoreResult},
};
use tidings_engine::{Engine, engine::port::Proposals};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::KeyScope,
};

/// How often a node looks for changed keys.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);
/// How often a node stores when keys were used.
const STORE_USES_MS: u64 = 60_000;
/// The public id of the keys of the settings.
pub const CONFIGURED_ID: &str = "configured";

/// Whether an `Authorization` header shows a key of the store, valid or not.
pub(crate) fn shows_stored_key(credential: &[u8]) -> bool {
    credential.get("Bearer ".len()..).is_some_and(|secret| secret.starts_with(SECRET_PREFIX.as_bytes()))
}

/// A key with which a request was made.
#[derive(Debug)]
pub struct CallingKey {
    /// Its public id.
    pub id: String,
    pub name: String,
    pub scopes: Vec<KeyScope>,
    /// `None`: a key of the settings.
    number: Option<u64>,
}

impl CallingKey {
    /// A key of the settings, which may do everything.
    pub fn configured() -> CallingKey {
        let (id, name) = (CONFIGURED_ID.to_owned(), "api_key".to_owned());
        CallingKey { id, name, scopes: KeyScope::ALL.into(), number: None }
    }
}

/// A key in memory.
struct KnownKey {
    stored: StoredKey,
    calling: Arc<CallingKey>,
    /// Set by requests, taken by the thread that notes when.
    is_used: Arc<AtomicBool>,
}

impl KnownKey {
    fn new(stored: StoredKey, is_used: Arc<AtomicBool>) -> KnownKey {
        let StoredKey { number, name, scopes, .. } = &stored;
        let id = secret::id_of(*number);
        let calling = CallingKey { id, name: name.clone(), scopes: scopes.clone(), number: Some(*number) };
        KnownKey { calling: Arc::new(calling), stored, is_used }
    }

    fn is_expired(&self, now_ms: u64) -> bool {
        self.stored.expires_at.is_some_and(|at| at <= now_ms)
    }
}

/// All keys, as this node knows them.
#[derive(Default)]
struct KnownKeys {
    /// `None`: the store could not be read yet.
    version: Option<u64>,
    by_number: HashMap<u64, Arc<KnownKey>>,
    /// By the hash of a secret; with the end of its time, if it is a former one.
    by_hash: HashMap<SecretHash, (Arc<KnownKey>, Option<u64>)>,
}

impl KnownKeys {
    /// The keys of a version. Uses that nobody has taken yet are kept.
    fn of(version: u64, keys: Vec<StoredKey>, before: &KnownKeys) -> KnownKeys {
        let mut known = KnownKeys { version: Some(version), ..KnownKeys::default() };
        for stored in keys {
            let is_used = before.by_number.get(&stored.number).map(|key| key.is_used.clone()).unwrap_or_default();
            let key = Arc::new(KnownKey::new(stored, is_used));
            if let Some(former) = &key.stored.former {
                known.by_hash.insert(former.hash, (key.clone(), Some(former.until)));
            }
            known.by_hash.insert(key.stored.hash, (key.clone(), None));
            known.by_number.insert(key.stored.number, key);
        }
        known
    }
}

/// When keys were used.
#[derive(Default)]
struct Uses {
    /// The newest time of each key that this node has seen.
    at: HashMap<u64, u64>,
    /// Keys whose time is not stored yet.
    unstored: Vec<u64>,
    stored_at: u64,
}

/// The API keys of the store, for all who ask.
pub struct StoredKeys {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    lead: Leadership,
    gates: Arc<OpenGates>,
    proposals: Proposals,
    known: RwLock<KnownKeys>,
    /// Locked while keys change, or the audit log grows.
    changing: Mutex<()>,
    uses: Mutex<Uses>,
    follower: Mutex<Option<(Sender<Infallible>, JoinHandle<()>)>>,
    failures: FailureLog,
}

impl StoredKeys {
    pub(crate) fn start(engine: &Engine) -> Arc<StoredKeys> {
        StoredKeys::with_gates(engine, engine.gates.clone())
    }

    /// The same behind these gates.
    pub fn with_gates(engine: &Engine, gates: Arc<OpenGates>) -> Arc<StoredKeys> {
        let keys = Arc::new(StoredKeys {
            store: engine.store.clone(),
            clock: engine.clock.clone(),
            lead: engine.leadership(Function::Housekeeping),
            gates,
            proposals: engine.proposals(),
            known: RwLock::default(),
            changing: Mutex::default(),
            uses: Mutex::default(),
            follower: Mutex::default(),
            failures: FailureLog::new("API keys could not be read; those that are known hold"),
        });
        keys.follow_once();
        let (stop, stopped) = bounded::<Infallible>(0);
        let followed = Arc::downgrade(&keys);
        let follow = move || {
            while stopped.recv_timeout(FOLLOW_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let Some(keys) = followed.upgrade() else { return };
                keys.follow_once();
            }
        };
        let thread = std::thread::Builder::new().name("api-keys".into()).spawn(follow);
        *keys.follower.lock() = Some((stop, required("api-keys", thread)));
        keys
    }

    /// Stores when keys were used, and ends the thread.
    pub fn stop(&self) {
        let Some((stop, thread)) = self.follower.lock().take() else { return };
        drop(stop);
        let _ = thread.join();
        self.note_uses();
        self.store_uses();
    }

    fn follow_once(&self) {
        self.failures.note(&self.refresh());
        self.note_uses();
        let now = self.clock.now_ms();
        // A clock that was set back does not hold up the next round.
        if now.abs_diff(self.uses.lock().stored_at) >= STORE_USES_MS {
            self.store_uses();
        }
    }

    /// Reads the keys anew if there is another version of them.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn refresh(&self) -> StoreResult<()> {
        let _changing = self.changing.lock();
        self.refresh_locked()
    }

    fn refresh_locked(&self) -> StoreResult<()> {
        let version = stored::version(&*self.store)?;
        if self.known.read().version == Some(version) {
            return Ok(());
        }
        // A change after the version was read is found by the next look.
        let keys = stored::keys(&*self.store)?;
        let mut known = self.known.write();
        *known = KnownKeys::of(version, keys, &known);
        Ok(())
    }

    /// The key with this secret. `None`: this is no secret of such a key, but perhaps another credential.
    ///
    /// # Errors
    /// `unauthorized`: the key is unknown, revoked or expired. `store_unavailable`: the keys could not be read yet.
    pub(crate) fn find(&self, credential: &str) -> Result<Option<Arc<CallingKey>>, Refusal> {
        if !secret::is_secret(credential) {
            return Ok(None);
        }
        let unauthorized = |why: &str| Err(Refusal::new(ErrorCode::Unauthorized, format!("the API key {why}")));
        let hash = secret::hash(credential);
        let known = self.known.read();
        let Some((key, former_until)) = known.by_hash.get(&hash) else {
            if known.version.is_none() {
                let why = "API keys cannot be read from the store yet";
                return Err(Refusal::new(ErrorCode::StoreUnavailable, why).retry_after(STORE_RETRY_AFTER_MS));
            }
            return unauthorized("is unknown, or was revoked");
        };
        let now = self.clock.now_ms();
        if key.is_expired(now) {
            return unauthorized("has expired");
        }
        if former_until.is_some_and(|until| until <= now) {
            return unauthorized("has another secret since it was rotated");
        }
        // Read first: a key that many threads use stays in the caches of all of them.
        if !key.is_used.load(Ordering::Relaxed) {
            key.is_used.store(true, Ordering::Relaxed);
        }
        Ok(Some(key.calling.clone()))
    }

    /// Notes the time of the keys that were used since this was last asked.
    fn note_uses(&self) {
        let now = self.clock.now_ms();
        let known = self.known.read();
        let mut uses = self.uses.lock();
        for key in known.by_number.values().filter(|key| key.is_used.swap(false, Ordering::Relaxed)) {
            let number = key.stored.number;
            uses.at.insert(number, now);
            if !uses.unstored.contains(&number) {
                uses.unstored.push(number);
            }
        }
        uses.at.retain(|number, _| known.by_number.contains_key(number));
    }

    fn store_uses(&self) {
        let (now, rows) = {
            let mut uses = self.uses.lock();
            let unstored = std::mem::take(&mut uses.unstored);
            let rows: Vec<(u64, u64)> =
                unstored.iter().filter_map(|number| Some((*number, *uses.at.get(number)?))).collect();
            (self.clock.now_ms(), rows)
        };
        if !rows.is_empty()
            && let Err(refusal) = self.proposals.propose_blocking(Proposal::SetApiKeyUse(rows.clone()))
        {
            tracing::debug!(%refusal, "when API keys were used is stored later");
            let mut uses = self.uses.lock();
            for (number, _) in rows {
                if !uses.unstored.contains(&number) {
                    uses.unstored.push(number);
                }
            }
        }
        self.uses.lock().stored_at = now;
    }
}

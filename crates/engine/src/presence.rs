//! Who has a live session on this node: memory is the truth.

use crate::model::UserNo;
use parking_lot::RwLock;
use quick_cache::sync::Cache;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One live session, as others may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    pub session: u64,
    pub device_id: Arc<str>,
    pub device_kind: Arc<str>,
    pub since: u64,
}

/// Users whose last session ended lately and whose last-seen time is remembered.
const LAST_SEEN_ENTRIES: usize = 100_000;
const STRIPES: usize = 64;

type Stripe = RwLock<FxHashMap<UserNo, SmallVec<[Device; 1]>>>;

pub struct Presence {
    stripes: Vec<Stripe>,
    last_seen: Cache<UserNo, u64>,
    sessions: AtomicU64,
}

impl Default for Presence {
    fn default() -> Self {
        Presence {
            stripes: (0..STRIPES).map(|_| Stripe::default()).collect(),
            last_seen: Cache::new(LAST_SEEN_ENTRIES),
            sessions: AtomicU64::new(0),
        }
    }
}

impl Presence {
    fn stripe(&self, user: UserNo) -> &Stripe {
        &self.stripes[user.0 as usize % STRIPES]
    }

    pub fn arrived(&self, user: UserNo, device: Device) {
        self.stripe(user).write().entry(user).or_default().push(device);
        self.sessions.fetch_add(1, Ordering::Relaxed);
    }

    pub fn left(&self, user: UserNo, session: u64, now_ms: u64) {
        let mut stripe = self.stripe(user).write();
        let Some(devices) = stripe.get_mut(&user) else { return };
        let before = devices.len();
        devices.retain(|d| d.session != session);
        self.sessions.fetch_sub((before - devices.len()) as u64, Ordering::Relaxed);
        if devices.is_empty() {
            stripe.remove(&user);
            self.last_seen.insert(user, now_ms);
        }
    }

    pub fn is_online(&self, user: UserNo) -> bool {
        self.stripe(user).read().contains_key(&user)
    }

    pub fn devices(&self, user: UserNo) -> SmallVec<[Device; 1]> {
        self.stripe(user).read().get(&user).cloned().unwrap_or_default()
    }

    pub fn last_seen(&self, user: UserNo) -> Option<u64> {
        self.last_seen.get(&user)
    }

    /// Bound sessions on this node.
    pub fn sessions(&self) -> u64 {
        self.sessions.load(Ordering::Relaxed)
    }
}

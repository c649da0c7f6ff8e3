//! Where providers reach the devices of users: which users have push tokens is asked for each message and recipient, and most have
//! none.

use quick_cache::sync::Cache;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tidings_domain::{
    model::UserNo,
    push_tokens::{devices_of, tokens_of},
    store::{RowSpace, Store, StoreResult},
};
use tidings_protocol::{http::PushProvider, limits::PUSH_TOKENS_PER_USER_MAX};

/// Users in the cache. Full: the devices of those who were asked for longest ago are read again.
const USERS_MAX: usize = 200_000;
/// Counters of invalidations, shared by users: devices that were read while their stripe changed are not cached.
const STRIPES: usize = 1_024;

/// The devices of a user with a push token: their providers and ids.
pub type PushDevices = Arc<[(PushProvider, String)]>;

pub(crate) struct PushDevicesCache {
    cached: Cache<UserNo, PushDevices>,
    changes: Box<[AtomicU64]>,
    none: PushDevices,
}

impl Default for PushDevicesCache {
    fn default() -> Self {
        let changes = (0..STRIPES).map(|_| AtomicU64::new(0)).collect();
        PushDevicesCache { cached: Cache::new(USERS_MAX), changes, none: Arc::from([]) }
    }
}

impl PushDevicesCache {
    fn stripe(&self, user: UserNo) -> &AtomicU64 {
        &self.changes[user.0 as usize % STRIPES]
    }

    /// The user's devices have changed.
    pub(crate) fn invalidate(&self, user: UserNo) {
        self.stripe(user).fetch_add(1, Ordering::SeqCst);
        self.cached.remove(&user);
    }

    /// The devices of these users, in the same order. `from_cache`: what other calls have read may be used.
    pub(crate) fn of(&self, store: &dyn Store, users: &[UserNo], from_cache: bool) -> StoreResult<Vec<PushDevices>> {
        let mut found: Vec<Option<PushDevices>> =
            users.iter().map(|user| self.cached.get(user).filter(|_| from_cache)).collect();
        let missing: Vec<usize> = (0..users.len()).filter(|at| found[*at].is_none()).collect();
        let before: Vec<u64> = missing.iter().map(|at| self.stripe(users[*at]).load(Ordering::SeqCst)).collect();
        // One look for all: most users have no device.
        let ranges: Vec<_> = missing.iter().map(|at| devices_of(users[*at])).collect();
        let first = if ranges.is_empty() { Vec::new() } else { store.first_keys(RowSpace::Chat, &ranges)? };
        for ((at, before), first) in missing.into_iter().zip(before).zip(first) {
            let user = users[at];
            let devices = match first {
                None => self.none.clone(),
                Some(_) => {
                    let tokens = tokens_of(store, user, PUSH_TOKENS_PER_USER_MAX)?;
                    tokens.into_iter().map(|(_, token)| (token.token.provider(), token.device)).collect()
                }
            };
            if from_cache && self.stripe(user).load(Ordering::SeqCst) == before {
                self.cached.insert(user, devices.clone());
                // An invalidation between the check above and the insert found nothing to remove.
                if self.stripe(user).load(Ordering::SeqCst) != before {
                    self.cached.remove(&user);
                }
            }
            found[at] = Some(devices);
        }
        Ok(found.into_iter().map(Option::unwrap_or_default).collect())
    }
}

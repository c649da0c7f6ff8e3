//! The age of a user's oldest unread direct message: loaded by the caller, and cached until a message comes or is read.

use quick_cache::sync::Cache;
use std::sync::atomic::{AtomicU64, Ordering};
use tidings_domain::model::UserNo;
use tidings_protocol::error::Refusal;

/// Users in the cache.
const USERS_MAX: usize = 200_000;
/// Counters of invalidations, shared by users: an answer that was loaded while its stripe changed is not cached.
const STRIPES: usize = 1_024;
pub(crate) struct UnreadCache {
    cached: Cache<UserNo, Option<u64>>,
    changes: Box<[AtomicU64]>,
}

impl Default for UnreadCache {
    fn default() -> Self {
        UnreadCache { cached: Cache::new(USERS_MAX), changes: (0..STRIPES).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl UnreadCache {
    fn stripe(&self, user: UserNo) -> &AtomicU64 {
        &self.changes[user.0 as usize % STRIPES]
    }

    /// The user got a message or read one: the cached answer is stale.
    pub(crate) fn invalidate(&self, user: UserNo) {
        self.stripe(user).fetch_add(1, Ordering::SeqCst);
        self.cached.remove(&user);
    }

    /// The same, for all users.
    pub(crate) fn invalidate_all(&self) {
        for changes in &self.changes {
            changes.fetch_add(1, Ordering::SeqCst);
        }
        self.cached.clear();
    }

    /// The cached answer, if there is one.
    pub(crate) fn get(&self, user: UserNo) -> Option<Option<u64>> {
        self.cached.get(&user)
    }

    pub(crate) fn get_or_load(
        &self,
        user: UserNo,
        load: impl FnOnce() -> Result<Option<u64>, Refusal>,
    ) -> Result<Option<u64>, Refusal> {
        if let Some(known) = self.cached.get(&user) {
            return Ok(known);
        }
        let before = self.stripe(user).load(Ordering::SeqCst);
        let found = load()?;
        if self.stripe(user).load(Ordering::SeqCst) == before {
            self.cached.insert(user, found);
            // An invalidation between the check above and the insert found nothing to remove.
            if self.stripe(user).load(Ordering::SeqCst) != before {
                self.cached.remove(&user);
            }
        }
        Ok(found)
    }
}

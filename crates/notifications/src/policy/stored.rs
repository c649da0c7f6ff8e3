//! The policy's rows: a head, and the kept versions in parts that fit into a row.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tidings_domain::{
    chat_rows::{self, policy_head_key, policy_version_key},
    leadership::Term,
    store::{RowChange, RowSpace, Store, StoreError, StoreResult},
    stored_names,
};
use tidings_protocol::{http::NotificationPolicy, limits::NOTIFICATION_POLICY_VERSIONS_MAX};

/// Bytes of one part.
const PART_BYTES: usize = 2_000;
/// Parts of one version are fewer.
const PARTS_MAX: usize = 100;
/// A version is kept for so long after another has taken its place: no channel goes on for more than 30 days after its message, and
/// each finishes under the version that decided it.
const KEPT_MS: u64 = 31 * 24 * 60 * 60 * 1_000;
/// Versions that are kept, at most. Above, the oldest goes, whatever channels of it still wait.
const KEPT_MAX: u32 = 500;
/// Versions that one write drops: each is up to 64 KiB.
const DROPPED_AT_ONCE: u32 = 4;

/// Which versions are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Head {
    /// The newest; 0: none was ever stored.
    pub(super) version: u32,
    pub(super) oldest: u32,
}

impl Head {
    /// The versions that are listed, the newest first. Older ones may be kept for channels that wait.
    pub(super) fn versions(self) -> impl Iterator<Item = u32> {
        (self.oldest.max(1)..=self.version).rev().take(NOTIFICATION_POLICY_VERSIONS_MAX)
    }
}

/// A version as it is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StoredVersion {
    pub(super) version: u32,
    pub(super) updated_at: u64,
    #[serde(default)]
    pub(super) updated_by: Option<String>,
    /// Absent: the policy was removed.
    #[serde(default, with = "stored_names::policy")]
    pub(super) policy: Option<NotificationPolicy>,
}

pub(super) fn head(store: &dyn Store) -> StoreResult<Head> {
    chat_rows::decode(store.row(RowSpace::Chat, &policy_head_key())?.as_deref())
}

/// A version; `None` if it is not kept.
pub(super) fn version(store: &dyn Store, version: u32) -> StoreResult<Option<StoredVersion>> {
    read(store, version)
}

fn read<T: DeserializeOwned>(store: &dyn Store, version: u32) -> StoreResult<Option<T>> {
    let (from, to) = (policy_version_key(version, 0), policy_version_key(version, u64::MAX));
    let parts = store.rows(RowSpace::Chat, &from, &to, PARTS_MAX)?;
    if parts.is_empty() {
        return Ok(None);
    }
    let text: Vec<u8> = parts.into_iter().flat_map(|(_, part)| part).collect();
    let damaged = |error| StoreError::Damaged(format!("version {version} of the notification policy: {error}"));
    serde_json::from_slice(&text).map(Some).map_err(damaged)
}

/// The oldest version that is kept once `new` is stored: the newest ones are, and those by which channels may still wait.
fn oldest_kept(store: &dyn Store, before: Head, new: &StoredVersion) -> StoreResult<u32> {
    // A newer program may have written the version; when it did is read all the same.
    #[derive(Deserialize)]
    struct Written {
        updated_at: u64,
    }
    let first = before.oldest.max(1);
    let listed = new.version.saturating_sub(NOTIFICATION_POLICY_VERSIONS_MAX as u32 - 1);
    for oldest in first..listed.min(first + DROPPED_AT_ONCE) {
        let replaced_at = read::<Written>(store, oldest + 1)?.map_or(0, |next| next.updated_at);
        let is_over = new.version - oldest >= KEPT_MAX;
        if !is_over && replaced_at.saturating_add(KEPT_MS) > new.updated_at {
            return Ok(oldest);
        }
    }
    Ok(listed.min(first + DROPPED_AT_ONCE).max(first))
}

/// Stores a version behind `before`, and removes those that nothing needs any more.
pub(super) fn put(store: &dyn Store, term: Term, before: Head, new: &StoredVersion) -> StoreResult<()> {
    let oldest = oldest_kept(store, before, new)?;
    let head = Head { version: new.version, oldest };
    let text = chat_rows::encode(new);
    let mut changes = vec![RowChange { key: policy_head_key(), value: Some(chat_rows::encode(&head)) }];
    changes.extend(
        (0..)
            .zip(text.chunks(PART_BYTES))
            .map(|(part, bytes)| RowChange { key: policy_version_key(new.version, part), value: Some(bytes.to_vec()) }),
    );
    for old in before.oldest.max(1)..oldest {
        let (from, to) = (policy_version_key(old, 0), policy_version_key(old, u64::MAX));
        let parts = store.rows(RowSpace::Chat, &from, &to, PARTS_MAX)?;
        changes.extend(parts.into_iter().map(|(key, _)| RowChange { key, value: None }));
    }
    store.write_rows(term, RowSpace::Chat, changes)
}

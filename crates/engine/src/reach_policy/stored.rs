//! The policy's rows: a head, and the kept versions in parts that fit into a row.

use serde::{Deserialize, Serialize};
use tidings_domain::{
    chat_rows::{self, policy_head_key, policy_version_key},
    leadership::Term,
    store::{RowChange, RowSpace, Store, StoreError, StoreResult},
};
use tidings_protocol::{http::ReachPolicy, limits::REACH_POLICY_VERSIONS_MAX};

/// Bytes of one part.
const PART_BYTES: usize = 2_000;
/// Parts of one version are fewer.
const PARTS_MAX: usize = 100;

/// Which versions are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Head {
    /// The newest; 0: none was ever stored.
    pub(super) version: u32,
    pub(super) oldest: u32,
}

impl Head {
    /// The kept versions, the newest first.
    pub(super) fn versions(self) -> impl Iterator<Item = u32> {
        (self.oldest.max(1)..=self.version).rev()
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
    #[serde(default)]
    pub(super) policy: Option<ReachPolicy>,
}

pub(super) fn head(store: &dyn Store) -> StoreResult<Head> {
    chat_rows::decode(store.row(RowSpace::Chat, &policy_head_key())?.as_deref())
}

/// A version; `None` if it is not kept.
pub(super) fn version(store: &dyn Store, version: u32) -> StoreResult<Option<StoredVersion>> {
    let (from, to) = (policy_version_key(version, 0), policy_version_key(version, u64::MAX));
    let parts = store.rows(RowSpace::Chat, &from, &to, PARTS_MAX)?;
    if parts.is_empty() {
        return Ok(None);
    }
    let text: Vec<u8> = parts.into_iter().flat_map(|(_, part)| part).collect();
    let damaged = |error| StoreError::Damaged(format!("version {version} of the reach policy: {error}"));
    serde_json::from_slice(&text).map(Some).map_err(damaged)
}

/// Stores a version behind `before`, and removes the oldest ones.
pub(super) fn put(store: &dyn Store, term: Term, before: Head, new: &StoredVersion) -> StoreResult<()> {
    let oldest = before.oldest.max(new.version.saturating_sub(REACH_POLICY_VERSIONS_MAX as u32 - 1)).max(1);
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

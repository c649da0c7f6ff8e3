//! The rows of API keys and of the audit log.

use super::secret::{self, SecretHash};
use serde::{Deserialize, Serialize};
use tidings_domain::{
    chat_rows::{self, api_key_key, api_key_use_key, api_keys_version_key, audit_entry_key, audit_head_key, number_in},
    store::{RowChange, RowSpace, Store, StoreError, StoreResult},
};
use tidings_protocol::{
    http::{AuditEntry, KeyScope},
    limits::{API_KEYS_MAX, AUDIT_DAYS, AUDIT_ENTRIES_MAX},
};

/// Entries that one write of the audit log removes because they are too old.
const REMOVED_AT_ONCE: usize = 8;
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

/// A key as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredKey {
    /// Not in the row: it is the row's number.
    #[serde(skip)]
    pub(super) number: u64,
    pub(super) name: String,
    #[serde(with = "scope_names")]
    pub(super) scopes: Vec<KeyScope>,
    pub(super) created_at: u64,
    pub(super) created_by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) expires_at: Option<u64>,
    #[serde(with = "hex")]
    pub(super) hash: SecretHash,
    /// The secret before the last rotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) former: Option<FormerSecret>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FormerSecret {
    #[serde(with = "hex")]
    pub(super) hash: SecretHash,
    pub(super) until: u64,
}

/// A scope that a newer version has written, and this one does not know, grants nothing here.
mod scope_names {
    use super::KeyScope;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(scopes: &[KeyScope], to: S) -> Result<S::Ok, S::Error> {
        scopes.iter().map(|scope| scope.name()).collect::<Vec<_>>().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<KeyScope>, D::Error> {
        let names = Vec::<String>::deserialize(from)?;
        Ok(names.iter().filter_map(|name| KeyScope::of_name(name)).collect())
    }
}

mod hex {
    use super::{SecretHash, secret};
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(hash: &SecretHash, to: S) -> Result<S::Ok, S::Error> {
        secret::to_hex(hash).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SecretHash, D::Error> {
        let text = String::deserialize(from)?;
        secret::from_hex(&text).ok_or_else(|| D::Error::custom("not the hash of a secret"))
    }
}

/// Which entries of the audit log are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct AuditHead {
    /// The number of the newest; 0: there are none.
    pub(super) newest: u64,
    pub(super) oldest: u64,
}

/// The version of all keys; 0: none was ever stored.
pub(super) fn version(store: &dyn Store) -> StoreResult<u64> {
    chat_rows::decode(store.row(RowSpace::Chat, &api_keys_version_key())?.as_deref())
}

/// All keys, in the order of their numbers.
pub(super) fn keys(store: &dyn Store) -> StoreResult<Vec<StoredKey>> {
    // More are never stored; a limit bounds what a damaged store costs.
    let rows = store.rows(RowSpace::Chat, &api_key_key(0), &api_key_key(u64::MAX), API_KEYS_MAX)?;
    rows.into_iter().map(|(key, row)| read(&key, &row)).collect()
}

/// The key with this number.
pub(super) fn key(store: &dyn Store, number: u64) -> StoreResult<Option<StoredKey>> {
    let key = api_key_key(number);
    store.row(RowSpace::Chat, &key)?.map(|row| read(&key, &row)).transpose()
}

fn read(key: &[u8], row: &[u8]) -> StoreResult<StoredKey> {
    let damaged = |error: &dyn std::fmt::Display| StoreError::Damaged(format!("an API key: {error}"));
    let stored: StoredKey = serde_json::from_slice(row).map_err(|error| damaged(&error))?;
    let number = number_in(key, 1).ok_or_else(|| damaged(&"its row has no number"))?;
    Ok(StoredKey { number, ..stored })
}

/// When each of these keys was last used, by the rows.
pub(super) fn uses(store: &dyn Store, numbers: &[u64]) -> StoreResult<Vec<Option<u64>>> {
    let keys: Vec<Vec<u8>> = numbers.iter().map(|number| api_key_use_key(*number)).collect();
    let rows = store.rows_of(RowSpace::Chat, &keys)?;
    rows.into_iter().map(|row| row.map(|row| chat_rows::decode(Some(&row))).transpose()).collect()
}

/// The rows of a key that was made or changed.
pub(super) fn put(key: &StoredKey) -> Vec<RowChange> {
    vec![RowChange { key: api_key_key(key.number), value: Some(chat_rows::encode(key)) }]
}

/// The rows of a key that is no more.
pub(super) fn remove(number: u64) -> Vec<RowChange> {
    [api_key_key(number), api_key_use_key(number)].map(|key| RowChange { key, value: None }).into()
}

/// The row that has other nodes read the keys anew.
pub(super) fn put_version(version: u64) -> RowChange {
    RowChange { key: api_keys_version_key(), value: Some(chat_rows::encode(&version)) }
}

/// The rows of another entry of the audit log, whose number this sets. What is beyond the limits goes.
pub(super) fn append(store: &dyn Store, entry: &mut AuditEntry) -> StoreResult<Vec<RowChange>> {
    let head: AuditHead = chat_rows::decode(store.row(RowSpace::Chat, &audit_head_key())?.as_deref())?;
    entry.number = head.newest + 1;
    let mut oldest = head.oldest.max(1);
    let kept_by_number = entry.number.saturating_sub(AUDIT_ENTRIES_MAX - 1);
    for (number, old) in entries(store, oldest, head.newest, REMOVED_AT_ONCE)? {
        if number >= kept_by_number && !is_over(&old, entry.at) {
            break;
        }
        oldest = number + 1;
    }
    let mut changes: Vec<RowChange> =
        (head.oldest.max(1)..oldest).map(|number| RowChange { key: audit_entry_key(number), value: None }).collect();
    let head = AuditHead { newest: entry.number, oldest };
    changes.push(RowChange { key: audit_head_key(), value: Some(chat_rows::encode(&head)) });
    changes.push(RowChange { key: audit_entry_key(entry.number), value: Some(chat_rows::encode(entry)) });
    Ok(changes)
}

fn is_over(entry: &AuditEntry, now_ms: u64) -> bool {
    entry.at.saturating_add(AUDIT_DAYS * DAY_MS) < now_ms
}

/// Entries with `from <= number <= to`, the oldest first.
fn entries(store: &dyn Store, from: u64, to: u64, limit: usize) -> StoreResult<Vec<(u64, AuditEntry)>> {
    if from > to {
        return Ok(Vec::new());
    }
    let rows = store.rows(RowSpace::Chat, &audit_entry_key(from), &audit_entry_key(to), limit)?;
    let damaged = |error| StoreError::Damaged(format!("an entry of the audit log: {error}"));
    let read = |(_, row): (Vec<u8>, Vec<u8>)| {
        let entry: AuditEntry = serde_json::from_slice(&row).map_err(damaged)?;
        Ok((entry.number, entry))
    };
    rows.into_iter().map(read).collect()
}

/// A page of the audit log, the newest first, from below `before`; and whether there are older ones.
pub(super) fn audit_page(
    store: &dyn Store,
    before: Option<u64>,
    limit: usize,
    now_ms: u64,
) -> StoreResult<(Vec<AuditEntry>, bool)> {
    let head: AuditHead = chat_rows::decode(store.row(RowSpace::Chat, &audit_head_key())?.as_deref())?;
    let to = before.map_or(head.newest, |before| head.newest.min(before.saturating_sub(1)));
    // Numbers have no gaps.
    let from = (to + 1).saturating_sub(limit as u64).max(head.oldest).max(1);
    let mut page: Vec<AuditEntry> = entries(store, from, to, limit)?.into_iter().map(|(_, entry)| entry).collect();
    page.retain(|entry| !is_over(entry, now_ms));
    page.reverse();
    let is_last = from <= head.oldest.max(1) || page.last().is_none_or(|entry| entry.number != from);
    Ok((page, !is_last))
}

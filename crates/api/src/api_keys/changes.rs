//! What is done to keys: made, changed, rotated, revoked; each with its entry in the audit log, in one write.

use super::{
    CallingKey, StoredKeys,
    permissions::OperationName,
    secret,
    stored::{self, FormerSecret, StoredKey},
};
use std::sync::Arc;
use tidings_domain::{
    gates::Gate,
    refusals::{leader_unavailable, store_refusal},
    store::{RowChange, RowSpace},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{
        ApiKey, ApiKeys, AuditEntries, AuditEntry, CreateApiKey, IssuedApiKey, KeyScope, RotateApiKey, UpdateApiKey,
    },
    limits::{API_KEY_NAME_BYTES_MAX, API_KEY_OVERLAP_S_MAX, API_KEYS_MAX},
};

/// Entries of a page of the audit log, at most.
const AUDIT_PAGE_MAX: usize = 200;
/// The longest name of an operator in the audit log, in bytes; a longer one is cut.
const AUTHOR_BYTES_MAX: usize = 256;

/// Who changes something, for the audit log.
#[derive(Debug, Clone)]
pub struct Author {
    pub key: Arc<CallingKey>,
    /// The operator whom the request names.
    pub operator: Option<String>,
}

/// What the audit log says of a change.
struct Record<'a> {
    operation: &'a str,
    target: Option<u64>,
    detail: Option<String>,
}

impl StoredKeys {
    /// Makes a key. Blocks, as do all changes.
    ///
    /// # Errors
    /// The request is wrong (`invalid_field`), asks for more than the author's own key may do (`forbidden`), there are too many keys
    /// (`limit_exceeded`), another node leads (`node_unavailable`), or the store failed (`store_unavailable`).
    pub fn create(&self, new: CreateApiKey, author: &Author) -> Result<IssuedApiKey, Refusal> {
        let now = self.clock.now_ms();
        let CreateApiKey { name, scopes, expires_at } = new;
        check_name(&name)?;
        let scopes = checked_scopes(scopes)?;
        check_expiry(expires_at, now)?;
        check_within(&scopes, author)?;
        let secret = secret::new_secret()?;
        let created_by = author.key.id.clone();
        let (number, hash) = (secret::new_number()?, secret::hash(&secret));
        let key = StoredKey { number, name, scopes, created_at: now, created_by, expires_at, hash, former: None };
        let _changing = self.changing.lock();
        let known = self.read_all()?;
        if known.len() >= API_KEYS_MAX {
            return Err(Refusal::limit(
                "API keys (revoke those that nobody needs)",
                API_KEYS_MAX as u64,
                known.len() as u64 + 1,
            ));
        }
        let detail = Some(format!("named {:?}, may {}", key.name, names(&key.scopes)));
        let record = Record { operation: "POST /v1/admin/keys", target: Some(number), detail };
        self.write(stored::put(&key), author, record, now)?;
        Ok(IssuedApiKey { secret, key: view(&key, None, now) })
    }

    /// Changes a key.
    ///
    /// # Errors
    /// As [`StoredKeys::create`], and `not_found`.
    pub fn update(&self, id: &str, update: UpdateApiKey, author: &Author) -> Result<ApiKey, Refusal> {
        let now = self.clock.now_ms();
        let _changing = self.changing.lock();
        let before = self.read_within(id, author)?;
        let mut key = before.clone();
        if let Some(name) = update.name {
            check_name(&name)?;
            key.name = name;
        }
        if let Some(scopes) = update.scopes {
            key.scopes = checked_scopes(scopes)?;
            check_within(&key.scopes, author)?;
        }
        if let Some(expires_at) = update.expires_at {
            key.expires_at = (expires_at > 0).then_some(expires_at);
            check_expiry(key.expires_at, now)?;
        }
        if key != before {
            let detail = Some(change_in_words(&before, &key));
            let record = Record { operation: "PATCH /v1/admin/keys/{key}", target: Some(key.number), detail };
            self.write(stored::put(&key), author, record, now)?;
        }
        self.with_use(&key, now)
    }

    /// Gives a key another secret.
    ///
    /// # Errors
    /// As [`StoredKeys::update`].
    pub fn rotate(&self, id: &str, rotate: &RotateApiKey, author: &Author) -> Result<IssuedApiKey, Refusal> {
        if rotate.overlap_s > API_KEY_OVERLAP_S_MAX {
            return Err(Refusal::limit("overlap_s", API_KEY_OVERLAP_S_MAX, rotate.overlap_s));
        }
        let now = self.clock.now_ms();
        let _changing = self.changing.lock();
        let mut key = self.read_within(id, author)?;
        let secret = secret::new_secret()?;
        let former = std::mem::replace(&mut key.hash, secret::hash(&secret));
        let until = now.saturating_add(rotate.overlap_s * 1_000);
        key.former = (rotate.overlap_s > 0).then_some(FormerSecret { hash: former, until });
        let detail = Some(format!("the former secret is valid for {} s", rotate.overlap_s));
        let record = Record { operation: "POST /v1/admin/keys/{key}/rotate", target: Some(key.number), detail };
        self.write(stored::put(&key), author, record, now)?;
        Ok(IssuedApiKey { secret, key: self.with_use(&key, now)? })
    }

    /// Revokes a key.
    ///
    /// # Errors
    /// As [`StoredKeys::update`].
    pub fn revoke(&self, id: &str, author: &Author) -> Result<(), Refusal> {
        let now = self.clock.now_ms();
        let _changing = self.changing.lock();
        let key = self.read_within(id, author)?;
        let detail = Some(format!("named {:?}, could {}", key.name, names(&key.scopes)));
        let record = Record { operation: "DELETE /v1/admin/keys/{key}", target: Some(key.number), detail };
        self.write(stored::remove(key.number), author, record, now)
    }

    /// All keys, the oldest first.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub fn list(&self) -> Result<ApiKeys, Refusal> {
        let now = self.clock.now_ms();
        let mut keys = self.read_all()?;
        keys.sort_by_key(|key| (key.created_at, key.number));
        let numbers: Vec<u64> = keys.iter().map(|key| key.number).collect();
        let uses = self.uses_of(&numbers)?;
        Ok(ApiKeys { keys: keys.iter().zip(uses).map(|(key, used)| view(key, used, now)).collect() })
    }

    /// A key.
    ///
    /// # Errors
    /// `not_found`, or `store_unavailable`.
    pub fn get(&self, id: &str) -> Result<ApiKey, Refusal> {
        self.with_use(&self.read(id)?, self.clock.now_ms())
    }

    /// The caller's own key, from memory: every key may ask, on every node.
    pub(crate) fn own(&self, caller: &CallingKey) -> ApiKey {
        let now = self.clock.now_ms();
        let known = caller.number.and_then(|number| self.known.read().by_number.get(&number).cloned());
        match known {
            Some(known) => {
                self.note_uses();
                let used = self.uses.lock().at.get(&known.stored.number).copied();
                view(&known.stored, used, now)
            }
            None => ApiKey {
                id: caller.id.clone(),
                name: caller.name.clone(),
                scopes: caller.scopes.clone(),
                created_at: None,
                created_by: None,
                expires_at: None,
                former_secret_until: None,
                last_used_at: None,
            },
        }
    }

    /// Adds an entry to the audit log for an operation that was done.
    ///
    /// # Errors
    /// `node_unavailable` or `store_unavailable`: the log does not have it.
    pub(crate) fn record(
        &self,
        operation: OperationName<'_>,
        detail: Option<String>,
        author: &Author,
    ) -> Result<(), Refusal> {
        if !self.gates.is_open(Gate::ApiKeys) {
            return Ok(());
        }
        let operation = format!("{} {}", operation.method, operation.path);
        let _changing = self.changing.lock();
        let record = Record { operation: &operation, target: None, detail };
        self.write_rows(Vec::new(), author, record, self.clock.now_ms())
    }

    /// A page of the audit log, the newest entry first.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub fn audit(&self, before: Option<u64>, limit: usize) -> Result<AuditEntries, Refusal> {
        let limit = if limit == 0 { AUDIT_PAGE_MAX } else { limit.min(AUDIT_PAGE_MAX) };
        let page = stored::audit_page(&*self.store, before, limit, self.clock.now_ms()).map_err(store_refusal)?;
        let (entries, has_more) = page;
        let next = entries.last().filter(|_| has_more).map(|entry| entry.number);
        Ok(AuditEntries { entries, next })
    }

    fn read_all(&self) -> Result<Vec<StoredKey>, Refusal> {
        stored::keys(&*self.store).map_err(store_refusal)
    }

    fn read(&self, id: &str) -> Result<StoredKey, Refusal> {
        let number = secret::number_of(id);
        let found = number.map(|number| stored::key(&*self.store, number)).transpose().map_err(store_refusal)?;
        found.flatten().ok_or_else(|| Refusal::not_found("API key", id))
    }

    /// A key that the author may change.
    fn read_within(&self, id: &str, author: &Author) -> Result<StoredKey, Refusal> {
        let key = self.read(id)?;
        check_within(&key.scopes, author)?;
        Ok(key)
    }

    /// Writes the rows of keys, which other nodes then read anew. The caller holds `changing`.
    fn write(&self, mut rows: Vec<RowChange>, author: &Author, record: Record<'_>, now: u64) -> Result<(), Refusal> {
        self.gates.require(Gate::ApiKeys)?;
        let version = stored::version(&*self.store).map_err(store_refusal)?;
        rows.push(stored::put_version(version + 1));
        self.write_rows(rows, author, record, now)?;
        self.refresh_locked().map_err(store_refusal)
    }

    fn write_rows(
        &self,
        mut rows: Vec<RowChange>,
        author: &Author,
        record: Record<'_>,
        at: u64,
    ) -> Result<(), Refusal> {
        let term = self.lead.term().ok_or_else(leader_unavailable)?;
        let mut entry = AuditEntry {
            number: 0,
            at,
            key: author.key.id.clone(),
            key_name: author.key.name.clone(),
            author: author.operator.as_deref().map(|operator| cut(operator, AUTHOR_BYTES_MAX).to_owned()),
            operation: record.operation.to_owned(),
            target: record.target.map(secret::id_of),
            detail: record.detail,
        };
        rows.extend(stored::append(&*self.store, &mut entry).map_err(store_refusal)?);
        self.store.write_rows(term, RowSpace::Chat, rows).map_err(store_refusal)
    }

    fn with_use(&self, key: &StoredKey, now: u64) -> Result<ApiKey, Refusal> {
        let used = self.uses_of(&[key.number])?;
        Ok(view(key, used.into_iter().next().flatten(), now))
    }

    /// When keys were last used: by the store, or by what this node has seen since.
    fn uses_of(&self, numbers: &[u64]) -> Result<Vec<Option<u64>>, Refusal> {
        self.note_uses();
        let stored = stored::uses(&*self.store, numbers).map_err(store_refusal)?;
        let uses = self.uses.lock();
        Ok(numbers.iter().zip(stored).map(|(number, stored)| stored.max(uses.at.get(number).copied())).collect())
    }
}

fn view(key: &StoredKey, last_used_at: Option<u64>, now_ms: u64) -> ApiKey {
    ApiKey {
        id: secret::id_of(key.number),
        name: key.name.clone(),
        scopes: key.scopes.clone(),
        created_at: Some(key.created_at),
        created_by: Some(key.created_by.clone()),
        expires_at: key.expires_at,
        former_secret_until: key.former.as_ref().map(|former| former.until).filter(|until| *until > now_ms),
        last_used_at,
    }
}

fn check_name(name: &str) -> Result<(), Refusal> {
    if name.len() > API_KEY_NAME_BYTES_MAX {
        return Err(Refusal::limit("name (bytes)", API_KEY_NAME_BYTES_MAX as u64, name.len() as u64));
    }
    if name.trim().is_empty() || name.chars().any(char::is_control) {
        return Err(Refusal::field("name", "must say what the key is for, in one line"));
    }
    Ok(())
}

/// The scopes in their order, each once.
fn checked_scopes(mut scopes: Vec<KeyScope>) -> Result<Vec<KeyScope>, Refusal> {
    if scopes.is_empty() {
        return Err(Refusal::field("scopes", format!("must be some of {}", names(&KeyScope::ALL))));
    }
    scopes.sort_unstable();
    scopes.dedup();
    Ok(scopes)
}

fn check_expiry(expires_at: Option<u64>, now_ms: u64) -> Result<(), Refusal> {
    if expires_at.is_some_and(|at| at <= now_ms) {
        return Err(Refusal::field("expires_at", "lies in the past: revoke the key to end it now"));
    }
    Ok(())
}

/// Nobody gets by a key of its making what its own key does not allow.
fn check_within(scopes: &[KeyScope], author: &Author) -> Result<(), Refusal> {
    let missing: Vec<KeyScope> = scopes.iter().copied().filter(|scope| !author.key.scopes.contains(scope)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let why =
        format!("scope: a key makes and changes only keys that may do no more than it; it lacks {}", names(&missing));
    Err(Refusal::new(ErrorCode::Forbidden, why))
}

fn names(scopes: &[KeyScope]) -> String {
    let names: Vec<&str> = scopes.iter().map(|scope| scope.name()).collect();
    names.join(", ")
}

fn change_in_words(before: &StoredKey, after: &StoredKey) -> String {
    let name = (before.name != after.name).then(|| format!("named {:?}, before {:?}", after.name, before.name));
    let scopes = (before.scopes != after.scopes)
        .then(|| format!("may {}, before {}", names(&after.scopes), names(&before.scopes)));
    let end = |at: Option<u64>| at.map_or_else(|| "never".to_owned(), |at| format!("at {at}"));
    let expiry = (before.expires_at != after.expires_at)
        .then(|| format!("expires {}, before {}", end(after.expires_at), end(before.expires_at)));
    let changes: Vec<String> = [name, scopes, expiry].into_iter().flatten().collect();
    changes.join("; ")
}

/// The beginning of a text, of at most so many bytes.
fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

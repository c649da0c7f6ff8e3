//! The policy that holds: stored, followed by every node, and compiled anew when it or a segment changes.
//!
//! The leader writes. Every node looks once a second whether there is a newer version, which is one read of a small row.

use super::{
    CheckedPolicy, CompiledPolicy, check,
    stored::{self, Head, StoredVersion},
};
use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use parking_lot::{Mutex, RwLock};
use std::{convert::Infallible, sync::Arc, thread::JoinHandle, time::Duration};
use tidings_domain::{
    clock::Clock,
    end_reason::required,
    failure_log::FailureLog,
    leadership::Leadership,
    model::ConversationKind,
    refusals::{leader_unavailable, store_refusal},
    store::{Store, StoreError, StoreResult},
};
use tidings_popups::{PopupService, Precondition, rules::Segment};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{NotificationPolicy, NotificationPolicyVersions, StoredNotificationPolicy},
    json,
    limits::NOTIFICATION_POLICY_BYTES_MAX,
};

/// How often a node looks for a newer version.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);
/// Versions that held before are kept ready, at most; further ones are read and compiled when they are asked for.
const FORMER_MAX: usize = 16;
/// The longest author of a version, in bytes.
const AUTHOR_BYTES_MAX: usize = 256;

/// The policy, for all who ask it.
pub struct NotificationPolicies {
    parts: PolicyParts,
    current: RwLock<Arc<CompiledPolicy>>,
    /// What `current` was compiled of. Locked while the policy changes.
    source: Mutex<Source>,
    /// Versions that held before and decided what channels are still to do; those that were asked for last are last.
    former: Mutex<Vec<Former>>,
    follower: Mutex<Option<(Sender<Infallible>, JoinHandle<()>)>>,
    failures: FailureLog,
}

/// What a policy needs from outside.
pub(crate) struct PolicyParts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) lead: Leadership,
    pub(crate) popups: Arc<PopupService>,
    /// The policy while none is stored.
    pub(crate) default: NotificationPolicy,
}

/// A version that held before.
struct Former {
    source: Source,
    compiled: Arc<CompiledPolicy>,
}

struct Source {
    version: u32,
    checked: CheckedPolicy,
    /// The segments that its conditions name, as they were.
    segments: Segments,
}

/// Segments by their ids; `None`: there is no such segment.
type Segments = Vec<(String, Option<Arc<Segment>>)>;

impl Source {
    fn compile(&self) -> CompiledPolicy {
        let segment = |id: &str| self.segments.iter().find(|(own, _)| own == id).and_then(|(_, users)| users.clone());
        CompiledPolicy::compile(&self.checked, self.version, &segment)
    }
}

impl NotificationPolicies {
    pub(crate) fn start(parts: PolicyParts) -> Arc<NotificationPolicies> {
        // The default is the program's own.
        let checked = check(parts.default.clone()).unwrap_or_else(|_| CheckedPolicy::empty());
        let policies = Arc::new(NotificationPolicies {
            current: RwLock::new(Arc::new(CompiledPolicy::compile(&checked, 0, &|_| None))),
            source: Mutex::new(Source { version: 0, checked, segments: Vec::new() }),
            former: Mutex::default(),
            parts,
            follower: Mutex::default(),
            failures: FailureLog::new("the notification policy could not be read; the former one holds"),
        });
        policies.refresh_or_log();
        let (stop, stopped) = bounded::<Infallible>(0);
        let followed = Arc::downgrade(&policies);
        let follow = move || {
            while stopped.recv_timeout(FOLLOW_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let Some(policies) = followed.upgrade() else { return };
                policies.refresh_or_log();
            }
        };
        let thread = std::thread::Builder::new().name("notify-policy".into()).spawn(follow);
        *policies.follower.lock() = Some((stop, required("notify-policy", thread)));
        policies
    }

    pub(crate) fn stop(&self) {
        let Some((stop, thread)) = self.follower.lock().take() else { return };
        drop(stop);
        let _ = thread.join();
    }

    /// The policy that holds now, as far as this node knows.
    pub fn current(&self) -> Arc<CompiledPolicy> {
        self.current.read().clone()
    }

    /// The policy that decided a message, for what is still to be done by its channels. `None`, of a row that does not say which, and a
    /// version that is not kept any more or that this program cannot read: the policy that holds now.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) fn deciding(&self, version: Option<u32>) -> StoreResult<Arc<CompiledPolicy>> {
        let current = self.current();
        let Some(version) = version.filter(|version| *version != current.version) else { return Ok(current) };
        let known = {
            let mut former = self.former.lock();
            let at = former.iter().position(|former| former.source.version == version);
            at.map(|at| former.remove(at))
        };
        let former = match known {
            Some(known) => self.with_present_segments(known)?,
            None => match self.source_of(version) {
                Ok(Some(source)) => self.former(source),
                Ok(None) => return Ok(current),
                Err(StoreError::Damaged(error)) => {
                    tracing::warn!(
                        error,
                        "a former notification policy cannot be read; the present one holds for its messages"
                    );
                    return Ok(current);
                }
                Err(error) => return Err(error),
            },
        };
        let compiled = former.compiled.clone();
        let mut all = self.former.lock();
        // Another channel may have asked for the same one meanwhile.
        all.retain(|known| known.source.version != version);
        all.push(former);
        if all.len() > FORMER_MAX {
            all.remove(0);
        }
        Ok(compiled)
    }

    fn former(&self, source: Source) -> Former {
        Former { compiled: Arc::new(source.compile()), source }
    }

    fn with_present_segments(&self, known: Former) -> StoreResult<Former> {
        let segments = self.segments_of(&known.source.checked)?;
        if is_same_segments(&segments, &known.source.segments) {
            return Ok(known);
        }
        Ok(self.former(Source { segments, ..known.source }))
    }

    /// A version as it is stored; `None`: it is not kept.
    fn source_of(&self, version: u32) -> StoreResult<Option<Source>> {
        let policy = match stored::version(&*self.parts.store, version)? {
            Some(stored) => stored.policy,
            // While none was stored the default held.
            None if version == 0 => None,
            None => return Ok(None),
        };
        let damaged = |refusal: Refusal| StoreError::Damaged(format!("the notification policy: {refusal}"));
        let checked = check(policy.unwrap_or_else(|| self.parts.default.clone())).map_err(damaged)?;
        let segments = self.segments_of(&checked)?;
        Ok(Some(Source { version, checked, segments }))
    }

    /// How long clients have to acknowledge messages of this kind, as the policy or else `default_ms` says.
    pub fn ack_timeout_ms(&self, kind: ConversationKind, default_ms: u64) -> u64 {
        self.current.read().ack_timeout_ms(kind, default_ms)
    }

    fn refresh_or_log(&self) {
        self.failures.note(&self.refresh());
    }

    /// Reads the policy anew if there is another version, or if a segment of its conditions has changed.
    ///
    /// # Errors
    /// The store cannot be read, or the stored policy is one of a newer program.
    pub fn refresh(&self) -> StoreResult<()> {
        let mut source = self.source.lock();
        let head = stored::head(&*self.parts.store)?;
        if head.version != source.version {
            let gone =
                || StoreError::Damaged(format!("version {} of the notification policy is missing", head.version));
            *source = self.source_of(head.version)?.ok_or_else(gone)?;
        } else {
            let segments = self.segments_of(&source.checked)?;
            if is_same_segments(&segments, &source.segments) {
                return Ok(());
            }
            source.segments = segments;
        }
        *self.current.write() = Arc::new(source.compile());
        Ok(())
    }

    /// The segments that conditions name, which every node follows: who decides need not lead popups.
    fn segments_of(&self, checked: &CheckedPolicy) -> StoreResult<Segments> {
        let mut ids: Vec<String> = checked.segments().into_iter().map(|(_, id)| id.to_owned()).collect();
        ids.sort_unstable();
        ids.dedup();
        let with_users = |id: String| self.parts.popups.segment_users(&id).map(|users| (id, users));
        ids.into_iter().map(with_users).collect()
    }

    fn view(&self, stored: Option<StoredVersion>) -> StoredNotificationPolicy {
        let default = || self.parts.default.clone();
        match stored {
            None => StoredNotificationPolicy {
                version: 0,
                updated_at: None,
                updated_by: None,
                removed: false,
                policy: default(),
            },
            Some(StoredVersion { version, updated_at, updated_by, policy }) => StoredNotificationPolicy {
                version,
                updated_at: Some(updated_at),
                updated_by,
                removed: policy.is_none(),
                policy: policy.unwrap_or_else(default),
            },
        }
    }

    /// The policy as it is stored now; the default if none is.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub fn get(&self) -> Result<StoredNotificationPolicy, Refusal> {
        let read = || {
            let head = stored::head(&*self.parts.store)?;
            stored::version(&*self.parts.store, head.version)
        };
        Ok(self.view(read().map_err(store_refusal)?))
    }

    /// The kept versions, the newest first.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub fn versions(&self) -> Result<NotificationPolicyVersions, Refusal> {
        let head = stored::head(&*self.parts.store).map_err(store_refusal)?;
        let mut versions = Vec::new();
        for version in head.versions() {
            let found = stored::version(&*self.parts.store, version).map_err(store_refusal)?;
            versions.extend(found.map(|found| self.view(Some(found))));
        }
        Ok(NotificationPolicyVersions { versions })
    }

    /// Replaces the policy by the JSON of a [`NotificationPolicy`]. Blocks.
    ///
    /// # Errors
    /// The policy is wrong (`malformed`, `invalid_field`, `limit_exceeded`), the precondition does not hold (`conflict`), another
    /// node leads (`node_unavailable`), or the store failed (`store_unavailable`).
    pub fn put(
        &self,
        text: &[u8],
        author: Option<&str>,
        precondition: Precondition,
    ) -> Result<StoredNotificationPolicy, Refusal> {
        let checked = self.checked(text)?;
        self.write(Some(checked.policy().clone()), author, precondition)
    }

    /// Reads and checks a policy's JSON, with the segments that it names.
    fn checked(&self, text: &[u8]) -> Result<CheckedPolicy, Refusal> {
        if text.len() > NOTIFICATION_POLICY_BYTES_MAX {
            return Err(Refusal::limit("policy (bytes)", NOTIFICATION_POLICY_BYTES_MAX as u64, text.len() as u64));
        }
        let checked = check(json::read(text)?)?;
        for (path, id) in checked.segments() {
            if self.parts.popups.segment_users(id).map_err(store_refusal)?.is_none() {
                return Err(Refusal::field(&path, format!("unknown segment {id:?}")));
            }
        }
        Ok(checked)
    }

    /// Removes the policy, so that the default holds again. Blocks.
    ///
    /// # Errors
    /// As [`NotificationPolicies::put`].
    pub fn remove(
        &self,
        author: Option<&str>,
        precondition: Precondition,
    ) -> Result<StoredNotificationPolicy, Refusal> {
        self.write(None, author, precondition)
    }

    fn write(
        &self,
        policy: Option<NotificationPolicy>,
        author: Option<&str>,
        precondition: Precondition,
    ) -> Result<StoredNotificationPolicy, Refusal> {
        if let Some(author) = author.filter(|author| author.len() > AUTHOR_BYTES_MAX) {
            return Err(Refusal::limit("Tidings-Author (bytes)", AUTHOR_BYTES_MAX as u64, author.len() as u64));
        }
        let store = &*self.parts.store;
        let written = {
            // Held, so that two writes at once do not take the same version.
            let _source = self.source.lock();
            let term = self.parts.lead.term().ok_or_else(leader_unavailable)?;
            let before = stored::head(store).map_err(store_refusal)?;
            check_precondition(precondition, before)?;
            let (updated_at, updated_by) = (self.parts.clock.now_ms(), author.map(str::to_owned));
            let new = StoredVersion { version: before.version + 1, updated_at, updated_by, policy };
            stored::put(store, term, before, &new).map_err(store_refusal)?;
            new
        };
        self.refresh().map_err(store_refusal)?;
        Ok(self.view(Some(written)))
    }
}

fn check_precondition(precondition: Precondition, Head { version, .. }: Head) -> Result<(), Refusal> {
    let why = match precondition {
        Precondition::Version(asked) if asked != version => format!("the policy is at version {version}, not {asked}"),
        Precondition::Absent if version > 0 => format!("there is a policy already, at version {version}"),
        _ => return Ok(()),
    };
    Err(Refusal::new(ErrorCode::Conflict, why))
}

fn is_same_segments(now: &Segments, before: &Segments) -> bool {
    let mut pairs = now.iter().zip(before);
    now.len() == before.len() && pairs.all(|((_, now), (_, before))| is_same_segment(now.as_ref(), before.as_ref()))
}

/// Whether both are the same compiled list of users, or both are unknown.
fn is_same_segment(now: Option<&Arc<Segment>>, before: Option<&Arc<Segment>>) -> bool {
    match (now, before) {
        (Some(now), Some(before)) => Arc::ptr_eq(now, before),
        (now, before) => now.is_none() && before.is_none(),
    }
}

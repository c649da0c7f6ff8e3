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
    leadership::Leadership,
    model::ConversationKind,
    refusals::{leader_unavailable, store_refusal},
    store::{Store, StoreResult},
};
use tidings_popups::{PopupService, Precondition, rules::Segment};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{ReachPolicy, ReachPolicyVersions, StoredReachPolicy},
    json,
    limits::REACH_POLICY_BYTES_MAX,
};

/// How often a node looks for a newer version.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);
/// The longest author of a version, in bytes.
const AUTHOR_BYTES_MAX: usize = 256;

/// The policy, for all who ask it.
pub struct ReachPolicies {
    parts: PolicyParts,
    current: RwLock<Arc<CompiledPolicy>>,
    /// What `current` was compiled of. Locked while the policy changes.
    source: Mutex<Source>,
    follower: Mutex<Option<(Sender<Infallible>, JoinHandle<()>)>>,
}

/// What a policy needs from outside.
pub(crate) struct PolicyParts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) lead: Leadership,
    pub(crate) popups: Arc<PopupService>,
    /// The policy while none is stored.
    pub(crate) default: ReachPolicy,
}

struct Source {
    version: u32,
    checked: CheckedPolicy,
    /// The segments that its conditions name, as they were.
    segments: Vec<(String, Option<Arc<Segment>>)>,
}

impl ReachPolicies {
    pub(crate) fn start(parts: PolicyParts) -> Arc<ReachPolicies> {
        // The default is the program's own.
        let checked = check(parts.default.clone()).unwrap_or_else(|_| CheckedPolicy::empty());
        let policies = Arc::new(ReachPolicies {
            current: RwLock::new(Arc::new(CompiledPolicy::compile(&checked, 0, &|_| None))),
            source: Mutex::new(Source { version: 0, checked, segments: Vec::new() }),
            parts,
            follower: Mutex::default(),
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
        match std::thread::Builder::new().name("reach-policy".into()).spawn(follow) {
            Ok(thread) => *policies.follower.lock() = Some((stop, thread)),
            Err(error) => tracing::error!(%error, "no thread to follow the reach policy"),
        }
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

    /// How long clients have to acknowledge messages of this kind, as the policy or else `default_ms` says.
    pub fn ack_timeout_ms(&self, kind: ConversationKind, default_ms: u64) -> u64 {
        self.current.read().ack_timeout_ms(kind, default_ms)
    }

    fn refresh_or_log(&self) {
        if let Err(error) = self.refresh() {
            tracing::warn!(%error, "the reach policy could not be read; the former one holds");
        }
    }

    /// Reads the policy anew if there is another version, or if a segment of its conditions has changed.
    ///
    /// # Errors
    /// The store cannot be read, or the stored policy is one of a newer program.
    pub fn refresh(&self) -> StoreResult<()> {
        let mut source = self.source.lock();
        let head = stored::head(&*self.parts.store)?;
        if head.version != source.version {
            let version = stored::version(&*self.parts.store, head.version)?;
            let policy = version.and_then(|version| version.policy).unwrap_or_else(|| self.parts.default.clone());
            let damaged =
                |refusal: Refusal| tidings_domain::store::StoreError::Damaged(format!("the reach policy: {refusal}"));
            source.checked = check(policy).map_err(damaged)?;
            source.version = head.version;
            source.segments = self.segments_of(&source.checked);
        } else {
            let segments = self.segments_of(&source.checked);
            let mut pairs = segments.iter().zip(&source.segments);
            if pairs.all(|((_, now), (_, before))| is_same_segment(now.as_ref(), before.as_ref())) {
                return Ok(());
            }
            source.segments = segments;
        }
        self.publish(&source);
        Ok(())
    }

    fn publish(&self, source: &Source) {
        let segment = |id: &str| source.segments.iter().find(|(own, _)| own == id).and_then(|(_, users)| users.clone());
        let compiled = CompiledPolicy::compile(&source.checked, source.version, &segment);
        *self.current.write() = Arc::new(compiled);
    }

    /// The segments that conditions name. Only the leader has them in memory, and only the leader decides.
    fn segments_of(&self, checked: &CheckedPolicy) -> Vec<(String, Option<Arc<Segment>>)> {
        let mut ids: Vec<String> = checked.segments().into_iter().map(|(_, id)| id.to_owned()).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.into_iter()
            .map(|id| (self.parts.popups.segment_users(&id).ok().flatten(), id))
            .map(|(s, id)| (id, s))
            .collect()
    }

    fn view(&self, stored: Option<StoredVersion>) -> StoredReachPolicy {
        let default = || self.parts.default.clone();
        match stored {
            None => {
                StoredReachPolicy { version: 0, updated_at: None, updated_by: None, removed: false, policy: default() }
            }
            Some(StoredVersion { version, updated_at, updated_by, policy }) => StoredReachPolicy {
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
    pub fn get(&self) -> Result<StoredReachPolicy, Refusal> {
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
    pub fn versions(&self) -> Result<ReachPolicyVersions, Refusal> {
        let head = stored::head(&*self.parts.store).map_err(store_refusal)?;
        let mut versions = Vec::new();
        for version in head.versions() {
            let found = stored::version(&*self.parts.store, version).map_err(store_refusal)?;
            versions.extend(found.map(|found| self.view(Some(found))));
        }
        Ok(ReachPolicyVersions { versions })
    }

    /// Replaces the policy by the JSON of a [`ReachPolicy`]. Blocks.
    ///
    /// # Errors
    /// The policy is wrong (`malformed`, `invalid_field`, `limit_exceeded`), the precondition does not hold (`conflict`), another
    /// node leads (`node_unavailable`), or the store failed (`store_unavailable`).
    pub fn put(
        &self,
        text: &[u8],
        author: Option<&str>,
        precondition: Precondition,
    ) -> Result<StoredReachPolicy, Refusal> {
        let checked = self.checked(text)?;
        self.write(Some(checked.policy().clone()), author, precondition)
    }

    /// Reads and checks a policy's JSON, with the segments that it names.
    fn checked(&self, text: &[u8]) -> Result<CheckedPolicy, Refusal> {
        if text.len() > REACH_POLICY_BYTES_MAX {
            return Err(Refusal::limit("policy (bytes)", REACH_POLICY_BYTES_MAX as u64, text.len() as u64));
        }
        let checked = check(json::read(text)?)?;
        for (path, id) in checked.segments() {
            if self.parts.popups.segment_users(id)?.is_none() {
                return Err(Refusal::field(&path, format!("there is no segment {id:?}")));
            }
        }
        Ok(checked)
    }

    /// Removes the policy, so that the default holds again. Blocks.
    ///
    /// # Errors
    /// As [`ReachPolicies::put`].
    pub fn remove(&self, author: Option<&str>, precondition: Precondition) -> Result<StoredReachPolicy, Refusal> {
        self.write(None, author, precondition)
    }

    fn write(
        &self,
        policy: Option<ReachPolicy>,
        author: Option<&str>,
        precondition: Precondition,
    ) -> Result<StoredReachPolicy, Refusal> {
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

/// Whether both are the same compiled list of users, or both are unknown.
fn is_same_segment(now: Option<&Arc<Segment>>, before: Option<&Arc<Segment>>) -> bool {
    match (now, before) {
        (Some(now), Some(before)) => Arc::ptr_eq(now, before),
        (now, before) => now.is_none() && before.is_none(),
    }
}

//! The push operations of app servers, with their checks.

use crate::{
    PushHandle,
    devices::AudienceQuery,
    prepared_push::{PreparedPush, TargetSpec, digest_of},
    stopped,
    worker::{Accept, has_ended},
};
use std::sync::atomic::Ordering;
use tidings_domain::{gates::Gate, refusals::store_refusal};
use tidings_protocol::{depth::check_depth, error::Refusal, http::*, ids::check_id, limits::*};
use tokio::sync::oneshot;

fn check_count(name: &str, limit: usize, count: usize) -> Result<(), Refusal> {
    if count > limit { Err(Refusal::limit(name, limit as u64, count as u64)) } else { Ok(()) }
}

/// Tags, kinds and keys follow the rules of ids.
fn check_words(field: &str, limit: usize, words: &[String]) -> Result<(), Refusal> {
    check_count(&format!("{field} of a push"), limit, words.len())?;
    words.iter().try_for_each(|word| check_id(field, word))
}

impl PushHandle {
    /// Checks a push request, and looks up the users that it names. Blocks.
    ///
    /// # Errors
    /// `invalid_field` or `limit_exceeded` with the field's name, `not_yet_enabled` for a fallback that an older node would not
    /// understand, `draining` when the server stops, or the store's refusal.
    pub fn prepare(&self, request: PushRequest) -> Result<PreparedPush, Refusal> {
        if self.draining.load(Ordering::Relaxed) {
            return Err(stopped());
        }
        let digest = request.client_push_id.as_ref().map(|_| digest_of(&request));
        let (targets, unknown) = self.target_spec(request.to)?;
        match request.content_type.len() {
            0 => return Err(Refusal::field("type", "must not be empty")),
            length => check_count("type (bytes)", TYPE_BYTES_MAX, length)?,
        }
        check_count("body (bytes)", PUSH_BODY_BYTES_MAX, request.body.get().len())?;
        check_depth("body", request.body.get())?;
        for (field, id) in [("collapse_key", &request.collapse_key), ("client_push_id", &request.client_push_id)] {
            id.as_ref().map_or(Ok(()), |id| check_id(field, id))?;
        }
        let ttl_s = request.ttl_s.unwrap_or(PUSH_TTL_S_DEFAULT);
        if ttl_s == 0 {
            return Err(Refusal::field("ttl_s", "must be at least 1"));
        }
        if ttl_s > PUSH_TTL_S_MAX {
            return Err(Refusal::limit("ttl_s", PUSH_TTL_S_MAX, ttl_s));
        }
        if let Some(fallback) = &request.fallback {
            fallback.check("fallback", ttl_s)?;
            self.gates.require(Gate::PushFallback)?;
        }
        let ahead_s = request.send_at.map_or(0, |at| at.saturating_sub(self.clock.now_ms()) / 1_000);
        if ahead_s > PUSH_AHEAD_S_MAX {
            return Err(Refusal::limit("send_at (seconds ahead)", PUSH_AHEAD_S_MAX, ahead_s));
        }
        Ok(PreparedPush {
            targets,
            content_type: request.content_type,
            body: request.body.get().to_owned(),
            collapse_key: request.collapse_key,
            high: request.priority == PushPriority::High,
            ttl_ms: ttl_s * 1_000,
            send_at: request.send_at,
            client_push_id: request.client_push_id,
            fallback: request.fallback,
            unknown,
            request: digest,
        })
    }

    /// The target specification, and how many of the named users do not exist.
    fn target_spec(&self, to: PushTo) -> Result<(TargetSpec, u32), Refusal> {
        let PushTo { users, devices, tags, kinds, all } = to;
        check_words("to.kinds", PUSH_TAGS_MAX, &kinds)?;
        let named = !users.is_empty() || !devices.is_empty();
        match (named, all, &tags) {
            (true, true, _) | (true, _, Some(_)) | (_, true, Some(_)) => {
                let why = "take one of these: users and devices, tags, all";
                return Err(Refusal::field("to", why));
            }
            (false, false, None) => return Err(Refusal::field("to", "names nobody: give users, devices, tags or all")),
            _ => {}
        }
        if !named {
            let TagQuery { any, all: every } = tags.unwrap_or_default();
            if !all && any.is_empty() && every.is_empty() {
                return Err(Refusal::field("to.tags", "names no tag; for every device say all"));
            }
            check_words("to.tags.any", PUSH_TAGS_MAX, &any)?;
            check_words("to.tags.all", PUSH_TAGS_MAX, &every)?;
            return Ok((TargetSpec::Many(AudienceQuery { all, any, every, kinds }), 0));
        }
        check_count("users and devices of a push", PUSH_TARGETS_MAX, users.len() + devices.len())?;
        let (mut unknown, mut user_nos, mut device_names) = (0, Vec::new(), Vec::new());
        for user in &users {
            match self.users.user_no(user).map_err(store_refusal)? {
                Some(no) => user_nos.push(no.0),
                None => unknown += 1,
            }
        }
        for NamedDevice { user, device_id } in devices {
            check_id("device_id", &device_id)?;
            match self.users.user_no(&user).map_err(store_refusal)? {
                Some(no) => device_names.push((no.0, device_id)),
                None => unknown += 1,
            }
        }
        Ok((TargetSpec::Named { users: user_nos, devices: device_names, kinds }, unknown))
    }

    /// Makes a push durable: an accepted push survives a crash.
    ///
    /// # Errors
    /// `queue_full` when too many pushes wait, run or are scheduled; `store_unavailable` when the push could not be
    /// stored, or perhaps was (a retry with the same `client_push_id` is safe); `node_unavailable` when another node
    /// leads; `draining` when the server stops.
    pub async fn accept(&self, push: PreparedPush) -> Result<PushAccepted, Refusal> {
        self.begin_accept(push)?.await.map_err(|_| self.inbox.closed_refusal())?
    }

    /// As [`Self::accept`], of several at once, which become durable with few commits; the answers are in the same order.
    /// Blocks, and so belongs on a thread without a runtime.
    pub fn accept_all(&self, pushes: Vec<Result<PreparedPush, Refusal>>) -> Vec<Result<PushAccepted, Refusal>> {
        let begun: Vec<_> = pushes.into_iter().map(|push| self.begin_accept(push?)).collect();
        let wait = |answer: oneshot::Receiver<_>| answer.blocking_recv().map_err(|_| self.inbox.closed_refusal())?;
        begun.into_iter().map(|begun| begun.and_then(wait)).collect()
    }

    fn begin_accept(&self, push: PreparedPush) -> Result<oneshot::Receiver<Result<PushAccepted, Refusal>>, Refusal> {
        let (reply, answer) = oneshot::channel();
        self.inbox.accept(Accept { push, reply })?;
        Ok(answer)
    }

    /// Counts the devices that the push would be for now. Blocks.
    ///
    /// # Errors
    /// As [`Self::settle`].
    pub fn reach(&self, push: PreparedPush) -> Result<PushReach, Refusal> {
        self.ask(move |worker| worker.reach(&push.targets))
    }

    /// Cancels a push that is scheduled or running: a device that has not been handed it is not handed it any more. Blocks.
    ///
    /// # Errors
    /// `not_found` for a push that was never accepted, or is purged; `conflict` for one that has ended; else as
    /// [`Self::settle`].
    pub fn cancel(&self, push: u64) -> Result<PushStatus, Refusal> {
        // A running push that every target has acknowledged is completed; its stage says so only after its timer fires.
        if self.status(push)?.state == PushState::Completed {
            return Err(has_ended(push));
        }
        self.ask(move |worker| worker.cancel_push(push))??;
        self.status(push)
    }

    /// The devices that a user has bound. Blocks.
    ///
    /// # Errors
    /// `not_found` for an unknown user; else as [`Self::settle`].
    pub fn user_devices(&self, user: &str) -> Result<UserDevices, Refusal> {
        let user = self.require_user(user)?;
        let devices = self.ask(move |worker| worker.device_details(user))??;
        Ok(UserDevices { devices })
    }

    /// Replaces a device's tags. Blocks.
    ///
    /// # Errors
    /// `not_found` for an unknown user or device, `invalid_field` or `limit_exceeded` for the tags; else as
    /// [`Self::settle`].
    pub fn set_device_tags(
        &self,
        user: &str,
        device_id: &str,
        mut tags: Vec<String>,
    ) -> Result<DeviceDetails, Refusal> {
        let user = self.require_user(user)?;
        tags.sort_unstable();
        tags.dedup();
        check_count("tags of a device", TAGS_PER_DEVICE_MAX, tags.len())?;
        tags.iter().try_for_each(|tag| check_id("tags", tag))?;
        let device_id = device_id.to_owned();
        self.ask(move |worker| worker.set_tags(user, &device_id, tags))?
    }

    /// Removes a device; the caller ends its session. When the device binds again it is a new one. Blocks.
    ///
    /// # Errors
    /// `not_found` for an unknown user or device; else as [`Self::settle`].
    pub fn remove_device(&self, user: &str, device_id: &str) -> Result<(), Refusal> {
        let no = self.require_user(user)?;
        let id = device_id.to_owned();
        self.ask(move |worker| worker.remove_named_device(no, &id))?
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{PeerInbox, PushConfig, PushItem, PushParts, ShardSink, UserLookup};
    use std::sync::Arc;
    use tidings_domain::{
        gates::OpenGates, leadership::Leadership, metrics::Metrics, model::UserNo, store::StoreResult,
    };
    use tidings_protocol::error::ErrorCode;
    use tidings_testkit::{ManualClock, MemoryStore};

    struct Nobody;

    impl ShardSink for Nobody {
        fn count(&self) -> usize {
            0
        }

        fn try_push(&self, _: usize, _: PushItem, _: usize) -> Result<(), PushItem> {
            Ok(())
        }
    }

    impl UserLookup for Nobody {
        fn user_no(&self, _: &str) -> StoreResult<Option<UserNo>> {
            Ok(None)
        }
    }

    /// Nodes of the version before would find rows that they cannot read.
    #[test]
    fn a_fallback_is_refused_until_all_nodes_know_it() {
        let gates = Arc::new(OpenGates::default());
        let parts = PushParts {
            config: PushConfig::default(),
            lead: Leadership::default(),
            transport: None,
            store: Arc::new(MemoryStore::default()),
            clock: Arc::new(ManualClock::default()),
            shards: Arc::new(Nobody),
            users: Arc::new(Nobody),
            gates: gates.clone(),
            feed_notes: Arc::default(),
            metrics: Arc::new(Metrics::new()),
        };
        let push = PushHandle::start(parts, PeerInbox::new(false));
        let prepare = |request: &str| push.prepare(serde_json::from_str(request).unwrap()).map(drop);
        let plain = r#"{"to":{"all":true},"body":1}"#;
        let falls_back = r#"{"to":{"all":true},"body":1,"fallback":{"after_s":0,"template":{"title":"T","body":"B"}}}"#;
        prepare(plain).unwrap();
        assert_eq!(prepare(falls_back).unwrap_err().code, ErrorCode::NotYetEnabled);
        gates.note_open(Gate::PushFallback);
        prepare(falls_back).unwrap();
        push.stop();
    }
}

//! The push operations of app servers, with their checks.

use super::{
    PushHandle,
    accept::{PreparedPush, TargetSpec},
    devices::AudienceQuery,
    draft::Draft,
    worker::Worker,
};
use std::sync::atomic::Ordering;
use tidings_domain::{model::UserNo, push_store::*, refusals::store_refusal};
use tidings_protocol::{
    depth::check_depth,
    error::{ErrorCode, Refusal},
    http::*,
    ids::check_id,
    limits::*,
};

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
    /// `invalid_field` or `limit_exceeded` with the field's name, `draining` when the server stops, or the store's refusal.
    pub fn prepare(&self, request: PushRequest) -> Result<PreparedPush, Refusal> {
        if self.draining.load(Ordering::Relaxed) {
            return Err(super::stopped());
        }
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
            unknown,
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

    /// Cancels a push that is scheduled or running: a device that has not been handed it is not handed it any more. Blocks.
    ///
    /// # Errors
    /// `not_found` for a push that was never accepted, or is purged; `conflict` for one that has ended; else as of any
    /// operation.
    pub fn cancel(&self, push: u64) -> Result<PushStatus, Refusal> {
        let has_ended = move || Refusal::new(ErrorCode::Conflict, format!("push {push} has ended"));
        // A running push that every target has acknowledged is completed; its stage says so only after its timer fires.
        if self.status(push)?.state == PushState::Completed {
            return Err(has_ended());
        }
        self.ask(move |worker| {
            let stored = worker.stored_push(push).map_err(store_refusal)?;
            match stored.filter(|stored| stored.stage != PushStage::Preparing) {
                None => Err(Refusal::not_found("push", &push.to_string())),
                Some(stored) if matches!(stored.stage, PushStage::Scheduled | PushStage::Running) => {
                    worker.jobs.remove(&push);
                    worker.cancel(stored).map_err(store_refusal)
                }
                Some(stored) if stored.stage == PushStage::Cancelled => Ok(()),
                Some(_) => Err(has_ended()),
            }
        })??;
        self.status(push)
    }

    /// The devices that a user has bound. Blocks.
    ///
    /// # Errors
    /// `not_found` for an unknown user; else as of any operation.
    pub fn user_devices(&self, user: &str) -> Result<UserDevices, Refusal> {
        let user = self.require_user(user)?;
        let devices = self.ask(move |worker| worker.device_cards(user))??;
        Ok(UserDevices { devices })
    }

    /// Replaces a device's tags. Blocks.
    ///
    /// # Errors
    /// `not_found` for an unknown user or device, `invalid_field` or `limit_exceeded` for the tags; else as of any
    /// operation.
    pub fn set_device_tags(&self, user: &str, device_id: &str, mut tags: Vec<String>) -> Result<DeviceCard, Refusal> {
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
    /// `not_found` for an unknown user or device; else as of any operation.
    pub fn remove_device(&self, user: &str, device_id: &str) -> Result<(), Refusal> {
        let no = self.require_user(user)?;
        let id = device_id.to_owned();
        self.ask(move |worker| {
            let device = worker.require_device(no, &id)?;
            worker.remove_device(device).map_err(store_refusal)
        })?
    }
}

impl Worker {
    fn require_device(&self, user: UserNo, device_id: &str) -> Result<DeviceNo, Refusal> {
        self.devices.find(user, device_id).ok_or_else(|| Refusal::not_found("device", device_id))
    }

    fn device_cards(&self, user: UserNo) -> Result<Vec<DeviceCard>, Refusal> {
        let mut cards = Vec::new();
        for device in self.devices.of_user(user) {
            if let Some(row) = self.device_row(device).map_err(store_refusal)? {
                cards.push(self.card(row));
            }
        }
        cards.sort_unstable_by(|a, b| a.device_id.cmp(&b.device_id));
        Ok(cards)
    }

    fn card(&self, row: StoredDevice) -> DeviceCard {
        DeviceCard {
            online: self.devices.session(row.no).is_some(),
            last_bound: self.devices.bound_ms(row.no).max(row.first_bound),
            pending: self.devices.pending(row.no) as u64,
            device_id: row.device_id,
            device_kind: row.device_kind,
            app_version: row.app_version,
            tags: row.tags,
            first_bound: row.first_bound,
        }
    }

    fn set_tags(&mut self, user: UserNo, device_id: &str, tags: Vec<String>) -> Result<DeviceCard, Refusal> {
        let device = self.require_device(user, device_id)?;
        self.devices.check_tags(&tags)?;
        let row = self.device_row(device).map_err(store_refusal)?;
        let row = row.map(|row| StoredDevice { tags, ..row }).ok_or_else(|| Refusal::not_found("device", device_id))?;
        let store = self.store.clone();
        let mut draft = Draft::new(&*store);
        draft.put(PushRow::Device(row.clone()));
        self.store_draft(draft).map_err(store_refusal)?;
        self.devices.put(&row);
        Ok(self.card(row))
    }
}

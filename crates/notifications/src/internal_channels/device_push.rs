//! The channel `device_push`: a push of type `message` to the devices of a person that hold a connection, or come back in time.

use super::{InternalChannel, InternalChannelsConfig, Notified, Telling};
use crate::{
    badge::badge_of,
    offline_recipients::OfflinePushContext,
    provider_push::{Appearance, DeviceText, MessageText},
};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};
use tidings_domain::{model::*, refusals::store_refusal};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
    limits::{PUSH_DEVICES_PAGE_MAX, PUSH_TTL_S_MAX},
};
use tidings_push::{PreparedPush, PushHandle};

/// The type of these pushes.
const PUSH_TYPE: &str = "message";

pub(super) struct DevicePush {
    context: Arc<OfflinePushContext>,
    config: InternalChannelsConfig,
    push: Arc<PushHandle>,
}

/// The body of a push. Devices of the same language show the same, unless it counts.
#[derive(Serialize, PartialEq, Eq, PartialOrd, Ord)]
struct Body<'a> {
    conversation: &'a str,
    seq: u64,
    title: String,
    body: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    badge: Option<u64>,
}

impl DevicePush {
    pub(super) fn new(
        context: Arc<OfflinePushContext>,
        config: InternalChannelsConfig,
        push: Arc<PushHandle>,
    ) -> DevicePush {
        DevicePush { context, config, push }
    }

    /// The push of the same to these people.
    fn request(
        &self,
        people: &[Arc<User>],
        body: &Body<'_>,
        appearance: &Appearance,
        telling: &Telling<'_>,
    ) -> Result<PushRequest, Refusal> {
        let left_ms = telling.expires_at.saturating_sub(telling.now_ms);
        let body = serde_json::value::to_raw_value(body);
        Ok(PushRequest {
            to: PushTo { users: people.iter().map(|user| user.id.clone()).collect(), ..PushTo::default() },
            content_type: PUSH_TYPE.into(),
            client_push_id: Some(self.push_id(people, telling)),
            fallback: None,
            body: body.map_err(|error| Refusal::new(ErrorCode::Internal, error.to_string()))?,
            ttl_s: Some(left_ms.div_ceil(1_000).clamp(1, PUSH_TTL_S_MAX)),
            collapse_key: Some(appearance.collapse_key(&telling.found.conversation.id, telling.found.entry.seq)),
            priority: if appearance.is_urgent() { PushPriority::High } else { PushPriority::Normal },
            send_at: None,
            dry_run: false,
        })
    }

    /// The same for each attempt to tell the same people of the message.
    fn push_id(&self, people: &[Arc<User>], telling: &Telling<'_>) -> String {
        let mut hash = Sha256::new().chain_update(self.context.store.epoch().to_be_bytes());
        hash.update(telling.found.entry.position.to_be_bytes());
        people.iter().for_each(|user| hash.update(user.no.0.to_be_bytes()));
        let hex: String = hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("reach-{hex}")
    }

    /// The ids of the users of whom a device is in this state, or among the targets at all.
    fn users_of(&self, push: u64, state: Option<DeviceState>) -> Result<HashSet<String>, Refusal> {
        let mut users = HashSet::new();
        let mut after = None;
        loop {
            let page = match self.push.devices(push, state, after, PUSH_DEVICES_PAGE_MAX) {
                // The push is purged: nobody will acknowledge it any more.
                Err(refusal) if refusal.code == ErrorCode::NotFound => return Ok(users),
                page => page?,
            };
            users.extend(page.devices.into_iter().map(|device| device.user));
            after = page.next;
            if after.is_none() {
                return Ok(users);
            }
        }
    }
}

impl InternalChannel for DevicePush {
    fn channel(&self) -> Channel {
        Channel::DevicePush
    }

    fn tell(&mut self, telling: &Telling<'_>, people: &[Arc<User>]) -> Result<Vec<Notified>, Refusal> {
        let context = &*self.context;
        let Telling { found, step, expires_at, .. } = telling;
        let sender = found.entry.content.sender.as_ref().map(|sender| context.directory.user(sender.no));
        let sender = sender.transpose().map_err(store_refusal)?.flatten();
        let text = MessageText::of(&self.config.templates, found, sender.as_deref(), context.store.epoch(), 0);
        let text = text.expiring_at(*expires_at);
        // Those who are shown the same get the same push.
        let mut groups: BTreeMap<Body<'_>, Vec<Arc<User>>> = BTreeMap::new();
        let shown = step.map(|step| &step.shown);
        for user in people {
            let appearance = Appearance::of(shown, user.language(), self.config.badge);
            let unread = if appearance.needs_unread() { badge_of(context, user).map_err(store_refusal)? } else { 0 };
            let DeviceText { title, body, image, badge } = text.on_device(&appearance, unread);
            let (conversation, seq) = (found.conversation.id.as_str(), found.entry.seq);
            let body = Body { conversation, seq, title, body, image, badge };
            groups.entry(body).or_default().push(user.clone());
        }
        let appearance = Appearance::of(shown, None, self.config.badge);
        let requests = groups.iter().map(|(body, people)| self.request(people, body, &appearance, telling));
        let prepared =
            requests.map(|request| self.push.prepare(request?).map(PreparedPush::whatever_it_asks)).collect();
        let accepted = self.push.accept_all(prepared);
        let mut notified = Vec::with_capacity(people.len());
        for (people, accepted) in groups.values().zip(accepted) {
            let push = accepted?.push;
            let reached = self.users_of(push, None)?;
            notified.extend(people.iter().map(|user| {
                if reached.contains(&user.id) {
                    Notified { user: user.no, outcome: NotificationOutcome::Accepted, push: Some(push) }
                } else {
                    Notified { user: user.no, outcome: NotificationOutcome::NoDevice, push: None }
                }
            }));
        }
        Ok(notified)
    }

    fn acknowledged(&mut self, pushes: &[u64]) -> Result<HashSet<String>, Refusal> {
        self.push.settle()?;
        let mut users = HashSet::new();
        for push in pushes {
            users.extend(self.users_of(*push, Some(DeviceState::Acknowledged))?);
        }
        Ok(users)
    }
}

//! A push as it comes to the worker: its fields are checked, and the users that it names are looked up.

use crate::devices::AudienceQuery;
use tidings_domain::request_digest::{RequestDigest, RequestHasher};
use tidings_protocol::http::{PushFallback, PushPriority, PushRequest};

/// Whom a push is for, as the app server has written it. Stored as JSON with a scheduled push: the names of variants and
/// fields are part of the stored form.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(crate) enum TargetSpec {
    Named {
        users: Vec<u64>,
        /// Users, each with a device id. The device of a scheduled push need not exist before the push starts.
        devices: Vec<(u64, String)>,
        kinds: Vec<String>,
    },
    Many(AudienceQuery),
}

/// A push whose fields are checked. What remains are the checks against devices and limits, which the worker does.
#[derive(Debug, Clone)]
pub struct PreparedPush {
    pub(crate) targets: TargetSpec,
    pub(crate) content_type: String,
    pub(crate) body: String,
    pub(crate) collapse_key: Option<String>,
    pub(crate) high: bool,
    pub(crate) ttl_ms: u64,
    pub(crate) send_at: Option<u64>,
    pub(crate) client_push_id: Option<String>,
    pub(crate) fallback: Option<PushFallback>,
    /// How many of the named users do not exist.
    pub(crate) unknown: u32,
    /// What a retry with the same `client_push_id` must ask for as well.
    pub(crate) request: Option<RequestDigest>,
}

impl PreparedPush {
    /// A push of the server itself, which is the same push again however its text or its time to live has changed meanwhile.
    #[must_use]
    pub fn whatever_it_asks(self) -> Self {
        PreparedPush { request: None, ..self }
    }

    /// The users and devices that it names: what it costs a queue.
    pub(crate) fn named_targets(&self) -> usize {
        match &self.targets {
            TargetSpec::Named { users, devices, .. } => users.len() + devices.len(),
            TargetSpec::Many(_) => 1,
        }
    }
}

/// What a retry of a push must ask for as well.
pub(crate) fn digest_of(request: &PushRequest) -> RequestDigest {
    let PushRequest {
        to,
        content_type,
        body,
        ttl_s,
        collapse_key,
        priority,
        send_at,
        dry_run: _,
        client_push_id: _,
        fallback,
    } = request;
    let fallback = fallback.as_ref().map(|fallback| serde_json::to_string(fallback).unwrap_or_default());
    // No id has a slash.
    let devices: Vec<String> = to.devices.iter().map(|named| format!("{}/{}", named.user, named.device_id)).collect();
    let tags = to.tags.as_ref();
    let hasher = RequestHasher::new("push")
        .set("to.users", &to.users)
        .set("to.devices", &devices)
        .set("to.kinds", &to.kinds)
        .set("to.tags.any", tags.map_or(&[][..], |tags| &tags.any))
        .set("to.tags.all", tags.map_or(&[][..], |tags| &tags.all))
        .flag("to.tags", tags.is_some())
        .flag("to.all", to.all)
        .text("type", content_type)
        .json("body", body.get())
        .number("ttl_s", *ttl_s)
        .optional_text("collapse_key", collapse_key.as_deref())
        .flag("high", *priority == PushPriority::High)
        .number("send_at", send_at.filter(|at| *at > 0));
    fallback.iter().fold(hasher, |hasher, fallback| hasher.json("fallback", fallback)).digest()
}

//! Users: cards, do-not-disturb windows, who is online, and ending sessions.

use crate::{
    engine::Engine,
    presence::{
        NodeCard, NodeNo, PresenceSession,
        compare::{Difference, DifferenceKind, SessionSource},
    },
};
use jiff::{civil::Time, tz::TimeZone};
use tidings_domain::{
    model::*,
    refusals::store_refusal,
    store::{Outcome, Proposal, UserPatch},
};
use tidings_protocol::{
    depth::check_depth,
    error::{ErrorCode, Refusal},
    http::*,
    ids::{check_name, check_new_id},
    limits::*,
};

/// The refusal for an outcome that this kind of proposal cannot have.
pub(crate) fn unexpected_outcome() -> Refusal {
    Refusal::new(ErrorCode::Internal, "the store answered with an outcome of another kind")
}

/// Checks custom attributes, a JSON object of bounded size, and answers their text.
pub(crate) fn check_attributes(attributes: Option<&serde_json::Value>) -> Result<Option<String>, Refusal> {
    let Some(attributes) = attributes else { return Ok(None) };
    if !attributes.is_object() {
        return Err(Refusal::field("attributes", "must be a JSON object"));
    }
    let text = attributes.to_string();
    check_depth("attributes", &text)?;
    match text.len() {
        0..=ATTRIBUTES_BYTES_MAX => Ok(Some(text)),
        length => Err(Refusal::limit("attributes (bytes)", ATTRIBUTES_BYTES_MAX as u64, length as u64)),
    }
}

/// Parses the text of custom attributes.
pub(crate) fn attributes_value(text: Option<&str>) -> Option<serde_json::Value> {
    text.and_then(|text| serde_json::from_str(text).ok())
}

/// A wall-clock time as `HH:MM`.
pub(crate) fn parse_wall_time(text: &str) -> Option<Time> {
    let two_digits = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
    let (hour, minute) = text.split_once(':').filter(|(hour, minute)| two_digits(hour) && two_digits(minute))?;
    Time::new(hour.parse().ok()?, minute.parse().ok()?, 0, 0).ok()
}

/// Whether a daily window covers a moment. A window that cannot be parsed covers none: windows are
/// checked when they are set, and a push too many is better than one too few.
pub(crate) fn window_covers(window: &DailyWindow, now_ms: u64) -> bool {
    let (Some(start), Some(end)) = (parse_wall_time(&window.start), parse_wall_time(&window.end)) else {
        return false;
    };
    let Ok(zone) = TimeZone::get(&window.time_zone) else { return false };
    let Ok(now) = jiff::Timestamp::from_millisecond(now_ms as i64) else { return false };
    let time = now.to_zoned(zone).time();
    if start <= end { start <= time && time < end } else { start <= time || time < end }
}

impl Engine {
    /// Creates users, or changes the given fields of existing ones.
    ///
    /// # Errors
    /// `invalid_field`, `limit_exceeded`; `queue_full`, `store_unavailable` and `draining`: nothing was stored.
    pub async fn upsert_users(&self, users: Vec<UserUpsert>) -> Result<UsersUpserted, Refusal> {
        if users.len() > USERS_BATCH_MAX {
            return Err(Refusal::limit("users in an upsert", USERS_BATCH_MAX as u64, users.len() as u64));
        }
        let mut patches = Vec::with_capacity(users.len());
        for user in users {
            check_new_id("id", &user.id)?;
            check_name("name", user.name.as_deref())?;
            check_name("avatar", user.avatar.as_deref())?;
            let attributes = check_attributes(user.attributes.as_ref())?;
            patches.push(UserPatch { id: user.id, name: user.name, avatar: user.avatar, attributes });
        }
        match self.committer.propose(None, Proposal::PutUsers(patches)).await? {
            Outcome::Users { created, updated } => Ok(UsersUpserted { created, updated }),
            _ => Err(unexpected_outcome()),
        }
    }

    /// A user's card. `private`: with the fields that only the user and app servers may see.
    ///
    /// # Errors
    /// `not_found`; `store_unavailable`.
    pub fn user_card(&self, id: &str, private: bool) -> Result<UserCard, Refusal> {
        let user = self.directory.require_user(id)?;
        Ok(UserCard {
            id: user.id.clone(),
            name: user.name.clone(),
            avatar: user.avatar.clone(),
            attributes: self.attributes_shown(&user, private),
            created_at: user.created_at,
            do_not_disturb: user.do_not_disturb.as_deref().filter(|_| private).cloned(),
        })
    }

    /// All attributes for the user and app servers; for others those that the settings name.
    fn attributes_shown(&self, user: &User, private: bool) -> Option<serde_json::Value> {
        let public = &self.config.public_attributes;
        if !private && public.is_empty() {
            return None;
        }
        let mut attributes = attributes_value(user.attributes.as_deref())?;
        if let Some(all) = attributes.as_object_mut().filter(|_| !private) {
            all.retain(|name, _| public.contains(name));
            return (!all.is_empty()).then_some(attributes);
        }
        Some(attributes)
    }

    /// Sets or removes the daily window in which a user gets no offline push.
    ///
    /// # Errors
    /// `not_found`, `invalid_field`; `queue_full`, `store_unavailable` and `draining`: nothing was stored.
    pub async fn set_do_not_disturb(&self, user: &str, window: Option<DailyWindow>) -> Result<(), Refusal> {
        let user = self.directory.require_user(user)?;
        if let Some(window) = &window {
            for (field, time) in [("window.start", &window.start), ("window.end", &window.end)] {
                if parse_wall_time(time).is_none() {
                    return Err(Refusal::field(field, format!("{time:?} is not a time as HH:MM")));
                }
            }
            if TimeZone::get(&window.time_zone).is_err() {
                let zone = &window.time_zone;
                return Err(Refusal::field("window.time_zone", format!("{zone:?} is not an IANA time zone")));
            }
        }
        self.committer.propose(None, Proposal::SetDoNotDisturb { user: user.no, window }).await?;
        Ok(())
    }

    /// Whether these users are online, and on which devices. Users who do not exist are offline.
    ///
    /// # Errors
    /// `limit_exceeded`; `node_unavailable` while this node does not know the sessions of other nodes;
    /// `store_unavailable`.
    pub fn presence_of(&self, users: &[String]) -> Result<Vec<UserPresence>, Refusal> {
        if users.len() > PRESENCE_BATCH_MAX {
            return Err(Refusal::limit("users in a presence query", PRESENCE_BATCH_MAX as u64, users.len() as u64));
        }
        self.check_presence()?;
        users
            .iter()
            .map(|id| {
                let no = self.directory.user_no(id).map_err(store_refusal)?;
                let devices = no.map(|no| self.presence.sessions_of(no)).unwrap_or_default();
                let devices: Vec<DevicePresence> = devices
                    .iter()
                    .map(|device| DevicePresence {
                        device_id: device.device_id.to_string(),
                        device_kind: device.device_kind.to_string(),
                        since: device.since,
                        node: self.node_name(device.node),
                    })
                    .collect();
                let last_seen = no.filter(|_| devices.is_empty()).map(|no| self.last_seen(no)).transpose()?.flatten();
                // As it is announced: a caller who queries once and then follows changes must not take a user in the
                // grace for offline, since a return within the grace is not announced.
                let online = !devices.is_empty() || no.is_some_and(|no| self.presence.counts_as_online(no));
                Ok(UserPresence { user: id.clone(), online, devices, last_seen })
            })
            .collect()
    }

    /// When the user's last session ended, in milliseconds since 1970 UTC.
    pub(crate) fn last_seen(&self, user: UserNo) -> Result<Option<u64>, Refusal> {
        match self.presence.last_seen(user) {
            Some(at) => Ok(Some(at)),
            None => self.store.last_seen(user).map_err(store_refusal),
        }
    }

    fn node_name(&self, node: NodeNo) -> String {
        self.presence.nodes.card(node).map_or_else(|| node.0.to_string(), |card| card.name)
    }

    /// One user's sessions, as they are registered and as the nodes hold them.
    ///
    /// # Errors
    /// `not_found`; `node_unavailable` when a node does not list its sessions in time; `store_unavailable`.
    pub fn presence_views(&self, user: &str, source: &dyn SessionSource) -> Result<PresenceViews, Refusal> {
        let user = self.directory.require_user(user)?;
        let stored = self.presence.local_sessions(user.no);
        let stored = stored.iter().map(|device| self.session_view(device)).collect();
        let held = source.sessions(Some(user.no))?;
        let memory =
            held.iter().filter(|held| held.held).map(|held| self.session_view(&held.to_presence_session())).collect();
        Ok(PresenceViews { user: user.id.clone(), stored, memory, last_seen: self.last_seen(user.no)? })
    }

    fn session_view(&self, device: &PresenceSession) -> SessionView {
        SessionView {
            session: format!("{:x}", device.session),
            node: self.node_name(device.node),
            device_id: device.device_id.to_string(),
            device_kind: device.device_kind.to_string(),
            since: device.since,
        }
    }

    /// The processes that hold connections.
    pub fn nodes(&self) -> Vec<NodeView> {
        let now_ms = self.clock.now_ms();
        let nodes = self.cluster.as_ref().map_or_else(Vec::new, |cluster| cluster.nodes.all());
        let leader = self.cluster.as_ref().and_then(|cluster| cluster.nodes.leader()).map(|leader| leader.boot_id);
        let view = |card: NodeCard| {
            // A node tells its address once its doors are open, after it has attached.
            let node = nodes.iter().find(|node| node.boot_id == card.boot_id);
            NodeView {
                name: card.name,
                boot_id: format!("{:x}", card.boot_id),
                address: node.map_or(card.address, |node| node.address.clone()),
                attached_at: card.attached_at,
                lease_left_ms: (card.lease_until != u64::MAX).then(|| card.lease_until.saturating_sub(now_ms)),
                sessions: card.sessions.max(0) as u64,
                version: node.map(|node| node.version.clone()),
                roles: node.map(|node| node.roles.clone()),
                leads: leader == Some(card.boot_id),
            }
        };
        self.presence.nodes.cards(now_ms).into_iter().map(view).collect()
    }

    /// Compares the registry with the sessions that the nodes hold, and repairs it if `repair` is set.
    ///
    /// # Errors
    /// `node_unavailable`: a node did not list or correct its sessions in time.
    pub fn presence_comparison(&self, source: &dyn SessionSource, repair: bool) -> Result<PresenceComparison, Refusal> {
        let found = self.compare_presence(source, repair)?;
        let view = |difference: &Difference| PresenceDifference {
            kind: match difference.kind {
                DifferenceKind::Ghost => "ghost",
                DifferenceKind::Missing => "missing",
                DifferenceKind::WrongNode => "wrong_node",
            }
            .into(),
            user: self.directory.user(difference.user).ok().flatten().map_or_else(String::new, |user| user.id.clone()),
            device_id: difference.device_id.to_string(),
            session: format!("{:x}", difference.session),
            node: self.node_name(difference.node),
        };
        Ok(PresenceComparison {
            registered: found.registered as u64,
            held: found.held as u64,
            ghosts: found.ghosts as u64,
            missing: found.missing as u64,
            wrong_node: found.wrong_node as u64,
            repaired: found.repaired as u64,
            differences: found.differences.iter().map(view).collect(),
        })
    }

    /// Ends a user's sessions: one device's, or all.
    ///
    /// # Errors
    /// `not_found`; `queue_full`, `store_unavailable` and `draining`: no session was ended.
    pub async fn kick(&self, user: &str, kick: Kick) -> Result<Kicked, Refusal> {
        let (kicked, proposal) = self.prepare_kick(user, kick)?;
        self.committer.propose(None, proposal).await.map(|_| kicked)
    }

    /// Revokes all tokens of a user that were issued until now, and ends the user's sessions, on every node. Tokens
    /// have their time of issue in whole seconds: those issued in the present second are revoked too.
    ///
    /// # Errors
    /// `not_found`; `queue_full`, `store_unavailable` and `draining`: nothing was revoked.
    pub async fn revoke(&self, user: &str, revoke: Revoke) -> Result<Revoked, Refusal> {
        let user = self.directory.require_user(user)?.no;
        let issue_from = self.clock.now_ms() / 1_000 + 1;
        let sessions = self.presence.sessions_of(user).len();
        let reason = revoke.reason.unwrap_or_else(|| "the app revoked the user's tokens".into());
        self.committer.propose(None, Proposal::Revoke { user, before: issue_from * 1_000, reason }).await?;
        Ok(Revoked { sessions, issue_from })
    }

    /// Removes a device of a user and ends its session. Blocks.
    ///
    /// # Errors
    /// `not_found` for an unknown user or device; else as of any push operation.
    pub fn remove_device(&self, user: &str, device_id: &str) -> Result<(), Refusal> {
        self.push.remove_device(user, device_id)?;
        let reason = Some("the device was removed".to_owned());
        self.kick_blocking(user, Kick { device_id: Some(device_id.to_owned()), reason }).map(drop)
    }

    pub(crate) fn kick_blocking(&self, user: &str, kick: Kick) -> Result<Kicked, Refusal> {
        let (kicked, proposal) = self.prepare_kick(user, kick)?;
        self.committer.propose_blocking(proposal).map(|_| kicked)
    }

    fn prepare_kick(&self, user: &str, kick: Kick) -> Result<(Kicked, Proposal), Refusal> {
        let user = self.directory.require_user(user)?.no;
        let devices = self.presence.sessions_of(user);
        let meant = |id: &str| kick.device_id.as_deref().is_none_or(|device| device == id);
        let sessions = devices.iter().filter(|device| meant(&device.device_id)).count();
        let reason = kick.reason.unwrap_or_else(|| "the app ended the session".into());
        Ok((Kicked { sessions }, Proposal::Kick { user, device_id: kick.device_id, reason }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(start: &str, end: &str, zone: &str, at: &str) -> bool {
        let window = DailyWindow { start: start.into(), end: end.into(), time_zone: zone.into() };
        let at: jiff::Timestamp = at.parse().unwrap_or_default();
        window_covers(&window, at.as_millisecond() as u64)
    }

    #[test]
    fn a_window_follows_the_wall_clock_of_its_zone_and_may_span_midnight() {
        assert!(covers("22:00", "07:00", "UTC", "2026-03-01T23:30:00Z"));
        assert!(covers("22:00", "07:00", "UTC", "2026-03-01T06:59:00Z"));
        assert!(!covers("22:00", "07:00", "UTC", "2026-03-01T07:00:00Z"));
        assert!(covers("09:00", "17:00", "Asia/Tokyo", "2026-03-01T00:30:00Z"), "09:30 in Tokyo");
        assert!(!covers("09:00", "17:00", "Asia/Tokyo", "2026-03-01T10:00:00Z"), "19:00 in Tokyo");
        assert!(covers("22:00", "07:00", "America/New_York", "2026-01-02T03:30:00Z"), "22:30 the day before");
        assert!(!covers("22:00", "07:00", "America/New_York", "2026-01-02T12:30:00Z"), "07:30");
        assert!(!covers("08:00", "08:00", "UTC", "2026-01-02T08:00:00Z"), "a window of no length");
    }

    #[test]
    fn a_window_follows_daylight_saving_time() {
        assert!(covers("08:00", "09:00", "Europe/Berlin", "2026-01-15T07:30:00Z"));
        assert!(covers("08:00", "09:00", "Europe/Berlin", "2026-07-15T06:30:00Z"));
    }
}

//! Users: profiles, do-not-disturb windows, and ending sessions.

use crate::{
    Engine,
    attributes::{attributes_value, check_attributes},
    daily_window::{parse_wall_time, parse_window_end},
    engine::restrictions::check_words,
};
use jiff::tz::TimeZone;
use std::collections::BTreeSet;
use tidings_domain::{
    gates::Gate,
    model::*,
    refusals::{store_refusal, unexpected_outcome},
    store::{Outcome, Proposal, UserPatch},
};
use tidings_protocol::{
    error::Refusal,
    http::*,
    ids::{check_language, check_name, check_new_id},
    limits::*,
};

fn check_time_zone(field: &str, zone: &str) -> Result<(), Refusal> {
    match TimeZone::get(zone) {
        Ok(_) => Ok(()),
        Err(_) => Err(Refusal::field(field, format!("{zone:?} is not an IANA time zone"))),
    }
}

/// Checks a language and a time zone that are to be stored; an empty text removes one.
fn check_locale(language: Option<&str>, time_zone: Option<&str>) -> Result<(), Refusal> {
    if let Some(language) = language.filter(|language| !language.is_empty()) {
        check_language("language", language)?;
    }
    match time_zone.filter(|zone| !zone.is_empty()) {
        Some(zone) => check_time_zone("time_zone", zone),
        None => Ok(()),
    }
}

/// The name of who does it, of at most as many bytes as a reason has.
fn cut(by: &str) -> &str {
    &by[..by.floor_char_boundary(REASON_BYTES_MAX)]
}

pub(crate) fn suspension_view(suspension: &Suspension) -> SuspensionView {
    let Suspension { until, reason, by, at } = suspension.clone();
    SuspensionView { until, reason, by, at }
}

/// A user as the app server writes it, checked.
pub(crate) fn user_patch(user: UserUpsert) -> Result<UserPatch, Refusal> {
    check_new_id("id", &user.id)?;
    check_name("name", user.name.as_deref())?;
    check_name("avatar", user.avatar.as_deref())?;
    let attributes = check_attributes(user.attributes.as_ref())?;
    check_locale(user.language.as_deref(), user.time_zone.as_deref())?;
    let UserUpsert { id, name, avatar, language, time_zone, .. } = user;
    Ok(UserPatch { id, name, avatar, attributes, language, time_zone })
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
            patches.push(user_patch(user)?);
        }
        match self.committer.propose(&Actor::App, None, Proposal::PutUsers(patches)).await? {
            Outcome::Users { created, updated } => Ok(UsersUpserted { created, updated }),
            _ => Err(unexpected_outcome()),
        }
    }

    /// A user's profile. `private`: with the fields that only the user and app servers may see.
    ///
    /// # Errors
    /// `not_found`; `store_unavailable`.
    pub fn user_profile(&self, id: &str, private: bool) -> Result<UserProfile, Refusal> {
        Ok(self.profile_of(&*self.directory.require_user(id)?, private))
    }

    pub(crate) fn profile_of(&self, user: &User, private: bool) -> UserProfile {
        UserProfile {
            id: user.id.clone(),
            name: user.name.clone(),
            avatar: user.avatar.clone(),
            attributes: self.attributes_shown(user, private),
            created_at: user.created_at,
            do_not_disturb: user.do_not_disturb().filter(|_| private).cloned(),
            language: user.language().filter(|_| private).map(str::to_owned),
            time_zone: user.time_zone().filter(|_| private).map(str::to_owned),
            // Who is suspended reads nothing: with the private fields this goes to app servers alone.
            suspension: user.suspension_at(self.clock.now_ms()).filter(|_| private).map(suspension_view),
        }
    }

    /// The profiles of those of these users who exist: the caller's own, and for app servers all, with the fields that only they may see.
    ///
    /// # Errors
    /// `limit_exceeded`; `store_unavailable`.
    pub fn user_profiles(&self, actor: &Actor, ids: &[String]) -> Result<Vec<UserProfile>, Refusal> {
        if ids.len() > USERS_QUERY_MAX {
            return Err(Refusal::limit("users in a query", USERS_QUERY_MAX as u64, ids.len() as u64));
        }
        let mut profiles = Vec::with_capacity(ids.len());
        for id in ids {
            let private = actor.user().is_none_or(|user| user.id == *id);
            if let Some(user) = self.directory.user_by_id(id).map_err(store_refusal)? {
                profiles.push(self.profile_of(&user, private));
            }
        }
        Ok(profiles)
    }

    /// How those of these users are shown whom this node has in memory, each of them once. A page reads no user from the store for
    /// this: clients ask for the others together.
    pub(crate) fn cards<'a>(&self, ids: impl Iterator<Item = &'a str>) -> Vec<UserCard> {
        let ids: BTreeSet<&str> = ids.collect();
        ids.into_iter().filter_map(|id| self.directory.cached_user(id)).map(|user| user.card()).collect()
    }

    /// Sends at most so many changed names and pictures to the sessions that watch their users. Blocks.
    pub(crate) fn send_changed_cards(&self, most: usize) {
        for id in self.presence.take_changed_users(most) {
            match self.directory.user_by_id(&id) {
                Ok(Some(user)) => self.presence.tell_card(user.no, &user.card(), &self.shards),
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%error, "a changed user was not sent to who watches");
                    self.presence.note_changed_users(&[id]);
                }
            }
        }
    }

    /// All attributes for the user and app servers; for others those that the settings name.
    fn attributes_shown(&self, user: &User, private: bool) -> Option<serde_json::Value> {
        let public = &self.config.public_attributes;
        if !private && public.is_empty() {
            return None;
        }
        let mut attributes = attributes_value(user.attributes())?;
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
            let no_time = |field, time: &str| Refusal::field(field, format!("{time:?} is not a time as HH:MM"));
            parse_wall_time(&window.start).ok_or_else(|| no_time("window.start", &window.start))?;
            parse_window_end(&window.end).ok_or_else(|| no_time("window.end", &window.end))?;
            check_time_zone("window.time_zone", &window.time_zone)?;
        }
        self.committer.propose_untold(None, Proposal::SetDoNotDisturb { user: user.no, window }).await?;
        Ok(())
    }

    /// Replaces a user's language and time zone.
    ///
    /// # Errors
    /// `not_found`, `invalid_field`; `queue_full`, `store_unavailable` and `draining`: nothing was stored.
    pub async fn set_locale(&self, user: &str, locale: SetLocale) -> Result<(), Refusal> {
        let user = self.directory.require_user(user)?;
        check_locale(locale.language.as_deref(), locale.time_zone.as_deref())?;
        let given = |text: Option<String>| Some(text.unwrap_or_default());
        let (language, time_zone) = (given(locale.language), given(locale.time_zone));
        let patch = UserPatch { id: user.id.clone(), language, time_zone, ..UserPatch::default() };
        self.committer.propose_untold(None, Proposal::PutUsers(vec![patch])).await?;
        Ok(())
    }

    /// Sets whether others learn what a user has read, and the user what others have read.
    ///
    /// # Errors
    /// `not_found`; `queue_full`, `store_unavailable` and `draining`: nothing was stored.
    pub async fn set_receipts(&self, user: &str, send: bool) -> Result<(), Refusal> {
        let user = self.directory.require_user(user)?.no;
        self.committer.propose_untold(None, Proposal::SetReceipts { user, send }).await?;
        Ok(())
    }

    /// Ends a user's sessions: one device's, or all.
    ///
    /// # Errors
    /// `not_found`; `queue_full`, `store_unavailable` and `draining`: no session was ended.
    pub async fn kick(&self, user: &str, kick: Kick) -> Result<Kicked, Refusal> {
        let (kicked, proposal) = self.prepare_kick(user, kick)?;
        self.committer.propose_untold(None, proposal).await.map(|_| kicked)
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
        self.committer.propose_untold(None, Proposal::Revoke { user, before: issue_from * 1_000, reason }).await?;
        Ok(Revoked { sessions, issue_from })
    }

    /// Suspends a user, until a time or until that is lifted: the user's sessions end on every node, and the user's tokens are
    /// refused. Nothing of the user is lost. `by`: the operator or the API key.
    ///
    /// # Errors
    /// `not_found`, `invalid_field`, `limit_exceeded`, `not_yet_enabled`; `queue_full`, `store_unavailable` and `draining`: nothing
    /// was stored.
    pub async fn suspend(&self, user: &str, suspend: Suspend, by: &str) -> Result<SuspensionView, Refusal> {
        let Suspend { until, reason } = suspend;
        let at = self.clock.now_ms();
        if until.is_some_and(|until| until <= at) {
            return Err(Refusal::field("until", "lies in the past"));
        }
        let view = SuspensionView { until, reason: reason.unwrap_or_default(), by: cut(by).to_owned(), at };
        self.set_suspension(user, true, &view).await?;
        Ok(view)
    }

    /// Lifts a suspension, if there is one.
    ///
    /// # Errors
    /// As of [`Engine::suspend`].
    pub async fn unsuspend(&self, user: &str, unsuspend: Unsuspend, by: &str) -> Result<(), Refusal> {
        let (reason, by) = (unsuspend.reason.unwrap_or_default(), cut(by).to_owned());
        self.set_suspension(user, false, &SuspensionView { until: None, reason, by, at: 0 }).await
    }

    async fn set_suspension(&self, user: &str, suspended: bool, change: &SuspensionView) -> Result<(), Refusal> {
        self.gates.require(Gate::UserSafety)?;
        let SuspensionView { until, reason, by, .. } = change.clone();
        check_words("reason", Some(&reason), REASON_BYTES_MAX)?;
        let user = self.directory.require_user(user)?.no;
        let proposal = Proposal::SetSuspension { user, suspended, until, reason, by };
        self.committer.propose_untold(None, proposal).await.map(drop)
    }

    /// Removes a device of a user with its push token, and ends its session. Blocks.
    ///
    /// # Errors
    /// `not_found` for an unknown user or device; else as of any push operation.
    pub fn remove_device(&self, user: &str, device_id: &str) -> Result<(), Refusal> {
        self.push.remove_device(user, device_id)?;
        let found = self.directory.require_user(user)?;
        self.set_push_token(&found, device_id, None)?;
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

//! By which channels people want to be notified of messages, and when.

use crate::operations::Notifications;
use tidings_domain::store::Proposal;
use tidings_protocol::{
    error::Refusal,
    http::{NotificationPreferences, PolicyChannel},
};

/// Times after the year 9000 are refused: they are not milliseconds since 1970.
const TIME_MAX: u64 = 221_845_392_000_000;

fn check_channels_off(field: &str, channels: &[PolicyChannel]) -> Result<(), Refusal> {
    for (at, channel) in channels.iter().enumerate() {
        let why = match channel {
            PolicyChannel::Session => "a live session is handed each message: its app decides what it shows",
            _ if channels[..at].contains(channel) => "appears twice",
            _ => continue,
        };
        return Err(Refusal::field(&format!("{field}[{at}]"), why));
    }
    Ok(())
}

impl Notifications {
    /// By which channels a user wants to be notified of messages.
    ///
    /// # Errors
    /// `not_found`; `store_unavailable`.
    pub fn notification_preferences(&self, user: &str) -> Result<NotificationPreferences, Refusal> {
        Ok(self.context.directory.require_user(user)?.notifications().cloned().unwrap_or_default())
    }

    /// Replaces by which channels a user wants to be notified of messages.
    ///
    /// # Errors
    /// `not_found`, `invalid_field`; `queue_full`, `store_unavailable` and `draining`: nothing was stored.
    pub async fn set_notification_preferences(
        &self,
        user: &str,
        preferences: NotificationPreferences,
    ) -> Result<(), Refusal> {
        let user = self.context.directory.require_user(user)?.no;
        check_channels_off("off", &preferences.off)?;
        let kinds =
            [("direct", &preferences.direct), ("group", &preferences.group), ("official", &preferences.official)];
        for (kind, set) in kinds {
            set.as_ref().map_or(Ok(()), |set| check_channels_off(&format!("{kind}.off"), &set.off))?;
        }
        if preferences.snooze_until.is_some_and(|until| until > TIME_MAX) {
            return Err(Refusal::field("snooze_until", "is not a time in milliseconds since 1970 UTC"));
        }
        self.context
            .proposals
            .propose(Proposal::SetNotificationPreferences { user, preferences: Box::new(preferences) })
            .await?;
        Ok(())
    }
}

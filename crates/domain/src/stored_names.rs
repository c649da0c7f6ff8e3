//! The names that rows have for channels, providers and outcomes.
//!
//! They are codes of the stored format, which nobody but the store sees: the first format says `road` for a channel and `vendor`
//! for a provider. Rows keep these names, so that nodes of any version read each other's rows and nothing has to be rewritten:
//! `docs/decisions/0047-rows-keep-their-names.md`.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned, de::Error as _, ser::Error as _};
use serde_json::Value;
use tidings_protocol::http::{NotificationOutcome, PolicyChannel};

/// A name of the API, and the same in rows.
type Names = (&'static str, &'static str);

const CHANNELS: Names = ("channels", "roads");
const CHANNEL: Names = ("channel", "road");
const PROVIDERS: Names = ("providers", "vendors");
const PROVIDER: Names = ("provider", "vendor");
const CHANNEL_OFF: Names = ("channel_off", "road_off");
const REMOVED: Names = ("removed", "withdrawn");

#[derive(Clone, Copy)]
enum Direction {
    ToRows,
    FromRows,
}

impl Direction {
    fn former_and_new(self, (public, stored): Names) -> (&'static str, &'static str) {
        match self {
            Direction::ToRows => (public, stored),
            Direction::FromRows => (stored, public),
        }
    }

    /// Renames a field; returns its value, if the object has it.
    fn field(self, object: &mut Value, names: Names) -> Option<&mut Value> {
        let (former, new) = self.former_and_new(names);
        let fields = object.as_object_mut()?;
        let value = fields.remove(former)?;
        Some(fields.entry(new).or_insert(value))
    }

    /// Renames a value, if it is this name.
    fn text(self, value: &mut Value, names: Names) {
        let (former, new) = self.former_and_new(names);
        if value == former {
            *value = new.into();
        }
    }

    fn preferences(self, preferences: &mut Value) {
        elements(preferences.get_mut("off")).for_each(|channel| self.text(channel, PROVIDERS));
        for kind in ["direct", "group", "official"] {
            let off = preferences.get_mut(kind).and_then(|kind| kind.get_mut("off"));
            elements(off).for_each(|channel| self.text(channel, PROVIDERS));
        }
    }

    fn policy(self, policy: &mut Value) {
        for rule in elements(policy.get_mut("rules")) {
            for step in elements(self.field(rule, CHANNELS)) {
                if let Some(channel) = self.field(step, CHANNEL) {
                    self.text(channel, PROVIDERS);
                }
                self.field(step, PROVIDERS);
            }
        }
    }

    fn token(self, token: &mut Value) {
        self.field(token, PROVIDER);
    }
}

fn elements(list: Option<&mut Value>) -> impl Iterator<Item = &mut Value> {
    list.and_then(Value::as_array_mut).into_iter().flatten()
}

fn write<T: Serialize, S: Serializer>(value: &T, rename: impl Fn(&mut Value), to: S) -> Result<S::Ok, S::Error> {
    let mut value = serde_json::to_value(value).map_err(S::Error::custom)?;
    rename(&mut value);
    value.serialize(to)
}

fn read<'de, T: DeserializeOwned, D: Deserializer<'de>>(from: D, rename: impl Fn(&mut Value)) -> Result<T, D::Error> {
    let mut value = Value::deserialize(from)?;
    rename(&mut value);
    serde_json::from_value(value).map_err(D::Error::custom)
}

/// A user's preferences.
pub mod preferences {
    use super::*;
    use tidings_protocol::http::NotificationPreferences;

    /// # Errors
    /// Those of the format.
    pub fn serialize<S: Serializer>(preferences: &NotificationPreferences, to: S) -> Result<S::Ok, S::Error> {
        write(preferences, |value| Direction::ToRows.preferences(value), to)
    }

    /// What a newer version wrote and this one cannot read counts as not set.
    ///
    /// # Errors
    /// Those of the format.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<NotificationPreferences, D::Error> {
        let mut value = Value::deserialize(from)?;
        Direction::FromRows.preferences(&mut value);
        Ok(serde_json::from_value(value).unwrap_or_default())
    }
}

/// The notification policy; `None`: it was removed.
pub mod policy {
    use super::*;
    use tidings_protocol::http::NotificationPolicy;

    /// # Errors
    /// Those of the format.
    pub fn serialize<S: Serializer>(policy: &Option<NotificationPolicy>, to: S) -> Result<S::Ok, S::Error> {
        write(policy, |value| Direction::ToRows.policy(value), to)
    }

    /// # Errors
    /// Those of the format, or the row is damaged.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<NotificationPolicy>, D::Error> {
        read(from, |value| Direction::FromRows.policy(value))
    }
}

/// A push token.
pub mod token {
    use super::*;
    use tidings_protocol::http::PushToken;

    /// # Errors
    /// Those of the format.
    pub fn serialize<S: Serializer>(token: &PushToken, to: S) -> Result<S::Ok, S::Error> {
        write(token, |value| Direction::ToRows.token(value), to)
    }

    /// # Errors
    /// Those of the format, or the row is damaged.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PushToken, D::Error> {
        read(from, |value| Direction::FromRows.token(value))
    }
}

/// An outcome. Rows of the notification log have many of them, so most are written as they are.
pub mod outcome {
    use super::*;

    /// # Errors
    /// Those of the format.
    pub fn serialize<S: Serializer>(outcome: &NotificationOutcome, to: S) -> Result<S::Ok, S::Error> {
        match outcome {
            NotificationOutcome::ChannelOff => CHANNEL_OFF.1.serialize(to),
            NotificationOutcome::Removed => REMOVED.1.serialize(to),
            other => other.serialize(to),
        }
    }

    /// # Errors
    /// Those of the format, or the row is damaged.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<NotificationOutcome, D::Error> {
        read(from, |value| {
            Direction::FromRows.text(value, CHANNEL_OFF);
            Direction::FromRows.text(value, REMOVED);
        })
    }
}

/// The name of a channel.
pub fn channel(channel: PolicyChannel) -> &'static str {
    match channel {
        PolicyChannel::Providers => PROVIDERS.1,
        PolicyChannel::Session | PolicyChannel::DevicePush | PolicyChannel::Popup | PolicyChannel::Webhook => {
            channel.name()
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use tidings_protocol::http::{NotificationPolicy, NotificationPreferences, PushToken};

    /// Rows as the first format has them are read, and are written again byte for byte but for the order of fields.
    fn check<T>(
        row: &str,
        read: fn(&mut serde_json::Deserializer<serde_json::de::StrRead<'_>>) -> serde_json::Result<T>,
        write: fn(&T, serde_json::value::Serializer) -> serde_json::Result<Value>,
    ) -> T {
        let value = read(&mut serde_json::Deserializer::from_str(row)).unwrap();
        assert_eq!(write(&value, serde_json::value::Serializer).unwrap(), serde_json::from_str::<Value>(row).unwrap());
        value
    }

    #[test]
    fn rows_of_the_first_format_are_read_and_written() {
        let row = r#"{"rules":[{"id":"all","roads":[{"road":"session"},{"road":"vendors","after_s":5,"vendors":["apns"],
            "template":{"title":"road","body":"vendors"}},{"road":"webhook"}]},{"id":"none"}]}"#;
        let policy: NotificationPolicy = check(row, |from| policy::deserialize(from), policy::serialize).unwrap();
        let step = &policy.rules[0].channels[1];
        assert_eq!((step.channel, step.providers.as_ref().unwrap().len()), (PolicyChannel::Providers, 1));
        assert_eq!(step.template.as_ref().unwrap().title, "road");

        let row = r#"{"off":["vendors","webhook"],"group":{"off":["vendors"],"only_mentions":true}}"#;
        let preferences: NotificationPreferences =
            check(row, |from| preferences::deserialize(from), preferences::serialize);
        assert_eq!(preferences.off, [PolicyChannel::Providers, PolicyChannel::Webhook]);
        assert_eq!(preferences.group.unwrap().off, [PolicyChannel::Providers]);

        let token: PushToken =
            check(r#"{"vendor":"fcm","token":"vendor"}"#, |from| token::deserialize(from), token::serialize);
        assert!(matches!(token, PushToken::Fcm { token } if token == "vendor"));

        for (row, outcome) in [
            (r#""road_off""#, NotificationOutcome::ChannelOff),
            (r#""withdrawn""#, NotificationOutcome::Removed),
            (r#""read""#, NotificationOutcome::Read),
        ] {
            assert_eq!(check(row, |from| outcome::deserialize(from), outcome::serialize), outcome);
        }
    }
}

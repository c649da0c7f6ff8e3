//! How far clients have stored what they were handed, and who sends read receipts, as plainly as possible.

use super::{State, index};
use std::collections::BTreeMap;
use tidings_domain::{model::*, store::*, stored_names};
use tidings_protocol::http::NotificationPreferences;

impl State {
    pub(super) fn set_stored(&mut self, told: &[(UserNo, [Position; LANES])]) -> Outcome {
        let mut moved = Vec::new();
        for (user, told) in told {
            let key = (RowSpace::Chat, [&b"d"[..], &user.0.to_be_bytes()].concat());
            let row = self.rows.get(&key).cloned().unwrap_or_else(|| vec![0; 24]);
            let number = |lane: usize| row[lane * 8..][..8].try_into().map_or(0, u64::from_be_bytes);
            let before = [number(0), number(1), number(2)];
            let now = [before[0].max(told[0]), before[1].max(told[1]), before[2].max(told[2])];
            if now != before {
                self.rows.insert(key, now.map(u64::to_be_bytes).concat());
                moved.push(StoredMove { user: *user, before, now });
            }
        }
        Outcome::Stored(moved)
    }

    pub(super) fn set_receipts(&mut self, user: UserNo, send: bool) -> Result<Outcome, Rejection> {
        self.users.get_mut(index(user.0)).ok_or(Rejection::NoSuchUser(user))?.receipts_off = !send;
        let setting = (!send).then_some(serde_json::Value::Bool(true));
        self.set_setting(user, "receipts_off", setting);
        Ok(Outcome::Done)
    }

    pub(super) fn set_notification_preferences(
        &mut self,
        user: UserNo,
        preferences: &NotificationPreferences,
    ) -> Result<Outcome, Rejection> {
        let is_set = *preferences != NotificationPreferences::default();
        let found = self.users.get_mut(index(user.0)).ok_or(Rejection::NoSuchUser(user))?;
        found.change_extras(|extras| extras.notifications = is_set.then(|| Box::new(preferences.clone())));
        let setting =
            stored_names::preferences::serialize(preferences, serde_json::value::Serializer).ok().filter(|_| is_set);
        self.set_setting(user, "reach", setting);
        Ok(Outcome::Done)
    }

    pub(super) fn set_suspension(
        &mut self,
        user: UserNo,
        suspension: Option<Suspension>,
    ) -> Result<Outcome, Rejection> {
        let setting = suspension.as_ref().and_then(|suspension| serde_json::to_value(suspension).ok());
        let found = self.users.get_mut(index(user.0)).ok_or(Rejection::NoSuchUser(user))?;
        found.change_extras(|extras| extras.suspension = suspension.map(Box::new));
        self.set_setting(user, "suspension", setting);
        Ok(Outcome::Done)
    }

    pub(super) fn set_block(
        &mut self,
        user: UserNo,
        other: UserNo,
        blocked: bool,
        blocks_max: u32,
        now_ms: u64,
    ) -> Result<Outcome, Rejection> {
        let key = (RowSpace::Chat, [&b"K"[..], &user.0.to_be_bytes(), &other.0.to_be_bytes()].concat());
        let found = self.users.get_mut(index(user.0)).ok_or(Rejection::NoSuchUser(user))?;
        if self.rows.contains_key(&key) == blocked {
            return Ok(Outcome::Block { moved: false });
        }
        if blocked && found.blocks >= blocks_max {
            return Err(Rejection::TooManyBlocks { limit: blocks_max.into() });
        }
        found.blocks = if blocked { found.blocks + 1 } else { found.blocks - 1 };
        let count = found.blocks;
        self.set_setting(user, "blocks", (count > 0).then(|| count.into()));
        if blocked {
            self.rows.insert(key, now_ms.to_string().into_bytes());
        } else {
            self.rows.remove(&key);
        }
        Ok(Outcome::Block { moved: true })
    }

    pub(super) fn set_setting(&mut self, user: UserNo, name: &str, value: Option<serde_json::Value>) {
        let key = (RowSpace::Chat, [&b"u"[..], &user.0.to_be_bytes()].concat());
        let row = self.rows.remove(&key).unwrap_or_else(|| b"{}".to_vec());
        let mut settings: BTreeMap<String, serde_json::Value> = serde_json::from_slice(&row).unwrap_or_default();
        match value {
            None => drop(settings.remove(name)),
            Some(value) => drop(settings.insert(name.into(), value)),
        }
        if !settings.is_empty() {
            self.rows.insert(key, serde_json::to_vec(&settings).unwrap_or_default());
        }
    }
}

//! How far clients have stored what they were handed, and who sends read receipts, as plainly as possible.

use super::{State, index};
use std::collections::BTreeMap;
use tidings_domain::{model::*, store::*};

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
        let key = (RowSpace::Chat, [&b"u"[..], &user.0.to_be_bytes()].concat());
        let row = self.rows.remove(&key).unwrap_or_else(|| b"{}".to_vec());
        let mut settings: BTreeMap<String, bool> = serde_json::from_slice(&row).unwrap_or_default();
        match send {
            true => drop(settings.remove("receipts_off")),
            false => drop(settings.insert("receipts_off".into(), true)),
        }
        if !settings.is_empty() {
            self.rows.insert(key, serde_json::to_vec(&settings).unwrap_or_default());
        }
        Ok(Outcome::Done)
    }
}

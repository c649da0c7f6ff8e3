//! What members have set for conversations, as plainly as possible: JSON that is edited field by field.

use super::{State, index};
use serde_json::{Map, Value, json};
use tidings_domain::{model::*, store::*};

impl State {
    pub(super) fn set_preferences(
        &mut self,
        conversation: ConversationNo,
        user: UserNo,
        patch: &PreferencesPatch,
        now_ms: u64,
    ) -> Result<Outcome, Rejection> {
        if !self.members.contains_key(&(conversation, user)) {
            return Err(Rejection::NotAMember);
        }
        if index(conversation.0) >= self.conversations.len() {
            return Err(Rejection::NoSuchConversation);
        }
        let last_seq = self.head(conversation).last_seq;
        let before = self.preferences(conversation, user);
        let mut now = before.clone();
        let mut set = |name: &str, value: Value| match value {
            Value::Null | Value::Bool(false) => drop(now.remove(name)),
            value => drop(now.insert(name.to_owned(), value)),
        };
        if let Some(archived) = patch.archived {
            set("archived", json!(archived));
        }
        if let Some(marked) = patch.marked_unread {
            set("marked_unread", json!(marked));
        }
        if let Some(title) = &patch.title {
            set("title", json!(title));
        }
        match patch.hidden {
            Some(true) => set("hidden_at", json!(last_seq)),
            Some(false) => set("hidden_at", Value::Null),
            None => {}
        }
        match patch.pinned {
            Some(true) if !before.contains_key("pinned_at") => set("pinned_at", json!(now_ms)),
            Some(false) => set("pinned_at", Value::Null),
            _ => {}
        }
        let cleared = patch.clear_to_seq.unwrap_or(0).min(last_seq);
        if cleared > before.get("cleared_seq").and_then(Value::as_u64).unwrap_or(0) {
            set("cleared_seq", json!(cleared));
        }
        let moved = now != before;
        self.put_preferences(conversation, user, &now);
        Ok(Outcome::Preferences { moved })
    }

    /// Keeps for the next membership what the one that ends leaves.
    pub(super) fn keep_of_membership(&mut self, conversation: ConversationNo, user: UserNo, mute: MuteState) {
        let mut kept = self.preferences(conversation, user);
        kept.insert("left_seq".into(), json!(self.head(conversation).last_seq));
        match mute.to_number() {
            0 => drop(kept.remove("left_with_mute")),
            mute => drop(kept.insert("left_with_mute".into(), json!(mute))),
        }
        self.put_preferences(conversation, user, &kept);
    }

    /// The mute with which the user left the conversation last.
    pub(super) fn kept_mute(&self, conversation: ConversationNo, user: UserNo) -> MuteState {
        let kept = self.preferences(conversation, user);
        MuteState::of_number(kept.get("left_with_mute").and_then(Value::as_u64).unwrap_or(0))
    }

    fn preferences(&self, conversation: ConversationNo, user: UserNo) -> Map<String, Value> {
        let row = self.rows.get(&row_of(conversation, user));
        row.and_then(|row| serde_json::from_slice(row).ok()).unwrap_or_default()
    }

    fn put_preferences(&mut self, conversation: ConversationNo, user: UserNo, now: &Map<String, Value>) {
        let key = row_of(conversation, user);
        if now.is_empty() {
            self.rows.remove(&key);
        } else {
            // The fields of a map are in the order of their names.
            self.rows.insert(key, serde_json::to_vec(now).unwrap_or_default());
        }
    }
}

fn row_of(conversation: ConversationNo, user: UserNo) -> (RowSpace, Vec<u8>) {
    (RowSpace::Chat, [&b"p"[..], &user.0.to_be_bytes(), &conversation.0.to_be_bytes()].concat())
}

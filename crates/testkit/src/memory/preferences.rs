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
        let key = [&b"p"[..], &user.0.to_be_bytes(), &conversation.0.to_be_bytes()].concat();
        let key = (RowSpace::Chat, key);
        let row = self.rows.get(&key).cloned().unwrap_or_else(|| b"{}".to_vec());
        let before: Map<String, Value> = serde_json::from_slice(&row).unwrap_or_default();
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
        match now.is_empty() {
            true => drop(self.rows.remove(&key)),
            // The fields of a map are in the order of their names.
            false => drop(self.rows.insert(key, serde_json::to_vec(&now).unwrap_or_default())),
        }
        Ok(Outcome::Preferences { moved })
    }
}

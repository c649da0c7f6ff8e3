//! Sessions that watch the presence of other users.

use super::{FrameOutcome, Shard, decoding::missing_field};
use crate::encoding::{error_json, json};
use serde::Serialize;
use tidings_engine::{
    access::Operation,
    shards::{WatchUpdate, WatchedChange},
};
use tidings_protocol::frames::{RawClientFrame, ServerFrame};

#[derive(Serialize)]
struct PresenceFrame<'a> {
    t: &'static str,
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    reference: Option<u64>,
    changes: &'a [WatchedChange],
}

fn presence_json(reference: Option<u64>, changes: &[WatchedChange]) -> Vec<u8> {
    json(&PresenceFrame { t: "presence", reference, changes })
}

impl Shard {
    /// The answer has the presence of those users now; changes are sent as they happen.
    pub(super) fn handle_watch(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        if frame.users.is_empty() {
            return self.refuse(key, frame.reference, missing_field("users", "watch_presence"));
        }
        let Some(user) = self.user(key) else { return FrameOutcome::Continue };
        let (users, reference) = (frame.users.clone(), frame.reference);
        let conversation = frame.conversation.as_deref().map(str::to_owned);
        let watcher = (self.parts.index as u16, self.connections[key].session);
        self.connections[key].watches_presence = true;
        self.spawn_in_order(key, reference, move |engine| {
            let watching = engine.watch_presence(&user, conversation.as_deref(), &users, watcher, reference);
            // A granted request is answered through the queue of changes, so that answer and changes stay in order.
            let refusal = watching.err()?;
            engine.metrics.count_refusal(refusal.code);
            Some(error_json(reference, &refusal))
        })
    }

    pub(super) fn handle_unwatch(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        let watcher = (self.parts.index as u16, self.connections[key].session);
        let (users, reference) = (frame.users.clone(), frame.reference);
        self.spawn_in_order(key, reference, move |engine| {
            let done = if users.is_empty() {
                engine.unwatch_all(watcher);
                Ok(())
            } else {
                engine.unwatch_presence(&users, watcher)
            };
            Some(match done {
                Ok(()) => json(&ServerFrame::Ok { reference: reference.unwrap_or(0) }),
                Err(refusal) => {
                    engine.metrics.count_refusal(refusal.code);
                    error_json(reference, &refusal)
                }
            })
        })
    }

    pub(super) fn send_ok(&mut self, key: usize, reference: Option<u64>) -> FrameOutcome {
        match reference {
            Some(reference) => self.send_json(key, &json(&ServerFrame::Ok { reference })),
            None => FrameOutcome::Continue,
        }
    }

    /// Sends changes of watched users. A session that has ended meanwhile stops watching; so does one that has been refreshed
    /// to a token without the scope, also if it asked before.
    pub(super) fn send_presence_changes(&mut self, told: &WatchUpdate) {
        let key = self.find(told.session).filter(|key| self.connections[*key].binding.is_some());
        let allowed = key.map_or(Ok(()), |key| self.scopes(key).check(Operation::WatchPresence));
        if key.is_none() || allowed.is_err() {
            self.parts.engine.unwatch_all((self.parts.index as u16, told.session));
        }
        let Some(key) = key else { return };
        if told.reply_to.is_some() {
            let connection = &mut self.connections[key];
            connection.requests_in_flight = connection.requests_in_flight.saturating_sub(1);
        }
        match (allowed, told.reply_to) {
            (Ok(()), reply_to) => drop(self.send_json(key, &presence_json(reply_to.flatten(), &told.changes))),
            (Err(refusal), Some(reference)) => drop(self.refuse(key, reference, refusal)),
            (Err(_), None) => {}
        }
    }
}

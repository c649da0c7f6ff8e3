//! Sessions that watch the presence of other users.

use super::{FrameOutcome, Shard, decoding::missing_field};
use crate::{connection::WatchRequest, encoding::json};
use serde::Serialize;
use tidings_engine::shards::{WatchUpdate, WatchedChange};
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
        let conversation = frame.conversation.as_deref().map(str::to_owned);
        self.queue_watch_request(key, frame.reference, WatchRequest::Watch { conversation, users: frame.users.clone() })
    }

    pub(super) fn handle_unwatch(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        self.queue_watch_request(key, frame.reference, WatchRequest::Unwatch { users: frame.users.clone() })
    }

    fn queue_watch_request(&mut self, key: usize, reference: Option<u64>, request: WatchRequest) -> FrameOutcome {
        let Some(user) = self.user(key) else { return FrameOutcome::Continue };
        let admitted = match self.admit_store_read(key) {
            Ok(admitted) => admitted,
            Err(refusal) => return self.refuse(key, reference, refusal),
        };
        let connection = &mut self.connections[key];
        let watcher = (self.parts.index as u16, connection.session);
        let requests = connection.watch_requests.get_or_insert_default().clone();
        requests.push(reference, request);
        self.run_store_read(user.no, admitted, move |engine| requests.carry_out_oldest(engine, &user, watcher))
    }

    pub(super) fn send_ok(&mut self, key: usize, reference: Option<u64>) -> FrameOutcome {
        match reference {
            Some(reference) => self.send_json(key, &json(&ServerFrame::Ok { reference })),
            None => FrameOutcome::Continue,
        }
    }

    /// Sends changes of watched users. A session that has ended meanwhile stops watching.
    pub(super) fn send_presence_changes(&mut self, told: &WatchUpdate) {
        let Some(key) = self.find(told.session).filter(|key| self.connections[*key].binding.is_some()) else {
            self.parts.engine.unwatch_all((self.parts.index as u16, told.session));
            return;
        };
        if told.reply_to.is_some() {
            let connection = &mut self.connections[key];
            connection.requests_in_flight = connection.requests_in_flight.saturating_sub(1);
        }
        self.send_json(key, &presence_json(told.reply_to.flatten(), &told.changes));
    }
}

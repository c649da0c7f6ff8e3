//! Sessions that want to know who comes and goes.

use crate::{
    connection::{error_json, json},
    decoding::missing,
    shard::{After, Shard},
};
use serde::Serialize;
use tidings_engine::shards::{Told, WatchedChange};
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
    /// Answered with how those users are now; what changes comes by itself.
    pub(crate) fn take_watch(&mut self, key: usize, frame: &RawClientFrame<'_>) -> After {
        let Some(user) = self.user(key) else { return After::Stays };
        if frame.users.is_empty() {
            return self.refuse(key, frame.reference, missing("users", "watch_presence"));
        }
        let (users, reference) = (frame.users.clone(), frame.reference);
        let conversation = frame.conversation.as_deref().map(str::to_owned);
        let watcher = (self.parts.index as u16, self.connections[key].session);
        self.connections[key].watches = true;
        self.read_for(key, reference, move |engine| {
            let watching = engine.watch_presence(&user, conversation.as_deref(), &users, watcher, reference);
            // The answer to a request that is granted comes with the changes, in their order.
            let refusal = watching.err()?;
            engine.metrics.count_refusal(refusal.code);
            Some(error_json(reference, &refusal))
        })
    }

    pub(crate) fn take_unwatch(&mut self, key: usize, frame: &RawClientFrame<'_>) -> After {
        let session = self.connections[key].session;
        let watcher = (self.parts.index as u16, session);
        if frame.users.is_empty() {
            self.parts.engine.unwatch_all(watcher);
            return self.say_ok(key, frame.reference);
        }
        let (users, reference) = (frame.users.clone(), frame.reference);
        self.read_for(key, reference, move |engine| {
            Some(match engine.unwatch_presence(&users, watcher) {
                Ok(()) => json(&ServerFrame::Ok { reference: reference.unwrap_or(0) }),
                Err(refusal) => {
                    engine.metrics.count_refusal(refusal.code);
                    error_json(reference, &refusal)
                }
            })
        })
    }

    pub(crate) fn say_ok(&mut self, key: usize, reference: Option<u64>) -> After {
        match reference {
            Some(reference) => self.push(key, &json(&ServerFrame::Ok { reference })),
            None => After::Stays,
        }
    }

    /// News of watched users; who has gone meanwhile is not watched any more.
    pub(crate) fn tell_changes(&mut self, told: &Told) {
        let Some(key) = self.find(told.session).filter(|key| self.connections[*key].bound.is_some()) else {
            self.parts.engine.unwatch_all((self.parts.index as u16, told.session));
            return;
        };
        if told.answers.is_some() {
            let connection = &mut self.connections[key];
            connection.requests = connection.requests.saturating_sub(1);
        }
        self.push(key, &presence_json(told.answers.flatten(), &told.changes));
    }
}

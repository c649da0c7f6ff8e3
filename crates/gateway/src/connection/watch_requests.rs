//! The requests of a session about the users whose presence it watches.

use crate::encoding::{error_json, json};
use parking_lot::Mutex;
use std::{collections::VecDeque, sync::Arc};
use tidings_domain::model::User;
use tidings_engine::{Engine, presence::watching::Watcher};
use tidings_protocol::frames::ServerFrame;

/// A request of a session that begins or ends watches.
pub(crate) enum WatchRequest {
    Watch {
        conversation: Option<String>,
        users: Vec<String>,
    },
    /// Without users: of all.
    Unwatch {
        users: Vec<String>,
    },
}

/// The requests of one session about watches, in the order in which they came. Reads of a session run on many threads at
/// once; each of these takes the oldest request that waits, whichever it was spawned for, so that the watch that follows
/// an unwatch stays.
#[derive(Clone, Default)]
pub(crate) struct WatchRequests(Arc<Mutex<VecDeque<(Option<u64>, WatchRequest)>>>);

impl WatchRequests {
    pub(crate) fn push(&self, reference: Option<u64>, request: WatchRequest) {
        self.0.lock().push_back((reference, request));
    }

    /// Carries out the oldest request, and answers with its frame. `None`: a watch that was granted is answered through the
    /// queue of changes, so that the answer and changes stay in order.
    pub(crate) fn carry_out_oldest(&self, engine: &Engine, user: &Arc<User>, watcher: Watcher) -> Option<Vec<u8>> {
        let mut waiting = self.0.lock();
        let (reference, request) = waiting.pop_front()?;
        let done = match request {
            WatchRequest::Watch { conversation, users } => {
                engine.watch_presence(user, conversation.as_deref(), &users, watcher, reference).map(|()| None)
            }
            WatchRequest::Unwatch { users } if users.is_empty() => {
                engine.unwatch_all(watcher);
                Ok(Some(json(&ServerFrame::Ok { reference: reference.unwrap_or(0) })))
            }
            WatchRequest::Unwatch { users } => engine
                .unwatch_presence(&users, watcher)
                .map(|()| Some(json(&ServerFrame::Ok { reference: reference.unwrap_or(0) }))),
        };
        done.unwrap_or_else(|refusal| {
            engine.metrics.count_refusal(refusal.code);
            Some(error_json(reference, &refusal))
        })
    }
}

//! What has to be done for streams by the clock: checkpoints, and ends of those whose beginner is gone.

use super::{Role, Stream, StreamKey, Streams};
use std::sync::Arc;
use tidings_domain::model::*;

/// How long a chunk waits for a checkpoint, in milliseconds. With the worker's rounds and the commit, the text is stored
/// within a second.
const CHECKPOINT_AFTER_MS: u64 = 700;

/// A body to be stored.
pub(crate) struct Checkpoint {
    pub key: StreamKey,
    pub body: Box<str>,
}

/// A stream to be ended, because its beginner is gone.
pub(crate) struct Interruption {
    pub key: StreamKey,
    pub conversation: Arc<Conversation>,
    pub sender: Option<Sender>,
    pub body: Box<str>,
}

#[derive(Default)]
pub(crate) struct DueWork {
    pub checkpoints: Vec<Checkpoint>,
    pub interruptions: Vec<Interruption>,
}

impl Streams {
    /// Takes what is due. With `all`, every stream of this node is to be ended: the server stops.
    pub(crate) fn take_due(&self, all: bool) -> DueWork {
        let now = self.clock.now_ms();
        let timeout_ms = self.config.timeout.as_millis() as u64;
        let mut due = DueWork::default();
        for (key, stream) in &mut self.state.lock().streams {
            let Stream { conversation, body, role: Role::Owner(ownership), .. } = stream else { continue };
            if ownership.ending {
                continue;
            }
            let is_late = now >= ownership.appended_at.saturating_add(timeout_ms);
            if all || ownership.is_abandoned || is_late {
                ownership.ending = true;
                let (conversation, sender) = (conversation.clone(), ownership.sender.clone());
                due.interruptions.push(Interruption { key: *key, conversation, sender, body: body.json() });
            } else if ownership.unsaved_since.is_some_and(|since| now >= since.saturating_add(CHECKPOINT_AFTER_MS)) {
                ownership.unsaved_since = None;
                due.checkpoints.push(Checkpoint { key: *key, body: body.json() });
            }
        }
        due
    }

    /// A checkpoint could not be stored: the next round tries again.
    pub(crate) fn checkpoint_failed(&self, key: StreamKey) {
        if let Some(Stream { role: Role::Owner(ownership), .. }) = self.state.lock().streams.get_mut(&key) {
            ownership.unsaved_since = Some(0);
        }
    }

    /// Tells the other nodes how long the text is: one that has lost the last chunk asks for it.
    pub(crate) fn tell_length(&self, key: StreamKey) {
        let Some(peers) = self.peers.get() else { return };
        let found = self.state.lock().streams.get(&key).map(|stream| (stream.conversation.clone(), stream.sent as u64));
        if let Some((conversation, sent)) = found {
            peers.send_chunk(&conversation, key.seq, sent, "");
        }
    }

    /// The user is suspended: what grows in the user's name, or was begun by the user, is to be ended at the next look.
    pub(crate) fn abandon(&self, user: UserNo) {
        for stream in self.state.lock().streams.values_mut() {
            let Role::Owner(ownership) = &mut stream.role else { continue };
            let is_of_user = ownership.sender.as_ref().is_some_and(|sender| sender.no == user);
            ownership.is_abandoned |= is_of_user || ownership.beginner == Some(user);
        }
    }

    /// The streams that this session began are to be ended. Answers whether there are any.
    pub(crate) fn on_session_end(&self, session: (usize, u64)) -> bool {
        let mut state = self.state.lock();
        let Some(keys) = state.by_session.remove(&session) else { return false };
        for key in keys {
            if let Some(Stream { role: Role::Owner(ownership), .. }) = state.streams.get_mut(&key) {
                ownership.session = None;
                ownership.is_abandoned = true;
            }
        }
        true
    }
}

//! The streams of this node: who may append what, and how much.

use super::{GrowingBody, Role, State, Stream, StreamKey, Streams, Touch};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use tidings_domain::model::*;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    limits::BODY_BYTES_MAX,
};

/// When to try again while there is no room: some streams will have ended by then.
const RETRY_AFTER_MS: u64 = 1_000;

/// Who holds how many of the places for streams.
#[derive(Default)]
pub(super) struct Holders {
    pub open: usize,
    by_user: FxHashMap<UserNo, usize>,
    by_conversation: FxHashMap<ConversationNo, usize>,
}

/// A place for a stream; it is free again when this is dropped.
pub(crate) struct StreamPermit {
    holders: Arc<Mutex<Holders>>,
    /// Absent for the first message of a conversation, until it is committed.
    conversation: Option<ConversationNo>,
    user: Option<UserNo>,
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut holders = self.holders.lock();
        holders.open -= 1;
        if let Some(conversation) = self.conversation {
            release(&mut holders.by_conversation, conversation);
        }
        if let Some(user) = self.user {
            release(&mut holders.by_user, user);
        }
    }
}

impl StreamPermit {
    /// The conversation has its number now.
    fn count_in(&mut self, conversation: ConversationNo) {
        if self.conversation.is_none() {
            self.conversation = Some(conversation);
            *self.holders.lock().by_conversation.entry(conversation).or_default() += 1;
        }
    }
}

fn release<K: std::hash::Hash + Eq>(held: &mut FxHashMap<K, usize>, key: K) {
    if let Some(count) = held.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            held.remove(&key);
        }
    }
}

/// A stream whose first message is not committed yet.
pub(crate) struct NewStream {
    pub permit: StreamPermit,
    pub body: GrowingBody,
    /// The user whose token began it; `None`: an app server.
    pub beginner: Option<UserNo>,
    /// The session with which the stream ends, by shard and number; absent for a stream that was begun over HTTP.
    pub session: Option<(usize, u64)>,
}

/// What only the owner of a stream keeps.
pub(super) struct Ownership {
    _permit: StreamPermit,
    pub sender: Option<Sender>,
    pub beginner: Option<UserNo>,
    pub session: Option<(usize, u64)>,
    /// When it was appended to last, in milliseconds since 1970 UTC.
    pub appended_at: u64,
    /// When the oldest chunk came that is not stored, in milliseconds since 1970 UTC.
    pub unsaved_since: Option<u64>,
    /// Its end is being committed.
    pub ending: bool,
    /// The session that began it has ended.
    pub is_abandoned: bool,
}

/// A stream whose end is to be committed.
pub(crate) struct EndingStream {
    pub sender: Option<Sender>,
    /// The body so far.
    pub body: Box<str>,
}

impl Ownership {
    fn check_beginner(&self, actor: &Actor) -> Result<(), Refusal> {
        if actor.user().map(|user| user.person()) == self.beginner {
            Ok(())
        } else {
            Err(Refusal::new(ErrorCode::Forbidden, "only the caller who began the message may go on with it"))
        }
    }
}

impl Streams {
    /// Reserves a place for a stream that the user, or an app server, wants to begin. `conversation`: absent if the stream is
    /// its first message.
    ///
    /// # Errors
    /// `queue_full`: all places are taken, or those of the user or the conversation, or the texts have no room.
    pub(crate) fn reserve(
        &self,
        conversation: Option<ConversationNo>,
        user: Option<UserNo>,
        bytes: usize,
    ) -> Result<StreamPermit, Refusal> {
        let full = |what: &str, limit: usize| {
            let why = format!("{what} are limited to {limit}; nothing was stored");
            Err(Refusal::new(ErrorCode::QueueFull, why).retry_after(RETRY_AFTER_MS))
        };
        let config = &self.config;
        if self.state.lock().owned_bytes + bytes > config.bytes_max {
            return full("bytes of all messages that grow", config.bytes_max);
        }
        let mut holders = self.holders.lock();
        let count = |held: Option<&usize>| held.copied().unwrap_or(0);
        if holders.open >= config.open_max {
            return full("messages that grow at once", config.open_max);
        }
        let counted = conversation.and_then(|conversation| holders.by_conversation.get(&conversation));
        if count(counted) >= config.open_per_conversation_max {
            return full("messages that grow at once in a conversation", config.open_per_conversation_max);
        }
        if let Some(user) = user {
            if count(holders.by_user.get(&user)) >= config.open_per_user_max {
                return full("a user's messages that grow at once", config.open_per_user_max);
            }
            *holders.by_user.entry(user).or_default() += 1;
        }
        holders.open += 1;
        conversation
            .into_iter()
            .for_each(|conversation| *holders.by_conversation.entry(conversation).or_default() += 1);
        Ok(StreamPermit { holders: self.holders.clone(), conversation, user })
    }

    /// The message is committed: it grows from here on.
    pub(super) fn open(
        &self,
        key: StreamKey,
        conversation: &Arc<Conversation>,
        sender: Option<Sender>,
        new: NewStream,
    ) {
        let NewStream { mut permit, body, beginner, session } = new;
        permit.count_in(key.conversation);
        let ownership = Ownership {
            _permit: permit,
            sender,
            beginner,
            session,
            appended_at: self.clock.now_ms(),
            unsaved_since: None,
            ending: false,
            is_abandoned: false,
        };
        let mut state = self.state.lock();
        if let Some(session) = session {
            state.by_session.entry(session).or_default().push(key);
        }
        state.owned_bytes += body.bytes();
        let sent = body.text().len();
        let (conversation, node, role) = (conversation.clone(), self.node, Role::Owner(Box::new(ownership)));
        state.streams.insert(key, Stream { conversation, body, node, sent, queued: false, announced: false, role });
    }

    /// Appends a chunk at an offset of the text, in bytes of UTF-8. A chunk that is known already, as a whole or in part,
    /// is a retry. Answers the length of the text, and the stream if it must be queued; `None`: this node does not
    /// know the stream.
    ///
    /// # Errors
    /// `conflict`: the chunk does not fit, and the detail names the offset that does; `limit_exceeded`, `queue_full`,
    /// `forbidden`, `stream_ended`, `stream_elsewhere`.
    pub(crate) fn append(
        &self,
        key: StreamKey,
        actor: &Actor,
        offset: u64,
        chunk: &str,
    ) -> Result<Option<(u64, Option<Touch>)>, Refusal> {
        let now = self.clock.now_ms();
        let mut state = self.state.lock();
        let State { streams, owned_bytes, .. } = &mut *state;
        let Some(stream) = streams.get_mut(&key) else { return Ok(None) };
        let ownership = owned_by(&mut stream.role, actor)?;
        if ownership.ending {
            return Err(Refusal::new(ErrorCode::StreamEnded, "the message is being ended"));
        }
        let new = new_part(stream.body.text(), offset, chunk)?;
        let bytes = GrowingBody::bytes_of(new);
        let would_be = stream.body.bytes() + bytes;
        if would_be > BODY_BYTES_MAX {
            return Err(Refusal::limit("body (bytes)", BODY_BYTES_MAX as u64, would_be as u64));
        }
        if *owned_bytes + bytes > self.config.bytes_max {
            let why = format!("the texts of all messages that grow are limited to {} bytes", self.config.bytes_max);
            return Err(Refusal::new(ErrorCode::QueueFull, why).retry_after(RETRY_AFTER_MS));
        }
        ownership.appended_at = now;
        if !new.is_empty() {
            ownership.unsaved_since.get_or_insert(now);
            stream.body.push(new);
            *owned_bytes += bytes;
        }
        Ok(Some((stream.body.text().len() as u64, stream.touch(key))))
    }

    /// Stops the appends of a stream, whose end is committed next. `None`: this node does not know the stream.
    ///
    /// # Errors
    /// `forbidden`, `stream_ended`, `stream_elsewhere`.
    pub(crate) fn begin_end(&self, key: StreamKey, actor: &Actor) -> Result<Option<EndingStream>, Refusal> {
        let mut state = self.state.lock();
        let Some(stream) = state.streams.get_mut(&key) else { return Ok(None) };
        let ownership = owned_by(&mut stream.role, actor)?;
        // A second end waits behind the first one for the commit, which answers both.
        ownership.ending = true;
        Ok(Some(EndingStream { sender: ownership.sender.clone(), body: stream.body.json() }))
    }

    /// The end was not committed: the stream goes on.
    pub(crate) fn resume(&self, key: StreamKey) {
        if let Some(Stream { role: Role::Owner(ownership), .. }) = self.state.lock().streams.get_mut(&key) {
            ownership.ending = false;
        }
    }

    /// The conversation and the whole body of a stream of this node.
    pub(crate) fn own_body(&self, key: StreamKey) -> Option<(Arc<Conversation>, Box<str>)> {
        let state = self.state.lock();
        let stream = state.streams.get(&key)?;
        let Role::Owner(_) = stream.role else { return None };
        Some((stream.conversation.clone(), stream.body.json()))
    }
}

fn owned_by<'a>(role: &'a mut Role, actor: &Actor) -> Result<&'a mut Ownership, Refusal> {
    match role {
        Role::Owner(ownership) => ownership.check_beginner(actor).map(|()| &mut **ownership),
        Role::Copy { .. } => Err(stream_elsewhere()),
    }
}

pub(crate) fn stream_elsewhere() -> Refusal {
    let why = "the message was begun at another node of the cluster: go on over HTTP, which every node passes on";
    Refusal::new(ErrorCode::StreamElsewhere, why)
}

/// The part of a chunk that the text does not have yet.
fn new_part<'a>(text: &str, offset: u64, chunk: &'a str) -> Result<&'a str, Refusal> {
    let length = text.len();
    let conflict =
        |why: &str| Err(Refusal::new(ErrorCode::Conflict, format!("offset: {why}; the text has {length} bytes")));
    if offset > length as u64 {
        return conflict("chunks before it are missing");
    }
    let Some(known) = text.get(offset as usize..) else { return conflict("it is within a character") };
    let common = known.len().min(chunk.len());
    if known.as_bytes()[..common] == chunk.as_bytes()[..common] {
        // Both sides agree up to here, and one of them ends here: it is no place within a character.
        Ok(&chunk[common..])
    } else {
        conflict("the text goes on in another way there")
    }
}

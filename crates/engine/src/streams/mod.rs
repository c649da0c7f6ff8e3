//! Messages that grow, while they do. The text so far is in memory; every chunk of it reaches live members by the lanes of
//! their messages, and none of it waits for the disk.
//!
//! ```text
//! begin ─ commit ─▶ open ── append ──▶ text ── touch ──▶ lane ── chunk ──▶ shards, and over the bus other nodes' texts
//!                               └─ within a second ─▶ checkpoint (the stored body)        end ─ commit ─▶ an entry
//! ```
//! The node at which a message was begun takes its chunks: it *owns* the stream. Every other node keeps a copy, so that a
//! client which reads the message there gets the text that the next chunks follow.
//!
//! A lane's queue holds one element for a stream at most, however many chunks come: whoever takes it takes all that the
//! text has grown by. So a slow lane joins chunks, and what waits is bounded by the number of streams.
//!
//! In reading order: [`growing_body`]: the body and its text; `owned`: what the owner does with it; `copies`: what other
//! nodes do; `commits`: what commits make of streams; `due`: what has to be done by the clock; [`worker`]: the thread that
//! does it; [`requests`]: what callers ask.
//!
//! A message that grows is begun by [`crate::engine::send`], as every message; its entry, once committed, opens the stream. A
//! chunk comes by `requests`, which checks its caller, to `owned`, and from there to the lane. An end is committed as an edit.

mod commits;
mod copies;
mod due;
mod growing_body;
mod owned;
mod requests;
pub(crate) mod worker;

pub(crate) use commits::begun_stream;
pub(crate) use copies::ChunkEffect;
pub(crate) use due::{Checkpoint, DueWork, Interruption};
pub(crate) use growing_body::GrowingBody;
pub(crate) use owned::{NewStream, stream_elsewhere};

use crate::delivery::{Chunk, Recipients};
use owned::{Holders, Ownership};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};
use tidings_domain::{clock::Clock, model::*};

/// Limits of messages that grow.
#[derive(Debug, Clone, Copy)]
pub struct StreamsConfig {
    /// Messages that grow at once at this node. Above: the next is refused with `queue_full`.
    pub open_max: usize,
    /// Of these, messages that one user began by token.
    pub open_per_user_max: usize,
    /// Of these, messages of one conversation.
    pub open_per_conversation_max: usize,
    /// Bytes of the texts of all of them. Full: appends are refused with `queue_full`. Copies of other nodes' streams may
    /// take as much again; beyond that this node's clients get such messages when they end.
    pub bytes_max: usize,
    /// A message that has not grown for this long is ended as interrupted.
    pub timeout: Duration,
    /// Chunks that one user may append in a second by token; 0: no limit.
    pub appends_per_second: u32,
}

impl Default for StreamsConfig {
    fn default() -> Self {
        StreamsConfig {
            open_max: 10_000,
            open_per_user_max: 16,
            open_per_conversation_max: 64,
            bytes_max: 64 * 1024 * 1024,
            timeout: Duration::from_secs(60),
            appends_per_second: 100,
        }
    }
}

/// A message that grows, by its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamKey {
    pub conversation: ConversationNo,
    pub seq: u64,
}

/// A stream whose text has grown: it must be put into the queue of its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) struct Touch {
    pub lane: Lane,
    pub key: StreamKey,
}

/// Sends chunks to the other nodes of a cluster.
pub(crate) trait StreamPeers: Send + Sync + 'static {
    /// Sends what the text of a stream of this node has grown by, or with an empty chunk how long the text is.
    fn send_chunk(&self, conversation: &Conversation, seq: u64, offset: u64, text: &str);
}

/// The streams that this node knows of.
pub(crate) struct Streams {
    config: StreamsConfig,
    /// Names this process among those that own streams.
    node: u64,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Locked after `state`, if both are.
    holders: Arc<Mutex<Holders>>,
    /// Set in a cluster.
    peers: OnceLock<Arc<dyn StreamPeers>>,
}

#[derive(Default)]
struct State {
    streams: FxHashMap<StreamKey, Stream>,
    /// The streams that a session began and that end with it, by shard and session.
    by_session: FxHashMap<(usize, u64), Vec<StreamKey>>,
    /// Bytes of all bodies that this node owns, and of its copies.
    owned_bytes: usize,
    copied_bytes: usize,
}

struct Stream {
    conversation: Arc<Conversation>,
    body: GrowingBody,
    /// The boot id of the node that owns it.
    node: u64,
    /// The bytes of the text that the lanes have taken.
    sent: usize,
    /// The stream is in the queue of its lane.
    queued: bool,
    /// The lanes have the entry of the message: chunks may follow.
    announced: bool,
    role: Role,
}

enum Role {
    Owner(Box<Ownership>),
    Copy {
        /// When the owner was asked for the whole text, in milliseconds since 1970 UTC.
        asked_at: u64,
        /// When the first text came, by the monotonic clock.
        copied_at: Instant,
    },
}

impl Stream {
    /// Marks the stream as queued, if it has grown and is not queued yet.
    fn touch(&mut self, key: StreamKey) -> Option<Touch> {
        if self.queued || !self.announced || self.sent >= self.body.text().len() {
            return None;
        }
        self.queued = true;
        Some(Touch { lane: self.conversation.lane(), key })
    }

    fn recipients(&self) -> Recipients {
        self.conversation.pair.map_or(Recipients::Audience, |(a, b)| Recipients::Pair(a, b))
    }
}

impl State {
    fn remove(&mut self, key: StreamKey) -> Option<Stream> {
        let stream = self.streams.remove(&key)?;
        match &stream.role {
            Role::Owner(ownership) => {
                self.owned_bytes -= stream.body.bytes();
                if let Some(session) = ownership.session
                    && let Some(keys) = self.by_session.get_mut(&session)
                {
                    keys.retain(|other| *other != key);
                    if keys.is_empty() {
                        self.by_session.remove(&session);
                    }
                }
            }
            Role::Copy { .. } => self.copied_bytes -= stream.body.bytes(),
        }
        Some(stream)
    }
}

impl Streams {
    pub(crate) fn new(config: StreamsConfig, node: u64, clock: Arc<dyn Clock>) -> Arc<Streams> {
        let (state, holders, peers) = Default::default();
        Arc::new(Streams { config, node, clock, state, holders, peers })
    }

    /// Names this process among those that own streams.
    pub(crate) fn node(&self) -> u64 {
        self.node
    }

    /// Has chunks sent to other nodes. Only the first call counts.
    pub(crate) fn set_peers(&self, peers: Arc<dyn StreamPeers>) {
        let _ = self.peers.set(peers);
    }

    /// Messages that grow at this node, and the limit.
    pub(crate) fn depth(&self) -> (usize, usize) {
        (self.holders.lock().open, self.config.open_max)
    }

    /// The node that owns the stream, if this node knows of it.
    pub(crate) fn owner(&self, key: StreamKey) -> Option<u64> {
        self.state.lock().streams.get(&key).map(|stream| stream.node)
    }

    /// Takes what the text has grown by since the last time, for the live members; the peers are sent it. Called by the
    /// stream's lane alone, so that chunks stay in order.
    pub(crate) fn take_chunk(&self, key: StreamKey) -> Option<(Chunk, Arc<Conversation>)> {
        let mut state = self.state.lock();
        let stream = state.streams.get_mut(&key)?;
        stream.queued = false;
        let text = stream.body.text_from(stream.sent).filter(|text| !text.is_empty())?.to_owned();
        let (offset, conversation) = (stream.sent as u64, stream.conversation.clone());
        stream.sent += text.len();
        let is_owner = matches!(stream.role, Role::Owner(_));
        let recipients = stream.recipients();
        drop(state);
        if is_owner && let Some(peers) = self.peers.get() {
            peers.send_chunk(&conversation, key.seq, offset, &text);
        }
        let json = chunk_json(&conversation.id, key.seq, offset, &text).into();
        let chunk = Chunk { conversation: key.conversation, seq: key.seq, recipients, offset, json, floors: None };
        Some((chunk, conversation))
    }

    /// The JSON of a `stream` frame with the text from `offset` on; `None`: there is none, or the message has ended.
    pub(crate) fn chunk_from(&self, key: StreamKey, offset: u64) -> Option<Vec<u8>> {
        let state = self.state.lock();
        let stream = state.streams.get(&key)?;
        let text = stream.body.text_from(usize::try_from(offset).ok()?).filter(|text| !text.is_empty())?;
        Some(chunk_json(&stream.conversation.id, key.seq, offset, text))
    }

    /// Puts the newest body that this node has into an entry that was read from the store.
    pub(crate) fn overlay(&self, conversation: ConversationNo, entry: &mut StoredEntry) {
        if !entry.content.message_details().stream.is_open() {
            return;
        }
        let state = self.state.lock();
        if let Some(stream) = state.streams.get(&StreamKey { conversation, seq: entry.seq })
            && stream.body.bytes() > entry.content.body.len()
        {
            entry.content.body = stream.body.json();
        }
    }
}

fn chunk_json(conversation: &str, seq: u64, offset: u64, text: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct StreamFrame<'a> {
        t: &'static str,
        conversation: &'a str,
        seq: u64,
        offset: u64,
        text: &'a str,
    }
    // Writing to memory cannot fail.
    serde_json::to_vec(&StreamFrame { t: "stream", conversation, seq, offset, text }).unwrap_or_default()
}

#[cfg(test)]
#[path = "../../tests/simulations/streams.rs"]
mod tests;

//! Copies of other nodes' streams. The bus may lose chunks: a node that lacks one asks the owner for the whole text.

use super::{GrowingBody, Role, State, StreamKey, Streams, Touch};
use std::{sync::Arc, time::Duration};
use tidings_domain::model::*;
use tidings_protocol::limits::BODY_BYTES_MAX;

/// How long an answer of the owner is waited for before it is asked again, in milliseconds.
const ASK_AGAIN_AFTER_MS: u64 = 500;
/// How long chunks wait for the entry of their message, which the log brings and the bus may overtake. A node that began
/// when the message had grown for a while is not brought that entry.
const ENTRY_WAIT: Duration = Duration::from_millis(500);

/// What follows for this node from a chunk of another one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChunkEffect {
    Nothing,
    /// The text has grown: queue the stream.
    Queue(Touch),
    /// Chunks before it are missing: ask the owner for the whole text.
    Ask,
}

impl Streams {
    /// Takes a chunk of a stream that another node owns.
    pub(crate) fn on_chunk(&self, key: StreamKey, offset: u64, chunk: &str) -> ChunkEffect {
        let now = self.clock.now_ms();
        let mut state = self.state.lock();
        let has_room = self.has_room_for_copy(&state, BODY_BYTES_MAX);
        let State { streams, copied_bytes, .. } = &mut *state;
        let Some(stream) = streams.get_mut(&key) else {
            return if has_room { ChunkEffect::Ask } else { ChunkEffect::Nothing };
        };
        let Role::Copy { asked_at, copied_at } = &mut stream.role else { return ChunkEffect::Nothing };
        stream.announced |= self.clock.monotonic().saturating_duration_since(*copied_at) >= ENTRY_WAIT;
        let have = stream.body.text().len() as u64;
        if offset > have {
            if now < asked_at.saturating_add(ASK_AGAIN_AFTER_MS) {
                return ChunkEffect::Nothing;
            }
            *asked_at = now;
            return ChunkEffect::Ask;
        }
        // A chunk that comes late, after the whole text did, has nothing new.
        let new = chunk.get((have - offset) as usize..).unwrap_or_default();
        *copied_bytes += GrowingBody::bytes_of(new);
        stream.body.push(new);
        stream.touch(key).map_or(ChunkEffect::Nothing, ChunkEffect::Queue)
    }

    /// Takes the whole body of another node's stream. Answers the stream if it must be queued.
    pub(crate) fn on_body(&self, seq: u64, conversation: &Arc<Conversation>, node: u64, body: &str) -> Option<Touch> {
        let key = StreamKey { conversation: conversation.no, seq };
        let body = GrowingBody::parse(body).ok()?;
        let mut state = self.state.lock();
        let State { streams, copied_bytes, .. } = &mut *state;
        let Some(stream) = streams.get_mut(&key) else {
            // Clients of this node that have less of it than the next chunk follows read the message again.
            self.copy(&mut state, key, conversation, node, body, false);
            return None;
        };
        let Role::Copy { asked_at, .. } = &mut stream.role else { return None };
        *asked_at = 0;
        if body.text().len() <= stream.body.text().len() {
            return None;
        }
        *copied_bytes = *copied_bytes + body.bytes() - stream.body.bytes();
        stream.body = body;
        stream.touch(key)
    }
}

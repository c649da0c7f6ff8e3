//! Messages that grow: the chunks that a session appends, and those that it could not take when they came.

use super::{FrameOutcome, Shard, decoding::missing_field};
use crate::{
    connection::{PendingChunk, Phase},
    encoding::{error_json, json},
};
use tidings_domain::model::Actor;
use tidings_protocol::{
    error::Refusal,
    frames::{RawClientFrame, ServerFrame},
};

/// Bytes of pending chunks that are queued at once: the session's buffer keeps room for messages.
const PENDING_BYTES_AT_ONCE: usize = 128 * 1024;

impl Shard {
    pub(super) fn handle_stream_append(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        let Some(user) = self.user(key) else { return FrameOutcome::Continue };
        let (conversation, seq, offset, text) = match chunk_fields(frame) {
            Ok(fields) => fields,
            Err(missing) => return self.refuse(key, frame.reference, missing),
        };
        let (actor, reference) = (Actor::User(user), frame.reference);
        match self.parts.engine.append_to_stream(&actor, conversation, seq, offset, text) {
            Ok(Some(offset)) => match reference {
                Some(reference) => self.send_json(key, &json(&ServerFrame::Appended { reference, offset })),
                None => FrameOutcome::Continue,
            },
            Ok(None) => {
                let conversation = conversation.to_owned();
                self.spawn_store_read(key, reference, move |engine| {
                    let refusal = engine.why_no_stream(&actor, &conversation, seq);
                    engine.metrics.count_refusal(refusal.code);
                    Some(error_json(reference, &refusal))
                })
            }
            Err(refusal) => self.refuse(key, reference, refusal),
        }
    }

    pub(super) fn handle_stream_end(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        let body = frame.body.map(ToOwned::to_owned);
        self.change_message(key, frame, "a stream_end", move |engine, user, conversation, seq, reply| {
            engine.submit_stream_end(user, conversation, seq, body, reply)
        })
    }

    /// Queues what the session lacks of the messages that grow, now that its socket has taken all that was queued. A message
    /// that has ended meanwhile is left out: its whole body came with an entry.
    pub(super) fn queue_pending_chunks(&mut self, key: usize) {
        let connection = &mut self.connections[key];
        let (Phase::Live, Some(binding)) = (connection.phase, &connection.binding) else { return };
        let user = binding.user.no;
        while connection.outbound.queued_bytes() < PENDING_BYTES_AT_ONCE
            && let Some(pending) = connection.extras_mut().pending_chunks.as_mut().and_then(|pending| pending.pop())
        {
            let PendingChunk { conversation, seq, recipients, offset } = pending;
            // Nothing follows for a user who has left.
            if self.delivery.is_recipient(user, conversation, &recipients)
                && let Some(chunk) = self.parts.engine.stream_chunk_from(conversation, seq, offset)
            {
                connection.queue_json(&chunk);
            }
        }
        if connection.outbound.queued_bytes() == 0 {
            connection.drop_pending_chunks();
        } else {
            self.scheduler.flush_soon(connection, key);
        }
    }
}

/// The conversation, `seq`, offset and text of a chunk.
fn chunk_fields<'a>(frame: &'a RawClientFrame<'_>) -> Result<(&'a str, u64, u64, &'a str), Refusal> {
    let missing = |field| missing_field(field, "a stream_append");
    Ok((
        frame.conversation.as_deref().ok_or_else(|| missing("conversation"))?,
        frame.seq.ok_or_else(|| missing("seq"))?,
        frame.offset.ok_or_else(|| missing("offset"))?,
        frame.text.as_deref().ok_or_else(|| missing("text"))?,
    ))
}

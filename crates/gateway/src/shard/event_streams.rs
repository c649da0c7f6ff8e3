//! Sessions over server-sent events: the frames of their clients, and the comments that keep quiet streams open.
//!
//! ```text
//! POST /v1/stream/{stream} ── lines ──▶ the session's frames, in the order of the requests' numbers
//! ```
//! A request whose answer was lost comes again with its number and is taken once. Everything else is what other sessions
//! have: the phases, the outbound queue, the time-outs.

use super::{FrameOutcome, Shard, decoding::malformed, reading::READING_TURN};
use crate::{
    connection::{EventStream, Phase},
    timer_wheel::{TICK, ticks},
};
use std::time::Instant;
use tidings_protocol::{
    error::Refusal,
    event_stream::{KEEP_ALIVE, StreamId, StreamOpened, StreamPost, named_event},
};

impl Shard {
    /// The connection is now its user's session: from here on the client can be sent the address for its frames.
    pub(super) fn begin_event_stream(&mut self, key: usize) {
        let due = self.tick() + ticks(self.parts.config.keep_alive);
        self.connections[key].extras_mut().event_stream = Some(EventStream::new(due));
        self.arm_timer(key, due);
    }

    /// The first event of a stream.
    pub(super) fn opening_event(&self, stream: &EventStream, session: u64) -> Vec<u8> {
        let node = self.parts.engine.cluster.as_ref().map_or(0, |cluster| cluster.nodes.me().boot_id);
        let id = StreamId { node, shard: self.parts.index as u16, session };
        let keep_alive_ms = u64::from(ticks(self.parts.config.keep_alive)) * TICK.as_millis() as u64;
        let opened = StreamOpened { stream: id.to_string(), secret: stream.secret.to_string(), keep_alive_ms };
        named_event("open", &opened)
    }

    /// Takes the requests that wait, for as long as sockets are read in a turn.
    pub(super) fn take_posts(&mut self) {
        let started = Instant::now();
        while started.elapsed() < READING_TURN {
            let Some((post, reply)) = self.posts.pop_front() else { return };
            // The client may have given its request up.
            let _ = reply.send(self.take_post(post));
        }
    }

    /// Takes a request's frames, once. Answers the number of the newest request that was taken.
    fn take_post(&mut self, post: StreamPost) -> Result<u64, Refusal> {
        let tick = self.tick();
        let gone = || self.ended_streams.ending_of(&post);
        let key = self.find(post.stream.session).ok_or_else(gone)?;
        let connection = &mut self.connections[key];
        let is_live = connection.phase == Phase::Live;
        let stream = connection.event_stream_mut().filter(|stream| is_live && stream.secret == post.secret);
        let Some(stream) = stream else { return Err(gone()) };
        let is_next = stream.is_next(post.number)?;
        if is_next {
            stream.taken = post.number;
        }
        let taken = stream.taken;
        (connection.last_heard, connection.unconfirmed) = (tick, None);
        if !is_next {
            return Ok(taken);
        }
        self.handle_bytes(key, post.lines);
        Ok(post.number)
    }

    /// Handles frames of a line each; every line is complete.
    pub(super) fn handle_lines(&mut self, key: usize, mut lines: &[u8]) -> FrameOutcome {
        while let Some(end) = lines.iter().position(|byte| *byte == b'\n') {
            let Some(connection) = self.connections.get_mut(key) else { return FrameOutcome::Moved };
            if connection.phase == Phase::Closing {
                return FrameOutcome::Continue;
            }
            let (line, rest) = (lines[..end].trim_ascii(), &lines[end + 1..]);
            let limit = connection.frame_bytes_max();
            lines = rest;
            if line.is_empty() {
                continue;
            }
            if line.len() > limit {
                self.close(key, Refusal::limit("a message (bytes)", limit as u64, line.len() as u64));
                return FrameOutcome::Continue;
            }
            let outcome = match std::str::from_utf8(line) {
                Ok(text) => self.handle_text(key, text, rest),
                Err(_) => self.refuse(key, None, malformed("text that is not UTF-8")),
            };
            if outcome == FrameOutcome::Moved {
                return outcome;
            }
        }
        FrameOutcome::Continue
    }

    /// Sends a comment when it is due.
    pub(super) fn keep_alive(&mut self, key: usize, due: u32, tick: u32) {
        if tick < due {
            return self.arm_timer(key, due);
        }
        let next = tick + ticks(self.parts.config.keep_alive);
        let connection = &mut self.connections[key];
        if let Some(stream) = connection.event_stream_mut() {
            stream.keep_alive_due = next;
        }
        // What waits to be written keeps the stream open as well.
        if connection.phase == Phase::Live && connection.outbound.queued_bytes() == 0 {
            connection.outbound.queue_frame(KEEP_ALIVE.to_vec());
            self.scheduler.flush_soon(connection, key);
        }
        self.arm_timer(key, next);
    }
}

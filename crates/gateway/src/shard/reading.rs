//! Reads from clients: bytes into frames, in bounded turns.

use super::{FrameOutcome, Shard, decoding::malformed};
use crate::{connection::Phase, transport::Protocol};
use std::{
    io::{ErrorKind, Read},
    ops::Range,
    time::{Duration, Instant},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    ws::{Control, Data, FrameError, OpCode, RawFrame, Received, UNSUPPORTED_DATA, put_server_frame, take_frame},
};

/// Reads of one connection before other connections have their turn.
const READS_PER_TURN: usize = 2;
/// Bytes of one read: of a client that sends without end, a thousand small frames are handled per turn.
const READ_BYTES: usize = 32 * 1024;
/// Readable connections that are read before fan-outs have their turn.
const READERS_PER_TURN: usize = 64;
/// Time for reading before fan-outs have their turn: a TLS handshake takes as long as hundreds of frames.
pub(super) const READING_TURN: Duration = Duration::from_millis(2);

impl Shard {
    pub(super) fn read_connections(&mut self) {
        let started = Instant::now();
        for _ in 0..READERS_PER_TURN.min(self.readable.len()) {
            if started.elapsed() >= READING_TURN {
                return;
            }
            let Some(key) = self.readable.pop_front() else { return };
            let Some(connection) = self.connections.get_mut(key) else { continue };
            connection.readable = false;
            self.read(key);
        }
    }

    fn read(&mut self, key: usize) {
        let tick = self.tick();
        let mut buffer = std::mem::take(&mut self.read_buffer);
        for round in 0.. {
            let Some(connection) = self.connections.get_mut(key) else { break };
            if round == READS_PER_TURN {
                connection.readable = true;
                self.readable.push_back(key);
                break;
            }
            let partial = std::mem::take(&mut connection.partial);
            buffer[..partial.len()].copy_from_slice(&partial);
            let room = (partial.len() + READ_BYTES).min(buffer.len());
            match connection.transport.read(&mut buffer[partial.len()..room]) {
                Ok(0) => {
                    self.remove(key);
                    break;
                }
                Ok(n) => {
                    // The client of an event stream sends its frames by other requests; bytes after its request are nobody's.
                    let is_stream = matches!(connection.protocol, Protocol::EventStream(_));
                    if connection.phase == Phase::Closing || is_stream {
                        continue;
                    }
                    connection.last_heard = tick;
                    connection.unconfirmed = None;
                    let end = partial.len() + n;
                    let drained = end < room && !connection.read_closed;
                    if self.handle_frames(key, &mut buffer, 0..end) != FrameOutcome::Continue || drained {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    connection.partial = partial;
                    break;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => connection.partial = partial,
                Err(_) => {
                    // The connection broke without a goodbye: what was written last may not have arrived.
                    self.push_unconfirmed_offline(key, false);
                    self.remove(key);
                    break;
                }
            }
        }
        self.read_buffer = buffer;
    }

    /// Handles bytes that were read before the connection was registered here.
    pub(super) fn handle_bytes(&mut self, key: usize, mut bytes: Vec<u8>) {
        if !bytes.is_empty() {
            let end = bytes.len();
            self.handle_frames(key, &mut bytes, 0..end);
        }
    }

    /// Handles the complete frames; an incomplete one is kept with the connection.
    fn handle_frames(&mut self, key: usize, buffer: &mut [u8], bytes: Range<usize>) -> FrameOutcome {
        match self.connections.get(key).map(|connection| connection.protocol) {
            Some(Protocol::WebSocket) => self.handle_websocket_frames(key, buffer, bytes),
            Some(Protocol::EventStream(_)) => self.handle_lines(key, &buffer[bytes]),
            Some(Protocol::Miop) => self.handle_miop_frames(key, &buffer[bytes]),
            None => FrameOutcome::Moved,
        }
    }

    fn handle_websocket_frames(&mut self, key: usize, buffer: &mut [u8], bytes: Range<usize>) -> FrameOutcome {
        let mut at = bytes.start;
        loop {
            let Some(connection) = self.connections.get_mut(key) else { return FrameOutcome::Moved };
            if connection.phase == Phase::Closing {
                return FrameOutcome::Continue;
            }
            let rest = at..bytes.end;
            let limit = connection.frame_bytes_max();
            let frame = match take_frame(&mut buffer[rest.clone()], true, limit) {
                Ok(Some(frame)) => frame,
                Ok(None) => {
                    connection.partial = buffer[rest].into();
                    return FrameOutcome::Continue;
                }
                Err(error) => {
                    self.close_for_websocket_error(key, error);
                    return FrameOutcome::Continue;
                }
            };
            let payload = at + frame.payload.start..at + frame.payload.end;
            at = payload.end;
            let after = self.handle_websocket_frame(key, &frame, &buffer[payload], &buffer[at..bytes.end]);
            if after == FrameOutcome::Moved {
                return after;
            }
        }
    }

    fn handle_websocket_frame(
        &mut self,
        key: usize,
        frame: &RawFrame,
        payload: &[u8],
        following: &[u8],
    ) -> FrameOutcome {
        if frame.opcode == OpCode::Data(Data::Binary) {
            self.close_with(key, None, malformed("send text messages: binary ones are not taken"), UNSUPPORTED_DATA);
            return FrameOutcome::Continue;
        }
        let connection = &mut self.connections[key];
        let limit = connection.frame_bytes_max();
        match connection.assembly.take(frame, payload, limit) {
            Ok(Received::Text(text)) => return self.handle_text(key, &text, following),
            Ok(Received::Ping) => {
                let mut pong = Vec::with_capacity(payload.len() + 2);
                put_server_frame(&mut pong, OpCode::Control(Control::Pong), payload);
                return self.send_frame(key, pong);
            }
            // The client closes: its close frame is echoed, and both sides are done.
            Ok(Received::Close(None)) => self.close_gracefully(key, &[]),
            Ok(Received::Close(Some(code))) => self.close_gracefully(key, &code.to_be_bytes()),
            Ok(Received::Part | Received::Binary(_) | Received::Pong) => {}
            // An invalid close frame must not be echoed; the answer has the code of the error.
            Err(error) if frame.opcode == OpCode::Control(Control::Close) => {
                self.parts.engine.metrics.count_refusal(ErrorCode::Malformed);
                self.close_gracefully(key, &error.close_code().to_be_bytes());
            }
            Err(error) => self.close_for_websocket_error(key, error),
        }
        FrameOutcome::Continue
    }

    /// Closes a connection with invalid framing: nothing after it can be decoded.
    fn close_for_websocket_error(&mut self, key: usize, error: FrameError) {
        match error {
            FrameError::TooLong { length, limit } => {
                self.close(key, Refusal::limit("a message (bytes)", limit as u64, length));
            }
            _ => self.close_with(key, None, malformed(error), error.close_code()),
        }
    }
}

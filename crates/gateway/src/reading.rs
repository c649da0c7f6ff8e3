//! What comes from clients: bytes into frames, within a bounded turn of each connection.

use crate::{
    connection::{Phase, malformed},
    shard::{After, Shard, ticks},
    transport::Door,
};
use std::{
    io::{ErrorKind, Read},
    ops::Range,
    time::{Duration, Instant},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    ws::{Control, Data, FrameError, OpCode, RawFrame, Received, UNSUPPORTED_DATA, put_server_frame, take_frame},
};

/// Reads of one connection before others have their turn.
const READS_PER_TURN: usize = 2;
/// Bytes of one read: who sends without end has a thousand small frames served, then others have their turn.
const READ_BYTES: usize = 32 * 1024;
/// Readable connections served before fan-outs have their turn.
const READERS_PER_TURN: usize = 64;
/// Time for reading before fan-outs have their turn: a TLS handshake takes as long as hundreds of frames.
const READING_TURN: Duration = Duration::from_millis(2);

impl Shard {
    pub(crate) fn read_some(&mut self) {
        let started = Instant::now();
        for _ in 0..READERS_PER_TURN.min(self.readable.len()) {
            if started.elapsed() >= READING_TURN {
                return;
            }
            let Some(key) = self.readable.pop_front() else { return };
            let Some(connection) = self.connections.get_mut(key) else { continue };
            connection.readable = false;
            if !connection.paused {
                self.read(key);
            }
        }
    }

    fn read(&mut self, key: usize) {
        let tick = self.tick();
        let mut buffer = std::mem::take(&mut self.read_buffer);
        for round in 0.. {
            let Some(connection) = self.connections.get_mut(key).filter(|c| !c.paused) else { break };
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
                    if connection.phase == Phase::Closing {
                        continue;
                    }
                    connection.heard = tick;
                    connection.unheard = None;
                    let end = partial.len() + n;
                    let drained = end < room && !connection.ending;
                    if self.take_frames(key, &mut buffer, 0..end) != After::Stays || drained {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    connection.partial = partial;
                    break;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => connection.partial = partial,
                Err(_) => {
                    // No goodbye: the network gave it up.
                    self.tell_unheard(key, false);
                    self.remove(key);
                    break;
                }
            }
        }
        self.read_buffer = buffer;
    }

    /// Takes bytes that were read elsewhere.
    pub(crate) fn take_bytes(&mut self, key: usize, mut bytes: Vec<u8>) {
        if !bytes.is_empty() {
            let end = bytes.len();
            self.take_frames(key, &mut bytes, 0..end);
        }
    }

    /// Takes the frames that have come whole; the rest is kept with the connection.
    fn take_frames(&mut self, key: usize, buffer: &mut [u8], bytes: Range<usize>) -> After {
        match self.connections.get(key).map(|connection| connection.door) {
            Some(Door::WebSocket) => self.take_websocket_frames(key, buffer, bytes),
            Some(Door::Miop) => self.take_miop_frames(key, &buffer[bytes]),
            None => After::Moves,
        }
    }

    fn take_websocket_frames(&mut self, key: usize, buffer: &mut [u8], bytes: Range<usize>) -> After {
        let mut at = bytes.start;
        loop {
            let Some(connection) = self.connections.get_mut(key) else { return After::Moves };
            if connection.phase == Phase::Closing {
                return After::Stays;
            }
            let rest = at..bytes.end;
            if connection.paused {
                connection.partial = buffer[rest].to_vec();
                return After::Pauses;
            }
            let limit = connection.frame_bytes_max();
            let frame = match take_frame(&mut buffer[rest.clone()], true, limit) {
                Ok(Some(frame)) => frame,
                Ok(None) => {
                    connection.partial = buffer[rest].to_vec();
                    return After::Stays;
                }
                Err(error) => {
                    self.end_websocket(key, error);
                    return After::Stays;
                }
            };
            let payload = at + frame.payload.start..at + frame.payload.end;
            at = payload.end;
            let after = self.take_one(key, &frame, &buffer[payload], &buffer[at..bytes.end]);
            if after == After::Moves {
                return after;
            }
        }
    }

    fn take_one(&mut self, key: usize, frame: &RawFrame, payload: &[u8], following: &[u8]) -> After {
        if frame.opcode == OpCode::Data(Data::Binary) {
            self.close_with(key, None, malformed("send text messages: binary ones are not taken"), UNSUPPORTED_DATA);
            return After::Stays;
        }
        let connection = &mut self.connections[key];
        let limit = connection.frame_bytes_max();
        match connection.assembly.take(frame, payload, limit) {
            Ok(Received::Text(text)) => return self.take_text(key, &text, following),
            Ok(Received::Ping) => {
                let mut pong = Vec::with_capacity(payload.len() + 2);
                put_server_frame(&mut pong, OpCode::Control(Control::Pong), payload);
                return self.answer(key, pong);
            }
            // The client's own goodbye: echoed, then both sides are done.
            Ok(Received::Close(None)) => self.say_goodbye(key, &[]),
            Ok(Received::Close(Some(code))) => self.say_goodbye(key, &code.to_be_bytes()),
            Ok(Received::Part | Received::Binary(_) | Received::Pong) => {}
            // A goodbye that must not be echoed; nothing follows it but the answer.
            Err(error) if frame.opcode == OpCode::Control(Control::Close) => {
                self.parts.engine.metrics.count_refusal(ErrorCode::Malformed);
                self.say_goodbye(key, &error.close_code().to_be_bytes());
            }
            Err(error) => self.end_websocket(key, error),
        }
        After::Stays
    }

    /// Bytes outside the protocol: nothing after them can be understood.
    fn end_websocket(&mut self, key: usize, error: FrameError) {
        match error {
            FrameError::TooLong { length, limit } => {
                self.close(key, Refusal::limit("a message (bytes)", limit as u64, length));
            }
            _ => self.close_with(key, None, malformed(error), error.close_code()),
        }
    }

    /// Closes as the client asked.
    pub(crate) fn say_goodbye(&mut self, key: usize, payload: &[u8]) {
        self.unbind(key);
        let tick = self.tick();
        let connection = &mut self.connections[key];
        connection.phase = Phase::Closing;
        connection.heard = tick;
        connection.outgoing.clear_items();
        match connection.door {
            Door::WebSocket => connection.push_control(Control::Close, payload),
            // The end of the stream is the whole answer.
            Door::Miop => {}
        }
        self.schedule.flush_soon(connection, key);
        self.arm(key, tick + ticks(self.parts.config.closing_timeout));
    }
}

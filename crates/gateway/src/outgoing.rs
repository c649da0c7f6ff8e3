//! What waits to be written to one session, and how it becomes bytes.
//!
//! Live entries wait as pointers to blocks that all receivers share. A flush puts what has gathered
//! in one `messages` frame and one write. A push waits as a pointer too. Only what the kernel did not take is kept as bytes.

use crate::transport::Door;
use std::{
    collections::VecDeque,
    io::{ErrorKind, Write},
    sync::Arc,
};
use tidings_engine::{delivery::Block, model::*, push::PushFrame};
use tidings_protocol::{
    miop,
    ws::{Data, OpCode, put_server_header},
};

/// Bytes of entries put in one frame; the fan-out that crosses it is still completed.
const FRAME_BYTES_TARGET: usize = 128 * 1024;
/// The longest header that a frame can have.
const HEADER_BYTES_MAX: usize = 10;

enum Item {
    Block {
        block: Arc<Block>,
        lane: Lane,
        through: Position,
        /// A later block is of the same fan-out: the cursor does not move past what is still to come.
        goes_on: bool,
    },
    /// A whole frame, framed already.
    Frame(Box<[u8]>),
    /// One that others are handed too.
    Shared(Arc<[u8]>),
    Push(Arc<PushFrame>),
}

/// What an item takes beside its bytes: a place in the queue, and an allocation of its own.
const ITEM_BYTES: usize = 64;

#[derive(Default)]
pub(crate) struct Outgoing {
    items: VecDeque<Item>,
    /// What the kernel did not take of the last write.
    rest: Vec<u8>,
    queued_bytes: usize,
}

/// How a flush ended.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum Flushed {
    /// Everything is with the kernel.
    All,
    /// The kernel's buffer is full; go on when the socket is writable.
    Blocked,
    /// The connection is gone.
    Gone,
}

impl Outgoing {
    pub(crate) fn push_block(&mut self, block: &Arc<Block>, lane: Lane, through: Position) {
        // Frames may stand between blocks of one fan-out: that its user left one of the conversations. They are looked
        // at once each: from here on the last block is this one.
        let last = self.items.iter_mut().rev().find(|item| matches!(item, Item::Block { .. }));
        if let Some(Item::Block { lane: last_lane, through: last_through, goes_on, .. }) = last {
            *goes_on = (*last_lane, *last_through) == (lane, through);
        }
        self.queued_bytes += block.json.len();
        self.items.push_back(Item::Block { block: block.clone(), lane, through, goes_on: false });
    }

    pub(crate) fn push_push(&mut self, frame: &Arc<PushFrame>) {
        self.queued_bytes += frame.json.len();
        self.items.push_back(Item::Push(frame.clone()));
    }

    pub(crate) fn push_frame(&mut self, frame: Vec<u8>) {
        self.queued_bytes += frame.len();
        self.items.push_back(Item::Frame(frame.into()));
    }

    pub(crate) fn push_shared(&mut self, frame: &Arc<[u8]>) {
        self.queued_bytes += frame.len();
        self.items.push_back(Item::Shared(frame.clone()));
    }

    /// Frames go before everything that waits, in their order: a resume before what came live meanwhile.
    pub(crate) fn push_front_frames(&mut self, frames: Vec<Vec<u8>>) {
        for frame in frames.into_iter().rev() {
            self.queued_bytes += frame.len();
            self.items.push_front(Item::Frame(frame.into()));
        }
    }

    /// Drops what has not begun to be written: the session is being closed, its client resumes.
    pub(crate) fn clear_items(&mut self) {
        self.items = VecDeque::new();
        self.queued_bytes = self.rest.len();
    }

    /// Memory that waits to be written, about: a heartbeat of two bytes takes more than two.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes + self.items.len() * ITEM_BYTES
    }

    /// Writes what waits. `cursor` is the session's; it moves with what is put in frames.
    /// `scratch` is the shard's. Answers how it ended and how many bytes and writes it took.
    pub(crate) fn flush(
        &mut self,
        socket: &mut impl Write,
        door: Door,
        cursor: &mut Cursor,
        scratch: &mut Vec<u8>,
    ) -> (Flushed, usize, u64) {
        let mut written = 0;
        let mut writes = 0;
        if !self.rest.is_empty() {
            let rest = std::mem::take(&mut self.rest);
            self.queued_bytes -= rest.len();
            let (flushed, n) = self.write(socket, &rest);
            written += n;
            writes += 1;
            if flushed != Flushed::All {
                return (flushed, written, writes);
            }
        }
        while !self.items.is_empty() {
            scratch.clear();
            while scratch.len() < FRAME_BYTES_TARGET {
                match self.items.front() {
                    Some(Item::Block { .. }) => self.assemble(door, cursor, scratch),
                    Some(Item::Frame(frame)) => {
                        scratch.extend_from_slice(frame);
                        self.queued_bytes -= frame.len();
                        self.items.pop_front();
                    }
                    Some(Item::Shared(frame)) => {
                        scratch.extend_from_slice(frame);
                        self.queued_bytes -= frame.len();
                        self.items.pop_front();
                    }
                    Some(Item::Push(push)) => {
                        match door {
                            Door::Miop => scratch.extend_from_slice(&push.miop),
                            Door::WebSocket => {
                                put_server_header(scratch, OpCode::Data(Data::Text), push.json.len());
                                scratch.extend_from_slice(&push.json);
                            }
                        }
                        self.queued_bytes -= push.json.len();
                        self.items.pop_front();
                    }
                    None => break,
                }
            }
            let (flushed, n) = self.write(socket, scratch);
            written += n;
            writes += 1;
            if flushed != Flushed::All {
                return (flushed, written, writes);
            }
        }
        // Most sessions are idle most of the time: room for a few items is as much as the rest of their state.
        self.items = VecDeque::new();
        // A transport that encrypts may hold the last piece.
        let flushed = match socket.flush() {
            Ok(()) => Flushed::All,
            Err(error) if error.kind() == ErrorKind::WouldBlock => Flushed::Blocked,
            Err(_) => Flushed::Gone,
        };
        (flushed, written, writes)
    }

    /// One `messages` frame from the blocks at the front, ending where a fan-out ends or another frame comes. In the
    /// middle of a fan-out its cursor is the one before it: who resumes from there is handed the first part again,
    /// which is known by `seq`, and the rest.
    fn assemble(&mut self, door: Door, cursor: &mut Cursor, scratch: &mut Vec<u8>) {
        let mut bytes = 0;
        let mut count = 0;
        let mut within = false;
        for item in &self.items {
            let Item::Block { block, lane, through, goes_on } = item else { break };
            if bytes >= FRAME_BYTES_TARGET && !within {
                break;
            }
            bytes += block.json.len();
            count += 1;
            within = *goes_on;
            if !within {
                cursor.positions[*lane as usize] = *through;
            }
        }
        self.queued_bytes -= bytes;
        let start = scratch.len();
        scratch.resize(start + HEADER_BYTES_MAX, 0);
        let payload = scratch.len();
        scratch.extend_from_slice(b"{\"t\":\"messages\",\"cursor\":\"");
        put_cursor(scratch, cursor);
        scratch.extend_from_slice(b"\",\"entries\":[");
        for (at, item) in self.items.drain(..count).enumerate() {
            if let Item::Block { block, .. } = item {
                scratch.extend_from_slice(&block.json[usize::from(at == 0)..]);
            }
        }
        scratch.extend_from_slice(b"]}");
        close_frame_gap(door, scratch, start, payload);
    }

    fn write(&mut self, socket: &mut impl Write, bytes: &[u8]) -> (Flushed, usize) {
        let mut done = 0;
        while done < bytes.len() {
            match socket.write(&bytes[done..]) {
                Ok(0) => return (Flushed::Gone, done),
                Ok(n) => done += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.rest = bytes[done..].to_vec();
                    self.queued_bytes += self.rest.len();
                    return (Flushed::Blocked, done);
                }
                Err(_) => return (Flushed::Gone, done),
            }
        }
        (Flushed::All, done)
    }
}

/// A `messages` frame around entries that were encoded elsewhere, each preceded by a comma.
pub(crate) fn messages_frame(door: Door, cursor: &Cursor, json: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; HEADER_BYTES_MAX];
    frame.extend_from_slice(b"{\"t\":\"messages\",\"cursor\":\"");
    put_cursor(&mut frame, cursor);
    frame.extend_from_slice(b"\",\"entries\":[");
    frame.extend_from_slice(json.get(1..).unwrap_or_default());
    frame.extend_from_slice(b"]}");
    close_frame_gap(door, &mut frame, 0, HEADER_BYTES_MAX);
    frame
}

/// Puts the header of the frame whose JSON begins at `payload` right before it, and moves
/// the frame down to `start`. The gap is a few bytes; the payload is moved only when they differ.
fn close_frame_gap(door: Door, buffer: &mut Vec<u8>, start: usize, payload: usize) {
    let mut header = Vec::with_capacity(HEADER_BYTES_MAX);
    put_json_head(door, &mut header, buffer.len() - payload);
    let gap = payload - start - header.len();
    buffer[start..start + header.len()].copy_from_slice(&header);
    if gap > 0 {
        buffer.copy_within(payload.., start + header.len());
        buffer.truncate(buffer.len() - gap);
    }
}

/// The header of a frame that carries JSON.
pub(crate) fn put_json_head(door: Door, out: &mut Vec<u8>, length: usize) {
    match door {
        Door::WebSocket => put_server_header(out, OpCode::Data(Data::Text), length),
        Door::Miop => miop::put_head(out, miop::kind::CHAT, length),
    }
}

fn put_cursor(out: &mut Vec<u8>, cursor: &Cursor) {
    // Writing to memory cannot fail.
    let _ = write!(out, "{:x}", cursor.epoch);
    let mut digits = itoa::Buffer::new();
    for position in cursor.positions {
        out.push(b'.');
        out.extend_from_slice(digits.format(position).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tidings_engine::delivery::Recipients;
    use tidings_protocol::ws::take_frame;

    fn block(json: &str) -> Arc<Block> {
        let json = json.to_owned().into_bytes().into();
        Arc::new(Block { conversation: ConversationNo(1), recipients: Recipients::Audience, entries: 1, json })
    }

    fn texts(mut bytes: Vec<u8>) -> Vec<String> {
        let mut texts = Vec::new();
        while let Some(frame) = take_frame(&mut bytes, false, 1 << 24).unwrap() {
            texts.push(String::from_utf8(bytes[frame.payload.clone()].to_vec()).unwrap());
            bytes.drain(..frame.payload.end);
        }
        assert_eq!(bytes, b"");
        texts
    }

    /// A socket that takes `room` bytes.
    struct Narrow {
        taken: Vec<u8>,
        room: usize,
    }

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let n = bytes.len().min(self.room);
            if n == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            self.room -= n;
            self.taken.extend_from_slice(&bytes[..n]);
            Ok(n)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_has_gathered_goes_in_one_frame_with_the_last_cursor() {
        let mut outgoing = Outgoing::default();
        outgoing.push_block(&block(",1"), Lane::Group, 7);
        outgoing.push_block(&block(",2,3"), Lane::Direct, 9);
        let mut socket = Vec::new();
        let mut cursor = Cursor { epoch: 10, positions: [0; LANES] };
        let (flushed, ..) = outgoing.flush(&mut socket, Door::WebSocket, &mut cursor, &mut Vec::new());
        assert_eq!(flushed, Flushed::All);
        assert_eq!(texts(socket), [r#"{"t":"messages","cursor":"a.9.7.0","entries":[1,2,3]}"#]);
        assert_eq!(outgoing.queued_bytes(), 0);
    }

    /// A transport that takes everything and holds it until the socket has room.
    struct Holding {
        room: bool,
    }

    impl Write for Holding {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            if self.room { Ok(()) } else { Err(ErrorKind::WouldBlock.into()) }
        }
    }

    #[test]
    fn what_the_transport_holds_is_not_written() {
        let mut outgoing = Outgoing::default();
        outgoing.push_frame(b"frame".to_vec());
        let mut transport = Holding { room: false };
        let mut flush = |t: &mut Holding| outgoing.flush(t, Door::Miop, &mut Cursor::default(), &mut Vec::new()).0;
        assert_eq!(flush(&mut transport), Flushed::Blocked);
        transport.room = true;
        assert_eq!(flush(&mut transport), Flushed::All);
    }

    #[test]
    fn a_blocked_socket_goes_on_where_it_stopped() {
        let mut outgoing = Outgoing::default();
        for n in 0..50 {
            outgoing.push_block(&block(&format!(",{n}")), Lane::Group, n);
        }
        let mut socket = Narrow { taken: vec![], room: 0 };
        let mut cursor = Cursor::default();
        for _ in 0..1_000 {
            socket.room = 3;
            if outgoing.flush(&mut socket, Door::WebSocket, &mut cursor, &mut Vec::new()).0 == Flushed::All {
                break;
            }
        }
        assert_eq!(outgoing.queued_bytes(), 0);
        assert_eq!(texts(socket.taken).len(), 1);
    }

    #[test]
    fn a_frame_ends_only_where_a_fan_out_ends() {
        let big = format!(",\"{}\"", "x".repeat(FRAME_BYTES_TARGET));
        let mut outgoing = Outgoing::default();
        outgoing.push_block(&block(&big), Lane::Group, 5);
        outgoing.push_block(&block(",2"), Lane::Group, 5);
        outgoing.push_block(&block(",3"), Lane::Group, 6);
        let mut socket = Vec::new();
        outgoing.flush(&mut socket, Door::WebSocket, &mut Cursor::default(), &mut Vec::new());
        let texts = texts(socket);
        assert_eq!(texts.len(), 2);
        assert!(texts[0].contains("0.0.5.0") && texts[0].ends_with(",2]}"));
        assert!(texts[1].contains("0.0.6.0"));
    }

    #[test]
    fn a_frame_within_a_fan_out_does_not_let_the_cursor_run_ahead() {
        let mut outgoing = Outgoing::default();
        let frame = |json: &str| crate::connection::json_frame(Door::WebSocket, json.as_bytes());
        outgoing.push_block(&block(",1"), Lane::Direct, 3);
        outgoing.push_block(&block(",2"), Lane::Group, 7);
        outgoing.push_frame(frame("left"));
        outgoing.push_shared(&frame("left too").into());
        outgoing.push_block(&block(",3"), Lane::Group, 7);
        outgoing.push_frame(frame("left again"));
        outgoing.push_block(&block(",4"), Lane::Group, 7);
        outgoing.push_frame(frame("pong"));
        outgoing.push_block(&block(",5"), Lane::Group, 8);
        let mut socket = Vec::new();
        let mut cursor = Cursor { epoch: 1, positions: [2, 6, 0] };
        outgoing.flush(&mut socket, Door::WebSocket, &mut cursor, &mut Vec::new());
        let messages =
            |cursor: &str, entries: &str| format!(r#"{{"t":"messages","cursor":"1.{cursor}","entries":[{entries}]}}"#);
        let expected = [
            messages("3.6.0", "1,2"),
            "left".into(),
            "left too".into(),
            messages("3.6.0", "3"),
            "left again".into(),
            messages("3.7.0", "4"),
            "pong".into(),
            messages("3.8.0", "5"),
        ];
        assert_eq!(texts(socket), expected);
        assert_eq!(outgoing.queued_bytes(), 0);
    }
}

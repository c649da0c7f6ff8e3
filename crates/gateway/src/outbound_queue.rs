//! The frames, entries and pushes that wait to be written to one session, and their encoding.
//!
//! Live entries wait as pointers to blocks that all receivers share. A flush puts all waiting entries in one `messages`
//! frame and one write. A push waits as a pointer too. Only bytes that the kernel did not take are kept as bytes.

use crate::{
    encoding::{put_frame_of, put_json_frame},
    transport::{BodyFraming, Protocol},
};
use std::{
    collections::VecDeque,
    io::{ErrorKind, Write},
    sync::Arc,
};
use tidings_domain::model::*;
use tidings_engine::delivery::Block;
use tidings_listen::Holding;
use tidings_push::PushFrame;

/// Bytes of entries in one frame; the fan-out that crosses this size is still completed.
const FRAME_BYTES_TARGET: usize = 128 * 1024;
/// The size of a chunk: leading zeros are allowed (RFC 9112, 7.1), so that it can be written when the chunk is complete.
const CHUNK_SIZE_DIGITS: usize = 8;
const CHUNK_END: &[u8] = b"\r\n";
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

enum Item {
    Block {
        block: Arc<Block>,
        lane: Lane,
        through: Position,
        /// A later block belongs to the same fan-out: the cursor must not move past it yet.
        has_more: bool,
        /// The client asked for compact entries.
        is_compact: bool,
    },
    /// An encoded frame.
    Frame(Box<[u8]>),
    /// An encoded frame that several sessions share.
    Shared(Arc<[u8]>),
    Push(Arc<PushFrame>),
    /// The end of an event stream.
    End,
}

/// Memory of an item beside its bytes: its element of the queue, and the overhead of its allocation.
const ITEM_BYTES: usize = 64;

#[derive(Default)]
pub(crate) struct OutboundQueue {
    /// Absent while nothing waits, as in most sessions most of the time.
    waiting: Option<Box<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    items: VecDeque<Item>,
    /// Bytes of the last write that the kernel did not take.
    unwritten: Vec<u8>,
    queued_bytes: usize,
    /// Of these, bytes that are in memory once for all sessions that they are queued for.
    shared_bytes: usize,
    /// Set while the kernel's buffer is full: what waits here counts against the budget of all connections.
    holding: Option<Holding>,
}

/// How a flush ended.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum FlushOutcome {
    /// The kernel has taken everything.
    Complete,
    /// The kernel's buffer is full; flush again when the socket is writable.
    Blocked,
    /// The connection is broken.
    Disconnected,
}

impl OutboundQueue {
    fn waiting(&mut self) -> &mut Waiting {
        self.waiting.get_or_insert_default()
    }

    pub(crate) fn queue_block(&mut self, block: &Arc<Block>, lane: Lane, through: Position, is_compact: bool) {
        let bytes = block.entries_json(is_compact).len();
        let waiting = self.waiting();
        // Other frames may stand between two blocks of one fan-out: that the user left one of the conversations. The search
        // passes each of them once, since from here on this block is the last.
        let last = waiting.items.iter_mut().rev().find(|item| matches!(item, Item::Block { .. }));
        if let Some(Item::Block { lane: last_lane, through: last_through, has_more, .. }) = last {
            *has_more = (*last_lane, *last_through) == (lane, through);
        }
        waiting.items.push_back(Item::Block { block: block.clone(), lane, through, has_more: false, is_compact });
        waiting.add_shared(bytes);
    }

    /// Counts against a budget from now on, until a flush has written everything.
    pub(crate) fn hold(&mut self, holding: impl FnOnce() -> Holding) {
        let waiting = self.waiting();
        waiting.holding.get_or_insert_with(holding);
        waiting.report();
    }

    pub(crate) fn queue_push(&mut self, frame: &Arc<PushFrame>) {
        let waiting = self.waiting();
        waiting.items.push_back(Item::Push(frame.clone()));
        waiting.add_shared(frame.json.len());
    }

    pub(crate) fn queue_frame(&mut self, frame: Vec<u8>) {
        let waiting = self.waiting();
        waiting.queued_bytes += frame.len();
        waiting.items.push_back(Item::Frame(frame.into()));
        waiting.report();
    }

    pub(crate) fn queue_shared(&mut self, frame: &Arc<[u8]>) {
        let waiting = self.waiting();
        waiting.items.push_back(Item::Shared(frame.clone()));
        waiting.add_shared(frame.len());
    }

    /// Ends an event stream: nothing is queued after it.
    pub(crate) fn queue_end(&mut self) {
        self.waiting().items.push_back(Item::End);
    }

    /// Queues frames ahead of everything that waits, in their order: missed entries before live ones.
    pub(crate) fn queue_front(&mut self, frames: Vec<Vec<u8>>) {
        if frames.is_empty() {
            return;
        }
        let waiting = self.waiting();
        for frame in frames.into_iter().rev() {
            waiting.queued_bytes += frame.len();
            waiting.items.push_front(Item::Frame(frame.into()));
        }
        waiting.report();
    }

    /// Drops all items that are not partly written: the session is being closed, and its client will resume.
    pub(crate) fn clear_queued(&mut self) {
        if let Some(waiting) = &mut self.waiting {
            waiting.items = VecDeque::new();
            (waiting.queued_bytes, waiting.shared_bytes) = (waiting.unwritten.len(), 0);
            waiting.report();
        }
    }

    /// Memory that the queue takes, about. It counts the items' overhead: a heartbeat of two bytes takes far more.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.waiting.as_ref().map_or(0, |waiting| waiting.bytes())
    }

    /// Writes everything that waits. `cursor` is the session's and moves with the entries put in frames; `scratch` is a
    /// buffer of the shard. Answers how the flush ended, the bytes written and the number of writes.
    pub(crate) fn flush(
        &mut self,
        socket: &mut impl Write,
        protocol: Protocol,
        cursor: &mut Cursor,
        scratch: &mut Vec<u8>,
    ) -> (FlushOutcome, usize, u64) {
        let (mut flushed, mut written, mut writes) = (FlushOutcome::Complete, 0, 0);
        if let Some(waiting) = &mut self.waiting {
            (flushed, written, writes) = waiting.write_all(socket, protocol, cursor, scratch);
        }
        if flushed == FlushOutcome::Complete {
            // A transport that encrypts may hold the last chunk.
            flushed = match socket.flush() {
                Ok(()) => FlushOutcome::Complete,
                Err(error) if error.kind() == ErrorKind::WouldBlock => FlushOutcome::Blocked,
                Err(_) => FlushOutcome::Disconnected,
            };
        }
        match (flushed, &mut self.waiting) {
            (FlushOutcome::Complete, _) => self.waiting = None,
            (_, Some(waiting)) => waiting.report(),
            (_, None) => {}
        }
        (flushed, written, writes)
    }
}

impl Waiting {
    fn add_shared(&mut self, bytes: usize) {
        self.queued_bytes += bytes;
        self.shared_bytes += bytes;
        self.report();
    }

    fn take_shared(&mut self, bytes: usize) {
        self.queued_bytes -= bytes;
        self.shared_bytes -= bytes;
    }

    fn bytes(&self) -> usize {
        self.queued_bytes + self.items.len() * ITEM_BYTES
    }

    /// Reports the memory of what waits, without what other sessions share.
    fn report(&mut self) {
        let bytes = self.bytes() - self.shared_bytes;
        if let Some(holding) = &mut self.holding {
            holding.set(bytes);
        }
    }

    fn write_all(
        &mut self,
        socket: &mut impl Write,
        protocol: Protocol,
        cursor: &mut Cursor,
        scratch: &mut Vec<u8>,
    ) -> (FlushOutcome, usize, u64) {
        let mut written = 0;
        let mut writes = 0;
        if !self.unwritten.is_empty() {
            let unwritten = std::mem::take(&mut self.unwritten);
            self.queued_bytes -= unwritten.len();
            let (flushed, n) = self.write(socket, &unwritten);
            written += n;
            writes += 1;
            if flushed != FlushOutcome::Complete {
                return (flushed, written, writes);
            }
        }
        while !self.items.is_empty() {
            scratch.clear();
            self.fill(protocol, cursor, scratch);
            let (flushed, n) = self.write(socket, scratch);
            written += n;
            writes += 1;
            if flushed != FlushOutcome::Complete {
                return (flushed, written, writes);
            }
        }
        (FlushOutcome::Complete, written, writes)
    }

    /// Puts what waits in `scratch`, up to about the size of one write; on an event stream as one chunk.
    fn fill(&mut self, protocol: Protocol, cursor: &mut Cursor, scratch: &mut Vec<u8>) {
        let is_chunked = protocol == Protocol::EventStream(BodyFraming::Chunked);
        if is_chunked {
            scratch.resize(CHUNK_SIZE_DIGITS, b'0');
            scratch.extend_from_slice(CHUNK_END);
        }
        let start = scratch.len();
        let mut is_end = false;
        while scratch.len() < FRAME_BYTES_TARGET && !is_end {
            if let Some(Item::Block { .. }) = self.items.front() {
                self.put_messages_frame(protocol, cursor, scratch);
                continue;
            }
            match self.items.pop_front() {
                Some(Item::Frame(frame)) => {
                    scratch.extend_from_slice(&frame);
                    self.queued_bytes -= frame.len();
                }
                Some(Item::Shared(frame)) => {
                    scratch.extend_from_slice(&frame);
                    self.take_shared(frame.len());
                }
                Some(Item::Push(push)) => {
                    match protocol {
                        Protocol::Miop => scratch.extend_from_slice(&push.miop),
                        _ => put_json_frame(protocol, scratch, &push.json),
                    }
                    self.take_shared(push.json.len());
                }
                Some(Item::End) => is_end = true,
                Some(Item::Block { .. }) | None => break,
            }
        }
        if !is_chunked {
            return;
        }
        match scratch.len() - start {
            // An empty chunk would be the last one.
            0 => scratch.clear(),
            length => {
                scratch[..CHUNK_SIZE_DIGITS].copy_from_slice(format!("{length:0CHUNK_SIZE_DIGITS$x}").as_bytes());
                scratch.extend_from_slice(CHUNK_END);
            }
        }
        if is_end {
            scratch.extend_from_slice(LAST_CHUNK);
        }
    }

    /// Puts one `messages` frame of the blocks at the front into `scratch`. It ends where a fan-out ends or another frame
    /// stands between. A frame that ends within a fan-out carries the cursor from before the fan-out: a client that
    /// resumes from there gets the first part again, which it recognizes by `seq`, and the rest.
    fn put_messages_frame(&mut self, protocol: Protocol, cursor: &mut Cursor, scratch: &mut Vec<u8>) {
        let mut bytes = 0;
        let mut count = 0;
        let mut within_fanout = false;
        for item in &self.items {
            let Item::Block { block, lane, through, has_more, is_compact } = item else { break };
            if bytes >= FRAME_BYTES_TARGET && !within_fanout {
                break;
            }
            bytes += block.entries_json(*is_compact).len();
            count += 1;
            within_fanout = *has_more;
            if !within_fanout {
                cursor.positions[*lane as usize] = *through;
            }
        }
        self.take_shared(bytes);
        let cursor = &*cursor;
        put_frame_of(protocol, scratch, cursor, |out| {
            put_messages_opening(out, cursor);
            for (at, item) in self.items.drain(..count).enumerate() {
                if let Item::Block { block, is_compact, .. } = item {
                    out.extend_from_slice(&block.entries_json(is_compact)[usize::from(at == 0)..]);
                }
            }
            out.extend_from_slice(b"]}");
        });
    }

    fn write(&mut self, socket: &mut impl Write, bytes: &[u8]) -> (FlushOutcome, usize) {
        let mut done = 0;
        while done < bytes.len() {
            match socket.write(&bytes[done..]) {
                Ok(0) => return (FlushOutcome::Disconnected, done),
                Ok(n) => done += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.unwritten = bytes[done..].to_vec();
                    self.queued_bytes += self.unwritten.len();
                    return (FlushOutcome::Blocked, done);
                }
                Err(_) => return (FlushOutcome::Disconnected, done),
            }
        }
        (FlushOutcome::Complete, done)
    }
}

/// A `messages` frame around encoded entries, each preceded by a comma.
pub(crate) fn messages_frame(protocol: Protocol, cursor: &Cursor, json: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    put_frame_of(protocol, &mut frame, cursor, |out| {
        put_messages_opening(out, cursor);
        out.extend_from_slice(json.get(1..).unwrap_or_default());
        out.extend_from_slice(b"]}");
    });
    frame
}

fn put_messages_opening(out: &mut Vec<u8>, cursor: &Cursor) {
    out.extend_from_slice(b"{\"t\":\"messages\",\"cursor\":\"");
    put_cursor(out, cursor);
    out.extend_from_slice(b"\",\"entries\":[");
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
        let (conversation, recipients) = (ConversationNo(1), Recipients::Audience);
        Arc::new(Block { conversation, recipients, entries: 1, json, compact: None })
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

    /// A socket whose buffer has `room` bytes.
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
    fn waiting_entries_are_sent_in_one_frame_with_the_last_cursor() {
        let mut outbound = OutboundQueue::default();
        outbound.queue_block(&block(",1"), Lane::Group, 7, false);
        outbound.queue_block(&block(",2,3"), Lane::Direct, 9, false);
        let mut socket = Vec::new();
        let mut cursor = Cursor { epoch: 10, positions: [0; LANES] };
        let (flushed, ..) = outbound.flush(&mut socket, Protocol::WebSocket, &mut cursor, &mut Vec::new());
        assert_eq!(flushed, FlushOutcome::Complete);
        assert_eq!(texts(socket), [r#"{"t":"messages","cursor":"a.9.7.0","entries":[1,2,3]}"#]);
        assert_eq!(outbound.queued_bytes(), 0);
    }

    /// A transport that accepts all bytes and holds them until the socket has room.
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
    fn bytes_held_by_the_transport_count_as_blocked() {
        let mut outbound = OutboundQueue::default();
        outbound.queue_frame(b"frame".to_vec());
        let mut transport = Holding { room: false };
        let mut flush = |t: &mut Holding| outbound.flush(t, Protocol::Miop, &mut Cursor::default(), &mut Vec::new()).0;
        assert_eq!(flush(&mut transport), FlushOutcome::Blocked);
        transport.room = true;
        assert_eq!(flush(&mut transport), FlushOutcome::Complete);
    }

    /// The body of a chunked response (RFC 9112, 7.1), and whether its last chunk was there.
    fn body(mut chunks: &[u8]) -> (String, bool) {
        let mut body = Vec::new();
        while let Some(at) = chunks.windows(2).position(|pair| pair == CHUNK_END) {
            let length = usize::from_str_radix(std::str::from_utf8(&chunks[..at]).unwrap(), 16).unwrap();
            let rest = &chunks[at + 2..];
            if length == 0 {
                assert_eq!(rest, CHUNK_END);
                return (String::from_utf8(body).unwrap(), true);
            }
            body.extend_from_slice(&rest[..length]);
            assert_eq!(&rest[length..length + 2], CHUNK_END);
            chunks = &rest[length + 2..];
        }
        assert_eq!(chunks, b"");
        (String::from_utf8(body).unwrap(), false)
    }

    #[test]
    fn an_event_stream_has_the_cursor_as_id_and_ends_with_the_last_chunk() {
        let mut cursor = Cursor { epoch: 10, positions: [0; LANES] };
        let mut write = |outbound: &mut OutboundQueue, framing| {
            let mut socket = Vec::new();
            outbound.flush(&mut socket, Protocol::EventStream(framing), &mut cursor, &mut Vec::new());
            assert_eq!(outbound.queued_bytes(), 0);
            socket
        };
        let mut outbound = OutboundQueue::default();
        outbound.queue_block(&block(",1"), Lane::Direct, 7, false);
        let expected = "id: a.7.0.0\ndata: {\"t\":\"messages\",\"cursor\":\"a.7.0.0\",\"entries\":[1]}\n\n";
        assert_eq!(body(&write(&mut outbound, BodyFraming::Chunked)), (expected.to_owned(), false));
        for (framing, ends) in [(BodyFraming::Chunked, true), (BodyFraming::UntilClose, false)] {
            outbound.queue_frame(b"event: close\n\n".to_vec());
            outbound.queue_end();
            let written = write(&mut outbound, framing);
            if ends {
                assert_eq!(body(&written), ("event: close\n\n".to_owned(), true));
            } else {
                assert_eq!(written, b"event: close\n\n");
            }
        }
        outbound.queue_end();
        assert_eq!(write(&mut outbound, BodyFraming::Chunked), LAST_CHUNK);
    }

    #[test]
    fn a_blocked_write_continues_where_it_stopped() {
        let mut outbound = OutboundQueue::default();
        for n in 0..50 {
            outbound.queue_block(&block(&format!(",{n}")), Lane::Group, n, false);
        }
        let mut socket = Narrow { taken: vec![], room: 0 };
        let mut cursor = Cursor::default();
        for _ in 0..1_000 {
            socket.room = 3;
            if outbound.flush(&mut socket, Protocol::WebSocket, &mut cursor, &mut Vec::new()).0
                == FlushOutcome::Complete
            {
                break;
            }
        }
        assert_eq!(outbound.queued_bytes(), 0);
        assert_eq!(texts(socket.taken).len(), 1);
    }

    #[test]
    fn a_frame_ends_only_where_a_fan_out_ends() {
        let big = format!(",\"{}\"", "x".repeat(FRAME_BYTES_TARGET));
        let mut outbound = OutboundQueue::default();
        outbound.queue_block(&block(&big), Lane::Group, 5, false);
        outbound.queue_block(&block(",2"), Lane::Group, 5, false);
        outbound.queue_block(&block(",3"), Lane::Group, 6, false);
        let mut socket = Vec::new();
        outbound.flush(&mut socket, Protocol::WebSocket, &mut Cursor::default(), &mut Vec::new());
        let texts = texts(socket);
        assert_eq!(texts.len(), 2);
        assert!(texts[0].contains("0.0.5.0") && texts[0].ends_with(",2]}"));
        assert!(texts[1].contains("0.0.6.0"));
    }

    #[test]
    fn a_frame_within_a_fan_out_does_not_let_the_cursor_run_ahead() {
        let mut outbound = OutboundQueue::default();
        let frame = |json: &str| crate::encoding::json_frame(Protocol::WebSocket, json.as_bytes());
        outbound.queue_block(&block(",1"), Lane::Direct, 3, false);
        outbound.queue_block(&block(",2"), Lane::Group, 7, false);
        outbound.queue_frame(frame("left"));
        outbound.queue_shared(&frame("left too").into());
        outbound.queue_block(&block(",3"), Lane::Group, 7, false);
        outbound.queue_frame(frame("left again"));
        outbound.queue_block(&block(",4"), Lane::Group, 7, false);
        outbound.queue_frame(frame("pong"));
        outbound.queue_block(&block(",5"), Lane::Group, 8, false);
        let mut socket = Vec::new();
        let mut cursor = Cursor { epoch: 1, positions: [2, 6, 0] };
        outbound.flush(&mut socket, Protocol::WebSocket, &mut cursor, &mut Vec::new());
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
        assert_eq!(outbound.queued_bytes(), 0);
    }
}

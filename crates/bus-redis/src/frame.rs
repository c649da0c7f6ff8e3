//! What travels: a message, several, or a part of one, behind a head of 18 bytes.
//!
//! ```text
//! version u8 | kind u8 | lane u64 | sequence u64 | content        (little endian)
//! ```
//! A lane is one sender's way to one receiver; it counts what it sends, so that the receiver notices a hole. Nothing is
//! sent twice, so what comes with a number below the next one is no message that is missing.

use bytes::{Buf, Bytes};
use std::io::Write;

pub(crate) const VERSION: u8 = 1;
pub(crate) const HEAD_BYTES: usize = 18;
/// The content of one frame. Redis cuts off a subscriber that has 32 MB waiting (`client-output-buffer-limit pubsub`), and
/// serves nobody else while it copies one value.
pub const PART_BYTES: usize = 1 << 20;
/// Messages that gathered go together up to so many bytes. A publish costs the same for each server of a shard, whatever it
/// carries: the cluster's own packet around it is larger than most messages.
pub(crate) const BUNDLE_BYTES_MAX: usize = 64 << 10;
/// The largest message: half of what Redis lets wait for a subscriber.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Whole = 0,
    /// The first of several parts; its content begins with the size of the message (u32).
    First = 1,
    More = 2,
    Last = 3,
    /// No content: tells which number would be next, after something was dropped.
    Notice = 4,
    /// From a node to itself; the sequence is the time at which it left, in milliseconds of the node's own clock.
    Beat = 5,
    /// Several messages, each behind its size (u32). The sequence is the first one's, the others follow it.
    Bundle = 6,
}

/// What a size takes.
const SIZE_BYTES: usize = 4;

/// How many frames a message of this size takes.
pub(crate) fn parts(size: usize) -> u64 {
    size.div_ceil(PART_BYTES).max(1) as u64
}

/// A frame that leaves. It shares the bytes of its messages until it is written.
#[derive(Debug)]
pub(crate) struct Outgoing {
    kind: Kind,
    lane: u64,
    sequence: u64,
    /// The size of the message that this is a part of.
    whole: usize,
    pieces: Vec<Bytes>,
}

impl Outgoing {
    pub(crate) fn notice(lane: u64, sequence: u64) -> Self {
        Self { kind: Kind::Notice, lane, sequence, whole: 0, pieces: Vec::new() }
    }

    pub(crate) fn beat(lane: u64, now_ms: u64) -> Self {
        Self { kind: Kind::Beat, lane, sequence: now_ms, whole: 0, pieces: Vec::new() }
    }

    /// The frames of messages that wait, in their order: small ones together, large ones in parts.
    pub(crate) fn pack(lane: u64, waiting: impl IntoIterator<Item = (u64, Bytes)>) -> Vec<Self> {
        let mut frames: Vec<Self> = Vec::new();
        for (sequence, message) in waiting {
            match frames.last_mut() {
                Some(last) if last.takes(sequence, &message) => {
                    last.kind = Kind::Bundle;
                    last.pieces.push(message);
                }
                _ => frames.extend(Self::cut(lane, sequence, message)),
            }
        }
        frames
    }

    /// Whether this message may go along: a hole ends a bundle, so that the receiver sees it.
    fn takes(&self, sequence: u64, message: &Bytes) -> bool {
        matches!(self.kind, Kind::Whole | Kind::Bundle)
            && sequence == self.sequence + self.pieces.len() as u64
            && self.size() + SIZE_BYTES + message.len() <= BUNDLE_BYTES_MAX
    }

    fn cut(lane: u64, sequence: u64, message: Bytes) -> impl Iterator<Item = Self> {
        let (count, whole) = (parts(message.len()), message.len());
        (0..count).map(move |part| {
            let from = part as usize * PART_BYTES;
            let pieces = vec![message.slice(from..whole.min(from + PART_BYTES))];
            let kind = match part {
                _ if count == 1 => Kind::Whole,
                0 => Kind::First,
                _ if part + 1 == count => Kind::Last,
                _ => Kind::More,
            };
            Self { kind, lane, sequence: sequence + part, whole, pieces }
        })
    }

    /// How many bytes [`Outgoing::write`] writes, or a few more.
    pub(crate) fn size(&self) -> usize {
        HEAD_BYTES + self.pieces.iter().map(|piece| SIZE_BYTES + piece.len()).sum::<usize>()
    }

    pub(crate) fn write(&self, mut out: impl Write) -> std::io::Result<()> {
        let mut head = [0; HEAD_BYTES];
        (head[0], head[1]) = (VERSION, self.kind as u8);
        head[2..10].copy_from_slice(&self.lane.to_le_bytes());
        head[10..].copy_from_slice(&self.sequence.to_le_bytes());
        out.write_all(&head)?;
        if self.kind == Kind::First {
            out.write_all(&(self.whole as u32).to_le_bytes())?;
        }
        for piece in &self.pieces {
            if self.kind == Kind::Bundle {
                out.write_all(&(piece.len() as u32).to_le_bytes())?;
            }
            out.write_all(piece)?;
        }
        Ok(())
    }
}

/// A frame that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) lane: u64,
    pub(crate) sequence: u64,
    pub(crate) content: Bytes,
}

impl Frame {
    pub(crate) fn read(mut bytes: Bytes) -> Option<Self> {
        if bytes.len() < HEAD_BYTES || bytes.get_u8() != VERSION {
            return None;
        }
        let kinds = [Kind::Whole, Kind::First, Kind::More, Kind::Last, Kind::Notice, Kind::Beat, Kind::Bundle];
        let kind = *kinds.get(bytes.get_u8() as usize)?;
        let (lane, sequence) = (bytes.get_u64_le(), bytes.get_u64_le());
        Some(Self { kind, lane, sequence, content: bytes })
    }
}

/// The messages of a bundle, or none if it is broken.
pub(crate) fn unbundle(mut content: Bytes) -> Option<Vec<Bytes>> {
    let mut messages = Vec::new();
    while !content.is_empty() {
        let size = content.try_get_u32_le().ok()? as usize;
        messages.push((size <= content.len()).then(|| content.split_to(size))?);
    }
    Some(messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(frame: &Outgoing) -> Bytes {
        let mut out = Vec::new();
        frame.write(&mut out).expect("a vector takes it");
        assert!(out.len() <= frame.size());
        out.into()
    }

    #[test]
    fn what_is_written_is_read() {
        for size in [0, 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES] {
            let message: Bytes = (0..size).map(|byte| byte as u8).collect();
            let frames = Outgoing::pack(7, [(10, message.clone())]);
            assert_eq!(frames.len() as u64, parts(size));
            let mut joined = Vec::new();
            for (index, frame) in frames.iter().enumerate() {
                let mut read = Frame::read(written(frame)).expect("readable");
                if read.kind == Kind::First {
                    assert_eq!(read.content.get_u32_le() as usize, size);
                }
                assert_eq!((read.kind, read.lane, read.sequence), (frame.kind, 7, 10 + index as u64));
                joined.extend_from_slice(&read.content);
            }
            assert!(joined == message, "{size}");
        }
    }

    #[test]
    fn small_messages_go_together_up_to_a_hole_or_a_large_one() {
        let small = |sequence: u64| (sequence, Bytes::from(vec![sequence as u8; 100]));
        let large = |sequence: u64| (sequence, Bytes::from(vec![sequence as u8; BUNDLE_BYTES_MAX]));
        let frames =
            Outgoing::pack(7, [small(1), small(2), small(3), small(5), small(6), large(7), small(8), small(9)]);
        let shape: Vec<_> = frames.iter().map(|frame| (frame.kind, frame.sequence, frame.pieces.len())).collect();
        let bundle = Kind::Bundle;
        assert_eq!(shape, [(bundle, 1, 3), (bundle, 5, 2), (Kind::Whole, 7, 1), (bundle, 8, 2)]);
        let read = Frame::read(written(&frames[0])).expect("readable");
        assert_eq!(unbundle(read.content.clone()), Some(vec![small(1).1, small(2).1, small(3).1]));
        assert_eq!(unbundle(read.content.slice(..read.content.len() - 1)), None);
        assert_eq!(unbundle(Bytes::from_static(b"\xff\xff\xff\xff1")), None);
        // No bundle outgrows its bound.
        let many = Outgoing::pack(7, (1..5_000).map(small));
        assert!(many.iter().all(|frame| frame.size() <= BUNDLE_BYTES_MAX) && many.len() < 10);
    }

    #[test]
    fn what_is_not_ours_is_not_read() {
        let out = written(&Outgoing::notice(1, 1));
        assert!(Frame::read(out.clone()).is_some());
        for (at, byte) in [(0, 2), (1, 7)] {
            let mut other = out.to_vec();
            other[at] = byte;
            assert_eq!(Frame::read(other.into()), None);
        }
        assert_eq!(Frame::read(out.slice(..HEAD_BYTES - 1)), None);
    }
}

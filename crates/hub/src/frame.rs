//! What travels: a message, or a part of one, behind a head of 18 bytes.
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
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) lane: u64,
    pub(crate) sequence: u64,
    pub(crate) content: Bytes,
}

/// How many frames a message of this size takes.
pub(crate) fn parts(size: usize) -> u64 {
    size.div_ceil(PART_BYTES).max(1) as u64
}

impl Frame {
    /// The frames of a message, the first of which has this sequence. They share its bytes.
    pub(crate) fn cut(lane: u64, sequence: u64, message: Bytes) -> impl Iterator<Item = Self> {
        let count = parts(message.len());
        (0..count).map(move |part| {
            let from = part as usize * PART_BYTES;
            let content = message.slice(from..message.len().min(from + PART_BYTES));
            let kind = match part {
                _ if count == 1 => Kind::Whole,
                0 => Kind::First,
                _ if part + 1 == count => Kind::Last,
                _ => Kind::More,
            };
            Self { kind, lane, sequence: sequence + part, content }
        })
    }

    /// How many bytes [`Frame::write`] writes, or a few more.
    pub(crate) fn size(&self) -> usize {
        HEAD_BYTES + 4 + self.content.len()
    }

    /// `whole`: the size of the message that this is a part of.
    pub(crate) fn write(&self, whole: usize, mut out: impl Write) -> std::io::Result<()> {
        let mut head = [0; HEAD_BYTES];
        (head[0], head[1]) = (VERSION, self.kind as u8);
        head[2..10].copy_from_slice(&self.lane.to_le_bytes());
        head[10..].copy_from_slice(&self.sequence.to_le_bytes());
        out.write_all(&head)?;
        if self.kind == Kind::First {
            out.write_all(&(whole as u32).to_le_bytes())?;
        }
        out.write_all(&self.content)
    }

    pub(crate) fn read(mut bytes: Bytes) -> Option<Self> {
        if bytes.len() < HEAD_BYTES || bytes.get_u8() != VERSION {
            return None;
        }
        let kinds = [Kind::Whole, Kind::First, Kind::More, Kind::Last, Kind::Notice, Kind::Beat];
        let kind = *kinds.get(bytes.get_u8() as usize)?;
        let (lane, sequence) = (bytes.get_u64_le(), bytes.get_u64_le());
        Some(Self { kind, lane, sequence, content: bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for size in [0, 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES] {
            let message: Bytes = (0..size).map(|byte| byte as u8).collect();
            let frames: Vec<Frame> = Frame::cut(7, 10, message.clone()).collect();
            assert_eq!(frames.len() as u64, parts(size));
            let mut joined = Vec::new();
            for (index, frame) in frames.iter().enumerate() {
                let mut out = Vec::new();
                frame.write(size, &mut out).expect("a vector takes it");
                assert!(out.len() <= frame.size());
                let mut read = Frame::read(out.into()).expect("readable");
                if read.kind == Kind::First {
                    assert_eq!(read.content.get_u32_le() as usize, size);
                }
                assert_eq!(&read, frame);
                assert_eq!(read.sequence, 10 + index as u64);
                joined.extend_from_slice(&read.content);
            }
            assert!(joined == message, "{size}");
        }
    }

    #[test]
    fn what_is_not_ours_is_not_read() {
        let mut out = Vec::new();
        Frame::cut(1, 1, Bytes::from_static(b"x"))
            .for_each(|frame| frame.write(1, &mut out).expect("a vector takes it"));
        assert!(Frame::read(out.clone().into()).is_some());
        for (at, byte) in [(0, 2), (1, 6)] {
            let mut other = out.clone();
            other[at] = byte;
            assert_eq!(Frame::read(other.into()), None);
        }
        assert_eq!(Frame::read(out[..HEAD_BYTES - 1].to_vec().into()), None);
    }
}

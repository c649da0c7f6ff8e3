//! The wire format: a message, several, or a fragment of one, behind a header of 34 bytes.
//!
//! ```text
//! version u8 = 2 | kind u8 | installation u128 | queue u64 | sequence u64 | content        (little endian)
//! version u8 = 1 | kind u8 |                     queue u64 | sequence u64 | content        (of nodes before installations)
//! ```
//! The queue is the id of the sender's [`PeerQueue`](crate::peer_queue::PeerQueue). Its sequence numbers have no gap, so that
//! the receiver notices a loss. No frame is sent twice: one with a number below the next is never a missing one.

use bytes::{Buf, Bytes};
use std::io::Write;
use tidings_domain::installation::InstallationId;

const VERSION: u8 = 2;
/// The version without an installation, on the channels of nodes that know none.
const VERSION_WITHOUT_INSTALLATION: u8 = 1;
pub(crate) const HEADER_BYTES: usize = 34;
/// The largest content of one frame. Redis disconnects a subscriber that has 32 MB waiting (`client-output-buffer-limit
/// pubsub`), and serves no other client while it copies one value.
pub const FRAGMENT_BYTES_MAX: usize = 1 << 20;
/// Queued messages are published together up to so many bytes. Each publish has a fixed cost on every server of the shard:
/// the cluster's own packet around it is larger than most messages.
pub(crate) const BUNDLE_BYTES_MAX: usize = 64 << 10;
/// The largest message: half of what Redis buffers for a subscriber.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Whole = 0,
    /// The first of several fragments; its content begins with the size of the message (u32).
    First = 1,
    Middle = 2,
    Last = 3,
    /// No content. Carries the next sequence number, after messages were dropped.
    Notice = 4,
    /// From a node to itself. The sequence is the time of sending, in milliseconds of the node's own clock.
    Heartbeat = 5,
    /// Several messages, each behind its size (u32). The sequence is that of the first; the others follow it.
    Bundle = 6,
}

/// The bytes of a size.
const SIZE_BYTES: usize = 4;

/// The number of frames that a message of this size takes.
pub(crate) fn fragments(size: usize) -> u64 {
    size.div_ceil(FRAGMENT_BYTES_MAX).max(1) as u64
}

/// A frame to be sent. It shares the bytes of its messages until it is written.
#[derive(Debug)]
pub(crate) struct OutgoingFrame {
    kind: Kind,
    queue: u64,
    sequence: u64,
    /// The size of the message that this is a fragment of.
    message_bytes: usize,
    chunks: Vec<Bytes>,
}

impl OutgoingFrame {
    pub(crate) fn notice(queue: u64, sequence: u64) -> Self {
        Self { kind: Kind::Notice, queue, sequence, message_bytes: 0, chunks: Vec::new() }
    }

    pub(crate) fn heartbeat(queue: u64, now_ms: u64) -> Self {
        Self { kind: Kind::Heartbeat, queue, sequence: now_ms, message_bytes: 0, chunks: Vec::new() }
    }

    /// The frames of queued messages, in order: small messages bundled, large ones in fragments.
    pub(crate) fn pack(queue: u64, messages: impl IntoIterator<Item = (u64, Bytes)>) -> Vec<Self> {
        let mut frames: Vec<Self> = Vec::new();
        for (sequence, message) in messages {
            match frames.last_mut() {
                Some(last) if last.can_bundle(sequence, &message) => {
                    last.kind = Kind::Bundle;
                    last.chunks.push(message);
                }
                _ => frames.extend(Self::split(queue, sequence, message)),
            }
        }
        frames
    }

    /// Whether this message may join the frame. A gap in the sequence ends a bundle, so that the receiver sees it.
    fn can_bundle(&self, sequence: u64, message: &Bytes) -> bool {
        matches!(self.kind, Kind::Whole | Kind::Bundle)
            && sequence == self.sequence + self.chunks.len() as u64
            && self.size() + SIZE_BYTES + message.len() <= BUNDLE_BYTES_MAX
    }

    fn split(queue: u64, sequence: u64, message: Bytes) -> impl Iterator<Item = Self> {
        let (count, message_bytes) = (fragments(message.len()), message.len());
        (0..count).map(move |index| {
            let from = index as usize * FRAGMENT_BYTES_MAX;
            let chunks = vec![message.slice(from..message_bytes.min(from + FRAGMENT_BYTES_MAX))];
            let kind = match index {
                _ if count == 1 => Kind::Whole,
                0 => Kind::First,
                _ if index + 1 == count => Kind::Last,
                _ => Kind::Middle,
            };
            Self { kind, queue, sequence: sequence + index, message_bytes, chunks }
        })
    }

    /// The bytes that [`Self::write`] writes, or a few more.
    pub(crate) fn size(&self) -> usize {
        HEADER_BYTES + self.chunks.iter().map(|chunk| SIZE_BYTES + chunk.len()).sum::<usize>()
    }

    pub(crate) fn write(&self, installation: Option<InstallationId>, mut out: impl Write) -> std::io::Result<()> {
        let version = if installation.is_some() { VERSION } else { VERSION_WITHOUT_INSTALLATION };
        out.write_all(&[version, self.kind as u8])?;
        if let Some(installation) = installation {
            out.write_all(&installation.0.to_le_bytes())?;
        }
        out.write_all(&self.queue.to_le_bytes())?;
        out.write_all(&self.sequence.to_le_bytes())?;
        if self.kind == Kind::First {
            out.write_all(&(self.message_bytes as u32).to_le_bytes())?;
        }
        for chunk in &self.chunks {
            if self.kind == Kind::Bundle {
                out.write_all(&(chunk.len() as u32).to_le_bytes())?;
            }
            out.write_all(chunk)?;
        }
        Ok(())
    }
}

/// A frame that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) queue: u64,
    pub(crate) sequence: u64,
    pub(crate) content: Bytes,
}

/// Why a frame is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameError {
    /// Broken, or of another version: it may have been a message for this node.
    Unreadable,
    /// Of another installation: it was never for this node.
    Foreign,
}

impl Frame {
    /// Decodes a frame that came over the channel of this installation; `None`: over the channel without one.
    pub(crate) fn decode(mut bytes: Bytes, installation: Option<InstallationId>) -> Result<Self, FrameError> {
        let unreadable = |_| FrameError::Unreadable;
        let version = bytes.try_get_u8().map_err(unreadable)?;
        let kind = bytes.try_get_u8().map_err(unreadable)?;
        match (version, installation) {
            (VERSION, here) => {
                let there = InstallationId(bytes.try_get_u128_le().map_err(unreadable)?);
                if here != Some(there) {
                    return Err(FrameError::Foreign);
                }
            }
            (VERSION_WITHOUT_INSTALLATION, None) => {}
            _ => return Err(FrameError::Unreadable),
        }
        let kinds = [Kind::Whole, Kind::First, Kind::Middle, Kind::Last, Kind::Notice, Kind::Heartbeat, Kind::Bundle];
        let kind = *kinds.get(usize::from(kind)).ok_or(FrameError::Unreadable)?;
        let queue = bytes.try_get_u64_le().map_err(unreadable)?;
        let sequence = bytes.try_get_u64_le().map_err(unreadable)?;
        Ok(Self { kind, queue, sequence, content: bytes })
    }
}

/// The messages of a bundle. `None`: the bundle is broken.
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

    const HERE: Option<InstallationId> = Some(InstallationId(7));

    fn written(frame: &OutgoingFrame) -> Bytes {
        let mut out = Vec::new();
        frame.write(HERE, &mut out).expect("writing to a vector");
        assert!(out.len() <= frame.size());
        out.into()
    }

    #[test]
    fn a_message_is_decoded_as_it_was_written_in_one_frame_or_in_fragments() {
        for size in [0, 1, FRAGMENT_BYTES_MAX, FRAGMENT_BYTES_MAX + 1, 3 * FRAGMENT_BYTES_MAX] {
            let message: Bytes = (0..size).map(|byte| byte as u8).collect();
            let frames = OutgoingFrame::pack(7, [(10, message.clone())]);
            assert_eq!(frames.len() as u64, fragments(size));
            let mut joined = Vec::new();
            for (index, frame) in frames.iter().enumerate() {
                let mut read = Frame::decode(written(frame), HERE).expect("decodable");
                if read.kind == Kind::First {
                    assert_eq!(read.content.get_u32_le() as usize, size);
                }
                assert_eq!((read.kind, read.queue, read.sequence), (frame.kind, 7, 10 + index as u64));
                joined.extend_from_slice(&read.content);
            }
            assert!(joined == message, "{size}");
        }
    }

    #[test]
    fn small_messages_are_bundled_up_to_a_gap_or_a_large_one() {
        let small = |sequence: u64| (sequence, Bytes::from(vec![sequence as u8; 100]));
        let large = |sequence: u64| (sequence, Bytes::from(vec![sequence as u8; BUNDLE_BYTES_MAX]));
        let frames =
            OutgoingFrame::pack(7, [small(1), small(2), small(3), small(5), small(6), large(7), small(8), small(9)]);
        let shape: Vec<_> = frames.iter().map(|frame| (frame.kind, frame.sequence, frame.chunks.len())).collect();
        let bundle = Kind::Bundle;
        assert_eq!(shape, [(bundle, 1, 3), (bundle, 5, 2), (Kind::Whole, 7, 1), (bundle, 8, 2)]);
        let read = Frame::decode(written(&frames[0]), HERE).expect("decodable");
        assert_eq!(unbundle(read.content.clone()), Some(vec![small(1).1, small(2).1, small(3).1]));
        assert_eq!(unbundle(read.content.slice(..read.content.len() - 1)), None);
        assert_eq!(unbundle(Bytes::from_static(b"\xff\xff\xff\xff1")), None);
        // No bundle exceeds its limit.
        let many = OutgoingFrame::pack(7, (1..5_000).map(small));
        assert!(many.iter().all(|frame| frame.size() <= BUNDLE_BYTES_MAX) && many.len() < 10);
    }

    #[test]
    fn a_frame_of_another_version_kind_or_installation_is_not_decoded() {
        let out = written(&OutgoingFrame::notice(1, 1));
        assert!(Frame::decode(out.clone(), HERE).is_ok());
        for (at, byte) in [(0, 3), (0, 1), (1, 7)] {
            let mut other = out.to_vec();
            other[at] = byte;
            assert_eq!(Frame::decode(other.into(), HERE), Err(FrameError::Unreadable));
        }
        for size in 0..HEADER_BYTES {
            assert_eq!(Frame::decode(out.slice(..size), HERE), Err(FrameError::Unreadable), "{size}");
        }
        for elsewhere in [Some(InstallationId(8)), None] {
            assert_eq!(Frame::decode(out.clone(), elsewhere), Err(FrameError::Foreign));
        }
    }

    #[test]
    fn a_frame_for_a_node_before_installations_is_as_that_node_knows_it() {
        let mut out = Vec::new();
        let frame = OutgoingFrame::pack(2, [(3, Bytes::from_static(b"message"))]).remove(0);
        frame.write(None, &mut out).expect("writing to a vector");
        let known = [&[1, 0][..], &2_u64.to_le_bytes(), &3_u64.to_le_bytes(), b"message"].concat();
        assert_eq!(out, known);
        let read = Frame::decode(out.clone().into(), None).expect("decodable");
        assert_eq!((read.queue, read.sequence, &read.content[..]), (2, 3, &b"message"[..]));
        assert_eq!(Frame::decode(out.into(), HERE), Err(FrameError::Unreadable));
    }
}

//! Packets: a kind, the connection that it is about, and bytes.
//!
//! ```text
//! kind (1 byte)  connection (8 bytes)  length (4 bytes)  payload        little-endian
//! ```

use std::{
    io::{self, ErrorKind, Read},
    ops::Range,
};
use tidings_protocol::limits::FRAME_BYTES_MAX;

const HEAD_BYTES: usize = 13;
/// The longest payload: a client's frame of the greatest length fits. Longer runs of bytes go in several packets.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 224 * 1024;
/// One read buffer per thread, for devices and links: a whole frame or packet of the greatest length fits.
pub(crate) const READ_BUFFER_BYTES: usize = 256 * 1024;
const _: () = assert!(HEAD_BYTES + PAYLOAD_BYTES_MAX < READ_BUFFER_BYTES && FRAME_BYTES_MAX + 16 < PAYLOAD_BYTES_MAX);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Up: a connection that begins, by its name at the relay: its door, then its first frames.
    Open = 1,
    /// Up, by its name at the core: whole frames. Down, by its name at the relay: bytes.
    Data = 2,
    /// Up, by its name at the core: the connection has ended.
    Closed = 3,
    /// Either way: the link lives.
    Ping = 4,
    /// Down, by its name at the relay: its name at the core.
    Opened = 5,
    /// Down, by its name at the relay: close it when what came before is written.
    Close = 6,
    /// Handshake: the core's nonce.
    Challenge = 7,
    /// Handshake: who the relay is.
    Hello = 8,
    /// Handshake: how the link is used.
    Welcome = 9,
    /// Handshake: why not.
    Refused = 10,
    /// Down: list your sessions, as an answer to this question.
    List = 11,
    /// Up: names of live sessions at the core, eight bytes each; the last packet of an answer is empty.
    Sessions = 12,
    /// Down, by its name at the core: it is no session here, and must connect again.
    Forget = 13,
    /// Handshake: the core that is to be attached to instead, as `host:port`; empty: not known now.
    Elsewhere = 14,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        use Kind::*;
        Some(match byte {
            1 => Open,
            2 => Data,
            3 => Closed,
            4 => Ping,
            5 => Opened,
            6 => Close,
            7 => Challenge,
            8 => Hello,
            9 => Welcome,
            10 => Refused,
            11 => List,
            12 => Sessions,
            13 => Forget,
            14 => Elsewhere,
            _ => return None,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packet {
    pub kind: Kind,
    pub id: u64,
    pub payload: Range<usize>,
}

/// The other side is not ours, or broken: the link is of no use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a packet of a link")]
pub(crate) struct BadPacket;

pub(crate) fn put(out: &mut Vec<u8>, kind: Kind, id: u64, payload: &[u8]) {
    out.push(kind as u8);
    out.extend_from_slice(&id.to_le_bytes());
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(payload);
}

/// The first packet of `bytes`, if it has come whole.
pub(crate) fn take(bytes: &[u8]) -> Result<Option<Packet>, BadPacket> {
    let Some((head, rest)) = bytes.split_at_checked(HEAD_BYTES) else { return Ok(None) };
    let kind = Kind::of(head[0]).ok_or(BadPacket)?;
    let id = u64::from_le_bytes(head[1..9].try_into().map_err(|_| BadPacket)?);
    let length = u32::from_le_bytes(head[9..].try_into().map_err(|_| BadPacket)?) as usize;
    if length > PAYLOAD_BYTES_MAX {
        return Err(BadPacket);
    }
    let whole = rest.len() >= length;
    Ok(whole.then_some(Packet { kind, id, payload: HEAD_BYTES..HEAD_BYTES + length }))
}

/// Reads once, with what had not come whole before it: `buffer[..n]` is what there is to take, and what is
/// left of it goes back to `partial`. An error leaves `partial` as it was.
pub(crate) fn read(socket: &mut impl Read, partial: &mut Vec<u8>, buffer: &mut [u8]) -> io::Result<usize> {
    let start = partial.len();
    buffer[..start].copy_from_slice(partial);
    match socket.read(&mut buffer[start..])? {
        0 => Err(ErrorKind::UnexpectedEof.into()),
        n => {
            *partial = Vec::new();
            Ok(start + n)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn packets_come_back_whole_and_one_after_another() {
        let mut bytes = Vec::new();
        put(&mut bytes, Kind::Open, 7, b"first");
        let first = bytes.len();
        put(&mut bytes, Kind::Closed, u64::MAX, b"");
        for cut in 0..first {
            assert_eq!(take(&bytes[..cut]), Ok(None), "{cut}");
        }
        let packet = take(&bytes).unwrap().unwrap();
        assert_eq!((packet.kind, packet.id, &bytes[packet.payload.clone()]), (Kind::Open, 7, &b"first"[..]));
        let packet = take(&bytes[packet.payload.end..]).unwrap().unwrap();
        assert_eq!((packet.kind, packet.id, packet.payload.len()), (Kind::Closed, u64::MAX, 0));
    }

    #[test]
    fn every_kind_is_known_by_its_byte() {
        for byte in 0..=u8::MAX {
            assert!(Kind::of(byte).is_none_or(|kind| kind as u8 == byte), "{byte}");
        }
        assert_eq!((0..=u8::MAX).filter_map(Kind::of).count(), 14);
    }

    #[test]
    fn what_is_no_packet_is_refused_by_its_head() {
        let mut bytes = Vec::new();
        put(&mut bytes, Kind::Data, 1, &[0; 4]);
        bytes[0] = 99;
        assert_eq!(take(&bytes), Err(BadPacket));
        bytes[0] = Kind::Data as u8;
        bytes[9..13].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(take(&bytes), Err(BadPacket));
    }
}

//! Packets of a link: a kind, the id of a connection, and a payload.
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
/// The longest payload: a client's longest frame fits. Longer runs of bytes take several packets.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 224 * 1024;
/// The read buffer of a thread, for devices and links: the longest frame or packet fits.
pub(crate) const READ_BUFFER_BYTES: usize = 256 * 1024;
const _: () = assert!(HEAD_BYTES + PAYLOAD_BYTES_MAX < READ_BUFFER_BYTES && FRAME_BYTES_MAX + 16 < PAYLOAD_BYTES_MAX);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PacketKind {
    /// Up, by the id at the relay: a new connection. The payload is its protocol, then its first frames.
    Open = 1,
    /// Up, by the id at the core: whole frames. Down, by the id at the relay: bytes.
    Data = 2,
    /// Up, by the id at the core: the connection has ended.
    Closed = 3,
    /// Either way: the sender is alive. Up, the id is the relay's own time in milliseconds, so that the core knows how long the packets
    /// behind it have waited; 0 from an earlier relay.
    Ping = 4,
    /// Down, by the id at the relay: the connection's id at the core.
    Opened = 5,
    /// Down, by the id at the relay: close the connection when all earlier bytes are written.
    Close = 6,
    /// Handshake: the core's nonce.
    Challenge = 7,
    /// Handshake: the relay's name and proof.
    Hello = 8,
    /// Handshake: the core's proof, its number of shards and the lease.
    Welcome = 9,
    /// Handshake: the reason of a refusal.
    Refused = 10,
    /// Down, with the number of the request: list the sessions of this link.
    ListSessions = 11,
    /// Up, with the number of the request: ids of live sessions at the core, eight bytes each. An empty packet ends the
    /// answer.
    Sessions = 12,
    /// Down, by the id at the core: the core has no such session, and its device must connect again.
    UnknownSession = 13,
    /// Handshake, from a core of an earlier version: the core to attach to instead, as `host:port`; empty: no other is known now.
    Redirect = 14,
    /// Down, on the link to the first shard: the nodes that take sessions. Only to relays that follow them.
    SessionNodes = 15,
    /// Up, by the id at the relay, on the link of its `Open`: the device left before it had an answer. Only to cores that name the nodes.
    Left = 16,
}

impl PacketKind {
    fn of(byte: u8) -> Option<PacketKind> {
        use PacketKind::*;
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
            11 => ListSessions,
            12 => Sessions,
            13 => UnknownSession,
            14 => Redirect,
            15 => SessionNodes,
            16 => Left,
            _ => return None,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packet {
    pub kind: PacketKind,
    pub id: u64,
    pub payload: Range<usize>,
}

/// The bytes are not those of a link: the other side is no Tidings process, or broken. The link must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a packet of a link")]
pub(crate) struct InvalidPacket;

pub(crate) fn put(out: &mut Vec<u8>, kind: PacketKind, id: u64, payload: &[u8]) {
    out.push(kind as u8);
    out.extend_from_slice(&id.to_le_bytes());
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(payload);
}

/// The first packet of `bytes`, if it is complete.
pub(crate) fn take(bytes: &[u8]) -> Result<Option<Packet>, InvalidPacket> {
    let Some((head, rest)) = bytes.split_at_checked(HEAD_BYTES) else { return Ok(None) };
    let kind = PacketKind::of(head[0]).ok_or(InvalidPacket)?;
    let id = u64::from_le_bytes(head[1..9].try_into().map_err(|_| InvalidPacket)?);
    let length = u32::from_le_bytes(head[9..].try_into().map_err(|_| InvalidPacket)?) as usize;
    if length > PAYLOAD_BYTES_MAX {
        return Err(InvalidPacket);
    }
    let whole = rest.len() >= length;
    Ok(whole.then_some(Packet { kind, id, payload: HEAD_BYTES..HEAD_BYTES + length }))
}

/// Reads once, behind the incomplete packet in `partial`: `buffer[..n]` holds the bytes to parse, and the caller puts
/// those of an incomplete packet back into `partial`. An error leaves `partial` as it was.
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
    fn written_packets_are_parsed_in_order() {
        let mut bytes = Vec::new();
        put(&mut bytes, PacketKind::Open, 7, b"first");
        let first = bytes.len();
        put(&mut bytes, PacketKind::Closed, u64::MAX, b"");
        for cut in 0..first {
            assert_eq!(take(&bytes[..cut]), Ok(None), "{cut}");
        }
        let packet = take(&bytes).unwrap().unwrap();
        assert_eq!((packet.kind, packet.id, &bytes[packet.payload.clone()]), (PacketKind::Open, 7, &b"first"[..]));
        let packet = take(&bytes[packet.payload.end..]).unwrap().unwrap();
        assert_eq!((packet.kind, packet.id, packet.payload.len()), (PacketKind::Closed, u64::MAX, 0));
    }

    #[test]
    fn every_kind_is_parsed_from_its_byte() {
        for byte in 0..=u8::MAX {
            assert!(PacketKind::of(byte).is_none_or(|kind| kind as u8 == byte), "{byte}");
        }
        assert_eq!((0..=u8::MAX).filter_map(PacketKind::of).count(), 16);
    }

    #[test]
    fn an_unknown_kind_or_a_long_payload_is_refused_by_its_header() {
        let mut bytes = Vec::new();
        put(&mut bytes, PacketKind::Data, 1, &[0; 4]);
        bytes[0] = 99;
        assert_eq!(take(&bytes), Err(InvalidPacket));
        bytes[0] = PacketKind::Data as u8;
        bytes[9..13].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(take(&bytes), Err(InvalidPacket));
    }
}

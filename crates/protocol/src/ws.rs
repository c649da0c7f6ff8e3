//! WebSocket framing over plain byte buffers (RFC 6455); header parsing is tungstenite's.
//!
//! The gateway holds sessions without a task or buffer for each, so the socket-owning types of the WebSocket
//! libraries do not fit; their frame header codec does.

mod message;

pub use message::{Assembly, Received};
use std::io::Cursor;
pub use tungstenite::{
    handshake::{client::generate_key, derive_accept_key},
    protocol::frame::{
        FrameHeader,
        coding::{Control, Data, OpCode},
    },
};

/// The bytes do not follow the protocol; close the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Reserved bits or an opcode that no extension has given a meaning.
    #[error("a frame header that RFC 6455 does not allow")]
    Header,
    /// A frame, or a message with all its fragments, over the limit.
    #[error("a frame of {length} bytes where at most {limit} are taken")]
    TooLong {
        /// The length that the frame declares, or the message has so far, in bytes.
        length: u64,
        /// The limit that the reader set, in bytes.
        limit: usize,
    },
    /// A client's frame without a mask, or a server's with one.
    #[error("a client must mask its frames, a server must not")]
    Masking,
    /// A control frame that breaks RFC 6455, 5.5.
    #[error("a control frame that is fragmented or longer than 125 bytes")]
    Control,
    /// A continuation without a message, or a new message before the last one ended.
    #[error("a part of a message that was not begun, or a message begun within another")]
    Order,
    /// A text message or a close reason that is not UTF-8.
    #[error("text that is not UTF-8")]
    Utf8,
    /// A close frame whose payload breaks RFC 6455, 5.5.1 or 7.4.
    #[error("a close frame with a code that must not be sent, or with half a code")]
    Close,
}

impl FrameError {
    /// The close code that RFC 6455, 7.4.1, assigns to the error.
    pub fn close_code(self) -> u16 {
        match self {
            FrameError::Utf8 => NOT_UTF8,
            FrameError::TooLong { .. } => 1009,
            _ => PROTOCOL_ERROR,
        }
    }
}

/// Close code (RFC 6455, 7.4.1) of a session that ends because the client asked for it.
pub const NORMAL: u16 = 1000;
/// Close code for bytes that break the protocol.
pub const PROTOCOL_ERROR: u16 = 1002;
/// Close code for a kind of message that this endpoint does not take, such as a binary one.
pub const UNSUPPORTED_DATA: u16 = 1003;
/// Close code for text that is not UTF-8.
pub const NOT_UTF8: u16 = 1007;

/// One frame at the head of a buffer.
#[derive(Debug)]
pub struct RawFrame {
    /// Whether the frame ends its message.
    pub is_final: bool,
    /// What the frame is: a kind of data, a continuation, or a control frame.
    pub opcode: OpCode,
    /// Where the payload stands in the buffer; unmasked in place.
    pub payload: std::ops::Range<usize>,
}

/// Takes the frame at the head of `buffer`, unmasking its payload in place. `Ok(None)`: more bytes are needed.
///
/// `from_client` says which side sent the frame: clients mask, servers do not.
///
/// # Errors
/// The bytes break RFC 6455, or the payload is longer than `payload_max`: the connection cannot be read any further.
pub fn take_frame(buffer: &mut [u8], from_client: bool, payload_max: usize) -> Result<Option<RawFrame>, FrameError> {
    let (header, length, start) = {
        let mut cursor = Cursor::new(&*buffer);
        match FrameHeader::parse(&mut cursor).map_err(|_| FrameError::Header)? {
            None => return Ok(None),
            Some((header, length)) => (header, length, cursor.position() as usize),
        }
    };
    // No extension was agreed on that would give the reserved bits a meaning.
    if header.rsv1 || header.rsv2 || header.rsv3 {
        return Err(FrameError::Header);
    }
    if matches!(header.opcode, OpCode::Control(_)) && (!header.is_final || length > 125) {
        return Err(FrameError::Control);
    }
    if length > payload_max as u64 {
        return Err(FrameError::TooLong { length, limit: payload_max });
    }
    if header.mask.is_some() != from_client {
        return Err(FrameError::Masking);
    }
    let end = start + length as usize;
    let Some(payload) = buffer.get_mut(start..end) else { return Ok(None) };
    if let Some(mask) = header.mask {
        unmask(payload, mask);
    }
    Ok(Some(RawFrame { is_final: header.is_final, opcode: header.opcode, payload: start..end }))
}

/// XORs `payload` with the key, eight bytes at a time. The tail after the last whole word is up to seven bytes long,
/// so the key, four bytes long, is repeated over it: eight is a multiple of four, so the tail starts at the key's first byte.
fn unmask(payload: &mut [u8], mask: [u8; 4]) {
    let wide = u64::from_ne_bytes([mask[0], mask[1], mask[2], mask[3], mask[0], mask[1], mask[2], mask[3]]);
    let mut chunks = payload.chunks_exact_mut(8);
    for chunk in &mut chunks {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        chunk.copy_from_slice(&(u64::from_ne_bytes(word) ^ wide).to_ne_bytes());
    }
    for (byte, key) in chunks.into_remainder().iter_mut().zip(mask.into_iter().cycle()) {
        *byte ^= key;
    }
}

/// Appends an unmasked (server's) frame header for a payload of `length` bytes.
pub fn put_server_header(out: &mut Vec<u8>, opcode: OpCode, length: usize) {
    out.push(0x80 | u8::from(opcode));
    match length {
        0..=125 => out.push(length as u8),
        126..=65_535 => {
            out.push(126);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            out.push(127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
}

/// Appends a complete frame of a server.
pub fn put_server_frame(out: &mut Vec<u8>, opcode: OpCode, payload: &[u8]) {
    put_server_header(out, opcode, payload.len());
    out.extend_from_slice(payload);
}

/// Appends a complete frame of a client, masked with `mask`.
pub fn put_client_frame(out: &mut Vec<u8>, opcode: OpCode, payload: &[u8], mask: [u8; 4]) {
    let start = out.len();
    put_server_header(out, opcode, payload.len());
    out[start + 1] |= 0x80;
    out.extend_from_slice(&mask);
    let body = out.len();
    out.extend_from_slice(payload);
    unmask(&mut out[body..], mask);
}

/// The text payload of a close frame: code, then reason.
pub fn close_payload(code: u16, reason: &str) -> Vec<u8> {
    let mut payload = code.to_be_bytes().to_vec();
    payload.extend_from_slice(&reason.as_bytes()[..reason.len().min(123)]);
    payload
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_frame_is_read_back_at_every_length_class() {
        for length in [0, 1, 7, 125, 126, 65_535, 65_536] {
            let payload: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let mut bytes = Vec::new();
            put_client_frame(&mut bytes, OpCode::Data(Data::Text), &payload, [1, 2, 3, 4]);
            for cut in [0, 1, 2, 5, bytes.len() - 1] {
                let mut part = bytes[..cut].to_vec();
                assert!(take_frame(&mut part, true, 1 << 20).unwrap().is_none(), "cut at {cut}");
            }
            let frame = take_frame(&mut bytes, true, 1 << 20).unwrap().unwrap();
            assert_eq!(&bytes[frame.payload], &payload[..]);
        }
    }

    /// RFC 6455, 5.7: "a single-frame masked text message", which contains "Hello".
    #[test]
    fn the_masked_hello_of_rfc_6455_is_read() {
        let mut bytes = [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
        let frame = take_frame(&mut bytes, true, 125).unwrap().unwrap();
        assert_eq!(&bytes[frame.payload], b"Hello");
    }

    /// The judge is the sentence of RFC 6455, 5.3, byte by byte: octet i is XORed with key octet i modulo 4.
    #[test]
    fn every_length_is_unmasked_as_rfc_6455_says() {
        for length in (0..=300).chain(65_530..=65_541) {
            let key = [0xA5, 0x3C, 0x0F, length as u8];
            let payload: Vec<u8> = (0..length).map(|i| (i * 31 + 7) as u8).collect();
            let mut bytes = Vec::new();
            put_server_header(&mut bytes, OpCode::Data(Data::Binary), length);
            bytes[1] |= 0x80;
            bytes.extend_from_slice(&key);
            bytes.extend(payload.iter().enumerate().map(|(i, byte)| byte ^ key[i % 4]));
            let frame = take_frame(&mut bytes, true, 1 << 20).unwrap().unwrap();
            assert_eq!(&bytes[frame.payload], &payload[..], "a frame of {length} bytes");
        }
    }

    #[test]
    fn frames_outside_the_protocol_are_refused() {
        let mut unmasked = Vec::new();
        put_server_frame(&mut unmasked, OpCode::Data(Data::Text), b"x");
        assert_eq!(take_frame(&mut unmasked, true, 10).unwrap_err(), FrameError::Masking);

        let mut long = Vec::new();
        put_client_frame(&mut long, OpCode::Data(Data::Text), &[0; 20], [0; 4]);
        assert_eq!(take_frame(&mut long, true, 10).unwrap_err(), FrameError::TooLong { length: 20, limit: 10 });

        assert_eq!(take_frame(&mut [0x09, 0x80, 0, 0, 0, 0], true, 10).unwrap_err(), FrameError::Control);
        assert_eq!(take_frame(&mut [0xC1, 0x80, 0, 0, 0, 0], true, 10).unwrap_err(), FrameError::Header);
    }
}

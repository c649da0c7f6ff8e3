//! From frames to messages: fragments are joined, text is checked to be UTF-8, close frames are parsed.

use super::{Control, Data, FrameError, OpCode, RawFrame};
use std::borrow::Cow;

/// What a frame completes or says.
#[derive(Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// A fragment; the message is not complete yet.
    Part,
    /// A complete text message.
    Text(Cow<'a, str>),
    /// A complete binary message.
    Binary(Cow<'a, [u8]>),
    /// To be answered with a pong of the same payload.
    Ping,
    /// The answer to a ping.
    Pong,
    /// The other side closes, with this code if it gave one; the answer repeats the code.
    Close(Option<u16>),
}

/// Joins the fragments of a connection's messages. Between messages it holds no buffer.
#[derive(Debug, Default)]
pub struct Assembly {
    // Boxed, since fragmented messages are rare: an idle connection pays for a pointer only.
    parts: Option<Box<Parts>>,
}

/// The fragments of a message that is not complete yet.
#[derive(Debug)]
struct Parts {
    is_text: bool,
    bytes: Vec<u8>,
    /// The length of the prefix that is checked to be UTF-8. The bytes after it begin a character that the next fragment completes.
    checked: usize,
}

impl Assembly {
    /// Takes the next frame. A message may hold `message_max` bytes, in however many fragments it comes.
    ///
    /// # Errors
    /// The frame breaks RFC 6455 or makes the message too long; no later frame of the connection can be understood.
    pub fn take<'a>(
        &mut self,
        frame: &RawFrame,
        payload: &'a [u8],
        message_max: usize,
    ) -> Result<Received<'a>, FrameError> {
        let (is_begun, is_text) = match frame.opcode {
            OpCode::Control(Control::Ping) => return Ok(Received::Ping),
            OpCode::Control(Control::Pong) => return Ok(Received::Pong),
            OpCode::Control(Control::Close) => return close_code(payload).map(Received::Close),
            OpCode::Data(Data::Text) => (false, true),
            OpCode::Data(Data::Binary) => (false, false),
            OpCode::Data(Data::Continue) => (true, false),
            OpCode::Control(Control::Reserved(_)) | OpCode::Data(Data::Reserved(_)) => return Err(FrameError::Header),
        };
        if is_begun != self.parts.is_some() {
            return Err(FrameError::Order);
        }
        if !is_begun && frame.is_final {
            return Ok(if is_text {
                Received::Text(std::str::from_utf8(payload).map_err(|_| FrameError::Utf8)?.into())
            } else {
                Received::Binary(payload.into())
            });
        }
        let mut parts = self.parts.take().unwrap_or_else(|| Box::new(Parts { is_text, bytes: Vec::new(), checked: 0 }));
        let length = parts.bytes.len() + payload.len();
        if length > message_max {
            return Err(FrameError::TooLong { length: length as u64, limit: message_max });
        }
        parts.bytes.extend_from_slice(payload);
        if parts.is_text {
            parts.check()?;
        }
        if !frame.is_final {
            self.parts = Some(parts);
            return Ok(Received::Part);
        }
        Ok(if parts.is_text {
            Received::Text(String::from_utf8(parts.bytes).map_err(|_| FrameError::Utf8)?.into())
        } else {
            Received::Binary(parts.bytes.into())
        })
    }

    /// Drops the fragments of an incomplete message.
    pub fn clear(&mut self) {
        self.parts = None;
    }
}

impl Parts {
    /// Refuses invalid text at the fragment that makes it invalid. Each byte is checked once, except those of a character
    /// that two fragments share.
    fn check(&mut self) -> Result<(), FrameError> {
        match std::str::from_utf8(&self.bytes[self.checked..]) {
            Ok(_) => self.checked = self.bytes.len(),
            Err(error) if error.error_len().is_none() => self.checked += error.valid_up_to(),
            Err(_) => return Err(FrameError::Utf8),
        }
        Ok(())
    }
}

/// The code in a close frame's payload, which is empty or holds a code and a reason.
fn close_code(payload: &[u8]) -> Result<Option<u16>, FrameError> {
    let [high, low, reason @ ..] = payload else {
        return if payload.is_empty() { Ok(None) } else { Err(FrameError::Close) };
    };
    let code = u16::from_be_bytes([*high, *low]);
    if !may_be_sent(code) {
        return Err(FrameError::Close);
    }
    std::str::from_utf8(reason).map_err(|_| FrameError::Utf8)?;
    Ok(Some(code))
}

/// RFC 6455, 7.4: codes of the protocol that an end may send (1012 to 1014 came to the registry later), those registered
/// for libraries and frameworks, and those of applications. 1004, 1005, 1006 and 1015 never stand in a frame.
fn may_be_sent(code: u16) -> bool {
    matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MAX: usize = 64;

    fn frame(opcode: OpCode, is_final: bool) -> RawFrame {
        RawFrame { is_final, opcode, payload: 0..0 }
    }

    /// Checks what the last of these frames gives; the frames before it must be fragments or pings.
    fn check(frames: &[(OpCode, bool, &[u8])], expected: Result<Received<'_>, FrameError>) {
        let mut assembly = Assembly::default();
        let (last, before) = frames.split_last().unwrap();
        for (opcode, is_final, payload) in before {
            let received = assembly.take(&frame(*opcode, *is_final), payload, MAX);
            assert!(matches!(received, Ok(Received::Part | Received::Ping)), "{received:?} in {frames:?}");
        }
        assert_eq!(assembly.take(&frame(last.0, last.1), last.2, MAX), expected, "{frames:?}");
    }

    const TEXT: OpCode = OpCode::Data(Data::Text);
    const BINARY: OpCode = OpCode::Data(Data::Binary);
    const CONTINUE: OpCode = OpCode::Data(Data::Continue);
    const PING: OpCode = OpCode::Control(Control::Ping);
    const CLOSE: OpCode = OpCode::Control(Control::Close);

    #[test]
    fn fragments_make_a_message_and_control_frames_may_interleave() {
        check(&[(TEXT, true, b"whole")], Ok(Received::Text("whole".into())));
        check(&[(BINARY, true, &[0xFF])], Ok(Received::Binary(vec![0xFF].into())));
        check(&[(TEXT, false, b""), (PING, true, b"?"), (CONTINUE, true, b"ab")], Ok(Received::Text("ab".into())));
        check(&[(BINARY, false, &[1]), (CONTINUE, true, &[2])], Ok(Received::Binary(vec![1, 2].into())));
        check(&[(CONTINUE, true, b"")], Err(FrameError::Order));
        check(&[(TEXT, false, b"a"), (TEXT, true, b"b")], Err(FrameError::Order));
        let long = Err(FrameError::TooLong { length: MAX as u64 + 1, limit: MAX });
        check(&[(TEXT, false, &[b'a'; MAX]), (CONTINUE, false, b"b")], long);
    }

    #[test]
    fn text_must_be_utf_8_and_fragments_may_split_a_character() {
        let text = "κόσμε, 😀";
        for cut in 1..text.len() {
            let (first, second) = text.as_bytes().split_at(cut);
            check(&[(TEXT, false, first), (CONTINUE, true, second)], Ok(Received::Text(text.into())));
        }
        check(&[(TEXT, true, b"a\xFF")], Err(FrameError::Utf8));
        // Surrogates, more bytes than needed, beyond the last character: each wrong before its last byte.
        for wrong in [&b"\xED\xA0"[..], b"\xC0", b"\xF4\x90"] {
            check(&[(TEXT, false, b"a"), (CONTINUE, false, wrong)], Err(FrameError::Utf8));
        }
        check(&[(TEXT, false, b"\xF0\x9F"), (CONTINUE, true, b"\x98")], Err(FrameError::Utf8));
        check(&[(TEXT, false, b"\xF0\x9F"), (CONTINUE, false, b"x")], Err(FrameError::Utf8));
    }

    #[test]
    fn a_close_frame_is_empty_or_carries_a_sendable_code() {
        check(&[(CLOSE, true, b"")], Ok(Received::Close(None)));
        for code in [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999] {
            check(&[(CLOSE, true, &u16::to_be_bytes(code))], Ok(Received::Close(Some(code))));
        }
        for code in [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535] {
            check(&[(CLOSE, true, &u16::to_be_bytes(code))], Err(FrameError::Close));
        }
        check(&[(CLOSE, true, &[3])], Err(FrameError::Close));
        check(&[(CLOSE, true, b"\x03\xE8bye")], Ok(Received::Close(Some(1000))));
        check(&[(CLOSE, true, b"\x03\xE8\xFF")], Err(FrameError::Utf8));
    }
}

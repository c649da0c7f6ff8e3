//! Frames into messages: parts put together, text that is UTF-8, close frames that say something.

use super::{Control, Data, FrameError, OpCode, RawFrame};
use std::borrow::Cow;

/// What a frame comes to.
#[derive(Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// A part of a message that has not come whole.
    Part,
    Text(Cow<'a, str>),
    Binary(Cow<'a, [u8]>),
    /// To be answered with a pong of the same payload.
    Ping,
    Pong,
    /// The other side's goodbye, and the code that it gave; the answer repeats it.
    Close(Option<u16>),
}

/// The parts so far of the message that is under way, if one is. Without one it holds no buffer.
#[derive(Debug, Default)]
pub struct Assembly {
    // Rare, so that its place is small.
    parts: Option<Box<Parts>>,
}

#[derive(Debug)]
struct Parts {
    is_text: bool,
    bytes: Vec<u8>,
    /// So many bytes are UTF-8. What follows is the beginning of a character, whose rest comes with the next part.
    checked: usize,
}

impl Assembly {
    /// Takes the next frame. A message may hold `message_max` bytes, in however many parts it comes. After an error
    /// nothing that follows can be understood.
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
            return Ok(match is_text {
                true => Received::Text(std::str::from_utf8(payload).map_err(|_| FrameError::Utf8)?.into()),
                false => Received::Binary(payload.into()),
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
        Ok(match parts.is_text {
            true => Received::Text(String::from_utf8(parts.bytes).map_err(|_| FrameError::Utf8)?.into()),
            false => Received::Binary(parts.bytes.into()),
        })
    }

    /// Forgets what has come.
    pub fn clear(&mut self) {
        self.parts = None;
    }
}

impl Parts {
    /// Text that has gone wrong is refused with the part that it went wrong in. Each byte is looked at once, but for
    /// those of a character that a part cuts.
    fn check(&mut self) -> Result<(), FrameError> {
        match std::str::from_utf8(&self.bytes[self.checked..]) {
            Ok(_) => self.checked = self.bytes.len(),
            Err(error) if error.error_len().is_none() => self.checked += error.valid_up_to(),
            Err(_) => return Err(FrameError::Utf8),
        }
        Ok(())
    }
}

/// What a close frame's payload says: nothing, or a code and a reason.
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

    /// What the last of these frames comes to; those before it are parts.
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

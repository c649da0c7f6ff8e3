//! Any frame that is encoded and decoded is the same; no bytes make the decoder panic.

use crate::support::read;
use proptest::{collection::vec, option, prelude::*};
use tidings_protocol::{
    limits::*,
    miop::{Bind, Bound, ErrorFrame, Frame, Push},
};

/// Text of at most `bytes_max` bytes, with characters of every length.
fn text(bytes_max: usize) -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..=bytes_max).prop_map(move |characters| {
        let mut text = String::new();
        for character in characters {
            if text.len() + character.len_utf8() > bytes_max {
                break;
            }
            text.push(character);
        }
        text
    })
}

/// Numbers of every encoded length, instead of mostly the longest.
fn number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64_u32).prop_map(|(number, shift)| number >> shift)
}

#[track_caller]
fn assert_round_trip(frame: &Frame) {
    let bytes = frame.to_bytes();
    let (back, end) = read(&bytes, usize::MAX).unwrap().unwrap();
    assert_eq!((&back, end), (frame, bytes.len()));
    assert_eq!(back.to_bytes(), bytes);
}

proptest! {
    #[test]
    fn a_heartbeat_round_trips(interval_s in option::of(number())) {
        assert_round_trip(&Frame::Heartbeat { interval_s });
    }

    #[test]
    fn a_bind_round_trips(
        (version, token, device_id) in (1..=u64::MAX, text(2_000), text(ID_BYTES_MAX)),
        (kind, app, cursor) in (
            option::of(text(TYPE_BYTES_MAX)), option::of(text(TYPE_BYTES_MAX)), option::of(text(NAME_BYTES_MAX)),
        ),
        (wants, heartbeat_s) in (option::of(number()), option::of(number())),
    ) {
        assert_round_trip(&Frame::Bind(Bind {
            version,
            token: &token,
            device_id: &device_id,
            device_kind: kind.as_deref(),
            app_version: app.as_deref(),
            cursor: cursor.as_deref(),
            wants,
            heartbeat_s,
        }));
    }

    #[test]
    fn a_bound_round_trips(
        (version, session, user) in (1..=u64::MAX, text(ID_BYTES_MAX), text(ID_BYTES_MAX)),
        (heartbeat_s, frame_bytes_max) in (number(), number()),
        (cursor, resume) in (option::of(text(NAME_BYTES_MAX)), option::of(vec(any::<u8>(), 0..300))),
        pushes in option::of(any::<bool>()),
    ) {
        assert_round_trip(&Frame::Bound(Bound {
            version,
            session: &session,
            user: &user,
            heartbeat_s,
            frame_bytes_max,
            cursor: cursor.as_deref(),
            resume: resume.as_deref(),
            pushes,
        }));
    }

    #[test]
    fn a_push_round_trips(
        (push, expires_at, priority) in (number(), number(), number()),
        (collapse_key, content_type) in (option::of(text(ID_BYTES_MAX)), text(TYPE_BYTES_MAX)),
        body in vec(any::<u8>(), 0..PUSH_BODY_BYTES_MAX),
    ) {
        assert_round_trip(&Frame::Push(Push {
            push,
            expires_at,
            collapse_key: collapse_key.as_deref(),
            priority,
            content_type: &content_type,
            body: &body,
        }));
    }

    #[test]
    fn an_ack_round_trips(pushes in vec(number(), 0..=ACKS_PER_FRAME_MAX)) {
        assert_round_trip(&Frame::Ack { pushes });
    }

    #[test]
    fn chat_round_trips(json in vec(any::<u8>(), 0..20_000)) {
        assert_round_trip(&Frame::Chat { json: &json });
    }

    #[test]
    fn an_unbind_round_trips(reason in option::of(text(NAME_BYTES_MAX))) {
        assert_round_trip(&Frame::Unbind { reason: reason.as_deref() });
    }

    #[test]
    fn a_redirect_round_trips(address in option::of(text(NAME_BYTES_MAX)), after_ms in number()) {
        assert_round_trip(&Frame::Redirect { address: address.as_deref(), after_ms });
    }

    #[test]
    fn an_error_round_trips(
        (code, message) in (text(ID_BYTES_MAX), text(500)),
        (retry, fatal, retry_after_ms) in (any::<bool>(), any::<bool>(), option::of(number())),
    ) {
        assert_round_trip(&Frame::Error(ErrorFrame { code: &code, message: &message, retry, retry_after_ms, fatal }));
    }

    /// Known kinds are drawn often, or hardly any payload would be decoded.
    #[test]
    fn arbitrary_bytes_never_panic_the_decoder(
        kind in prop_oneof![1..=9_u8, any::<u8>()],
        claims_length in any::<bool>(),
        rest in vec(any::<u8>(), 0..120),
    ) {
        let mut bytes = vec![kind];
        if claims_length {
            bytes.push(rest.len() as u8);
        }
        bytes.extend(rest);
        if let Ok(Some((frame, end))) = read(&bytes, FRAME_BYTES_MAX) {
            prop_assert!(end <= bytes.len());
            if !matches!(frame, Frame::Skipped { .. }) {
                assert_round_trip(&frame);
            }
        }
    }
}

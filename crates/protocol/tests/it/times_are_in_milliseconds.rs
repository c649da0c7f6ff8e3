//! A time that must be meant in seconds is refused, in every field of a request that names a time.

use serde::de::DeserializeOwned;
use tidings_protocol::{error::ErrorCode, frames::RawClientFrame, http::*, json};

/// `text` has `TIME` in place of the time.
#[track_caller]
fn check<T: DeserializeOwned>(field: &str, zero_is_good: bool, text: &str) {
    let read = |time: &str| json::read::<T>(text.replace("TIME", time).as_bytes()).map(drop);
    check_reader(field, zero_is_good, read);
    let stored = serde_json::from_str::<T>(&text.replace("TIME", "1764238000"));
    assert!(stored.is_ok(), "{field}: what was stored before the check is still read");
}

#[track_caller]
fn check_reader(field: &str, zero_is_good: bool, read: impl Fn(&str) -> Result<(), tidings_protocol::error::Refusal>) {
    read("1764238000000").unwrap();
    read("1000000000000").unwrap();
    let seconds = read("1764238000").unwrap_err();
    let why = "must be in milliseconds since 1970 UTC, got 1764238000, which looks like seconds: 1764238000000 would be that time";
    assert_eq!((seconds.code, &*seconds.detail), (ErrorCode::InvalidField, &*format!("{field}: {why}")));
    for early in ["1", "3600", "999999999999"] {
        let refusal = read(early).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::InvalidField, "{field} {early}");
        assert!(refusal.detail.starts_with(&format!("{field}: must be in milliseconds")), "{refusal}");
    }
    assert_eq!(read("0").is_ok(), zero_is_good, "{field}: 0");
    let negative = read("-1").unwrap_err();
    assert_eq!(negative.detail, format!("{field}: must be a whole number of at least 0, got the number -1"));
}

#[test]
fn seconds_are_refused_in_every_time_of_a_request() {
    check::<PushRequest>("send_at", true, r#"{"to":{"all":true},"body":1,"send_at":TIME}"#);
    check::<PopupSpec>("starts_at", false, r#"{"placements":["home"],"variants":[],"starts_at":TIME}"#);
    check::<PopupSpec>("ends_at", false, r#"{"placements":["home"],"variants":[],"ends_at":TIME}"#);
    check::<Mute>("until", false, r#"{"muted":true,"until":TIME}"#);
    check::<CreateApiKey>("expires_at", false, r#"{"name":"n","scopes":["read"],"expires_at":TIME}"#);
    check::<UpdateApiKey>("expires_at", true, r#"{"expires_at":TIME}"#);
    check::<NotificationPreferences>("snooze_until", false, r#"{"snooze_until":TIME}"#);
    let snooze = r#"{"events":[{"id":"1","type":"snooze","decision":"d","until":TIME}]}"#;
    check::<PopupEvents>("events[0].until", false, snooze);
    check::<HistoryQuery>("from_time", true, r#"{"from_time":TIME}"#);
    check::<HistoryQuery>("to_time", true, r#"{"to_time":TIME}"#);
    for field in ["from_time", "to_time"] {
        check_reader(field, true, |time| {
            let frame = format!(r#"{{"t":"history","conversation":"c","{field}":{time}}}"#);
            json::read_text::<RawClientFrame<'_>>("frame", &frame).map(drop)
        });
    }
}

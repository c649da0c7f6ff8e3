//! Converts frames to the JSON of the vectors, and back.

use super::{bytes_of_hex, hex_of};
use serde_json::{Map, Value, json};
use tidings_protocol::miop::{Bind, Bound, ErrorFrame, Frame, Push};

/// The largest number that every JSON reader holds exactly.
const EXACT_MAX: u64 = (1 << 53) - 1;

/// The kind and the fields with which a vector describes this frame.
pub fn of(frame: &Frame) -> (&'static str, Value) {
    let mut fields = Map::new();
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            fields.insert(name.into(), value);
        }
    };
    let text = |text: &str| Some(Value::from(text));
    let bytes = |bytes: &[u8]| Some(Value::from(hex_of(bytes)));
    let kind = match frame {
        Frame::Heartbeat { interval_s } => {
            put("interval_s", interval_s.map(number));
            "heartbeat"
        }
        Frame::Bind(bind) => {
            put("version", Some(number(bind.version)));
            put("token", text(bind.token));
            put("device_id", text(bind.device_id));
            put("device_kind", bind.device_kind.and_then(text));
            put("app_version", bind.app_version.and_then(text));
            put("cursor", bind.cursor.and_then(text));
            put("wants", bind.wants.map(number));
            put("heartbeat_s", bind.heartbeat_s.map(number));
            "bind"
        }
        Frame::Bound(bound) => {
            put("version", Some(number(bound.version)));
            put("session", text(bound.session));
            put("user", text(bound.user));
            put("heartbeat_s", Some(number(bound.heartbeat_s)));
            put("frame_bytes_max", Some(number(bound.frame_bytes_max)));
            put("cursor", bound.cursor.and_then(text));
            put("resume_hex", bound.resume.and_then(bytes));
            put("pushes", bound.pushes.map(Value::from));
            "bound"
        }
        Frame::Push(push) => {
            put("push", Some(number(push.push)));
            put("expires_at", Some(number(push.expires_at)));
            put("collapse_key", push.collapse_key.and_then(text));
            put("priority", Some(number(push.priority)));
            put("type", text(push.content_type));
            put("body_hex", bytes(push.body));
            "push"
        }
        Frame::Ack { pushes } => {
            put("pushes", Some(pushes.iter().map(|push| number(*push)).collect()));
            "ack"
        }
        Frame::Chat { json } => {
            put("json_hex", bytes(json));
            "chat"
        }
        Frame::Unbind { reason } => {
            put("reason", reason.and_then(text));
            "unbind"
        }
        Frame::Redirect { address, after_ms } => {
            put("address", address.and_then(text));
            put("after_ms", Some(number(*after_ms)));
            "redirect"
        }
        Frame::Error(error) => {
            put("code", text(error.code));
            put("message", text(error.message));
            put("retry", Some(error.retry.into()));
            put("retry_after_ms", error.retry_after_ms.map(number));
            put("fatal", Some(error.fatal.into()));
            "error"
        }
        Frame::Skipped { kind } => {
            put("kind", Some(number(u64::from(*kind))));
            "skip"
        }
    };
    (kind, Value::Object(fields))
}

/// Encodes a frame from the vector's JSON alone.
pub fn write(kind: &str, fields: &Value) -> Vec<u8> {
    let text = |name: &str| fields.get(name).map(|value| value.as_str().unwrap());
    let bytes = |name: &str| text(name).map(bytes_of_hex);
    let count = |name: &str| fields.get(name).map(as_number);
    let flag = |name: &str| fields[name].as_bool().unwrap();
    let (resume, body, json) = (bytes("resume_hex"), bytes("body_hex"), bytes("json_hex"));
    let frame = match kind {
        "heartbeat" => Frame::Heartbeat { interval_s: count("interval_s") },
        "bind" => Frame::Bind(Bind {
            version: count("version").unwrap(),
            token: text("token").unwrap(),
            device_id: text("device_id").unwrap(),
            device_kind: text("device_kind"),
            app_version: text("app_version"),
            cursor: text("cursor"),
            wants: count("wants"),
            heartbeat_s: count("heartbeat_s"),
        }),
        "bound" => Frame::Bound(Bound {
            version: count("version").unwrap(),
            session: text("session").unwrap(),
            user: text("user").unwrap(),
            heartbeat_s: count("heartbeat_s").unwrap(),
            frame_bytes_max: count("frame_bytes_max").unwrap(),
            cursor: text("cursor"),
            resume: resume.as_deref(),
            pushes: fields.get("pushes").map(|flag| flag.as_bool().unwrap()),
        }),
        "push" => Frame::Push(Push {
            push: count("push").unwrap(),
            expires_at: count("expires_at").unwrap(),
            collapse_key: text("collapse_key"),
            priority: count("priority").unwrap(),
            content_type: text("type").unwrap(),
            body: body.as_deref().unwrap(),
        }),
        "ack" => Frame::Ack { pushes: fields["pushes"].as_array().unwrap().iter().map(as_number).collect() },
        "chat" => Frame::Chat { json: json.as_deref().unwrap() },
        "unbind" => Frame::Unbind { reason: text("reason") },
        "redirect" => Frame::Redirect { address: text("address"), after_ms: count("after_ms").unwrap() },
        "error" => Frame::Error(ErrorFrame {
            code: text("code").unwrap(),
            message: text("message").unwrap(),
            retry: flag("retry"),
            retry_after_ms: count("retry_after_ms"),
            fatal: flag("fatal"),
        }),
        other => panic!("nothing is written for {other:?}"),
    };
    frame.to_bytes()
}

fn number(number: u64) -> Value {
    if number > EXACT_MAX { json!(number.to_string()) } else { json!(number) }
}

fn as_number(value: &Value) -> u64 {
    match value {
        Value::String(digits) => digits.parse().unwrap(),
        value => value.as_u64().filter(|number| *number <= EXACT_MAX).unwrap(),
    }
}

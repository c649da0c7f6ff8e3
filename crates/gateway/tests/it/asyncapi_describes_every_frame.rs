//! `/asyncapi.json` describes the frames that the server reads and sends.

use crate::support::*;
use serde_json::Value;
use tidings_protocol::{
    error::ErrorCode,
    frames::{RawClientFrame, ServerFrame},
};

/// The described messages of one side: the kind and the schema of its payload, with references resolved.
fn described(side: &str) -> Vec<(String, Value)> {
    let description = tidings_api::routes::asyncapi();
    let messages = description["components"]["messages"].as_object().unwrap();
    let of_side = messages.iter().filter(|(name, _)| name.starts_with(side));
    of_side
        .map(|(_, message)| {
            (message["name"].as_str().unwrap().to_owned(), followed(&description, &message["payload"], 0))
        })
        .collect()
}

fn followed(description: &Value, schema: &Value, depth: usize) -> Value {
    match schema {
        // Popup rules are recursive.
        _ if depth > 12 => Value::Null,
        Value::Object(fields) if fields.contains_key("$ref") => {
            let target = fields["$ref"].as_str().unwrap().strip_prefix('#').unwrap();
            let found = description.pointer(target).unwrap_or_else(|| panic!("{target} leads nowhere"));
            followed(description, found, depth + 1)
        }
        Value::Object(fields) => {
            fields.iter().map(|(name, field)| (name.clone(), followed(description, field, depth + 1))).collect()
        }
        Value::Array(all) => all.iter().map(|one| followed(description, one, depth + 1)).collect(),
        other => other.clone(),
    }
}

/// The names of a payload's own fields.
fn fields(schema: &Value) -> Vec<String> {
    let parts = schema["allOf"].as_array().into_iter().flatten().flat_map(fields);
    let own = schema["properties"].as_object().into_iter().flat_map(|own| own.keys().cloned());
    own.chain(parts).collect()
}

#[test]
fn the_server_reads_every_described_client_frame_and_field() {
    let server = Server::start();
    server.users(&["alice"]);
    let kinds = described("client_");
    assert!(kinds.len() >= 13, "{kinds:?}");
    for (t, schema) in kinds {
        let mut session = server.open("alice", "phone");
        session.write_text(format!(r#"{{"t":"{t}","ref":1}}"#).as_bytes()).unwrap();
        session.write_text(br#"{"t":"ping","ref":2}"#).unwrap();
        // An `unbind` ends the session.
        while let Ok(Some(frame)) = session.next(PATIENCE) {
            match frame {
                ServerFrame::Pong { reference: Some(2) } => break,
                ServerFrame::Error { code, message, .. } => {
                    assert_ne!(code, ErrorCode::Malformed, "{t}: {message}");
                }
                _ => {}
            }
        }
        for field in fields(&schema) {
            assert!(is_known(&field), "{t}.{field} is not read");
        }
    }
    assert!(!is_known("nobody"));
}

/// Whether the server reads a field of this name.
fn is_known(field: &str) -> bool {
    let frame = format!(r#"{{"{field}":null}}"#);
    let Err(error) = serde_json::from_str::<RawClientFrame<'_>>(&frame) else { return true };
    !error.to_string().contains("unknown field")
}

#[test]
fn the_websocket_page_names_every_frame() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/websocket.md")).unwrap();
    for (side, heading) in [("client_", "## What a client sends"), ("server_", "## What the server sends")] {
        let (_, section) = page.split_once(heading).unwrap();
        let section = section.split("\n## ").next().unwrap();
        let first_cells = section.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
        let named: Vec<&str> = first_cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        for (t, _) in described(side) {
            // `bind` and `bound` have a section of their own.
            assert!(named.contains(&&*t) || ["bind", "bound"].contains(&&*t), "{t} is missing in {heading:?}");
        }
    }
}

#[test]
fn every_server_frame_has_its_fields_described() {
    let kinds = described("server_");
    let of = |t: &str| fields(&kinds.iter().find(|(name, _)| name == t).unwrap_or_else(|| panic!("{t}")).1);
    for (t, expected) in [
        ("bound", &["t", "session", "user", "heartbeat_ms", "cursor", "resume"][..]),
        ("messages", &["t", "cursor", "entries"]),
        ("sent", &["t", "results"]),
        ("history", &["t", "ref", "conversation", "entries", "more"]),
        ("conversations", &["t", "ref", "conversations", "next"]),
        ("error", &["t", "ref", "code", "message", "retry", "retry_after_ms"]),
        ("push", &["t", "push", "type", "body"]),
        ("popup", &["t", "ref", "show"]),
    ] {
        let described = of(t);
        assert!(expected.iter().all(|field| described.iter().any(|name| name == field)), "{t}: {described:?}");
    }
}

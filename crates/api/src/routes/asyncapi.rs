//! The AsyncAPI 3.0 description of the WebSocket protocol: JSON Schema of every frame, from the types of the frames.

use serde_json::{Map, Value, json};
use tidings_protocol::{
    error::ErrorCode,
    frames::{ClientFrame, ServerFrame},
    ws,
};
use utoipa::{PartialSchema, ToSchema};

/// The description of every frame that clients and the server send.
pub fn asyncapi() -> Value {
    let mut schemas = Vec::new();
    ClientFrame::schemas(&mut schemas);
    ServerFrame::schemas(&mut schemas);
    let schemas: Map<String, Value> = schemas.into_iter().map(|(name, schema)| (name, as_value(&schema))).collect();
    let [from_client, from_server] = [
        messages("client", "Sent by a client.", &as_value(&ClientFrame::schema())),
        messages("server", "Sent by the server.", &as_value(&ServerFrame::schema())),
    ];
    let refs = |of: &Map<String, Value>, place: &str| {
        of.keys().map(|name| (name.clone(), json!({ "$ref": format!("#/{place}/{name}") }))).collect::<Map<_, _>>()
    };
    let operation = |action: &str, summary: &str, of: &Map<String, Value>| {
        let messages: Vec<Value> = refs(of, "channels/connect/messages").into_iter().map(|(_, value)| value).collect();
        json!({
            "action": action,
            "channel": { "$ref": "#/channels/connect" },
            "summary": summary,
            "messages": messages,
        })
    };
    let operations = json!({
        "from_client": operation("receive", "What a client sends: first a bind", &from_client),
        "from_server": operation("send", "What the server sends", &from_server),
    });
    let messages: Map<String, Value> = from_client.into_iter().chain(from_server).collect();
    json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "Tidings: the WebSocket door",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Text frames that each hold one JSON object whose `t` names it. The server refuses fields \
                            that it does not know; a client skips fields and frames that it does not know. A client \
                            binds first, with a token; each later request may carry a `ref`, which its answer \
                            repeats. The HTTP door is described by `/openapi.json`.",
            "license": { "name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0" },
        },
        "defaultContentType": "application/json",
        "servers": {
            "local": {
                "host": "127.0.0.1:8080",
                "protocol": "ws",
                "description": "As a server listens unless told otherwise; `wss` where TLS is set up",
            },
        },
        "channels": {
            "connect": {
                "address": "/v1/connect",
                "messages": refs(&messages, "components/messages"),
                "bindings": { "ws": { "method": "GET", "bindingVersion": "0.1.0" } },
                "x-close-codes": close_codes(),
            },
        },
        "operations": operations,
        "components": { "messages": messages, "schemas": schemas },
    })
}

/// A schema as JSON. Serializing one cannot fail.
fn as_value(schema: &impl serde::Serialize) -> Value {
    serde_json::to_value(schema).unwrap_or_default()
}

/// One message per kind of frame, named by the side that sends it and the kind.
fn messages(side: &str, by_whom: &str, frames: &Value) -> Map<String, Value> {
    let kinds = frames["oneOf"].as_array().into_iter().flatten();
    kinds
        .filter_map(|kind| {
            let t = name_of(kind)?;
            let described = kind["description"].as_str().unwrap_or_default();
            let message = json!({
                "name": t,
                "title": t,
                "summary": format!("{by_whom} {described}").trim(),
                "contentType": "application/json",
                "payload": kind,
            });
            Some((format!("{side}_{t}"), message))
        })
        .collect()
}

/// The value of `t` in the schema of a kind of frame: the schema is one object, or an `allOf` with one that holds `t`.
fn name_of(kind: &Value) -> Option<&str> {
    let parts = kind["allOf"].as_array().map_or(std::slice::from_ref(kind), Vec::as_slice);
    parts.iter().find_map(|part| part["properties"]["t"]["enum"][0].as_str())
}

/// The close codes of sessions, each with the error code in the close frame's reason.
fn close_codes() -> Value {
    let protocol =
        [ws::PROTOCOL_ERROR, ws::UNSUPPORTED_DATA, ws::NOT_UTF8].map(|number| (number, ErrorCode::Malformed));
    let codes = ErrorCode::ALL.iter().map(|code| (code.close_code(), *code)).filter(|(number, _)| *number != 4999);
    let mut all: Vec<_> = protocol.into_iter().chain(codes).collect();
    all.sort_by_key(|(number, _)| *number);
    all.into_iter().map(|(number, code)| (number.to_string(), code.as_str().into())).collect::<Map<_, Value>>().into()
}

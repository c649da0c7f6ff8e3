//! The AsyncAPI 3.0 description of sessions over WebSockets and event streams: JSON Schema of every frame, from the types of the frames.

use serde_json::{Map, Value, json};
use tidings_protocol::{
    error::ErrorCode,
    event_stream::{StreamClosed, StreamOpened, StreamProbe},
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
    let operation = |channel: &str, action: &str, summary: &str, of: &Map<String, Value>| {
        let place = format!("channels/{channel}/messages");
        let messages: Vec<Value> = refs(of, &place).into_iter().map(|(_, value)| value).collect();
        json!({
            "action": action,
            "channel": { "$ref": format!("#/channels/{channel}") },
            "summary": summary,
            "messages": messages,
        })
    };
    let posted = without(&from_client, "client_bind");
    let events = events();
    let streamed: Map<String, Value> =
        from_server.iter().chain(&events).map(|(name, of)| (name.clone(), of.clone())).collect();
    let connected: Map<String, Value> =
        from_client.iter().chain(&from_server).map(|(name, of)| (name.clone(), of.clone())).collect();
    let operations = json!({
        "from_client": operation("connect", "receive", "What a client sends: first a bind", &from_client),
        "from_server": operation("connect", "send", "What the server sends", &from_server),
        "posted": operation("post", "receive", "What a client sends to an event stream's session: a frame per line", &posted),
        "streamed": operation("stream", "send", "What the server sends as events", &streamed),
    });
    let messages: Map<String, Value> =
        connected.iter().chain(&events).map(|(name, of)| (name.clone(), of.clone())).collect();
    json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "Tidings: sessions",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Text frames that each hold one JSON object whose `t` names it. The server refuses fields \
                            that it does not know; a client skips fields and frames that it does not know. A client \
                            binds first, with a token; each later request may carry a `ref`, which its answer \
                            repeats. Where WebSockets are blocked, the same frames come as server-sent events and go by \
                            requests (`docs/sse.md`). The HTTP listener is described by `/openapi.json`.",
            "license": { "name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0" },
        },
        "defaultContentType": "application/json",
        "servers": {
            "local": {
                "host": "127.0.0.1:8080",
                "protocol": "ws",
                "description": "As a server listens unless told otherwise; `wss` where TLS is set up",
            },
            "streams": { "host": "127.0.0.1:8080", "protocol": "http", "description": "The same listener" },
        },
        "channels": {
            "connect": {
                "address": "/v1/connect",
                "messages": refs(&connected, "components/messages"),
                "bindings": { "ws": { "method": "GET", "bindingVersion": "0.1.0" } },
                "x-close-codes": close_codes(),
            },
            "stream": { "address": "/v1/stream", "messages": refs(&streamed, "components/messages") },
            "post": {
                "address": "/v1/stream/{stream}",
                "parameters": { "stream": { "description": "The `stream` of the event `open`" } },
                "messages": refs(&posted, "components/messages"),
            },
        },
        "operations": operations,
        "components": { "messages": messages, "schemas": schemas },
    })
}

/// The named events of an event stream.
fn events() -> Map<String, Value> {
    let event = |name: &str, summary: &str, payload: Value| {
        let message = json!({
            "name": name,
            "title": name,
            "summary": summary,
            "contentType": "application/json",
            "payload": payload,
        });
        (format!("event_{name}"), message)
    };
    Map::from_iter([
        event("open", "The first event of a stream: where frames go to.", as_value(&StreamOpened::schema())),
        event("probe", "The client sends any frame in time.", as_value(&StreamProbe::schema())),
        event("close", "The last event of a stream: why it ends.", as_value(&StreamClosed::schema())),
    ])
}

fn without(messages: &Map<String, Value>, name: &str) -> Map<String, Value> {
    messages.iter().filter(|(other, _)| *other != name).map(|(name, of)| (name.clone(), of.clone())).collect()
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

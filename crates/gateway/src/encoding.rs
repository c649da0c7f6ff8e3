//! Encodes frames for clients, in either protocol.

use crate::transport::Protocol;
use serde::Serialize;
use std::{cell::OnceCell, sync::Arc};
use tidings_domain::model::Cursor;
use tidings_protocol::{
    error::Refusal,
    event_stream::put_frame_event,
    frames::ServerFrame,
    miop::{self, ErrorFrame, Frame},
    ws::{Data, OpCode, put_server_header},
};

/// The longest header that a frame can have.
const HEADER_BYTES_MAX: usize = 10;

/// JSON in a frame of the protocol.
pub(crate) fn json_frame(protocol: Protocol, json: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(json.len() + 10);
    put_json_frame(protocol, &mut frame, json);
    frame
}

/// Appends JSON in a frame of the protocol.
pub(crate) fn put_json_frame(protocol: Protocol, out: &mut Vec<u8>, json: &[u8]) {
    match protocol {
        Protocol::WebSocket => put_server_header(out, OpCode::Data(Data::Text), json.len()),
        Protocol::Miop => miop::put_head(out, miop::kind::CHAT, json.len()),
        Protocol::EventStream(_) => {
            return put_frame_event(out, None, |out| out.extend_from_slice(json));
        }
    }
    out.extend_from_slice(json);
}

/// Appends a frame whose JSON `put` appends; its length is not known before. On an event stream the cursor is the event's id.
pub(crate) fn put_frame_of(protocol: Protocol, out: &mut Vec<u8>, cursor: &Cursor, put: impl FnOnce(&mut Vec<u8>)) {
    if let Protocol::EventStream(_) = protocol {
        return put_frame_event(out, Some(&cursor.to_string()), put);
    }
    let start = out.len();
    // Space for the longest header. A shorter one leaves a gap of a few bytes to close.
    out.resize(start + HEADER_BYTES_MAX, 0);
    let payload = out.len();
    put(out);
    let mut header = Vec::with_capacity(HEADER_BYTES_MAX);
    let length = out.len() - payload;
    match protocol {
        Protocol::Miop => miop::put_head(&mut header, miop::kind::CHAT, length),
        _ => put_server_header(&mut header, OpCode::Data(Data::Text), length),
    }
    let gap = payload - start - header.len();
    out[start..start + header.len()].copy_from_slice(&header);
    if gap > 0 {
        out.copy_within(payload.., start + header.len());
        out.truncate(out.len() - gap);
    }
}

/// The last frame of a MIOP connection.
pub(crate) fn fatal_error(refusal: &Refusal) -> Vec<u8> {
    let error = ErrorFrame {
        code: refusal.code.as_str(),
        message: &refusal.detail,
        retry: refusal.code.retryable(),
        retry_after_ms: refusal.retry_after_ms,
        fatal: true,
    };
    Frame::Error(error).to_bytes()
}

/// The JSON of a frame. The frame types of this crate always serialize.
pub(crate) fn json<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

pub(crate) fn error_json(reference: Option<u64>, refusal: &Refusal) -> Vec<u8> {
    json(&ServerFrame::Error {
        reference,
        code: refusal.code,
        message: refusal.detail.clone(),
        retry: refusal.code.retryable(),
        retry_after_ms: refusal.retry_after_ms,
        reason: refusal.reason.as_deref().map(str::to_owned),
    })
}

/// A frame for many sessions, encoded once for each protocol that one of them speaks.
pub(crate) struct SharedFrame {
    json: Vec<u8>,
    websocket: OnceCell<Arc<[u8]>>,
    event_stream: OnceCell<Arc<[u8]>>,
    miop: OnceCell<Arc<[u8]>>,
}

impl SharedFrame {
    pub(crate) fn of(frame: &ServerFrame) -> Self {
        SharedFrame::of_json(&json(frame))
    }

    /// A frame from its JSON.
    pub(crate) fn of_json(json: &[u8]) -> Self {
        let [websocket, event_stream, miop] = Default::default();
        SharedFrame { json: json.to_vec(), websocket, event_stream, miop }
    }

    pub(crate) fn for_protocol(&self, protocol: Protocol) -> &Arc<[u8]> {
        let encoded = match protocol {
            Protocol::WebSocket => &self.websocket,
            // The framing of the body comes later, around all that is written together.
            Protocol::EventStream(_) => &self.event_stream,
            Protocol::Miop => &self.miop,
        };
        encoded.get_or_init(|| json_frame(protocol, &self.json).into())
    }
}

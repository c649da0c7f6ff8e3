//! Encodes frames for clients, in either protocol.

use crate::transport::Protocol;
use serde::Serialize;
use std::sync::Arc;
use tidings_protocol::{
    error::Refusal,
    frames::ServerFrame,
    miop::{self, ErrorFrame, Frame},
    ws::{Data, OpCode, put_server_header},
};

/// The header of a frame that carries JSON.
pub(crate) fn put_json_head(protocol: Protocol, out: &mut Vec<u8>, length: usize) {
    match protocol {
        Protocol::WebSocket => put_server_header(out, OpCode::Data(Data::Text), length),
        Protocol::Miop => miop::put_head(out, miop::kind::CHAT, length),
    }
}

/// JSON in a frame of the protocol.
pub(crate) fn json_frame(protocol: Protocol, json: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(json.len() + 10);
    put_json_head(protocol, &mut frame, json.len());
    frame.extend_from_slice(json);
    frame
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
    })
}

/// A frame for many sessions, encoded once per protocol.
pub(crate) struct SharedFrame {
    websocket: Arc<[u8]>,
    miop: Arc<[u8]>,
}

impl SharedFrame {
    pub(crate) fn of(frame: &ServerFrame) -> Self {
        SharedFrame::of_json(&json(frame))
    }

    /// A frame from its JSON.
    pub(crate) fn of_json(json: &[u8]) -> Self {
        let [websocket, miop] = [Protocol::WebSocket, Protocol::Miop].map(|protocol| json_frame(protocol, json).into());
        SharedFrame { websocket, miop }
    }

    pub(crate) fn for_protocol(&self, protocol: Protocol) -> &Arc<[u8]> {
        match protocol {
            Protocol::WebSocket => &self.websocket,
            Protocol::Miop => &self.miop,
        }
    }
}

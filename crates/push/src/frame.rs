//! A push as sessions write it: the frame of each protocol.

use bytes::Bytes;
use serde_json::value::RawValue;
use std::sync::Arc;
use tidings_domain::push_store::StoredPush;
use tidings_protocol::{
    frames::{Push, ServerFrame},
    miop,
};

/// A push as sessions write it, encoded once for all receivers.
#[derive(Debug)]
pub struct PushFrame {
    pub push: u64,
    /// Milliseconds since 1970 UTC; sessions do not write the frame from then on.
    pub expires_at: u64,
    /// A whole MIOP frame, header included.
    pub miop: Bytes,
    /// The JSON of the WebSocket protocol's `push` frame.
    pub json: Bytes,
}

impl PushFrame {
    /// Encodes a push in both forms that sessions write.
    pub(crate) fn encode(push: &StoredPush, body: &str) -> Arc<PushFrame> {
        let push = Push {
            push: push.push,
            expires_at: push.expires_at,
            collapse_key: push.collapse_key.clone(),
            high: push.high,
            content_type: push.content_type.clone(),
            body: RawValue::from_string(body.to_owned()).unwrap_or_else(|_| RawValue::NULL.to_owned()),
        };
        let (number, expires_at, miop) = (push.push, push.expires_at, in_miop(&push));
        // Writing to memory cannot fail for these types.
        let json = serde_json::to_vec(&ServerFrame::Push(push)).unwrap_or_default();
        Arc::new(PushFrame { push: number, expires_at, miop, json: json.into() })
    }

    /// A push of another node's, as it came: the form for MIOP is made of the other one.
    pub(crate) fn of_json(push: u64, expires_at: u64, json: Vec<u8>) -> PushFrame {
        let miop = match serde_json::from_slice(&json) {
            Ok(ServerFrame::Push(push)) => in_miop(&push),
            // No node sends that. A device passes over a frame without a byte, and the push goes on waiting for it.
            _ => Bytes::new(),
        };
        PushFrame { push, expires_at, miop, json: json.into() }
    }
}

/// The whole MIOP frame of a push.
fn in_miop(push: &Push) -> Bytes {
    let body = push.body.get();
    let mut bytes = Vec::with_capacity(body.len() + 64);
    let frame = miop::Push {
        push: push.push,
        expires_at: push.expires_at,
        collapse_key: push.collapse_key.as_deref(),
        priority: u64::from(push.high),
        content_type: &push.content_type,
        body: body.as_bytes(),
    };
    miop::Frame::Push(frame).put(&mut bytes);
    bytes.into()
}

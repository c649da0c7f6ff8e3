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
        let miop = miop::Frame::Push(miop::Push {
            push: push.push,
            expires_at: push.expires_at,
            collapse_key: push.collapse_key.as_deref(),
            priority: u64::from(push.high),
            content_type: &push.content_type,
            body: body.as_bytes(),
        });
        let mut bytes = Vec::with_capacity(body.len() + 64);
        miop.put(&mut bytes);
        let json = ServerFrame::Push(Push {
            push: push.push,
            expires_at: push.expires_at,
            collapse_key: push.collapse_key.clone(),
            high: push.high,
            content_type: push.content_type.clone(),
            body: RawValue::from_string(body.to_owned()).unwrap_or_else(|_| RawValue::NULL.to_owned()),
        });
        // Writing to memory cannot fail for these types.
        let json = serde_json::to_vec(&json).unwrap_or_default();
        Arc::new(PushFrame { push: push.push, expires_at: push.expires_at, miop: bytes.into(), json: json.into() })
    }
}

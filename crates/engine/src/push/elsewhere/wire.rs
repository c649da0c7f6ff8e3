//! What an outpost and the worker say to each other.

use crate::push::{DeviceNo, PushFrame};
use serde::{Deserialize, Serialize};
use tidings_protocol::error::{ErrorCode, Refusal};

/// The numbers of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    /// Of this packet, from 1; 0: it carries nothing, and is not confirmed.
    pub(super) number: u64,
    /// All packets of the other direction up to this one have come.
    pub(super) heard: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Said {
    /// From an outpost. Its first packet opens the stream.
    Up { from: String, stream: u64, head: Head, items: Vec<Up> },
    /// From the worker.
    Down { stream: u64, head: Head, frames: Vec<WireFrame>, items: Vec<Down> },
    /// From the worker, which does not know this stream, or not any more.
    Unknown { stream: u64 },
    /// From the worker: it has begun.
    Leads { from: String, boot_id: u64 },
    /// From an outpost whose node stops.
    Bye { from: String, stream: u64 },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Up {
    Register {
        /// The session's name at the outpost.
        session: u64,
        user: u64,
        device_id: String,
        device_kind: String,
        app_version: Option<String>,
        since: u64,
    },
    Left {
        device: DeviceNo,
        session: u64,
    },
    Written {
        push: u64,
        devices: Vec<DeviceNo>,
    },
    Acknowledged {
        device: DeviceNo,
        pushes: Vec<u64>,
    },
}

/// Frames are named by their place in the packet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Down {
    Registered {
        session: u64,
        result: Result<DeviceNo, WireRefusal>,
    },
    Pending {
        session: u64,
        frames: Vec<u32>,
        high: bool,
    },
    Sessions {
        frame: u32,
        sessions: Vec<u64>,
        high: bool,
    },
    /// Devices as a serialized bitmap.
    Matching {
        frame: u32,
        devices: Vec<u8>,
        high: bool,
    },
}

/// A push as WebSocket sessions write it: devices over MIOP are the leader's own sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct WireFrame {
    push: u64,
    expires_at: u64,
    json: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct WireRefusal {
    code: ErrorCode,
    detail: String,
    retry_after_ms: Option<u64>,
}

impl Said {
    pub(super) fn encode(&self) -> Vec<u8> {
        // Writing to memory cannot fail.
        postcard::to_stdvec(self).unwrap_or_default()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Said> {
        postcard::from_bytes(bytes).ok()
    }
}

impl Up {
    /// Roughly, on the wire.
    pub(super) fn size(&self) -> usize {
        match self {
            Up::Register { device_id, device_kind, app_version, .. } => {
                32 + device_id.len() + device_kind.len() + app_version.as_deref().map_or(0, str::len)
            }
            Up::Left { .. } => 16,
            Up::Written { devices, .. } => 16 + 5 * devices.len(),
            Up::Acknowledged { pushes, .. } => 16 + 8 * pushes.len(),
        }
    }

    /// Whether it says something of pushes, which is as true in another stream.
    pub(super) fn outlives_its_stream(&self) -> bool {
        matches!(self, Up::Written { .. } | Up::Acknowledged { .. })
    }
}

impl From<&PushFrame> for WireFrame {
    fn from(frame: &PushFrame) -> Self {
        WireFrame { push: frame.push, expires_at: frame.expires_at, json: frame.json.to_vec() }
    }
}

impl From<WireFrame> for PushFrame {
    fn from(frame: WireFrame) -> Self {
        let WireFrame { push, expires_at, json } = frame;
        PushFrame { push, expires_at, miop: bytes::Bytes::new(), json: json.into() }
    }
}

impl From<Refusal> for WireRefusal {
    fn from(refusal: Refusal) -> Self {
        let Refusal { code, detail, retry_after_ms } = refusal;
        WireRefusal { code, detail, retry_after_ms }
    }
}

impl From<WireRefusal> for Refusal {
    fn from(refusal: WireRefusal) -> Self {
        let WireRefusal { code, detail, retry_after_ms } = refusal;
        Refusal { code, detail, retry_after_ms }
    }
}

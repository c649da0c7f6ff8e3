//! The messages between the push worker of the leader and the clients of other nodes. Postcard's form: the order of
//! variants and fields is part of it, their names are not.

use crate::{
    PushFrame,
    reports::{Report, by_push, devices_of},
};
use roaring::RoaringBitmap;
use serde::{Deserialize, Serialize};
use tidings_domain::push_store::DeviceNo;
use tidings_protocol::error::{ErrorCode, Refusal};

/// The numbers of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    /// The packet's own number, from 1. A packet without items has the number 0 and is not acknowledged.
    pub(crate) number: u64,
    /// The packets of the other direction up to this number have arrived.
    pub(crate) ack: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum PushMessage {
    /// A packet from a client to the leader. Packet 1 opens the stream.
    Up { from: String, stream: u64, header: Header, items: Vec<UpItem> },
    /// A packet from the leader to a client.
    Down { stream: u64, header: Header, frames: Vec<WireFrame>, items: Vec<DownItem> },
    /// From the leader: it does not know this stream, or has closed it.
    UnknownStream { stream: u64 },
    /// From the leader: its worker has started.
    LeaderStarted { from: String, boot_id: u64 },
    /// From a client whose node stops.
    Close { from: String, stream: u64 },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum UpItem {
    Register {
        /// The session's id at the client, as in every other item.
        session: u64,
        user: u64,
        device_id: String,
        device_kind: String,
        app_version: Option<String>,
        since: u64,
    },
    SessionEnded {
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
    /// Many devices have acknowledged the push: a serialized bitmap. Behind [`Gate::PushReportSets`](tidings_domain::gates::Gate::PushReportSets).
    AcknowledgedBy {
        push: u64,
        devices: Vec<u8>,
    },
}

/// Items refer to frames by index in the packet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum DownItem {
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

/// A push as WebSocket sessions write it. What devices over MIOP are written is made of it where they are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct WireFrame {
    push: u64,
    expires_at: u64,
    json: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct WireRefusal {
    code: ErrorCode,
    detail: String,
    retry_after_ms: Option<u64>,
}

impl PushMessage {
    pub(crate) fn encode(&self) -> Vec<u8> {
        // Writing to memory cannot fail.
        postcard::to_stdvec(self).unwrap_or_default()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<PushMessage> {
        postcard::from_bytes(bytes).ok()
    }
}

impl UpItem {
    /// The encoded size, roughly.
    pub(crate) fn approximate_size(&self) -> usize {
        match self {
            UpItem::Register { device_id, device_kind, app_version, .. } => {
                32 + device_id.len() + device_kind.len() + app_version.as_deref().map_or(0, str::len)
            }
            UpItem::SessionEnded { .. } => 16,
            UpItem::Written { devices, .. } => 16 + 5 * devices.len(),
            UpItem::Acknowledged { pushes, .. } => 16 + 8 * pushes.len(),
            UpItem::AcknowledgedBy { devices, .. } => 16 + devices.len(),
        }
    }

    /// Whether the item holds in a stream to another leader, too: reports about pushes do, those about sessions do not.
    pub(crate) fn outlives_stream(&self) -> bool {
        matches!(self, UpItem::Written { .. } | UpItem::Acknowledged { .. } | UpItem::AcknowledgedBy { .. })
    }
}

/// So many devices that have acknowledged a push are reported as a set, which takes two dozen bytes before its first device.
const SET_DEVICES_MIN: usize = 8;
/// More devices are several sets: a set is shorter than a packet.
pub(crate) const SET_DEVICES_MAX: usize = 16 * 1024;

/// Acknowledgements as items: of many devices as sets, if they may be, and the others device by device.
pub(crate) fn acknowledgement_items(acknowledged: Vec<Report>, with_sets: bool) -> Vec<UpItem> {
    let mut items = Vec::new();
    let mut by_device = Vec::new();
    by_push(acknowledged, |push, reports| {
        if with_sets && reports.len() >= SET_DEVICES_MIN {
            let set = |some| UpItem::AcknowledgedBy { push, devices: to_bytes(devices_of(some)) };
            items.extend(reports.chunks(SET_DEVICES_MAX).map(set));
        } else {
            by_device.extend(reports.iter().map(|(push, device)| (*device, *push)));
        }
    });
    by_device.sort_unstable();
    for of_device in by_device.chunk_by(|one, next| one.0 == next.0) {
        let pushes = of_device.iter().map(|(_, push)| *push).collect();
        items.push(UpItem::Acknowledged { device: of_device[0].0, pushes });
    }
    items
}

/// A set of devices as it travels.
pub(crate) fn to_bytes(mut devices: RoaringBitmap) -> Vec<u8> {
    devices.optimize();
    let mut bytes = Vec::with_capacity(devices.serialized_size());
    // Writing to memory cannot fail.
    let _ = devices.serialize_into(&mut bytes);
    bytes
}

/// The devices of a set that has come; none, if it is no set.
pub(crate) fn from_bytes(bytes: &[u8]) -> Option<RoaringBitmap> {
    RoaringBitmap::deserialize_from(bytes).ok()
}

impl From<&PushFrame> for WireFrame {
    fn from(frame: &PushFrame) -> Self {
        WireFrame { push: frame.push, expires_at: frame.expires_at, json: frame.json.to_vec() }
    }
}

impl WireFrame {
    pub(crate) fn into_frame(self) -> PushFrame {
        let WireFrame { push, expires_at, json } = self;
        PushFrame::of_json(push, expires_at, json)
    }
}

impl From<Refusal> for WireRefusal {
    fn from(refusal: Refusal) -> Self {
        // Nothing that the hook refuses is a push.
        let Refusal { code, detail, retry_after_ms, reason: _ } = refusal;
        WireRefusal { code, detail, retry_after_ms }
    }
}

impl From<WireRefusal> for Refusal {
    fn from(refusal: WireRefusal) -> Self {
        let WireRefusal { code, detail, retry_after_ms } = refusal;
        Refusal { code, detail, retry_after_ms, reason: None }
    }
}

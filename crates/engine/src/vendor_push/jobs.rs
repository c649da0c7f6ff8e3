//! The rows of what vendors are still to be handed: one message, for some devices of one vendor.

use crate::reach_trace::{Record, Whom};
use serde::{Deserialize, Serialize};
use tidings_domain::{
    chat_rows::{encode, vendor_job_key},
    model::*,
    store::{ROW_BYTES_MAX, RowChange, StoreError, StoreResult},
};
use tidings_protocol::http::{PushVendor, ReachOutcome};

/// Bytes of a row's targets, so that a row with all the rest stays below its limit.
const TARGETS_BYTES_MAX: usize = ROW_BYTES_MAX - 256;

/// The number of a user, and the id of a device.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Target(pub(super) u64, pub(super) String);

impl Target {
    pub(super) fn record(&self, outcome: ReachOutcome, cause: Option<String>) -> Record {
        Record { whom: Whom::Device(self.0, self.1.clone()), outcome, cause }
    }
}

/// The value of a row. The names are short since there are many.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Job {
    #[serde(rename = "c")]
    pub(super) conversation: u64,
    #[serde(rename = "s")]
    pub(super) seq: u64,
    #[serde(rename = "t")]
    pub(super) targets: Vec<Target>,
    #[serde(rename = "a", default, skip_serializing_if = "is_default")]
    pub(super) attempts: u32,
    /// Users are told though they have a session: it did not acknowledge the message.
    #[serde(rename = "o", default, skip_serializing_if = "is_default")]
    pub(super) even_online: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Job {
    pub(super) fn decode(row: &[u8]) -> StoreResult<Job> {
        serde_json::from_slice(row)
            .map_err(|error| StoreError::Damaged(format!("a notification for a vendor: {error}")))
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

/// Gathers the devices of one message and one vendor into rows.
pub(super) struct JobWriter {
    vendor: PushVendor,
    position: Position,
    part: u64,
    job: Job,
    bytes: usize,
}

impl JobWriter {
    /// The rows get the parts from `part` on.
    pub(super) fn new(vendor: PushVendor, entry: &StoredEntry, conversation: ConversationNo, part: u64) -> JobWriter {
        let job =
            Job { conversation: conversation.0, seq: entry.seq, targets: Vec::new(), attempts: 0, even_online: false };
        JobWriter { vendor, position: entry.position, part, job, bytes: 0 }
    }

    #[must_use]
    pub(super) fn even_online(mut self, even_online: bool) -> JobWriter {
        self.job.even_online = even_online;
        self
    }

    pub(super) fn add(&mut self, target: Target, changes: &mut Vec<RowChange>) {
        let bytes = encode(&target).len() + 1;
        if self.bytes + bytes > TARGETS_BYTES_MAX {
            self.finish(changes);
        }
        self.bytes += bytes;
        self.job.targets.push(target);
    }

    /// Writes what has been gathered.
    pub(super) fn finish(&mut self, changes: &mut Vec<RowChange>) {
        if self.job.targets.is_empty() {
            return;
        }
        let key = vendor_job_key(self.vendor, self.position, self.part);
        changes.push(RowChange { key, value: Some(self.job.encode()) });
        self.job.targets.clear();
        (self.part, self.bytes) = (self.part + 1, 0);
    }
}

//! The rows of pushes whose devices fall back to a provider. They are in the lists of the providers' other jobs, so that they are tried again
//! and given up in the same way.

use super::{Due, JobPart, TARGETS_BYTES_MAX, Target, is_default};
use crate::json_len::{digits, json_len};
use serde::{Deserialize, Serialize};
use tidings_domain::{
    chat_rows::encode,
    model::Position,
    store::{RowChange, StoreError, StoreResult},
};

/// The value of such a row.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PushJob {
    #[serde(rename = "n")]
    pub(crate) push: u64,
    /// Until when the push lives, in milliseconds since 1970 UTC.
    #[serde(rename = "e")]
    pub(crate) expires_at: u64,
    #[serde(rename = "t")]
    pub(crate) targets: Vec<Target>,
    #[serde(rename = "a", default, skip_serializing_if = "is_default")]
    pub(crate) attempts: u32,
    /// From when the notification's time to live counts: the end of quiet hours that had deferred it, or when a dead letter became this job.
    /// 0: from when the devices fell back.
    #[serde(rename = "d", default, skip_serializing_if = "is_default")]
    pub(crate) counts_from: u64,
    /// Why the last attempt failed.
    #[serde(rename = "x", default, skip_serializing_if = "is_default")]
    pub(crate) cause: Option<String>,
}

impl PushJob {
    pub(crate) fn decode(row: &[u8]) -> StoreResult<PushJob> {
        serde_json::from_slice(row)
            .map_err(|error| StoreError::Damaged(format!("a push that a provider is still to notify of: {error}")))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Adds the rows of this job, each with as many of the devices as it has room for, from `part` on.
    pub(crate) fn add_rows(
        &self,
        due: Due,
        position: Position,
        mut part: JobPart,
        targets: Vec<Target>,
        changes: &mut Vec<RowChange>,
    ) {
        let (mut row, mut bytes) = (Vec::new(), 0);
        let mut add = |targets: Vec<Target>| {
            let job = PushJob { targets, ..self.clone() };
            changes.push(RowChange { key: due.key(position, part), value: Some(job.encode()) });
            part = part.next();
        };
        for target in targets {
            let more = json_len(&target.1) + digits(target.0) + 4;
            if bytes + more > TARGETS_BYTES_MAX {
                add(std::mem::take(&mut row));
                bytes = 0;
            }
            bytes += more;
            row.push(target);
        }
        if !row.is_empty() {
            add(row);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tidings_domain::store::ROW_BYTES_MAX;
    use tidings_protocol::http::Channel;

    #[test]
    fn rows_stay_below_their_limit_and_have_all_devices() {
        let targets: Vec<Target> = (0..200).map(|no| Target(u64::MAX - no, "\"".repeat(64))).collect();
        let job = PushJob { push: u64::MAX, cause: Some("c".repeat(80)), ..PushJob::default() };
        let mut changes = Vec::new();
        job.add_rows(Due::Now(Channel::Fcm), 7, JobPart::push_page(3), targets.clone(), &mut changes);
        let mut keys: Vec<_> = changes.iter().map(|change| change.key.clone()).collect();
        keys.dedup();
        assert_eq!(keys.len(), changes.len());
        let rows: Vec<Vec<u8>> = changes.into_iter().map(|change| change.value.unwrap()).collect();
        assert!(rows.len() > 1 && rows.iter().all(|row| row.len() <= ROW_BYTES_MAX));
        let found: Vec<Target> = rows.iter().flat_map(|row| PushJob::decode(row).unwrap().targets).collect();
        assert_eq!(found, targets);
    }
}

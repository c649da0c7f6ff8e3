//! A node whose name a later process has taken remembers that in its data folder, and does not take the name back while the
//! other process has it.
//!
//! A process that starts takes its node's name from whichever process has it: after a crash the name's lease still runs. If
//! two nodes have one name by mistake, each start would displace the other, and supervisors would start them for ever, each
//! time at the cost of the other's sessions. So only the first start of each takes the name: the later one keeps it, and the
//! displaced one says at every start why it ends, until the other gives the name back.

use anyhow::{Context, Result};
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tidings_domain::{commit_log::CommitLog, end_reason::EndReason};

/// The name that was taken from this data folder's node.
const DISPLACED_FILE: &str = "displaced";
/// How often a start looks whether the name is free.
const LOOK_EVERY: Duration = Duration::from_millis(200);

fn file(data_dir: &Path) -> PathBuf {
    data_dir.join(DISPLACED_FILE)
}

/// Remembers that another process has taken the name.
pub(crate) fn remember(data_dir: &Path, name: &str) {
    if let Err(error) = fs::write(file(data_dir), name) {
        tracing::warn!(%error, "the loss of the name cannot be remembered: the next start takes the name back");
    }
}

/// Returns at once unless this folder's node lost the name earlier. Then it waits until no other process has it, a lease at
/// the most. Blocks.
///
/// # Errors
/// Another process has the name ([`EndReason::Displaced`]), or the store does not say.
pub(crate) fn wait_for_name(data_dir: &Path, log: &dyn CommitLog, name: &str, lease: Duration) -> Result<()> {
    match fs::read_to_string(file(data_dir)) {
        Ok(lost) if lost == name => {}
        _ => return Ok(()),
    }
    let until = Instant::now() + lease;
    while let Some(holder) = log.name_holder(name).context("who has the name of [cluster] name")? {
        if Instant::now() >= until {
            let at = holder.address;
            return Err(anyhow::Error::new(EndReason::Displaced { name: name.into() }).context(format!(
                "the process at {at} took the name {name:?} from this node and still has it: stop that process, or give \
                 this node another [cluster] name"
            )));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    match fs::remove_file(file(data_dir)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).context("forgetting that the name was lost")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tidings_domain::{commit_log::*, function::Function, model::Position, store::StoreResult};

    /// A log in which another process has every name.
    struct Taken;

    impl CommitLog for Taken {
        fn committed_after(&self, after: Position, _: usize) -> StoreResult<LogPage> {
            Ok(LogPage { span: tidings_domain::store::PositionRange { after, through: after }, records: vec![] })
        }

        fn newest_position(&self) -> StoreResult<Position> {
            Ok(0)
        }

        fn prune(&self, _: u64) -> StoreResult<PruneProgress> {
            Ok(PruneProgress::default())
        }

        fn heartbeat(&self, _: &NodeInfo, _: u64, _: &[Function], _: bool) -> Result<ClusterView, HeartbeatError> {
            Err(HeartbeatError::Displaced)
        }

        fn name_holder(&self, name: &str) -> StoreResult<Option<NodeInfo>> {
            let text = format!(
                r#"{{"name":"{name}","boot_id":1,"address":"http://10.0.0.2:8080","link":"","version":"","roles":"all"}}"#
            );
            Ok(Some(serde_json::from_str(&text).unwrap()))
        }

        fn release_lease(&self, _: u64) -> StoreResult<()> {
            Ok(())
        }
    }

    #[test]
    fn only_a_name_that_was_lost_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let wait = |name: &str| wait_for_name(folder.path(), &Taken, name, Duration::ZERO);
        wait("a").unwrap();
        remember(folder.path(), "a");
        let error = wait("a").unwrap_err();
        assert_eq!(error.downcast_ref(), Some(&EndReason::Displaced { name: "a".into() }));
        assert!(format!("{error:#}").contains("http://10.0.0.2:8080"), "{error:#}");
        // The node was given another name.
        wait("b").unwrap();
    }
}

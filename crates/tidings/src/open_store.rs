//! Opens the store that the settings name: a data folder, or a database.

use crate::settings::Settings;
use anyhow::{Context, Result};
use std::{path::Path, sync::Arc};
use tidings_api::OnlineBackup;
use tidings_domain::{commit_log::CommitLog, gates::Gate, store::Store};
use tidings_store::{EmbeddedStore, PostgresStore};

/// An open store, with the ports that its kind has.
pub(crate) struct OpenedStore {
    pub(crate) store: Arc<dyn Store>,
    /// Present for a data folder; a database is backed up with its own tools.
    pub(crate) backup: Option<Arc<dyn OnlineBackup>>,
    /// Present for a database: the commits of all nodes on it.
    pub(crate) log: Option<Arc<dyn CommitLog>>,
}

pub(crate) fn open(settings: &Settings) -> Result<OpenedStore> {
    if let Some(options) = settings.postgres_options() {
        // The folder still holds the `listening` file.
        let folder = &settings.data_dir;
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        // The error does not name the url, which holds a password.
        let store = PostgresStore::open(options).context("opening the database of [store] url")?;
        let store = Arc::new(store);
        if settings.cluster_node().is_none() {
            store.open_gates(&Gate::ALL.iter().map(|gate| gate.name()).collect::<Vec<_>>(), &[])?;
        }
        return Ok(OpenedStore { log: Some(store.clone()), store, backup: None });
    }
    let store = EmbeddedStore::open(settings.embedded_options());
    let store = Arc::new(store.with_context(|| format!("opening {}", settings.data_dir.display()))?);
    if let Err(error) = store.open_gates() {
        // A full disk keeps no server from starting. The next start opens them.
        tracing::warn!(%error, "the data folder does not note yet what this program may write");
    }
    Ok(OpenedStore { backup: Some(Arc::new(EmbeddedBackup(store.clone()))), store, log: None })
}

/// The data folder as the HTTP API sees it.
struct EmbeddedBackup(Arc<EmbeddedStore>);

impl OnlineBackup for EmbeddedBackup {
    fn back_up(&self, folder: &Path) -> Result<u64, String> {
        self.0.backup(folder).map(|made| made.bytes).map_err(|error| error.to_string())
    }
}

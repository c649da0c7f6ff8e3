//! The store that the settings name.

use crate::settings::Settings;
use anyhow::{Context, Result};
use std::{path::Path, sync::Arc};
use tidings_api::BackUp;
use tidings_engine::{cluster::log::CommitLog, store::Store};
use tidings_store::{EmbeddedStore, PostgresStore};

/// A store, and how it is copied where that is ours to do.
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) backup: Option<Arc<dyn BackUp>>,
    /// What other nodes commit, of a store that several may have.
    pub(crate) log: Option<Arc<dyn CommitLog>>,
}

pub(crate) fn open(settings: &Settings) -> Result<Opened> {
    if let Some(options) = settings.postgres_options() {
        // What is not stored, such as where the doors are, is told in the folder still.
        let folder = &settings.data_dir;
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        // The url is not told: it has a password in it.
        let store = PostgresStore::open(options).context("opening the database of [store] url")?;
        let store = Arc::new(store);
        return Ok(Opened { log: Some(store.clone()), store, backup: None });
    }
    let store = EmbeddedStore::open(settings.embedded_options());
    let store = Arc::new(store.with_context(|| format!("opening {}", settings.data_dir.display()))?);
    Ok(Opened { backup: Some(Arc::new(Copier(store.clone()))), store, log: None })
}

/// The store as the HTTP door sees it.
struct Copier(Arc<EmbeddedStore>);

impl BackUp for Copier {
    fn back_up(&self, folder: &Path) -> Result<u64, String> {
        self.0.backup(folder).map(|made| made.bytes).map_err(|error| error.to_string())
    }
}

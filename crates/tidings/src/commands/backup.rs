//! `tidings backup`: a consistent copy of the data folder.

use crate::{
    commands::listen::running_server,
    development::Keys,
    file_access,
    settings::{SettingArgs, Settings},
};
use anyhow::{Context, Result, bail};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};
use tidings_store::{EmbeddedOptions, EmbeddedStore, FolderView, OpenError};

/// A backup takes as long as copying the data takes.
const BACKUP_TIMEOUT: Duration = Duration::from_secs(6 * 60 * 60);

#[derive(clap::Args)]
pub(crate) struct Backup {
    /// A folder that does not exist yet; while the server runs it must be within its `backup_dir`
    folder: PathBuf,
    #[command(flatten)]
    settings: SettingArgs,
}

impl Backup {
    pub(crate) fn run(self) -> Result<ExitCode> {
        file_access::keep_to_this_account();
        let settings = self.settings.load()?;
        settings
            .needs_folder("backup", "Back the database up with PostgreSQL's own tools: pg_dump or pg_basebackup.")?;
        let folder = std::path::absolute(&self.folder)?;
        if !settings.data_dir.join("format").exists() {
            bail!("{} is not a data folder", settings.data_dir.display());
        }
        // The folder's lock, unlike the `listening` file, shows for certain whether a server has the folder open.
        // A view: the backup of a folder changes nothing in it, not even its format.
        let bytes = match FolderView::of(&settings.data_dir) {
            Ok(view) => EmbeddedStore::open(EmbeddedOptions::new(view.path()))?.backup(&folder)?.bytes,
            Err(OpenError::Locked(_)) => self.ask_the_server(&settings, &folder)?,
            Err(error) => return Err(error.into()),
        };
        println!("{bytes} bytes copied to {}", folder.display());
        Ok(ExitCode::SUCCESS)
    }

    fn ask_the_server(&self, settings: &Settings, folder: &Path) -> Result<u64> {
        let key = match settings.all_api_keys().next() {
            Some(key) => key,
            None => Keys::read(&settings.data_dir)?.context("no api_key is set")?.api_key,
        };
        let mut http = tidings_client::http::HttpClient::new(running_server(&self.settings)?, key);
        http.set_timeout(BACKUP_TIMEOUT);
        let request = serde_json::json!({ "path": folder.display().to_string() });
        let made: serde_json::Value = http.post("/v1/admin/backup", &request)?;
        made["bytes"].as_u64().context("the server's answer has no size")
    }
}

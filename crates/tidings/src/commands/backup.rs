//! `tidings backup`: a consistent copy of the data folder.

use crate::{commands::listen::running_server, development::Keys, settings::SettingArgs};
use anyhow::{Context, Result};
use std::{path::PathBuf, process::ExitCode};

#[derive(clap::Args)]
pub(crate) struct Backup {
    /// A folder that does not exist yet; while the server runs it must be within its `backup_dir`
    folder: PathBuf,
    #[command(flatten)]
    settings: SettingArgs,
}

impl Backup {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let settings = self.settings.load()?;
        let folder = std::path::absolute(&self.folder)?;
        let address = running_server(&self.settings).context("asking the server that runs")?;
        let key = match settings.all_api_keys().next() {
            Some(key) => key,
            None => Keys::read(&settings.data_dir)?.context("no api_key is set")?.api_key,
        };
        let mut http = tidings_client::http::Http::new(address, &key);
        let made: serde_json::Value =
            http.post("/v1/admin/backup", &serde_json::json!({ "path": folder.display().to_string() }))?;
        println!("{made}");
        Ok(ExitCode::SUCCESS)
    }
}

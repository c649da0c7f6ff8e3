//! `tidings check`: verifies a data folder.

use crate::settings::SettingArgs;
use anyhow::{Result, bail};
use std::{path::PathBuf, process::ExitCode};

#[derive(clap::Args)]
pub(crate) struct Check {
    /// The data folder; the configured one unless given. Its server must be stopped
    folder: Option<PathBuf>,
    /// Cut a damaged tail of the journal off, so that the folder opens again
    #[arg(long)]
    repair: bool,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: SettingArgs,
}

impl Check {
    /// Exits with 1 when something is wrong.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let folder = match self.folder {
            Some(folder) => folder,
            None => {
                let settings = self.settings.load()?;
                settings.needs_folder("check", "Look into the database with PostgreSQL's own tools: pg_amcheck.")?;
                settings.data_dir
            }
        };
        if !folder.join("format").exists() {
            bail!("{} is not a data folder", folder.display());
        }
        let repaired = if self.repair { tidings_store::repair(&folder)? } else { Vec::new() };
        let report = tidings_store::check::check(&folder)?;
        if self.json {
            println!("{}", serde_json::json!({ "sound": report.is_sound(), "repaired": repaired, "report": report }));
        } else {
            for cut in &repaired {
                let tidings_store::Repaired { journal, at, bytes_dropped, batches_dropped } = cut;
                println!("{journal} was cut at {at}: {bytes_dropped} bytes went, with {batches_dropped} whole batches");
            }
            print!("{report}");
            println!("{}", if report.is_sound() { "sound" } else { "NOT SOUND" });
        }
        Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

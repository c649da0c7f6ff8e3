//! `tidings divide`: a database of one order commits in several from then on.

use crate::{file_access, settings::SettingArgs};
use anyhow::{Context, Result, bail};
use std::{io::Write, process::ExitCode};
use tidings_store::divide_database;

/// Divide the database of the settings into orders that commit side by side; `docs/operations/orders.md` says when that pays
#[derive(clap::Args)]
pub(crate) struct Divide {
    /// How many orders: 2 to 256. It cannot be changed afterwards
    #[arg(long, value_name = "COUNT")]
    orders: u16,
    #[command(flatten)]
    settings: SettingArgs,
}

impl Divide {
    pub(crate) fn run(self) -> Result<ExitCode> {
        file_access::keep_to_this_account();
        let Some(options) = self.settings.load()?.postgres_options() else {
            bail!("[store] url names no database: a data folder commits in one order");
        };
        // No error names the url, which holds a password.
        let position = divide_database(&options, self.orders).context("dividing the database of [store] url")?;
        let text = format!(
            "the database commits in {} orders behind position {position}; the cursors of clients go on. Start the nodes\n",
            self.orders
        );
        // Who closes standard output early has seen enough; the exit status says the rest.
        let _ = std::io::stdout().write_all(text.as_bytes());
        Ok(ExitCode::SUCCESS)
    }
}

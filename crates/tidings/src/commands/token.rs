//! `tidings token`: a client token, as the app's servers would sign it.

use crate::{development, settings::SettingArgs};
use anyhow::{Context, Result};
use std::{process::ExitCode, time::Duration};

#[derive(clap::Args)]
pub(crate) struct Token {
    /// The user's id
    user: String,
    /// The token's lifetime, in seconds
    #[arg(long, default_value_t = 24 * 60 * 60)]
    lifetime_s: u64,
    #[command(flatten)]
    settings: SettingArgs,
}

impl Token {
    pub(crate) fn run(self) -> Result<ExitCode> {
        println!("{}", sign(&self.settings, &self.user, Duration::from_secs(self.lifetime_s))?);
        Ok(ExitCode::SUCCESS)
    }
}

/// Signs with the configured secret, or with that of a server in development mode on the same folder.
pub(crate) fn sign(settings: &SettingArgs, user: &str, lifetime: Duration) -> Result<String> {
    let settings = settings.load()?;
    let key = match settings.token_key.filter(|key| !key.is_empty()) {
        Some(key) => key,
        None => {
            development::Keys::read(&settings.data_dir)?
                .context("no token_key is set, and no server in development mode has left one in the data folder")?
                .token_key
        }
    };
    Ok(tidings_client::token::sign(&key, user, lifetime))
}

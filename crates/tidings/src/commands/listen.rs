//! `tidings listen`: a client that prints what arrives, one frame a line.

use super::token;
use crate::settings::SettingArgs;
use anyhow::{Context, Result, bail};
use std::{
    io::Write,
    net::{SocketAddr, ToSocketAddrs},
    process::ExitCode,
    time::Duration,
};
use tidings_client::session::Session;
use tidings_protocol::frames::ClientFrame;

#[derive(clap::Args)]
pub(crate) struct Listen {
    /// The user's id; signs a token with the configured secret
    user: String,
    /// A token instead of one that is signed here
    #[arg(long)]
    token: Option<String>,
    /// Where the server listens; the one on the data folder unless given
    #[arg(long, value_name = "ADDRESS")]
    server: Option<String>,
    /// Continue after this cursor
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    settings: SettingArgs,
}

impl Listen {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let address = match &self.server {
            Some(server) => resolve(server)?,
            None => running_server(&self.settings)?,
        };
        let token = match self.token {
            Some(token) => token,
            None => token::sign(&self.settings, &self.user, Duration::from_secs(24 * 60 * 60))?,
        };
        let device = format!("listen-{}", std::process::id());
        let mut session = Session::open(address, &token, &device, self.cursor.as_deref())?;
        let bound = session.bound.clone().context("the server did not say bound")?;
        eprintln!("connected to {address} as {}; waiting for messages (Ctrl-C ends)", bound.user);
        let heartbeat = Duration::from_millis(bound.heartbeat_ms);
        loop {
            match session.next(heartbeat)? {
                Some(frame) => {
                    let mut out = std::io::stdout().lock();
                    writeln!(out, "{}", serde_json::to_string(&frame)?)?;
                    out.flush()?;
                }
                None => session.write(&ClientFrame::Ping { reference: None })?,
            }
        }
    }
}

/// The address of the server that serves the configured data folder.
pub(crate) fn running_server(settings: &SettingArgs) -> Result<SocketAddr> {
    let settings = settings.load()?;
    let file = settings.data_dir.join(crate::serve::LISTENING);
    let text = std::fs::read_to_string(&file).with_context(|| {
        format!("no server seems to run on {} (no {})", settings.data_dir.display(), file.display())
    })?;
    let address = text.lines().find_map(|line| line.strip_prefix("http="));
    address.and_then(|address| address.parse().ok()).with_context(|| format!("{} is not readable", file.display()))
}

fn resolve(server: &str) -> Result<SocketAddr> {
    let authority = server.strip_prefix("http://").or(server.strip_prefix("ws://")).unwrap_or(server);
    let authority = authority.split('/').next().unwrap_or(authority);
    match authority.to_socket_addrs().with_context(|| format!("{server:?} is not an address"))?.next() {
        Some(address) => Ok(address),
        None => bail!("{server:?} has no address"),
    }
}

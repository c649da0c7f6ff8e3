//! `tidings listen`: a client that prints what arrives, one frame a line, and acknowledges pushes.

use super::token;
use crate::settings::SettingArgs;
use anyhow::{Context, Result, bail};
use std::{
    io::Write,
    net::{SocketAddr, ToSocketAddrs},
    process::ExitCode,
    time::Duration,
};
use tidings_client::{
    device::{DeviceFrame, DevicePush, DeviceSession},
    session::Session,
};
use tidings_protocol::{
    frames::{ClientFrame, Push, ServerFrame},
    miop::{Bind, VERSION},
};

#[derive(clap::Args)]
pub(crate) struct Listen {
    /// The user's id; this command signs a token with the configured secret
    user: String,
    /// A token to use instead of signing one
    #[arg(long)]
    token: Option<String>,
    /// The server's address; by default that of the server on the data folder
    #[arg(long, value_name = "ADDRESS")]
    server: Option<String>,
    /// The protocol to connect with
    #[arg(long, value_enum, default_value_t = Via::Ws)]
    via: Via,
    /// The device's id; with MIOP, pushes are kept for the device while it is away
    #[arg(long, value_name = "ID")]
    device: Option<String>,
    /// Continue after this cursor
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    settings: SettingArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Via {
    /// WebSocket
    Ws,
    /// MIOP, the binary protocol of devices
    Miop,
}

impl Listen {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let address = match (&self.server, self.via) {
            (Some(server), _) => resolve(server)?,
            (None, Via::Ws) => running_server(&self.settings)?,
            (None, Via::Miop) => running_address(&self.settings, "miop")?,
        };
        let token = match &self.token {
            Some(token) => token.clone(),
            None => token::sign(&self.settings, &self.user, Duration::from_secs(24 * 60 * 60))?,
        };
        let device = self.device.clone().unwrap_or_else(|| format!("listen-{}", std::process::id()));
        match self.via {
            Via::Ws => self.by_websocket(address, &token, &device),
            Via::Miop => self.by_miop(address, &token, &device),
        }
    }

    fn by_websocket(&self, address: SocketAddr, token: &str, device: &str) -> Result<ExitCode> {
        let session = Session::open(address, token, device, self.cursor.as_deref());
        let mut session = session.with_context(|| format!("connecting to {address} by WebSocket"))?;
        let bound = session.bound.clone().context("the server did not say bound")?;
        greet(address, &bound.user);
        let heartbeat = Duration::from_millis(bound.heartbeat_ms);
        loop {
            match session.next(heartbeat)? {
                Some(frame) => print(&frame)?,
                None => session.write(&ClientFrame::Ping { reference: None })?,
            }
        }
    }

    fn by_miop(&self, address: SocketAddr, token: &str, device: &str) -> Result<ExitCode> {
        let bind = Bind {
            version: VERSION,
            token,
            device_id: device,
            app_version: Some(env!("CARGO_PKG_VERSION")),
            cursor: self.cursor.as_deref(),
            ..Bind::default()
        };
        let mut session =
            DeviceSession::open(address, &bind).with_context(|| format!("connecting to {address} by MIOP"))?;
        greet(address, session.bound.as_ref().map_or("", |bound| &bound.user));
        loop {
            match session.next(Duration::from_secs(session.heartbeat_s.max(1)))? {
                Some(DeviceFrame::Chat(frame)) => print(&frame)?,
                Some(DeviceFrame::Push(push)) => {
                    let number = push.push;
                    print(&ServerFrame::Push(as_json(push)?))?;
                    // Acknowledged only once it is printed: if the reader of our output goes away, the push comes again.
                    session.acknowledge(&[number])?;
                }
                Some(DeviceFrame::Redirect { after_ms, .. }) => print(&ServerFrame::Reconnect { after_ms })?,
                Some(DeviceFrame::Error { code, message, .. }) => eprintln!("{code}: {message}"),
                Some(DeviceFrame::Heartbeat { .. } | DeviceFrame::Bound(_)) => {}
                None => session.heartbeat()?,
            }
        }
    }
}

fn greet(address: SocketAddr, user: &str) {
    eprintln!("connected to {address} as {user}; waiting for messages (Ctrl-C ends)");
}

fn print(frame: &ServerFrame) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(frame)?)?;
    Ok(out.flush()?)
}

/// A push as WebSocket clients get it; a body that is no JSON, which only other servers send, as a string.
fn as_json(push: DevicePush) -> Result<Push> {
    let body = String::from_utf8_lossy(&push.body).into_owned();
    let body = match serde_json::from_str(&body) {
        Ok(json) => json,
        Err(_) => serde_json::value::to_raw_value(&body)?,
    };
    Ok(Push {
        push: push.push,
        expires_at: push.expires_at,
        collapse_key: push.collapse_key,
        high: push.priority == 1,
        content_type: push.content_type,
        body,
    })
}

/// The address of the server that serves the configured data folder.
pub(crate) fn running_server(settings: &SettingArgs) -> Result<SocketAddr> {
    running_address(settings, "http")
}

fn running_address(settings: &SettingArgs, name: &str) -> Result<SocketAddr> {
    let settings = settings.load()?;
    let file = settings.data_dir.join(crate::serve::LISTENING_FILE);
    let text = std::fs::read_to_string(&file).with_context(|| {
        format!("no server seems to run on {} (no {})", settings.data_dir.display(), file.display())
    })?;
    let address = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let address = address.with_context(|| format!("{} names no {name} address", file.display()))?;
    address.parse().with_context(|| format!("{} is not readable", file.display()))
}

pub(crate) fn resolve(server: &str) -> Result<SocketAddr> {
    if let Some(scheme) = ["https", "wss", "miops"].iter().find(|scheme| server.starts_with(&format!("{scheme}://"))) {
        bail!("this command does not speak {scheme}://: name an address without TLS");
    }
    let authority =
        ["http://", "ws://", "miop://"].iter().find_map(|scheme| server.strip_prefix(scheme)).unwrap_or(server);
    let authority = authority.split('/').next().unwrap_or(authority);
    match authority
        .to_socket_addrs()
        .with_context(|| format!("{server:?} is not a host and port, such as 127.0.0.1:8080"))?
        .next()
    {
        Some(address) => Ok(address),
        None => bail!("{server:?} has no address"),
    }
}

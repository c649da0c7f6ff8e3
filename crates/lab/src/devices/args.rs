//! The options of the benches with devices.

pub use super::worker_protocol::DeviceProtocol;
use crate::options::{Rate, TargetArgs, parse_duration, parse_setting};
use clap::Args;
use std::{net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

/// The devices of a run, their clients, and the server that they connect to.
#[derive(Debug, Clone, Args)]
pub struct DeviceArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// The number of devices; unless given, as many as the bench is usually run with
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub devices: usize,
    #[arg(long, value_enum, default_value_t = DeviceProtocol::Miop)]
    pub via: DeviceProtocol,
    /// With --url: where devices connect
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub listeners: Vec<SocketAddr>,
    /// With --url and --via miops: the server's certificate in PEM, valid for `localhost`
    #[arg(long, value_name = "FILE")]
    pub certificate: Option<PathBuf>,
    /// Gateway processes of a server of the bench's own: a number, 0 for none, or `auto`
    #[arg(long, default_value = "auto")]
    pub gateways: Gateways,
    /// Client processes; one per 18000 devices unless given
    #[arg(long)]
    pub clients: Option<usize>,
    /// Connects a second (open loop), or `max` (closed loop)
    #[arg(long, default_value = "max")]
    pub rate: Rate,
    /// Connections between begun and bound, per client process
    #[arg(long, default_value_t = 256)]
    pub under_way: usize,
    /// The heartbeat interval that devices ask for
    #[arg(long, default_value = "60s", value_parser = parse_duration)]
    pub heartbeat: Duration,
    /// All devices must be bound within this
    #[arg(long, default_value = "5m", value_parser = parse_duration)]
    pub within: Duration,
    /// Files that the bench's own server may open
    #[arg(long, value_name = "NUMBER")]
    pub server_descriptors: Option<u64>,
    /// A setting of the bench's own server and gateways, such as TIDINGS_LOG_LEVEL=debug; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = parse_setting)]
    pub settings: Vec<(String, String)>,
}

impl DeviceArgs {
    /// The options with `usual` devices unless `--devices` is given.
    pub(crate) fn with_default_devices(&self, usual: usize) -> Self {
        DeviceArgs { devices: if self.devices == 0 { usual } else { self.devices }, ..self.clone() }
    }

    pub(crate) fn server_settings(&self) -> impl Iterator<Item = (String, String)> {
        self.settings.iter().cloned()
    }
}

/// The number of gateway processes of a server of the bench's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gateways {
    /// None while one process can hold all devices.
    Auto,
    Count(usize),
}

impl FromStr for Gateways {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Gateways::Auto),
            _ => text.parse().map(Gateways::Count).map_err(|_| "a number or `auto`".into()),
        }
    }
}

#[derive(Debug, Clone, Args)]
pub struct ConnectArgs {
    #[command(flatten)]
    pub devices: DeviceArgs,
    /// How long all are held after the last is bound
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub hold: Duration,
    /// Push to all at the end
    #[arg(long)]
    pub push: bool,
    /// With --gateways 0: the devices have bound before, to a server that was started anew since. What connections cost
    /// is then told apart from what it costs to get to know a device
    #[arg(long)]
    pub known: bool,
}

#[derive(Debug, Clone, Args)]
pub struct StormArgs {
    #[command(flatten)]
    pub devices: DeviceArgs,
    /// Storms, one after the other
    #[arg(long, default_value_t = 1)]
    pub rounds: usize,
    /// Without the loop that only accepts
    #[arg(long)]
    pub no_bare: bool,
}

#[derive(Debug, Clone, Args)]
pub struct FailoverArgs {
    /// --devices are those on the gateway that is killed
    #[command(flatten)]
    pub devices: DeviceArgs,
    /// Devices on the other gateways, which must not notice
    #[arg(long, default_value_t = 1_000)]
    pub bystanders: usize,
    /// Between two pushes
    #[arg(long, default_value = "500ms", value_parser = parse_duration)]
    pub push_every: Duration,
    /// The killed gateway must be forgotten within this
    #[arg(long, default_value = "30s", value_parser = parse_duration)]
    pub lease: Duration,
}

#[derive(Debug, Clone, Args)]
pub struct BareAcceptArgs {
    #[arg(long)]
    pub listen: SocketAddr,
}

#[derive(Debug, Clone, Args)]
pub struct DevicePushArgs {
    #[command(flatten)]
    pub devices: DeviceArgs,
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Between the last acknowledgement of one round and the next push
    #[arg(long, default_value = "200ms", value_parser = parse_duration)]
    pub pause: Duration,
    /// Direct messages a second, alone and then beside the pushes
    #[arg(long, value_name = "RATE")]
    pub beside_chat: Option<f64>,
    /// How long those are sent, each time
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub chat_duration: Duration,
    /// Their conversations
    #[arg(long, default_value_t = 50)]
    pub pairs: usize,
}

#[derive(Debug, Clone, Args)]
pub struct ExceptionsArgs {
    /// --devices are the sockets that never bind
    #[command(flatten)]
    pub devices: DeviceArgs,
    /// Devices whose heartbeats stop
    #[arg(long, default_value_t = 1_000)]
    pub silent: usize,
    /// The limit of descriptors that one server of the bench's own gets
    #[arg(long, default_value_t = 1_024)]
    pub descriptors: u64,
    /// The protocol's test vectors
    #[arg(long, value_name = "FOLDER", default_value = super::invalid_frames::VECTORS)]
    pub vectors: PathBuf,
}

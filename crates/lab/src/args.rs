//! The commands of `tidings bench` and their options.

pub use crate::devices::args::{
    BareAcceptArgs, ConnectArgs, DevicePushArgs, ExceptionsArgs, FailoverArgs, ScenarioArgs, StormArgs,
};
pub use crate::popups::args::{PopupArgs, PopupCapsArgs, PopupCrashArgs, PopupGrowthArgs};
pub use crate::{chaos::args::ChaosArgs, cluster_cost::args::ClusterCostArgs};
use clap::{Args, Subcommand, ValueEnum};
use std::{path::PathBuf, str::FromStr, time::Duration};

/// Load a server the way its users will, and prove with counts that nothing was lost.
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub bench: Bench,
}

#[derive(Debug, Clone, Subcommand)]
pub enum Bench {
    /// A group with many members online: HTTP send to every member's WebSocket
    Group(GroupArgs),
    /// One message to a big group, time to the last receiver, beside a loop that only writes
    Broadcast(BroadcastArgs),
    /// A recorded chat: its authors as users, one room, everyone a member
    Replay(ReplayArgs),
    /// Direct messages, each to a connected recipient
    Direct(DirectArgs),
    /// Direct messages beside floods: a group, an official account, one user, queues that are full
    Isolation(IsolationArgs),
    /// Kill the server at random moments under load, and prove that nothing acknowledged was lost
    Crash(CrashArgs),
    /// Kill, restart, freeze, stop and cut off parts of a cluster under load, and prove that no member of a group missed anything
    Chaos(ChaosArgs),
    /// What a message costs Redis and PostgreSQL, beside an inbox per member written one by one
    ClusterCost(ClusterCostArgs),
    /// Rates and memory at growing group sizes, histories and numbers of users
    Growth(GrowthArgs),
    /// Devices bind, stay with heartbeats, and what that costs
    Connect(ConnectArgs),
    /// All devices drop at once and come back at once, beside a loop that only accepts
    Storm(StormArgs),
    /// A gateway is killed with its devices on it while pushes go on
    Failover(FailoverArgs),
    /// What no device should do, and whether the server answers it as stated
    Exceptions(ExceptionsArgs),
    /// One of the four stages of a test of connections
    Scenario(ScenarioArgs),
    /// A push to every device: time to the last of them and to the last acknowledgement
    Push(DevicePushArgs),
    /// What a home page asks: decisions and events of a million users, beside nginx
    Popup(PopupArgs),
    /// Decisions a second with more popups, and with more users
    PopupGrowth(PopupGrowthArgs),
    /// All devices of a user ask at once, for every kind of cap, also after a restart
    PopupCaps(PopupCapsArgs),
    /// Kill the server at random moments under decisions and events, and prove what it remembers
    PopupCrash(PopupCrashArgs),
    #[command(hide = true)]
    Worker,
    #[command(hide = true)]
    DeviceWorker,
    #[command(hide = true)]
    BareAccept(BareAcceptArgs),
    #[command(hide = true)]
    BareServer(BareArgs),
    #[command(hide = true)]
    WsEcho,
    #[command(hide = true)]
    WsProbe(WsProbeArgs),
}

impl BenchArgs {
    /// The settings of the bench's own servers that were asked for, as variables.
    pub fn settings(&self) -> &[(String, String)] {
        match &self.bench {
            Bench::Connect(args) => &args.devices.settings,
            Bench::Storm(args) => &args.devices.settings,
            Bench::Failover(args) => &args.devices.settings,
            Bench::Exceptions(args) => &args.devices.settings,
            Bench::Scenario(args) => &args.devices.settings,
            Bench::Push(args) => &args.devices.settings,
            Bench::Popup(args) => &args.settings,
            Bench::PopupGrowth(args) => &args.settings,
            _ => &[],
        }
    }
}

/// Which server, and where the figures go.
#[derive(Debug, Clone, Default, Args)]
pub struct TargetArgs {
    /// The server, such as http://127.0.0.1:8080; without it the bench starts one of its own. Several, apart by commas, are
    /// nodes of one cluster: connections of `group`, `replay`, `direct` and `broadcast` are spread over them
    #[arg(long)]
    pub url: Option<String>,
    #[arg(long, env = "TIDINGS_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// The secret that client tokens are signed with (HS256)
    #[arg(long, env = "TIDINGS_TOKEN_KEY", hide_env_values = true)]
    pub token_key: Option<String>,
    /// The core that the load client keeps to; the last one unless given
    #[arg(long)]
    pub client_core: Option<usize>,
    /// Without a delivery or an answer for so long, what is missing counts as lost
    #[arg(long, default_value = "15s", value_parser = duration)]
    pub patience: Duration,
    /// Write the figures to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct GroupArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Members online
    #[arg(long, default_value_t = 300)]
    pub members: usize,
    /// Members in all, the rest offline
    #[arg(long)]
    pub group_size: Option<usize>,
    /// Messages a second (open loop), or `max` (closed loop)
    #[arg(long, default_value = "1000")]
    pub rate: Rate,
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub duration: Duration,
    #[arg(long, default_value_t = 200)]
    pub body_bytes: usize,
    /// HTTP connections that send, or sessions with `--via ws`
    #[arg(long, default_value_t = 32)]
    pub senders: usize,
    #[arg(long, value_enum, default_value_t = Via::Http)]
    pub via: Via,
    /// Unanswered sends per session
    #[arg(long, default_value_t = 64)]
    pub pipeline: usize,
    /// Messages in one HTTP request
    #[arg(long, default_value_t = 1)]
    pub batch: usize,
    /// With `--rate max`: messages between send and last receiver
    #[arg(long, default_value_t = 1000)]
    pub window: usize,
    /// Find the highest rate whose 99th percentile is within `--target-ms`
    #[arg(long)]
    pub search: bool,
    #[arg(long, default_value_t = 500.0)]
    pub target_ms: f64,
}

#[derive(Debug, Clone, Args)]
pub struct BroadcastArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    #[arg(long, default_value_t = 10_000)]
    pub members: usize,
    #[arg(long, default_value_t = 20)]
    pub rounds: usize,
    #[arg(long, default_value_t = 200)]
    pub body_bytes: usize,
    /// Between the last receiver of one round and the next send
    #[arg(long, default_value = "200ms", value_parser = duration)]
    pub pause: Duration,
}

#[derive(Debug, Clone, Args)]
pub struct ReplayArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// JSON lines with `at`, `user` and `text`, possibly gzipped
    pub file: PathBuf,
    /// Members online; the other authors are offline members
    #[arg(long, default_value_t = 300)]
    pub online: usize,
    /// So many times real time, or `max`
    #[arg(long, default_value = "max")]
    pub speed: Rate,
    /// Only the first so many messages
    #[arg(long)]
    pub limit: Option<usize>,
    /// Messages in one request
    #[arg(long, default_value_t = 200)]
    pub batch: usize,
    /// Messages between send and last receiver, at most
    #[arg(long, default_value_t = 1000)]
    pub window: usize,
}

#[derive(Debug, Clone, Args)]
pub struct DirectArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    #[arg(long, value_enum, default_value_t = Via::Http)]
    pub via: Via,
    /// Conversations, each with a sender and a connected recipient
    #[arg(long, default_value_t = 200)]
    pub pairs: usize,
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub duration: Duration,
    /// Messages a second (open loop), or `max` (closed loop)
    #[arg(long, default_value = "max")]
    pub rate: Rate,
    /// HTTP connections that send
    #[arg(long, default_value_t = 256)]
    pub connections: usize,
    /// Unanswered sends per session
    #[arg(long, default_value_t = 64)]
    pub pipeline: usize,
    #[arg(long, default_value_t = 200)]
    pub body_bytes: usize,
    #[arg(long, default_value_t = 1)]
    pub batch: usize,
    /// With `--rate max`: messages between send and recipient
    #[arg(long, default_value_t = 8000)]
    pub window: usize,
}

#[derive(Debug, Clone, Args)]
pub struct IsolationArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Direct messages a second
    #[arg(long, default_value_t = 200.0)]
    pub direct_rate: f64,
    #[arg(long, default_value_t = 50)]
    pub pairs: usize,
    /// Members online of the group and followers online of the official account that are flooded
    #[arg(long, default_value_t = 300)]
    pub members: usize,
    /// Of each part: idle, and beside each flood
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub duration: Duration,
    /// Only these floods
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Flood::Group, Flood::Official, Flood::User, Flood::Full])]
    pub floods: Vec<Flood>,
    /// Flood at this part of the rate that each flood reaches alone, instead of as fast as it goes: 0.4 leaves a core to
    /// spare on a machine with two. The flood that fills queues is left out.
    #[arg(long, value_parser = share)]
    pub share: Option<f64>,
}

fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "must be a number".to_owned())?;
    match share > 0.0 && share <= 1.0 {
        true => Ok(share),
        false => Err("must be above 0 and no more than 1".to_owned()),
    }
}

/// What is sent beside direct messages, as fast as it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Flood {
    /// A group, from many senders
    Group,
    /// An official account
    Official,
    /// One user's direct messages to one other, so many at once that the user's share of the queue is used up
    User,
    /// A group, in batches of many senders and so many at once that the queues are full
    Full,
}

#[derive(Debug, Clone, Args)]
pub struct CrashArgs {
    #[arg(long, default_value_t = 50)]
    pub kills: usize,
    /// Conversations under load
    #[arg(long, default_value_t = 6)]
    pub conversations: usize,
    /// Repeats an earlier run's moments
    #[arg(long)]
    pub seed: Option<u64>,
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct GrowthArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Members online in both groups
    #[arg(long, default_value_t = 300)]
    pub members: usize,
    /// Members of the big group
    #[arg(long, default_value_t = 100_000)]
    pub group_size: usize,
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub duration: Duration,
    /// Sizes of history at which commit rate and opening are measured
    #[arg(long, value_delimiter = ',', default_values_t = [1_000_000, 10_000_000])]
    pub messages: Vec<u64>,
    /// Offline users whose memory is measured
    #[arg(long, default_value_t = 200_000)]
    pub users: usize,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [GrowthPart::Group, GrowthPart::History, GrowthPart::Users])]
    pub parts: Vec<GrowthPart>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GrowthPart {
    Group,
    History,
    Users,
}

#[derive(Debug, Clone, Args)]
pub struct BareArgs {
    #[arg(long)]
    pub receivers: usize,
    #[arg(long)]
    pub conversation: String,
    /// The client's core
    #[arg(long)]
    pub avoid_core: usize,
}

/// What the clients of the lab and of tests are shown to.
#[derive(Debug, Clone, Args)]
pub struct WsProbeArgs {
    /// A server that says each text that it is sent as the `conversation` of a `typing` frame
    #[arg(long)]
    pub address: std::net::SocketAddr,
}

impl std::fmt::Display for Via {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Via::Http => "HTTP",
            Via::Ws => "WebSocket",
        })
    }
}

/// How sends go in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Via {
    Http,
    Ws,
}

/// So many a second, or as many as go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    Max,
    PerSecond(f64),
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Rate::Max => f.write_str("as fast as it goes"),
            Rate::PerSecond(rate) => write!(f, "{rate} a second"),
        }
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "max" => Ok(Rate::Max),
            _ => match text.parse::<f64>() {
                Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(Rate::PerSecond(rate)),
                _ => Err("a positive number or `max`".into()),
            },
        }
    }
}

/// `500ms`, `10s`, `2m`, or a number of seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        _ => return Err("a duration such as 500ms, 10s or 2m".into()),
    };
    let number: f64 = number.parse().map_err(|_| "a duration such as 500ms, 10s or 2m".to_owned())?;
    Duration::try_from_secs_f64(number * scale).map_err(|error| error.to_string())
}

/// What a lab decides about servers of its own: told otherwise it would look for them where they are not.
const DECIDED: [&str; 3] = ["TIDINGS_DATA_DIR", "TIDINGS_HTTP_LISTEN", "TIDINGS_MIOP_LISTEN"];
/// What joins the nodes of a cluster.
const JOINING: [&str; 4] =
    ["TIDINGS_STORE_URL", "TIDINGS_CLUSTER_REDIS", "TIDINGS_CLUSTER_NAME", "TIDINGS_CLUSTER_ADVERTISE"];

/// A setting of a server that the lab starts.
pub(crate) fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE")?;
    if DECIDED.contains(&name) {
        return Err(format!("{name} is chosen for each server, and cannot be set"));
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// A setting of all nodes of a cluster that the lab starts.
pub(crate) fn cluster_setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = setting(text)?;
    if JOINING.contains(&name.as_str()) {
        return Err(format!("{name} is what joins the nodes of this cluster, and cannot be set"));
    }
    Ok((name, value))
}

/// What was asked for by that name, last; or a new key.
pub(crate) fn key_or_random(settings: &[(String, String)], name: &str) -> String {
    let given = settings.iter().rfind(|(known, value)| known == name && !value.is_empty());
    given.map_or_else(crate::server::random_key, |(_, value)| value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_durations_are_read() {
        assert_eq!("max".parse(), Ok(Rate::Max));
        assert_eq!("2.5".parse(), Ok(Rate::PerSecond(2.5)));
        assert!("0".parse::<Rate>().is_err());
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert!(duration("2h").is_err());
    }

    #[test]
    fn what_the_lab_decides_cannot_be_set() {
        assert_eq!(setting("TIDINGS_LOG_LEVEL=a=b"), Ok(("TIDINGS_LOG_LEVEL".into(), "a=b".into())));
        assert!(setting("TIDINGS_DATA_DIR=/tmp").is_err_and(|why| why.contains("TIDINGS_DATA_DIR")));
        assert!(setting("TIDINGS_STORE_URL=postgres://x").is_ok());
        assert!(cluster_setting("TIDINGS_STORE_URL=postgres://x").is_err_and(|why| why.contains("TIDINGS_STORE_URL")));
        assert!(cluster_setting("TIDINGS_HTTP_LISTEN=127.0.0.1:1").is_err());
    }

    #[test]
    fn a_key_that_is_asked_for_is_taken() {
        let settings = [("TIDINGS_API_KEY", "a"), ("TIDINGS_API_KEY", "b"), ("TIDINGS_TOKEN_KEY", "")];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(key_or_random(&settings, "TIDINGS_API_KEY"), "b");
        assert_eq!(key_or_random(&settings, "TIDINGS_TOKEN_KEY").len(), 64);
    }
}

//! Options that several commands share, and the parsers of their values.

use clap::{Args, ValueEnum};
use std::{path::PathBuf, str::FromStr, time::Duration};

/// The server under test, and where the figures are written.
#[derive(Debug, Clone, Args)]
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
    #[arg(long, default_value = "15s", value_parser = parse_duration)]
    pub patience: Duration,
    /// The run is invalid if the lab sent more than one message of a hundred this much later than planned, by its own fault
    #[arg(long, default_value = "50ms", value_parser = parse_duration)]
    pub lag_max: Duration,
    #[command(flatten)]
    pub load_agents: AgentsArgs,
}

/// Load clients that other machines lend.
#[derive(Debug, Clone, Args)]
pub struct AgentsArgs {
    /// Load from these agents (`tidings bench agent`) instead of from this machine, as `HOST:PORT,HOST:PORT`
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT")]
    pub agents: Vec<String>,
    /// The agents' secret. Other users of this machine see it in the list of processes: prefer the variable or the file
    #[arg(long, env = "TIDINGS_AGENT_TOKEN", hide_env_values = true)]
    pub agent_token: Option<String>,
    /// A file whose first line is the agents' secret
    #[arg(long, conflicts_with = "agent_token")]
    pub agent_token_file: Option<PathBuf>,
    /// An agent that says nothing for so long has vanished, and ends the run
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub agent_timeout: Duration,
}

impl Default for AgentsArgs {
    fn default() -> Self {
        AgentsArgs {
            agents: Vec::new(),
            agent_token: None,
            agent_token_file: None,
            agent_timeout: Duration::from_secs(10),
        }
    }
}

/// How late the lab may send, at the 99th percentile, unless `--lag-max` says otherwise.
pub(crate) const LAG_MAX: Duration = Duration::from_millis(50);

impl Default for TargetArgs {
    fn default() -> Self {
        TargetArgs {
            url: None,
            api_key: None,
            token_key: None,
            client_core: None,
            patience: Duration::from_secs(15),
            lag_max: LAG_MAX,
            load_agents: AgentsArgs::default(),
        }
    }
}

impl std::fmt::Display for SendProtocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SendProtocol::Http => "HTTP",
            SendProtocol::Ws => "WebSocket",
        })
    }
}

/// The protocol over which messages are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SendProtocol {
    Http,
    Ws,
}

/// An offered rate: so many a second (open loop), or as many as the server takes (closed loop).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    Max,
    PerSecond(f64),
}

/// As scenarios have it.
impl From<Rate> for toml::Value {
    fn from(rate: Rate) -> Self {
        match rate {
            Rate::Max => "max".into(),
            Rate::PerSecond(rate) => rate.into(),
        }
    }
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

/// A value as options, and scenarios, name it.
pub(crate) fn value_name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// A duration as [`parse_duration`] reads it.
pub(crate) fn duration_text(duration: Duration) -> String {
    format!("{}ms", duration.as_secs_f64() * 1e3)
}

/// Parses `500ms`, `10s`, `2m`, or a number of seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
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

/// Parses a share such as `50%`.
pub(crate) fn parse_share(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').unwrap_or(text).parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent < 100.0 => Ok(percent / 100.0),
        _ => Err("a share between 0% and 100%, such as 50%".into()),
    }
}

/// Settings that the lab chooses for each of its servers: with other values it would not find them.
const RESERVED_SETTINGS: [&str; 3] = ["TIDINGS_DATA_DIR", "TIDINGS_HTTP_LISTEN", "TIDINGS_MIOP_LISTEN"];
/// Settings that join the nodes of a cluster, which the lab chooses as well.
const CLUSTER_SETTINGS: [&str; 4] =
    ["TIDINGS_STORE_URL", "TIDINGS_CLUSTER_REDIS", "TIDINGS_CLUSTER_NAME", "TIDINGS_CLUSTER_ADVERTISE"];

/// Parses `NAME=VALUE`, a setting of a server that the lab starts.
pub(crate) fn parse_setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE")?;
    if RESERVED_SETTINGS.contains(&name) {
        return Err(format!("{name} is chosen for each server, and cannot be set"));
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// Parses `NAME=VALUE`, a setting of all nodes of a cluster that the lab starts.
pub(crate) fn parse_cluster_setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = parse_setting(text)?;
    if CLUSTER_SETTINGS.contains(&name.as_str()) {
        return Err(format!("{name} is what joins the nodes of this cluster, and cannot be set"));
    }
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_durations_are_parsed() {
        assert_eq!("max".parse(), Ok(Rate::Max));
        assert_eq!("2.5".parse(), Ok(Rate::PerSecond(2.5)));
        assert!("0".parse::<Rate>().is_err());
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert!(parse_duration("2h").is_err());
    }

    #[test]
    fn settings_that_the_lab_chooses_are_refused() {
        assert_eq!(parse_setting("TIDINGS_LOG_LEVEL=a=b"), Ok(("TIDINGS_LOG_LEVEL".into(), "a=b".into())));
        assert!(parse_setting("TIDINGS_DATA_DIR=/tmp").is_err_and(|why| why.contains("TIDINGS_DATA_DIR")));
        assert!(parse_setting("TIDINGS_STORE_URL=postgres://x").is_ok());
        assert!(
            parse_cluster_setting("TIDINGS_STORE_URL=postgres://x").is_err_and(|why| why.contains("TIDINGS_STORE_URL"))
        );
        assert!(parse_cluster_setting("TIDINGS_HTTP_LISTEN=127.0.0.1:1").is_err());
    }
}

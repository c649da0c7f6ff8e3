//! What the lab's parent and its worker process say to each other: one JSON line per command or report.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};

/// Parent to worker, on the worker's stdin. Each is answered by one [`Report`] other than `Progress`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Command {
    Open(Open),
    Run(Phase),
    /// Spread the connections over all servers again; answered by `Opened`.
    Spread,
    /// Plan nothing more in the phase that runs. It ends as usual, and that is the answer.
    Enough,
}

/// Opens all connections; answered by `Opened` when every receiver is bound.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Open {
    /// Where servers are; connections are spread over them in turn, and one that breaks goes to the next.
    pub(crate) addresses: Vec<SocketAddr>,
    /// A connection on which nothing came for so long although something was due is given up; unset: none is.
    pub(crate) silence_ms: Option<u64>,
    pub(crate) api_key: String,
    pub(crate) token_key: String,
    /// The other side is the bare loop: no upgrade, no bind.
    pub(crate) bare: bool,
    /// Keep to this core.
    pub(crate) core: Option<usize>,
    /// Be the least urgent on it: for a flood beside which another client measures.
    pub(crate) yielding: bool,
    /// Without progress for so long, what is missing counts as lost.
    pub(crate) patience_ms: u64,
    pub(crate) conversations: Vec<Conversation>,
    pub(crate) receivers: Vec<Receiver>,
    /// Connections that send over HTTP.
    pub(crate) http_senders: usize,
    /// Users whose sessions send over WebSocket.
    pub(crate) ws_senders: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Conversation {
    pub(crate) id: String,
    /// Its last `seq` before the run.
    pub(crate) base_seq: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Receiver {
    pub(crate) user: String,
    /// Which conversation it is to get everything of.
    pub(crate) conversation: usize,
}

/// One measured stretch of load.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Phase {
    pub(crate) pace: Pace,
    pub(crate) content: Content,
    /// Messages in one HTTP request; 1 uses the single send.
    pub(crate) batch: usize,
    /// Unanswered sends per WebSocket session.
    pub(crate) pipeline: usize,
    /// Send again what was refused for the moment, instead of counting it as refused for good.
    pub(crate) retry: bool,
}

/// When messages are due.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Pace {
    /// Open loop: so many a second, due at evenly spaced times whatever happens.
    Rate { per_second: f64, duration_ms: u64 },
    /// Closed loop: as fast as it goes, with at most `window` messages between send and last receiver.
    Window { window: usize, duration_ms: u64 },
    /// The content's own times, so many times as fast (open loop).
    Recorded { speed: f64 },
    /// All of the content, closed loop.
    All { window: usize },
    /// One message at a time, each when the one before has reached everyone and `pause_ms` have passed.
    Rounds { rounds: usize, pause_ms: u64 },
}

/// What is sent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Content {
    /// Texts of this length; message `n` goes to conversation `n` and comes from sender `n`, both in turn.
    Generated { body_bytes: usize, senders: Vec<String> },
    /// A recorded log, to conversation 0.
    Corpus { file: PathBuf, limit: Option<usize> },
}

/// Worker to parent, on the worker's stdout.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Report {
    Opened { seconds: f64 },
    Progress(Progress),
    Done(Box<Outcome>),
    Failed { why: String },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Progress {
    pub(crate) seconds: f64,
    pub(crate) sent: u64,
    pub(crate) committed: u64,
    pub(crate) delivered: u64,
    /// The longest that a receiver waited for its next message, lately.
    pub(crate) pause_ms: f64,
    /// Receivers that have not got what others got by the last report.
    pub(crate) lagging: u64,
    /// In this phase so far.
    pub(crate) reconnects: u64,
    pub(crate) refused: Refused,
}

/// Refusals by their code, those that were sent again as well.
pub(crate) type Refused = BTreeMap<String, u64>;

/// What a phase came to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub planned: u64,
    pub sent: u64,
    pub committed: u64,
    pub refused: u64,
    pub retried: u64,
    pub expected: u64,
    pub delivered: u64,
    pub lost: u64,
    pub doubled: u64,
    pub out_of_order: u64,
    pub altered: u64,
    /// Sessions that the server closed (a slow reader, a drain) and that resumed from their cursor.
    pub reconnects: u64,
    /// The longest that a receiver waited for its next message, in milliseconds.
    pub pause_ms: f64,
    /// Refusals by their code, those that were sent again as well.
    pub refused_by_code: BTreeMap<String, u64>,
    /// From the first planned time to the last delivery.
    pub seconds: f64,
    /// From planned send to a receiver, in milliseconds.
    pub latency: Percentiles,
    /// From planned send to the answer, in milliseconds.
    pub acknowledged: Percentiles,
    /// How late this client got to what was due, in milliseconds: its own fault, not the server's.
    pub lateness: Percentiles,
    /// Per round: from planned send to the last receiver, in milliseconds.
    pub rounds: Vec<f64>,
    pub client_cpu_seconds: f64,
    /// Filled in by the parent, for a server that it started.
    pub server_cpu_seconds: Option<f64>,
    pub server_rss_bytes: Option<u64>,
    /// Faults in words, the first few.
    pub problems: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub p99_99: f64,
    pub max: f64,
}

impl Percentiles {
    /// From a histogram of microseconds.
    pub(crate) fn of(histogram: &hdrhistogram::Histogram<u64>) -> Self {
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Percentiles {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            max: histogram.max() as f64 / 1e3,
        }
    }
}

impl Outcome {
    /// Every count balances: nothing lost, doubled, out of order or altered.
    pub fn balances(&self) -> bool {
        self.lost + self.doubled + self.out_of_order + self.altered == 0 && self.delivered == self.expected
    }

    pub fn messages_per_second(&self) -> f64 {
        self.committed as f64 / self.seconds.max(1e-9)
    }

    pub fn deliveries_per_second(&self) -> f64 {
        self.delivered as f64 / self.seconds.max(1e-9)
    }

    /// The client fell behind its own schedule while its core had no time left: the figures are the lab's limit.
    pub fn lab_fell_behind(&self) -> bool {
        self.lateness.p99 > LATENESS_MS_MAX && self.client_cpu_seconds > 0.9 * self.seconds
    }
}

/// A client that gets to its sends later than this at the 99th percentile shapes what it measures.
const LATENESS_MS_MAX: f64 = 50.0;

//! Commands and reports between a bench and its load client, a worker process: one JSON line each.

use crate::{
    latency::{Curve, HistogramCounts, Percentiles},
    load_times::{LoadTimes, TimeCounts},
    mix::counts::MixCounts,
    phase_part::{AgentOutcome, LedgerLine, PartProgress, PhasePart},
    rate_profile::RateProfile,
    sampler::Samples,
    series::{Series, SeriesChange},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

/// A command to the worker, on its standard input. The worker answers each with one [`WorkerReport`] other than `Progress`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WorkerCommand {
    Open(WorkerConfig),
    Run(Phase),
    /// Spread the connections evenly over all servers again; answered by `Opened`.
    Rebalance,
    /// Plan no more messages in the running phase. Its `Done` is the answer.
    StopPlanning,
    /// Of several load clients: make a part of a phase ready, and read nothing until it begins; answered by `Prepared`.
    Prepare(Phase, PhasePart),
    /// All parts begin at this moment of the clock of the load client's machine.
    Begin {
        at_ns: u64,
    },
    /// The receivers of all load clients have the message of the round.
    EndRound,
    /// End the part of the phase; answered by the ledger and `PartDone`.
    Finish,
}

/// The connections of a worker and their servers; the worker answers `Opened` when every receiver is bound.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct WorkerConfig {
    /// The servers' addresses. Connections are spread over them in turn; one that breaks is opened again at another server.
    pub(crate) addresses: Vec<SocketAddr>,
    /// A connection that received nothing for so long, although data was due, is closed and opened again; unset: none is.
    pub(crate) silence_timeout_ms: Option<u64>,
    pub(crate) api_key: String,
    pub(crate) token_key: String,
    /// The server is the bare server, which needs neither an upgrade nor a bind.
    pub(crate) bare: bool,
    /// The core that the worker is pinned to.
    pub(crate) core: Option<usize>,
    /// Without progress for so long, missing deliveries count as lost.
    pub(crate) patience_ms: u64,
    pub(crate) participants: Participants,
    /// One of several load clients of a run, whose messages all carry this tag; unset: there is no other.
    pub(crate) run_tag: Option<String>,
}

/// The conversations, receivers and senders of a worker.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Participants {
    pub(crate) conversations: Vec<Conversation>,
    pub(crate) receivers: Vec<Receiver>,
    /// Connections that send over HTTP.
    pub(crate) http_senders: usize,
    /// Users whose sessions send over WebSocket.
    pub(crate) ws_senders: Vec<String>,
    /// Operations of the receivers beside plain messages, in the first conversation.
    pub(crate) mix: MixConfig,
    /// Every receiver says once in this interval what it has stored and read; unset: none does.
    pub(crate) receipts_interval: Option<Duration>,
    /// Receivers ask for compact entries.
    pub(crate) compact: bool,
    /// Run with the lowest priority: for a flood beside which another worker measures.
    pub(crate) low_priority: bool,
    /// The only server may end and come back at its address: connections are tried again until it does.
    pub(crate) server_returns: bool,
}

impl Participants {
    /// These users are all receivers of one conversation.
    pub(crate) fn of_group(conversation: Conversation, online: &[String]) -> Self {
        Participants {
            conversations: vec![conversation],
            receivers: online.iter().map(|user| Receiver { user: user.clone(), conversation: 0 }).collect(),
            ..Participants::default()
        }
    }

    pub(crate) fn connections(&self) -> usize {
        self.receivers.len() + self.http_senders + self.ws_senders.len()
    }
}

/// What receivers said of how far they have stored and read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ReceiptCounts {
    /// A `stored` and a `read` frame each.
    pub told: u64,
    pub accepted: u64,
    pub refused: u64,
    /// The `receipts` frames that came, and the marks and counts in them.
    pub frames_seen: u64,
    pub marks_seen: u64,
}

/// Operations beside plain messages: none by default.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct MixConfig {
    /// Operations for each plain message.
    pub(crate) per_message: f64,
    /// The first so many receivers may change the messages of others.
    pub(crate) moderators: usize,
    pub(crate) seed: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Conversation {
    pub(crate) id: String,
    /// The conversation's last `seq` before the run.
    pub(crate) base_seq: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Receiver {
    pub(crate) user: String,
    /// The conversation, by its index, of which this receiver must get every entry.
    pub(crate) conversation: usize,
}

/// One measured phase of load.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Phase {
    pub(crate) model: LoadModel,
    pub(crate) content: Content,
    /// Messages in one HTTP request; 1 uses the single send.
    pub(crate) batch: usize,
    /// Unanswered sends per WebSocket session.
    pub(crate) pipeline: usize,
    /// Whether sends that are refused with a retryable code are sent again; otherwise they count as refused.
    pub(crate) retry: bool,
    /// Whether reports of progress have the series, for the live view.
    #[serde(default)]
    pub(crate) tell_series: bool,
}

/// The arrival process of a phase: when messages are due.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LoadModel {
    /// Open loop: at a rate that may change, due however slowly the server answers.
    OpenLoop { profile: RateProfile },
    /// Closed loop: as many as the server takes, with at most `window` messages between send and last receiver.
    ClosedLoop { window: usize, duration_ms: u64 },
    /// Open loop: the recorded times of the content, `speed` times as fast.
    Recorded { speed: f64 },
    /// Closed loop over the whole content, once.
    ClosedLoopOnce { window: usize },
    /// One message at a time, each due `pause_ms` after the one before has reached all receivers.
    Rounds { rounds: usize, pause_ms: u64 },
}

impl LoadModel {
    /// At so many times the rate.
    pub(crate) fn times(self, factor: f64) -> Self {
        match self {
            LoadModel::OpenLoop { profile } => LoadModel::OpenLoop { profile: profile.scaled(factor) },
            model => model,
        }
    }
}

/// The messages of a phase.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Content {
    /// Texts of this length; message `n` is sent to conversation `n` by sender `n`, both modulo their number.
    Generated { body_bytes: usize, senders: Vec<String> },
    /// The same texts; message `n` is sent to recipient `n` by sender `n`, and so opens their direct conversation, conversation
    /// `n`, if it is the first one.
    FirstMessages { body_bytes: usize, senders: Vec<String>, recipients: Vec<String> },
    /// A recorded chat, sent to conversation 0.
    Corpus { file: PathBuf, limit: Option<usize> },
}

/// A report of the worker, on its standard output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WorkerReport {
    Opened { seconds: f64 },
    Progress(Progress),
    Done(Box<Outcome>),
    Prepared,
    PartProgress(PartProgress),
    Ledger(LedgerLine),
    PartDone(Box<PartOutcome>),
    Failed { why: String },
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Progress {
    pub(crate) seconds: f64,
    pub(crate) sent: u64,
    pub(crate) committed: u64,
    pub(crate) delivered: u64,
    /// The longest gap between two deliveries to one receiver since the last report.
    pub(crate) pause_ms: f64,
    /// Receivers that still lack an entry that another receiver had at the last report.
    pub(crate) lagging: u64,
    /// Reconnects in this phase so far.
    pub(crate) reconnects: u64,
    pub(crate) refused: RefusalCounts,
    /// Deliveries so far that were doubled, out of order or altered.
    #[serde(default)]
    pub(crate) faults: u64,
    /// The bins of the series that have changed since the last report.
    #[serde(default, skip_serializing_if = "SeriesChange::is_empty")]
    pub(crate) series: SeriesChange,
}

/// Refusals by their code, retried ones included.
pub(crate) type RefusalCounts = BTreeMap<String, u64>;

/// The run report of a phase.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// What was measured, in words; filled in by the bench.
    pub title: String,
    /// Ctrl-C ended the phase early: what was planned until then is counted and verified.
    pub interrupted: bool,
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
    /// Connections that ended, such as by a slow reader's close or a drain, and that were opened again from their cursor.
    pub reconnects: u64,
    /// The longest gap between two deliveries to one receiver, in milliseconds.
    pub pause_ms: f64,
    /// Refusals by their code, retried ones included.
    pub refused_by_code: BTreeMap<String, u64>,
    /// From the phase's start to the last delivery.
    pub seconds: f64,
    /// From planned send to delivery at each receiver, in milliseconds.
    pub latency: Percentiles,
    /// From planned send to the server's answer, in milliseconds.
    pub acknowledged: Percentiles,
    /// How late the load client sent due messages, in milliseconds: the lab's own delay, not the server's.
    pub lateness: Percentiles,
    /// The bound of [`lateness`](Self::lateness) at the 99th percentile above which the run is invalid; filled in by the bench.
    pub lag_max_ms: f64,
    /// Per round: from planned send to the last receiver, in milliseconds.
    pub rounds: Vec<f64>,
    /// Operations beside plain messages; unset without `--mix`.
    pub mix: Option<MixCounts>,
    /// Receipts of all receivers; unset without `--receipts`.
    pub receipts: Option<ReceiptCounts>,
    pub client_cpu_seconds: f64,
    /// Filled in by the bench, for a server that it started.
    pub server_cpu_seconds: Option<f64>,
    pub server_rss_bytes: Option<u64>,
    pub series: Series,
    pub latency_curve: Curve,
    pub acknowledged_curve: Curve,
    /// Filled in by the bench.
    pub samples: Samples,
    /// The first few faults in words.
    pub problems: Vec<String>,
    /// With `--agents`: the share of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<AgentOutcome>,
    /// With `--agents`: a latency from one machine to another is off by so much at most, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_error_ms: Option<f64>,
    /// Deliveries before their planned time by the corrected clocks: they count as 0.
    #[serde(default)]
    pub negative_latencies: u64,
    /// The earliest of them, in milliseconds. Beyond the clocks' error the clocks cannot be trusted.
    #[serde(default)]
    pub negative_latency_max_ms: f64,
}

impl Outcome {
    /// With the times of a load alone.
    pub(crate) fn of_times(times: &LoadTimes) -> Self {
        Outcome {
            latency: times.latency.percentiles(),
            acknowledged: times.acknowledged.percentiles(),
            lateness: times.lateness.percentiles(),
            latency_curve: times.latency.curve(),
            acknowledged_curve: times.acknowledged.curve(),
            series: times.series.series(),
            ..Outcome::default()
        }
    }

    /// Every count balances: nothing lost, doubled, out of order or altered, of messages and of the mix.
    pub fn balances(&self) -> bool {
        self.lost + self.doubled + self.out_of_order + self.altered == 0
            && self.delivered == self.expected
            && self.mix.as_ref().is_none_or(MixCounts::balances)
    }

    pub fn messages_per_second(&self) -> f64 {
        self.committed as f64 / self.seconds.max(1e-9)
    }

    pub fn deliveries_per_second(&self) -> f64 {
        self.delivered as f64 / self.seconds.max(1e-9)
    }

    /// The load client sent its messages late, whatever the reason: the figures are the lab's or the machine's, not the server's.
    pub fn lab_lagged(&self) -> bool {
        let clocks_failed = self.negative_latency_max_ms > self.clock_error_ms.unwrap_or(f64::INFINITY);
        self.lateness.p99 > self.lag_max_ms || self.agents.iter().any(|agent| agent.lagged) || clocks_failed
    }
}

/// What a part hands over at the end: its own outcome, and the histograms from which those of the whole are added up.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct PartOutcome {
    pub(crate) outcome: Outcome,
    pub(crate) times: TimeCounts,
    /// How late the load client's loop came round, for a part that sends nothing and so has no lateness.
    pub(crate) loop_lag: HistogramCounts,
    /// Deliveries before their planned time, and the earliest of them.
    pub(crate) negative: u64,
    pub(crate) early_max_ns: u64,
}

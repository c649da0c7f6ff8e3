//! What the parts of a cluster count by themselves, read before and after a stretch of load.

use crate::{
    LabError, process,
    topology::{
        Topology,
        resp::{Redis, Reply},
    },
};
use serde::Serialize;
use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    time::Duration,
};

/// The database tells its counts this late at most.
const DATABASE_LATE: Duration = Duration::from_millis(1_200);
/// Statements that are told by name.
const STATEMENTS_TOLD: usize = 12;

/// Counts since everything was started.
#[derive(Debug, Clone, Default)]
pub(super) struct Reading {
    /// By command, of the primaries.
    commands: BTreeMap<String, u64>,
    redis_cpu: f64,
    nodes_cpu: f64,
    database_cpu: f64,
    transactions: u64,
    /// By text; absent without the extension.
    statements: Option<HashMap<String, u64>>,
}

/// What one message cost.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Cost {
    pub(super) redis_commands: f64,
    pub(super) commands: BTreeMap<String, f64>,
    /// Of all servers, replicas too, per 1,000 messages.
    pub(super) redis_cpu_s: f64,
    pub(super) nodes_cpu_s: f64,
    pub(super) database_cpu_s: f64,
    pub(super) transactions: f64,
    pub(super) statements: Option<f64>,
    /// The most frequent ones.
    pub(super) by_statement: Vec<(String, f64)>,
}

impl Reading {
    pub(super) fn take(topology: &Topology) -> Result<Self, LabError> {
        std::thread::sleep(DATABASE_LATE);
        let mut reading = Reading::default();
        for number in topology.redis.primaries() {
            let mut redis = Redis::connect(topology.redis.address(number))?;
            let stats = redis.ask("INFO commandstats")?;
            for line in stats.text().lines() {
                let Some((name, rest)) = line.strip_prefix("cmdstat_").and_then(|line| line.split_once(':')) else {
                    continue;
                };
                let calls = rest.strip_prefix("calls=").and_then(|rest| rest.split(',').next()?.parse::<u64>().ok());
                *reading.commands.entry(name.to_owned()).or_default() += calls.unwrap_or(0);
            }
        }
        reading.commands.retain(|name, _| !is_housekeeping(name));
        reading.redis_cpu = topology.redis.pids().map(process::cpu_seconds).sum();
        reading.nodes_cpu = topology.node_pids().map(process::cpu_seconds).sum();
        let database = topology.database();
        reading.database_cpu = database.pids().into_iter().map(process::cpu_seconds).sum();
        let transactions =
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()";
        reading.transactions = database.sql(transactions)?.trim().parse().unwrap_or(0);
        if database.counts_statements() {
            let told = database.sql(
                "SELECT sum(calls) || ' ' || left(regexp_replace(query, '\\s+', ' ', 'g'), 90) FROM pg_stat_statements \
                 WHERE query NOT LIKE '%pg_stat_%' \
                 GROUP BY left(regexp_replace(query, '\\s+', ' ', 'g'), 90)",
            )?;
            let split = |line: &str| {
                let (calls, text) = line.split_once(' ')?;
                Some((text.to_owned(), calls.parse().ok()?))
            };
            reading.statements = Some(told.lines().filter_map(split).collect());
        }
        Ok(reading)
    }

    /// What was counted since `before`, by message.
    pub(super) fn since(&self, before: &Reading, messages: u64) -> Cost {
        let messages = (messages as f64).max(1.0);
        let each = |now: u64, then: u64| now.saturating_sub(then) as f64 / messages;
        let commands: BTreeMap<String, f64> = self
            .commands
            .iter()
            .map(|(name, calls)| (name.clone(), each(*calls, before.commands.get(name).copied().unwrap_or(0))))
            .filter(|(_, calls)| *calls > 0.0)
            .collect();
        let statements = self.statements.as_ref().map(|now| {
            let then = |text: &String| before.statements.as_ref().and_then(|then| then.get(text)).copied().unwrap_or(0);
            let mut each: Vec<_> = now.iter().map(|(text, calls)| (text.clone(), each(*calls, then(text)))).collect();
            each.retain(|(_, calls)| *calls > 0.0);
            each.sort_by(|one, other| other.1.total_cmp(&one.1));
            each
        });
        Cost {
            redis_commands: commands.values().sum(),
            commands,
            redis_cpu_s: (self.redis_cpu - before.redis_cpu) / messages * 1e3,
            nodes_cpu_s: (self.nodes_cpu - before.nodes_cpu) / messages * 1e3,
            database_cpu_s: (self.database_cpu - before.database_cpu).max(0.0) / messages * 1e3,
            transactions: each(self.transactions, before.transactions),
            statements: statements.as_ref().map(|all| all.iter().map(|(_, calls)| calls).sum()),
            by_statement: statements.into_iter().flatten().take(STATEMENTS_TOLD).collect(),
        }
    }
}

/// What the lab and the servers among themselves ask for.
fn is_housekeeping(command: &str) -> bool {
    ["info", "client", "cluster", "replconf", "psync", "command"].iter().any(|name| command.starts_with(name))
}

/// Connections to Redis by where they come from, without those of its replicas and the lab's.
pub(super) fn connections(topology: &Topology) -> Result<HashMap<IpAddr, usize>, LabError> {
    let mut by_source = HashMap::new();
    for address in topology.redis.addresses() {
        let mut redis = Redis::connect(address)?;
        let own = redis.ask("CLIENT ID")?;
        let own = if let Reply::Number(id) = own { format!("id={id}") } else { String::new() };
        let list =
            redis.ask("CLIENT LIST TYPE NORMAL")?.text().to_owned() + redis.ask("CLIENT LIST TYPE PUBSUB")?.text();
        for line in list.lines() {
            let field = |name: &str| line.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
            if line.split(' ').next() == Some(own.as_str()) {
                continue;
            }
            if let Some(source) = field("addr").and_then(|addr| addr.rsplit_once(':')?.0.parse().ok()) {
                *by_source.entry(source).or_default() += 1;
            }
        }
    }
    Ok(by_source)
}

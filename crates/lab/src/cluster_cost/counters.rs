//! Counters of Redis and PostgreSQL and CPU times of all processes, read before and after a phase of load.

use crate::{
    LabError, process,
    topology::{
        Topology,
        resp::{RedisConnection, Reply},
    },
};
use serde::Serialize;
use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    time::Duration,
};

/// The database updates its counters at most this late.
const DATABASE_COUNT_DELAY: Duration = Duration::from_millis(1_200);
/// How many statements are reported by their text.
const STATEMENTS_SHOWN: usize = 12;

/// The counters since the start of the cluster.
#[derive(Debug, Clone, Default)]
pub(super) struct ComponentCounters {
    /// Redis commands of the primaries, by command.
    commands: BTreeMap<String, u64>,
    redis_cpu: f64,
    nodes_cpu: f64,
    database_cpu: f64,
    transactions: u64,
    /// Statements by their text; absent without the extension `pg_stat_statements`.
    statements: Option<HashMap<String, u64>>,
}

/// The cost of one message.
#[derive(Debug, Clone, Serialize)]
pub(super) struct MessageCost {
    pub(super) redis_commands: f64,
    pub(super) commands: BTreeMap<String, f64>,
    /// CPU seconds of all Redis servers, replicas included, per 1,000 messages.
    pub(super) redis_cpu_s: f64,
    pub(super) nodes_cpu_s: f64,
    pub(super) database_cpu_s: f64,
    pub(super) transactions: f64,
    pub(super) statements: Option<f64>,
    /// The most frequent statements.
    pub(super) by_statement: Vec<(String, f64)>,
}

impl ComponentCounters {
    pub(super) fn read(topology: &Topology) -> Result<Self, LabError> {
        std::thread::sleep(DATABASE_COUNT_DELAY);
        let mut counters = ComponentCounters::default();
        for number in topology.redis.primaries() {
            let mut redis = RedisConnection::connect(topology.redis.address(number))?;
            let stats = redis.execute("INFO commandstats")?;
            for line in stats.text().lines() {
                let Some((name, rest)) = line.strip_prefix("cmdstat_").and_then(|line| line.split_once(':')) else {
                    continue;
                };
                let calls = rest.strip_prefix("calls=").and_then(|rest| rest.split(',').next()?.parse::<u64>().ok());
                *counters.commands.entry(name.to_owned()).or_default() += calls.unwrap_or(0);
            }
        }
        counters.commands.retain(|name, _| !is_housekeeping(name));
        counters.redis_cpu = topology.redis.pids().map(process::cpu_seconds).sum();
        counters.nodes_cpu = topology.node_pids().map(process::cpu_seconds).sum();
        let database = topology.database();
        counters.database_cpu = database.pids().into_iter().map(process::cpu_seconds).sum();
        let transactions =
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()";
        counters.transactions = database.sql(transactions)?.trim().parse().unwrap_or(0);
        if database.counts_statements() {
            let counted = database.sql(
                "SELECT sum(calls) || ' ' || left(regexp_replace(query, '\\s+', ' ', 'g'), 90) FROM pg_stat_statements \
                 WHERE query NOT LIKE '%pg_stat_%' \
                 GROUP BY left(regexp_replace(query, '\\s+', ' ', 'g'), 90)",
            )?;
            let split = |line: &str| {
                let (calls, text) = line.split_once(' ')?;
                Some((text.to_owned(), calls.parse().ok()?))
            };
            counters.statements = Some(counted.lines().filter_map(split).collect());
        }
        Ok(counters)
    }

    /// The cost per message since `before`.
    pub(super) fn cost_since(&self, before: &ComponentCounters, messages: u64) -> MessageCost {
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
        MessageCost {
            redis_commands: commands.values().sum(),
            commands,
            redis_cpu_s: (self.redis_cpu - before.redis_cpu) / messages * 1e3,
            nodes_cpu_s: (self.nodes_cpu - before.nodes_cpu) / messages * 1e3,
            database_cpu_s: (self.database_cpu - before.database_cpu).max(0.0) / messages * 1e3,
            transactions: each(self.transactions, before.transactions),
            statements: statements.as_ref().map(|all| all.iter().map(|(_, calls)| calls).sum()),
            by_statement: statements.into_iter().flatten().take(STATEMENTS_SHOWN).collect(),
        }
    }
}

/// Whether a command is one of the lab, or one that Redis servers send each other.
fn is_housekeeping(command: &str) -> bool {
    ["info", "client", "cluster", "replconf", "psync", "command"].iter().any(|name| command.starts_with(name))
}

/// The number of connections to Redis by source address, without those of replicas and of the lab.
pub(super) fn connections(topology: &Topology) -> Result<HashMap<IpAddr, usize>, LabError> {
    let mut by_source = HashMap::new();
    for address in topology.redis.addresses() {
        let mut redis = RedisConnection::connect(address)?;
        let own = redis.execute("CLIENT ID")?;
        let own = if let Reply::Number(id) = own { format!("id={id}") } else { String::new() };
        let list = redis.execute("CLIENT LIST TYPE NORMAL")?.text().to_owned()
            + redis.execute("CLIENT LIST TYPE PUBSUB")?.text();
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

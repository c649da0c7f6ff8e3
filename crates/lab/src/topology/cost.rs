//! What a message costs a cluster: counters of Redis and PostgreSQL and CPU times of all processes, read before and after a phase.

use super::{Topology, resp};
use crate::{LabError, process};
use serde::Serialize;
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

/// The database updates its counters at most this late.
const DATABASE_COUNT_DELAY: Duration = Duration::from_millis(1_200);
/// How many statements are reported by their text.
const STATEMENTS_SHOWN: usize = 12;

/// The counters since the start of the cluster.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClusterCounters {
    /// Redis commands of the primaries, by command.
    commands: BTreeMap<String, u64>,
    redis_cpu: f64,
    nodes_cpu: f64,
    database_cpu: f64,
    transactions: u64,
    /// Statements by their text; absent without the extension `pg_stat_statements`.
    statements: Option<HashMap<String, u64>>,
}

/// The cost of one message; CPU times in milliseconds, of Redis with its replicas.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct MessageCost {
    redis_commands: f64,
    commands: BTreeMap<String, f64>,
    redis_cpu_ms: f64,
    nodes_cpu_ms: f64,
    database_cpu_ms: f64,
    transactions: f64,
    statements: Option<f64>,
    /// The most frequent statements.
    pub(crate) by_statement: Vec<(String, f64)>,
}

impl ClusterCounters {
    pub(crate) fn read(topology: &Topology) -> Result<Self, LabError> {
        std::thread::sleep(DATABASE_COUNT_DELAY);
        let mut counters = ClusterCounters::default();
        for number in topology.redis.primaries() {
            for line in resp::execute(topology.redis.address(number), "INFO commandstats")?.lines() {
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
        counters.database_cpu = database.cpu_seconds();
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
    pub(crate) fn cost_since(&self, before: &ClusterCounters, messages: u64) -> MessageCost {
        let messages = (messages as f64).max(1.0);
        let each = |now: u64, then: u64| now.saturating_sub(then) as f64 / messages;
        let cpu_ms = |now: f64, then: f64| (now - then).max(0.0) / messages * 1e3;
        let since = |name: &String, calls: &u64| each(*calls, before.commands.get(name).copied().unwrap_or(0));
        let commands = self.commands.iter().map(|(name, calls)| (name.clone(), since(name, calls)));
        let commands: BTreeMap<String, f64> = commands.filter(|(_, calls)| *calls > 0.0).collect();
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
            redis_cpu_ms: cpu_ms(self.redis_cpu, before.redis_cpu),
            nodes_cpu_ms: cpu_ms(self.nodes_cpu, before.nodes_cpu),
            database_cpu_ms: cpu_ms(self.database_cpu, before.database_cpu),
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

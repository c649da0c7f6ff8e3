//! Whether the nodes agree on what they must have alike, and this machine's clock with the store's.
//!
//! Each node tells the others fingerprints of its settings, in the store, where a node on another Redis is read, too. Whether a
//! peer listens on this node's Redis the bus finds by itself, from the answers to what it publishes.
//!
//! A difference is told and does not make the node unready: while a secret is replaced node by node, all nodes differ, and all
//! of them unready would be an outage. A clock that is far off does, if another node's agrees with the store's.

use super::store_time::{AGREES_MS, StoreTime};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use parking_lot::{Mutex, RwLock};
use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};
use tidings_domain::{
    bus::Bus, clock::Clock, commit_log::CommitLog, metrics::Metrics, node_settings::*, store::StoreResult,
};

/// A clock that is further off makes the node unready: it takes tokens that have ended, or refuses those that have not.
const CLOCK_OFF_MS_MAX: u64 = 30_000;
/// Rounds for which it must have been off, so that the other nodes have told how theirs are: when the store's clock jumps, all
/// of them are off.
const CLOCK_OFF_ROUNDS: u32 = ROUNDS_PER_LEASE;
/// As often as a lease is renewed.
const ROUNDS_PER_LEASE: u32 = 5;
/// So many leases must pass before a peer that nobody listens for counts as one on another Redis: one that has crashed counts
/// as alive for one.
const UNHEARD_LEASES: f64 = 1.5;
/// Nodes that a sentence names.
const NAMED_MAX: usize = 8;

/// Whether a peer listens on this node's Redis.
const REDIS: SharedSetting = SharedSetting {
    name: "[cluster] redis",
    consequence: "they listen on different Redis, and messages between them are late; give all nodes the same Redis",
};

/// A setting in which nodes differ from this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    setting: SharedSetting,
    /// Names and boot ids.
    nodes: Vec<(String, u64)>,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.nodes.iter().take(NAMED_MAX).map(|(name, _)| name.as_str()).collect();
        let others = if self.nodes.len() == 1 { "node" } else { "nodes" };
        write!(f, "{} of {others} {}", self.setting.name, names.join(", "))?;
        if self.nodes.len() > NAMED_MAX {
            write!(f, " and {} more", self.nodes.len() - NAMED_MAX)?;
        }
        write!(f, " differs from this node's: {}", self.setting.consequence)
    }
}

#[derive(Default)]
struct Findings {
    differences: Vec<Difference>,
    /// By how many milliseconds this machine's clock is ahead of the store's, if they do not agree.
    clock_ahead_ms: i64,
    /// For so many rounds it has been far off.
    clock_off_rounds: u32,
    /// Another node's clock agrees with the store's.
    others_agree_with_store: bool,
}

pub(crate) struct Agreement {
    boot_id: u64,
    lease: Duration,
    fingerprints: BTreeMap<String, String>,
    time: Arc<StoreTime>,
    bus: Arc<dyn Bus>,
    metrics: Arc<Metrics>,
    /// What was stored last.
    told: Mutex<Option<NodeSettings>>,
    findings: RwLock<Findings>,
}

impl Agreement {
    pub(crate) fn new(
        (boot_id, lease): (u64, Duration),
        fingerprints: BTreeMap<String, String>,
        time: Arc<StoreTime>,
        bus: Arc<dyn Bus>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (told, findings) = (Mutex::default(), RwLock::default());
        Agreement { boot_id, lease, fingerprints, time, bus, metrics, told, findings }
    }

    /// Exchanges settings as often as the lease is renewed, on a thread of its own so that no renewal waits for it, until
    /// `stopped` is closed.
    pub(crate) fn run(&self, log: &dyn CommitLog, stopped: &Receiver<Infallible>) {
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(self.lease / ROUNDS_PER_LEASE) {
            self.exchange_or_log(log);
        }
    }

    /// Also called before this node's first heartbeat: a node that stands in the table of nodes without settings is taken for
    /// one whose program tells none.
    pub(crate) fn exchange_or_log(&self, log: &dyn CommitLog) {
        if let Err(error) = self.exchange(log) {
            // The heartbeat fails too, and says so.
            tracing::debug!(%error, "the nodes' settings could not be compared");
        }
    }

    /// Tells the others this node's settings where they have changed, and compares those of the others.
    fn exchange(&self, log: &dyn CommitLog) -> StoreResult<()> {
        let clock_ahead_s = self.findings.read().clock_ahead_ms / 1_000;
        let own = NodeSettings { fingerprints: self.fingerprints.clone(), clock_ahead_s, bus_up: self.bus.is_up() };
        let mut told = self.told.lock();
        if told.as_ref() != Some(&own) {
            log.put_node_settings(self.boot_id, &own)?;
            *told = Some(own);
        }
        let asked = self.time.monotonic();
        let known = log.node_settings()?;
        let ahead_ms = known.store_now_ms.map_or(0, |store_ms| self.time.compare(store_ms, asked));
        if known.nodes.iter().any(|node| node.boot_id == self.boot_id && node.settings.is_none()) {
            // A database that has gone back has lost them.
            *told = None;
        }
        drop(told);
        let older = known.nodes.iter().filter(|node| node.settings.is_none() && node.boot_id != self.boot_id);
        let older: Vec<Arc<str>> = older.map(|node| node.name.as_str().into()).collect();
        self.bus.set_peers_without_installation(&older);
        let others = known.nodes.into_iter().filter(|node| node.boot_id != self.boot_id);
        let mut others: Vec<_> = others.filter_map(|node| Some((node.name, node.boot_id, node.settings?))).collect();
        others.sort_by(|(one, ..), (other, ..)| one.cmp(other));
        self.update(&others, ahead_ms);
        Ok(())
    }

    fn update(&self, others: &[(String, u64, NodeSettings)], ahead_ms: i64) {
        let mut differences = self.differences_from(others);
        let unheard = self.unheard(others, &differences);
        differences.extend((!unheard.is_empty()).then_some(Difference { setting: REDIS, nodes: unheard }));
        let clock_ahead_ms = if ahead_ms.unsigned_abs() > AGREES_MS { ahead_ms } else { 0 };
        let others_agree_with_store = others.iter().any(|(_, _, settings)| settings.clock_ahead_s == 0);
        let cluster = &self.metrics.cluster;
        cluster.differences.set(differences.iter().map(|difference| difference.nodes.len() as i64).sum());
        cluster.clock_ahead.set(ahead_ms as f64 / 1e3);
        let is_far_off = clock_ahead_ms.unsigned_abs() > CLOCK_OFF_MS_MAX;
        let mut findings = self.findings.write();
        let clock_off_rounds = if is_far_off { findings.clock_off_rounds.saturating_add(1) } else { 0 };
        for difference in differences.iter().filter(|difference| !findings.differences.contains(difference)) {
            tracing::warn!("{difference}");
        }
        if differences.is_empty() && !findings.differences.is_empty() {
            tracing::info!("all nodes have the same settings again");
        }
        if (clock_ahead_ms == 0) != (findings.clock_ahead_ms == 0) {
            match clock_sentence(clock_ahead_ms) {
                Some(sentence) => tracing::warn!("{sentence}"),
                None => tracing::info!("this machine's clock agrees with PostgreSQL's again"),
            }
        }
        *findings = Findings { differences, clock_ahead_ms, clock_off_rounds, others_agree_with_store };
    }

    fn differences_from(&self, others: &[(String, u64, NodeSettings)]) -> Vec<Difference> {
        let differs = |setting: &SharedSetting, theirs: &NodeSettings| {
            let own = self.fingerprints.get(setting.name);
            own.zip(theirs.fingerprints.get(setting.name)).is_some_and(|(own, theirs)| own != theirs)
        };
        let difference = |setting: &SharedSetting| {
            let nodes = others.iter().filter(|(_, _, theirs)| differs(setting, theirs));
            let nodes: Vec<_> = nodes.map(|(name, boot_id, _)| (name.clone(), *boot_id)).collect();
            (!nodes.is_empty()).then_some(Difference { setting: *setting, nodes })
        };
        SHARED_SETTINGS.iter().filter_map(difference).collect()
    }

    /// Peers that do not listen where this node sends to them, and whose bus is up all the same.
    fn unheard(&self, others: &[(String, u64, NodeSettings)], differences: &[Difference]) -> Vec<(String, u64)> {
        let unheard = self.bus.unheard_by(self.lease.mul_f64(UNHEARD_LEASES));
        // A peer with another channel is not heard whatever its Redis.
        let channel_differs = |boot_id: u64| {
            let of_channel = |difference: &&Difference| [INSTALLATION, REDIS_PREFIX].contains(&difference.setting);
            let mut nodes = differences.iter().filter(of_channel).flat_map(|difference| &difference.nodes);
            nodes.any(|(_, other)| *other == boot_id)
        };
        let is_unheard = |name: &str| unheard.iter().any(|peer| **peer == *name);
        let is_elsewhere = |(name, boot_id, theirs): &&(String, u64, NodeSettings)| {
            theirs.bus_up && is_unheard(name) && !channel_differs(*boot_id)
        };
        let elsewhere = others.iter().filter(is_elsewhere);
        elsewhere.map(|(name, boot_id, _)| (name.clone(), *boot_id)).collect()
    }

    /// # Errors
    /// This machine's clock is far off, and another node's is not. With all of them off it is the store's clock that is wrong,
    /// and all nodes go on.
    pub(crate) fn readiness(&self) -> Result<(), String> {
        let findings = self.findings.read();
        let is_off = findings.clock_off_rounds >= CLOCK_OFF_ROUNDS;
        match clock_sentence(findings.clock_ahead_ms) {
            Some(sentence) if is_off && findings.others_agree_with_store => Err(sentence),
            _ => Ok(()),
        }
    }

    /// What operators should mend, a sentence each.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let findings = self.findings.read();
        let clock = clock_sentence(findings.clock_ahead_ms);
        findings.differences.iter().map(ToString::to_string).chain(clock).collect()
    }

    /// The names of the settings in which this node of the cluster differs from the one that is asked.
    pub(crate) fn differences_of(&self, boot_id: u64) -> Vec<String> {
        let findings = self.findings.read();
        let of_node = |difference: &&Difference| difference.nodes.iter().any(|(_, other)| *other == boot_id);
        findings.differences.iter().filter(of_node).map(|difference| difference.setting.name.to_owned()).collect()
    }
}

fn clock_sentence(ahead_ms: i64) -> Option<String> {
    let way = match ahead_ms {
        0 => return None,
        1.. => "ahead of",
        _ => "behind",
    };
    Some(format!(
        "this machine's clock is {:.1} s {way} PostgreSQL's: messages get PostgreSQL's time, but tokens are judged by this \
         clock; see to the time service (NTP) of the two machines",
        ahead_ms.unsigned_abs() as f64 / 1e3
    ))
}

#[cfg(test)]
#[path = "../../tests/units/cluster_agreement.rs"]
mod tests;

//! The commit log of a [`MemoryStore`] that several engines share.

use super::State;
use crate::MemoryStore;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};
use tidings_domain::{
    commit_log::*,
    function::Function,
    gates::Gate,
    model::*,
    node_settings::{KnownNode, KnownSettings, NodeSettings},
    store::*,
};

/// The logged changes beside timelines, and the nodes with their leases.
pub(super) struct MemoryLog {
    /// With the times of their commits.
    changes: BTreeMap<Position, (u64, Change)>,
    nodes: BTreeMap<String, (NodeInfo, Instant)>,
    /// By function.
    leads: [Lead; Function::COUNT],
    settings: BTreeMap<u64, NodeSettings>,
    pub(super) now_ms: Option<u64>,
    pub(super) open_gates: BTreeSet<String>,
}

/// The lead of a function.
#[derive(Clone, Copy, Default)]
struct Lead {
    /// The leader and the end of its lease.
    leader: Option<(u64, Instant)>,
    /// The number of the term.
    number: u64,
}

impl Default for MemoryLog {
    /// As in a database that no other program has worked with, all gates are open.
    fn default() -> Self {
        MemoryLog {
            changes: BTreeMap::new(),
            nodes: BTreeMap::new(),
            leads: Default::default(),
            settings: BTreeMap::new(),
            now_ms: None,
            open_gates: Gate::names().into_iter().collect(),
        }
    }
}

impl MemoryLog {
    fn is_split(&self) -> bool {
        self.open_gates.contains(Gate::FunctionLeases.name())
    }

    /// The functions that have leases of their own.
    fn leased(&self) -> Vec<Function> {
        let has_lease = |function: &Function| {
            *function == Function::ALL[0]
                || self.is_split() && self.open_gates.contains(Gate::of_lease(*function).name())
        };
        Function::ALL.into_iter().filter(has_lease).collect()
    }

    /// Those without a lease are led with the first.
    fn lead_with_the_first(&mut self) {
        let leased = self.leased();
        for function in Function::ALL.into_iter().filter(|function| !leased.contains(function)) {
            self.leads[function as usize] = self.leads[0];
        }
    }

    fn is_alive(&self, boot_id: u64) -> bool {
        self.nodes.values().any(|(node, until)| node.boot_id == boot_id && *until >= Instant::now())
    }
}

impl State {
    pub(super) fn check_term(&self, term: Term) -> StoreResult<()> {
        match &self.log {
            Some(log) if !term.is_alone() && term.number != log.leads[term.function as usize].number => {
                Err(StoreError::StaleTerm)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn propose_and_log(&mut self, proposal: &Proposal, now_ms: u64) -> Outcome {
        let before = self.position;
        let outcome = self.propose(proposal, now_ms).unwrap_or_else(Outcome::Rejected);
        if let Some(log) = &mut self.log
            && let Some(change) = Change::of(proposal, &outcome)
        {
            // A change has the position of its entry, or one of its own when it has no entry.
            self.position = self.position.max(before + 1);
            log.changes.insert(self.position, (now_ms, change));
        }
        outcome
    }
}

impl CommitLog for MemoryStore {
    fn committed_after(&self, after: Position, limit: usize) -> StoreResult<LogPage> {
        let state = self.0.lock();
        let mut records = BTreeMap::new();
        for (conversation, timeline) in &state.timelines {
            for entry in timeline.values().filter(|entry| entry.position > after) {
                let position = entry.position;
                let entry = Some((*conversation, entry.clone()));
                records.insert(position, LogRecord { position, entry, change: None, changed_at: 0 });
            }
        }
        for (position, (changed_at, change)) in state.log.iter().flat_map(|log| log.changes.range(after + 1..)) {
            let position = *position;
            let empty = LogRecord { position, entry: None, change: None, changed_at: 0 };
            let record = records.entry(position).or_insert(empty);
            (record.change, record.changed_at) = (Some(change.clone()), *changed_at);
        }
        let all = records.len();
        let records: Vec<LogRecord> = records.into_values().take(limit.max(1)).collect();
        let last = records.last().map_or(after, |last| last.position);
        let through = if records.len() < all { last } else { state.position.max(after) };
        Ok(LogPage { span: PositionRange { after, through }, records })
    }

    fn newest_position(&self) -> StoreResult<Position> {
        Ok(self.0.lock().position)
    }

    fn prune(&self, _: u64) -> StoreResult<PruneProgress> {
        Ok(PruneProgress::default())
    }

    fn heartbeat(
        &self,
        me: &NodeInfo,
        lease_ms: u64,
        takes: &[Function],
        takes_name: bool,
    ) -> Result<ClusterView, HeartbeatError> {
        let (now, until) = (Instant::now(), Instant::now() + Duration::from_millis(lease_ms));
        let mut state = self.0.lock();
        let log = state.log.get_or_insert_default();
        if log.nodes.get(&me.name).is_some_and(|(other, _)| other.boot_id != me.boot_id && !takes_name) {
            return Err(HeartbeatError::Displaced);
        }
        log.nodes.insert(me.name.clone(), (me.clone(), until));
        let takes = if log.is_split() || takes.is_empty() { takes } else { &Function::ALL };
        for function in Function::ALL {
            let Lead { leader, number } = &mut log.leads[function as usize];
            match leader {
                Some((boot_id, ends)) if *boot_id == me.boot_id => *ends = until,
                Some((_, ends)) if *ends >= now => {}
                _ if takes.contains(&function) => (*leader, *number) = (Some((me.boot_id, until)), *number + 1),
                _ => {}
            }
        }
        log.lead_with_the_first();
        let nodes = log.nodes.values().filter(|(_, until)| *until >= now).map(|(node, _)| node.clone()).collect();
        let leader = |function: Function| {
            let Lead { leader, number } = log.leads[function as usize];
            let (boot_id, _) = leader.filter(|(_, until)| *until >= now)?;
            Some(Leader { boot_id, term: Term { function, number } })
        };
        let leaders = Function::ALL.into_iter().filter_map(leader).collect();
        let open_gates = log.open_gates.iter().cloned().collect();
        Ok(ClusterView { nodes, leaders, leased: log.leased(), open_gates })
    }

    fn hand_over(&self, function: Function, from: u64, to: u64, lease_ms: u64) -> StoreResult<bool> {
        let mut state = self.0.lock();
        let log = state.log.get_or_insert_default();
        if !log.leased().contains(&function) || !log.is_split() || !log.is_alive(to) {
            return Ok(false);
        }
        let Lead { leader, number } = &mut log.leads[function as usize];
        if leader.is_none_or(|(boot_id, _)| boot_id != from) {
            return Ok(false);
        }
        (*leader, *number) = (Some((to, Instant::now() + Duration::from_millis(lease_ms))), *number + 1);
        log.lead_with_the_first();
        Ok(true)
    }

    fn open_gates(&self, gates: &[&'static str], known_by: &[u64]) -> StoreResult<()> {
        let mut state = self.0.lock();
        let log = state.log.get_or_insert_default();
        let now = Instant::now();
        if log.nodes.values().all(|(node, until)| *until < now || known_by.contains(&node.boot_id)) {
            log.open_gates.extend(gates.iter().map(|gate| (*gate).to_owned()));
        }
        Ok(())
    }

    fn put_node_settings(&self, boot_id: u64, settings: &NodeSettings) -> StoreResult<()> {
        self.0.lock().log.get_or_insert_default().settings.insert(boot_id, settings.clone());
        Ok(())
    }

    fn node_settings(&self) -> StoreResult<KnownSettings> {
        let mut state = self.0.lock();
        let log = state.log.get_or_insert_default();
        let alive = log.nodes.values().filter(|(_, until)| *until >= Instant::now());
        let node = |(node, _): &(NodeInfo, Instant)| KnownNode {
            name: node.name.clone(),
            boot_id: node.boot_id,
            settings: log.settings.get(&node.boot_id).cloned(),
        };
        Ok(KnownSettings { store_now_ms: log.now_ms, nodes: alive.map(node).collect() })
    }

    fn release_lease(&self, boot_id: u64) -> StoreResult<()> {
        let mut state = self.0.lock();
        if let Some(log) = &mut state.log {
            log.nodes.retain(|_, (node, _)| node.boot_id != boot_id);
            for Lead { leader, .. } in &mut log.leads {
                *leader = leader.filter(|(leader, _)| *leader != boot_id);
            }
        }
        Ok(())
    }
}

//! Who is online, for callers: users and their sessions, the nodes, and the repair of the registry.

use super::{
    NodeNo, NodeRecord, PresenceSession,
    compare::{Comparison, Difference, DifferenceKind, SessionSource},
};
use crate::Engine;
use tidings_domain::{function::Function, gates::Gate, model::*, refusals::store_refusal};
use tidings_protocol::{error::Refusal, http::*, limits::*};

impl Engine {
    /// Whether these users are online, and on which devices. Users who do not exist are offline.
    ///
    /// # Errors
    /// `limit_exceeded`; `node_unavailable` while this node does not know the sessions of other nodes;
    /// `store_unavailable`.
    pub fn presence_of(&self, users: &[String]) -> Result<Vec<UserPresence>, Refusal> {
        if users.len() > PRESENCE_BATCH_MAX {
            return Err(Refusal::limit("users in a presence query", PRESENCE_BATCH_MAX as u64, users.len() as u64));
        }
        self.check_presence()?;
        users
            .iter()
            .map(|id| {
                let no = self.directory.user_no(id).map_err(store_refusal)?;
                let devices = no.map(|no| self.presence.sessions_of(no)).unwrap_or_default();
                let devices: Vec<DevicePresence> = devices
                    .iter()
                    .map(|device| DevicePresence {
                        device_id: device.device_id.to_string(),
                        device_kind: device.device_kind.to_string(),
                        since: device.since,
                        node: self.node_name(device.node),
                        background: device.background,
                    })
                    .collect();
                let last_seen = no.filter(|_| devices.is_empty()).map(|no| self.last_seen(no)).transpose()?.flatten();
                // As it is announced: a caller who queries once and then follows changes must not take a user in the
                // grace for offline, since a return within the grace is not announced.
                let online = !devices.is_empty() || no.is_some_and(|no| self.presence.counts_as_online(no));
                let active = online && no.is_some_and(|no| self.presence.counts_as_active(no));
                Ok(UserPresence { user: id.clone(), online, active, devices, last_seen })
            })
            .collect()
    }

    /// When the user's last session ended, in milliseconds since 1970 UTC.
    pub(crate) fn last_seen(&self, user: UserNo) -> Result<Option<u64>, Refusal> {
        match self.presence.last_seen(user) {
            Some(at) => Ok(Some(at)),
            None => self.store.last_seen(user).map_err(store_refusal),
        }
    }

    fn node_name(&self, node: NodeNo) -> String {
        self.presence.nodes.record(node).map_or_else(|| node.0.to_string(), |record| record.name)
    }

    /// One user's sessions, as they are registered and as the nodes hold them.
    ///
    /// # Errors
    /// `not_found`; `node_unavailable` when a node does not list its sessions in time; `store_unavailable`.
    pub fn presence_views(&self, user: &str, source: &dyn SessionSource) -> Result<PresenceViews, Refusal> {
        let user = self.directory.require_user(user)?;
        let stored = self.presence.local_sessions(user.no);
        let stored = stored.iter().map(|device| self.session_view(device)).collect();
        let held = source.sessions(Some(user.no))?;
        let memory =
            held.iter().filter(|held| held.held).map(|held| self.session_view(&held.to_presence_session())).collect();
        Ok(PresenceViews { user: user.id.clone(), stored, memory, last_seen: self.last_seen(user.no)? })
    }

    fn session_view(&self, device: &PresenceSession) -> SessionView {
        SessionView {
            session: format!("{:x}", device.session),
            node: self.node_name(device.node),
            device_id: device.device_id.to_string(),
            device_kind: device.device_kind.to_string(),
            since: device.since,
        }
    }

    /// The processes that hold connections.
    pub fn nodes(&self) -> Vec<NodeView> {
        let now_ms = self.clock.now_ms();
        let nodes = self.cluster.as_ref().map_or_else(Vec::new, |cluster| cluster.nodes.all());
        let view = |record: NodeRecord| {
            // A node tells its address once its listeners are open, after it has attached.
            let node = nodes.iter().find(|node| node.boot_id == record.boot_id);
            let functions = self.cluster.as_ref().map(|cluster| cluster.nodes.functions_of(record.boot_id));
            let functions = functions.unwrap_or_default();
            NodeView {
                name: record.name,
                boot_id: format!("{:x}", record.boot_id),
                address: node.map_or(record.address, |node| node.address.clone()),
                attached_at: record.attached_at,
                lease_left_ms: (record.lease_until != u64::MAX).then(|| record.lease_until.saturating_sub(now_ms)),
                sessions: record.sessions.max(0) as u64,
                version: node.map(|node| node.version.clone()),
                roles: node.map(|node| node.roles.clone()),
                wire_version: node.map(|node| node.details.wire_version).filter(|version| *version != 0),
                gates: node.map(|node| node.details.gates.clone()).unwrap_or_default(),
                leads: functions.contains(&Function::Push),
                functions: functions.iter().map(|function| function.name().to_owned()).collect(),
                differs_in: self
                    .cluster
                    .as_ref()
                    .map_or_else(Vec::new, |cluster| cluster.differences_of(record.boot_id)),
            }
        };
        self.presence.nodes.records(now_ms).into_iter().map(view).collect()
    }

    /// The gates that this node knows.
    pub fn gate_views(&self) -> Vec<GateView> {
        let view = |gate: &Gate| GateView { name: gate.name().into(), open: self.gates.is_open(*gate) };
        Gate::ALL.iter().map(view).collect()
    }

    /// Compares the registry with the nodes, and repairs it if `repair` is set. Reads every session: not to be called
    /// every second.
    ///
    /// # Errors
    /// Those of the source.
    pub fn compare_presence(&self, source: &dyn SessionSource, repair: bool) -> Result<Comparison, Refusal> {
        let found = self.presence.compare(source, self.shards.count(), repair)?;
        self.metrics.presence_differences.inc_by((found.ghosts + found.missing + found.wrong_node) as u64);
        self.metrics.presence_repaired.inc_by(found.repaired as u64);
        Ok(found)
    }

    /// Announces and stores all changes that are due, and waits until that is done; for tests, which hold the clock.
    pub fn settle_presence(&self) {
        self.presence_worker.settle();
    }

    /// Compares the registry with the sessions that the nodes hold, and repairs it if `repair` is set.
    ///
    /// # Errors
    /// `node_unavailable`: a node did not list or correct its sessions in time.
    pub fn presence_comparison(&self, source: &dyn SessionSource, repair: bool) -> Result<PresenceComparison, Refusal> {
        let found = self.compare_presence(source, repair)?;
        let view = |difference: &Difference| PresenceDifference {
            kind: match difference.kind {
                DifferenceKind::Ghost => "ghost",
                DifferenceKind::Missing => "missing",
                DifferenceKind::WrongNode => "wrong_node",
            }
            .into(),
            user: self.directory.user(difference.user).ok().flatten().map_or_else(String::new, |user| user.id.clone()),
            device_id: difference.device_id.to_string(),
            session: format!("{:x}", difference.session),
            node: self.node_name(difference.node),
        };
        Ok(PresenceComparison {
            registered: found.registered as u64,
            held: found.held as u64,
            ghosts: found.ghosts as u64,
            missing: found.missing as u64,
            wrong_node: found.wrong_node as u64,
            repaired: found.repaired as u64,
            differences: found.differences.iter().map(view).collect(),
        })
    }
}

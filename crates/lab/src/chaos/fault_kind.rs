//! The kinds of faults that chaos injects into a cluster under load, with their injection and reversal.

use crate::{
    LabError,
    options::value_name,
    topology::{PartitionScope, ShutdownMode, Topology},
};
use clap::ValueEnum;
use std::time::Duration;

/// One kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FaultKind {
    /// A node is upgraded from the program of `--from`, serves for `--restart`, and is set back: only with `--from` and `--sequences 0`,
    /// and first, since the way back ends once every node has been upgraded
    NodeRolledBack,
    /// `kill -9` of a node; it is started again some seconds later
    NodeKilled,
    /// A node is told to end, drains, and is started again at once; with `--from`, as the next version
    NodeRestarted,
    /// A node stands still, as one does whose machine is moved or has no memory, and continues after `--hold`
    NodeFrozen,
    /// A Redis server that serves slots is killed; its replica takes over; it comes back empty as the replica
    RedisPrimaryKilled,
    /// All Redis servers are killed, and started empty after `--hold`
    RedisEmptied,
    /// PostgreSQL is restarted in order
    DatabaseRestarted,
    /// PostgreSQL is restarted without telling its clients, as after a crash
    DatabaseCrashed,
    /// The PostgreSQL primary is killed for good and its synchronous standby is promoted
    DatabaseFailedOver,
    /// The disks under PostgreSQL stall again and again
    DiskSlow,
    /// A node is partitioned from all other processes, clients included
    NodeCutOff,
    /// A node is partitioned from Redis
    NodeCutOffRedis,
    /// A node is partitioned from PostgreSQL
    NodeCutOffDatabase,
}

/// The time in which Redis fails over: a silence of 2 s, the vote of the other servers, and its announcement.
const REDIS_FAILOVER: Duration = Duration::from_secs(10);

/// The component that a fault affects. Two faults of one component at a time would be one fault, or could not be reverted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Component {
    Node,
    Redis,
    Database,
}

impl FaultKind {
    pub(super) const ALL: &[FaultKind] = &[
        FaultKind::NodeRolledBack,
        FaultKind::NodeKilled,
        FaultKind::NodeRestarted,
        FaultKind::NodeFrozen,
        FaultKind::RedisPrimaryKilled,
        FaultKind::RedisEmptied,
        FaultKind::DatabaseRestarted,
        FaultKind::DatabaseCrashed,
        FaultKind::DatabaseFailedOver,
        FaultKind::DiskSlow,
        FaultKind::NodeCutOff,
        FaultKind::NodeCutOffRedis,
        FaultKind::NodeCutOffDatabase,
    ];

    pub(crate) fn name(self) -> String {
        value_name(&self)
    }

    pub(crate) fn needs_partitions(self) -> bool {
        matches!(self, FaultKind::NodeCutOff | FaultKind::NodeCutOffRedis | FaultKind::NodeCutOffDatabase)
    }

    /// Whether it takes the program that nodes run at first.
    pub(crate) fn needs_former_program(self) -> bool {
        self == FaultKind::NodeRolledBack
    }

    pub(super) fn targets_node(self) -> bool {
        self.component() == Component::Node
    }

    /// Whether a run of all kinds injects this one into each node in turn: it affects the leader differently from others.
    pub(super) fn runs_once_per_node(self) -> bool {
        self.ends_node() || self == FaultKind::NodeFrozen
    }

    pub(super) fn component(self) -> Component {
        match self {
            FaultKind::NodeKilled
            | FaultKind::NodeRestarted
            | FaultKind::NodeRolledBack
            | FaultKind::NodeFrozen
            | FaultKind::NodeCutOff
            | FaultKind::NodeCutOffRedis
            | FaultKind::NodeCutOffDatabase => Component::Node,
            FaultKind::RedisPrimaryKilled | FaultKind::RedisEmptied => Component::Redis,
            FaultKind::DatabaseRestarted
            | FaultKind::DatabaseCrashed
            | FaultKind::DatabaseFailedOver
            | FaultKind::DiskSlow => Component::Database,
        }
    }

    /// Whether every running node keeps its lease (in PostgreSQL), so that its sessions must not count as ended, and it
    /// must stay leader.
    pub(super) fn keeps_leases(self) -> bool {
        let of_redis =
            matches!(self, FaultKind::RedisPrimaryKilled | FaultKind::RedisEmptied | FaultKind::NodeCutOffRedis);
        of_redis || self.ends_node()
    }

    fn ends_node(self) -> bool {
        matches!(self, FaultKind::NodeKilled | FaultKind::NodeRestarted | FaultKind::NodeRolledBack)
    }

    /// Whether another node may become leader, which may hand out pushes anew.
    pub(super) fn may_change_leader(self) -> bool {
        !self.keeps_leases() || self.ends_node()
    }

    /// How long the fault lasts before it is reverted.
    pub(super) fn duration(self, hold: Duration, restart: Duration) -> Duration {
        match self {
            FaultKind::NodeKilled | FaultKind::NodeRolledBack => restart,
            // The other servers need time to notice the failure and to vote.
            FaultKind::RedisPrimaryKilled => hold.min(REDIS_FAILOVER),
            FaultKind::NodeRestarted
            | FaultKind::DatabaseRestarted
            | FaultKind::DatabaseCrashed
            | FaultKind::DatabaseFailedOver => Duration::ZERO,
            FaultKind::NodeFrozen
            | FaultKind::RedisEmptied
            | FaultKind::DiskSlow
            | FaultKind::NodeCutOff
            | FaultKind::NodeCutOffRedis
            | FaultKind::NodeCutOffDatabase => hold,
        }
    }

    fn partition_scope(self) -> PartitionScope {
        match self {
            FaultKind::NodeCutOffRedis => PartitionScope::Redis,
            FaultKind::NodeCutOffDatabase => PartitionScope::Postgres,
            _ => PartitionScope::Everything,
        }
    }

    /// Injects the fault into one of its possible targets.
    pub(super) fn inject(self, choice: usize, topology: &mut Topology) -> Result<(), LabError> {
        let node = choice % topology.nodes.len();
        match self {
            FaultKind::NodeKilled => topology.kill_node(node),
            FaultKind::NodeRestarted => topology.stop_node(node),
            FaultKind::NodeRolledBack => {
                topology.stop_node(node)?;
                topology.spawn_node(node)?;
                topology.wait_for_node(node)
            }
            FaultKind::NodeFrozen => topology.freeze_node(node, true),
            FaultKind::RedisPrimaryKilled => topology.kill_redis_primary(choice).map(|_| ()),
            FaultKind::RedisEmptied => topology.kill_redis(),
            FaultKind::DatabaseRestarted => topology.stop_database(ShutdownMode::Fast),
            FaultKind::DatabaseCrashed => topology.stop_database(ShutdownMode::Immediate),
            FaultKind::DatabaseFailedOver => topology.fail_over(),
            // The injector stalls the disks while the fault lasts.
            FaultKind::DiskSlow => Ok(()),
            FaultKind::NodeCutOff | FaultKind::NodeCutOffRedis | FaultKind::NodeCutOffDatabase => {
                topology.partition_node(node, self.partition_scope())
            }
        }
    }

    /// Reverts the fault: starts killed processes again, without waiting for a node's readiness, which another fault may
    /// prevent.
    pub(super) fn revert(self, choice: usize, topology: &mut Topology) -> Result<(), LabError> {
        let node = choice % topology.nodes.len();
        match self {
            FaultKind::NodeKilled | FaultKind::NodeRestarted => topology.spawn_node(node),
            FaultKind::NodeRolledBack => {
                topology.stop_node(node)?;
                topology.spawn_former_node(node)
            }
            FaultKind::NodeFrozen => topology.freeze_node(node, false),
            FaultKind::RedisPrimaryKilled | FaultKind::RedisEmptied => topology.start_redis(),
            FaultKind::DatabaseRestarted | FaultKind::DatabaseCrashed => topology.start_database(),
            FaultKind::DatabaseFailedOver => topology.renew_standby(),
            FaultKind::DiskSlow => Ok(()),
            FaultKind::NodeCutOff | FaultKind::NodeCutOffRedis | FaultKind::NodeCutOffDatabase => {
                topology.heal_node(node, self.partition_scope())
            }
        }
    }
}

//! What is done to a cluster under load, and how it is undone.

use crate::{
    LabError,
    topology::{Ending, From, Topology},
};
use clap::ValueEnum;
use std::time::Duration;

/// One kind of harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// `kill -9` of a node; it is started again some seconds later
    NodeKilled,
    /// A node is told to end, drains, and is started again at once; with `--from`, as the next version
    NodeRestarted,
    /// A node stands still, as one does whose machine is moved or has no memory, and goes on after `--hold`
    NodeFrozen,
    /// A Redis server that serves slots is killed; its replica takes over; it comes back empty as the replica
    RedisPrimaryKilled,
    /// All Redis servers are killed, and started empty after `--hold`
    RedisEmptied,
    /// PostgreSQL is restarted in order
    DatabaseRestarted,
    /// PostgreSQL is restarted without a word to anybody, as after a crash
    DatabaseCrashed,
    /// The PostgreSQL primary is killed for good and its synchronous standby is promoted
    DatabaseFailedOver,
    /// The disks under PostgreSQL stall again and again
    DiskSlow,
    /// A node reaches nobody and is reached by nobody, clients included
    NodeCutOff,
    /// A node reaches all but Redis
    NodeCutOffRedis,
    /// A node reaches all but PostgreSQL
    NodeCutOffDatabase,
}

/// Silence of 2 s, the vote of the others, and the news of it.
const REDIS_FAILOVER: Duration = Duration::from_secs(10);

/// What a kind harms. Two of one part at a time would be one harm, or none that can be undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Node,
    Redis,
    Database,
}

impl Kind {
    pub(super) const ALL: &[Kind] = &[
        Kind::NodeKilled,
        Kind::NodeRestarted,
        Kind::NodeFrozen,
        Kind::RedisPrimaryKilled,
        Kind::RedisEmptied,
        Kind::DatabaseRestarted,
        Kind::DatabaseCrashed,
        Kind::DatabaseFailedOver,
        Kind::DiskSlow,
        Kind::NodeCutOff,
        Kind::NodeCutOffRedis,
        Kind::NodeCutOffDatabase,
    ];

    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    pub(super) fn needs_cuts(self) -> bool {
        matches!(self, Kind::NodeCutOff | Kind::NodeCutOffRedis | Kind::NodeCutOffDatabase)
    }

    pub(super) fn is_of_a_node(self) -> bool {
        self.part() == Part::Node
    }

    /// Whether each node has its turn where everything is done once: what the one that leads goes through, the others do not.
    pub(super) fn is_done_to_each(self) -> bool {
        matches!(self, Kind::NodeKilled | Kind::NodeRestarted | Kind::NodeFrozen)
    }

    pub(super) fn part(self) -> Part {
        match self {
            Kind::NodeKilled
            | Kind::NodeRestarted
            | Kind::NodeFrozen
            | Kind::NodeCutOff
            | Kind::NodeCutOffRedis
            | Kind::NodeCutOffDatabase => Part::Node,
            Kind::RedisPrimaryKilled | Kind::RedisEmptied => Part::Redis,
            Kind::DatabaseRestarted | Kind::DatabaseCrashed | Kind::DatabaseFailedOver | Kind::DiskSlow => {
                Part::Database
            }
        }
    }

    /// Whether every node that lives keeps its lease: nobody has a reason to take its sessions for gone, nor the lead
    /// from it. Leases are in PostgreSQL.
    pub(super) fn keeps_leases(self) -> bool {
        let of_redis = matches!(self, Kind::RedisPrimaryKilled | Kind::RedisEmptied | Kind::NodeCutOffRedis);
        of_redis || self.ends_a_node()
    }

    fn ends_a_node(self) -> bool {
        matches!(self, Kind::NodeKilled | Kind::NodeRestarted)
    }

    /// Whether another node may come to lead, which binds devices anew.
    pub(super) fn may_move_the_lead(self) -> bool {
        !self.keeps_leases() || self.ends_a_node()
    }

    /// How long it is left so before it is undone.
    pub(super) fn lasts(self, hold: Duration, restart: Duration) -> Duration {
        match self {
            Kind::NodeKilled => restart,
            // The others need their time to notice and to elect.
            Kind::RedisPrimaryKilled => hold.min(REDIS_FAILOVER),
            Kind::NodeRestarted | Kind::DatabaseRestarted | Kind::DatabaseCrashed | Kind::DatabaseFailedOver => {
                Duration::ZERO
            }
            Kind::NodeFrozen
            | Kind::RedisEmptied
            | Kind::DiskSlow
            | Kind::NodeCutOff
            | Kind::NodeCutOffRedis
            | Kind::NodeCutOffDatabase => hold,
        }
    }

    fn cut(self) -> From {
        match self {
            Kind::NodeCutOffRedis => From::Redis,
            Kind::NodeCutOffDatabase => From::Postgres,
            _ => From::Everything,
        }
    }

    /// Does it to one of the parts that it may be done to.
    pub(super) fn begin(self, choice: usize, topology: &mut Topology) -> Result<(), LabError> {
        let node = choice % topology.nodes.len();
        match self {
            Kind::NodeKilled => topology.kill_node(node),
            Kind::NodeRestarted => topology.stop_node(node),
            Kind::NodeFrozen => topology.freeze_node(node, true),
            Kind::RedisPrimaryKilled => topology.kill_redis_primary(choice).map(|_| ()),
            Kind::RedisEmptied => topology.kill_redis(),
            Kind::DatabaseRestarted => topology.stop_database(Ending::Fast),
            Kind::DatabaseCrashed => topology.stop_database(Ending::Immediate),
            Kind::DatabaseFailedOver => topology.fail_over(),
            // Stalls again and again while it lasts.
            Kind::DiskSlow => Ok(()),
            Kind::NodeCutOff | Kind::NodeCutOffRedis | Kind::NodeCutOffDatabase => topology.cut_node(node, self.cut()),
        }
    }

    /// Undoes it. What was killed runs again; whether a node is ready is looked at when nothing else harms it.
    pub(super) fn undo(self, choice: usize, topology: &mut Topology) -> Result<(), LabError> {
        let node = choice % topology.nodes.len();
        match self {
            Kind::NodeKilled | Kind::NodeRestarted => topology.spawn_node(node),
            Kind::NodeFrozen => topology.freeze_node(node, false),
            Kind::RedisPrimaryKilled | Kind::RedisEmptied => topology.start_redis(),
            Kind::DatabaseRestarted | Kind::DatabaseCrashed => topology.start_database(),
            Kind::DatabaseFailedOver => topology.renew_standby(),
            Kind::DiskSlow => Ok(()),
            Kind::NodeCutOff | Kind::NodeCutOffRedis | Kind::NodeCutOffDatabase => topology.join_node(node, self.cut()),
        }
    }
}

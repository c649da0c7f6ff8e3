//! What is done to a cluster under load, and how it is undone.

use crate::{
    LabError,
    topology::{Ending, From, Topology, node_name},
};
use clap::ValueEnum;
use std::time::Duration;

/// One kind of harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// `kill -9` of a node; it is started again some seconds later
    NodeKilled,
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
/// How long the disks stall, and how long they do not.
const STALL: Duration = Duration::from_millis(400);
const FLOW: Duration = Duration::from_millis(200);

impl Kind {
    pub(super) const ALL: &[Kind] = &[
        Kind::NodeKilled,
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

    /// Whether it is done to one node, so that each should have its turn.
    pub(super) fn is_of_a_node(self) -> bool {
        self.needs_cuts() || self == Kind::NodeKilled
    }

    fn cut(self) -> From {
        match self {
            Kind::NodeCutOffRedis => From::Redis,
            Kind::NodeCutOffDatabase => From::Postgres,
            _ => From::Everything,
        }
    }
}

/// One kind, done to one of the parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) kind: Kind,
    /// Which of the parts that it may be done to.
    pub(super) choice: usize,
}

impl Step {
    pub(super) fn title(self, nodes: usize) -> String {
        match self.kind.is_of_a_node() {
            true => format!("{} {}", self.kind.name(), node_name(self.choice % nodes)),
            false => self.kind.name(),
        }
    }

    /// Does it, and leaves it so for as long as it is meant to last.
    pub(super) fn harm(self, topology: &mut Topology, hold: Duration, restart: Duration) -> Result<(), LabError> {
        let node = self.choice % topology.nodes.len();
        match self.kind {
            Kind::NodeKilled => {
                topology.kill_node(node)?;
                std::thread::sleep(restart);
            }
            Kind::RedisPrimaryKilled => {
                topology.kill_redis_primary(self.choice)?;
                // The others need their time to notice and to elect.
                std::thread::sleep(hold.min(REDIS_FAILOVER));
            }
            Kind::RedisEmptied => {
                topology.kill_redis()?;
                std::thread::sleep(hold);
            }
            Kind::DatabaseRestarted => topology.stop_database(Ending::Fast)?,
            Kind::DatabaseCrashed => topology.stop_database(Ending::Immediate)?,
            Kind::DatabaseFailedOver => topology.fail_over()?,
            Kind::DiskSlow => {
                let rounds = (hold.as_secs_f64() / (STALL + FLOW).as_secs_f64()).ceil() as usize;
                for _ in 0..rounds {
                    topology.freeze_disks(true);
                    std::thread::sleep(STALL);
                    topology.freeze_disks(false);
                    std::thread::sleep(FLOW);
                }
            }
            Kind::NodeCutOff | Kind::NodeCutOffRedis | Kind::NodeCutOffDatabase => {
                topology.cut_node(node, self.kind.cut())?;
                std::thread::sleep(hold);
            }
        }
        Ok(())
    }

    /// Undoes it. What was killed runs again; whether all is well is for the clients to say.
    pub(super) fn mend(self, topology: &mut Topology) -> Result<(), LabError> {
        let node = self.choice % topology.nodes.len();
        match self.kind {
            Kind::NodeKilled => topology.start_node(node).map(|_| ()),
            Kind::RedisPrimaryKilled | Kind::RedisEmptied => topology.start_redis(),
            Kind::DatabaseRestarted | Kind::DatabaseCrashed => topology.start_database(),
            Kind::DatabaseFailedOver => topology.renew_standby(),
            Kind::DiskSlow => Ok(()),
            Kind::NodeCutOff | Kind::NodeCutOffRedis | Kind::NodeCutOffDatabase => {
                topology.join_node(node, self.kind.cut())?;
                topology.wait_for_node(node)
            }
        }
    }
}

//! Joins this node to a cluster, if the settings name one: the bus on Redis, the commit log, and the node's identity.

use crate::{displacement, settings::Settings};
use anyhow::{Context, Result};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};
use std::sync::Arc;
use tidings_bus_redis::{RedisBus, RedisBusConfig};
use tidings_domain::{bus::Bus, commit_log::CommitLog};
use tidings_engine::cluster::ClusterParts;

/// A function moves to a node with less to do when nothing has changed for so long: longer than a node that is gone, or comes
/// back, keeps the cluster waiting.
const BALANCE_AFTER_LEASES: u32 = 2;

pub(crate) struct JoinedCluster {
    pub(crate) parts: ClusterParts,
    pub(crate) metrics: BusMetrics,
}

/// `None`: the settings name no cluster, and this node has its store to itself.
pub(crate) fn join(settings: &Settings, log: Option<Arc<dyn CommitLog>>) -> Result<Option<JoinedCluster>> {
    let (Some(node), Some(log)) = (settings.cluster_node(), log) else { return Ok(None) };
    displacement::wait_for_name(&settings.data_dir, &*log, &node.name, settings.cluster_lease())?;
    let config = RedisBusConfig { installation: log.installation(), ..settings.redis_config()? };
    let fingerprints = settings.fingerprints(log.installation())?;
    let bus = Arc::new(RedisBus::start(config).context("[cluster] redis")?);
    let metrics = BusMetrics(bus.clone());
    let (lease, may_lead) = (settings.cluster_lease(), settings.may_lead());
    let balance_after = BALANCE_AFTER_LEASES * lease;
    let recent_bytes_max = settings.cluster.recent_bytes_max;
    let parts = ClusterParts { log, bus, node, lease, may_lead, balance_after, recent_bytes_max, fingerprints };
    Ok(Some(JoinedCluster { parts, metrics }))
}

/// The metrics of the bus, exported with those of the engine.
#[derive(Clone)]
pub(crate) struct BusMetrics(Arc<RedisBus>);

impl std::fmt::Debug for BusMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.metrics().snapshot().fmt(f)
    }
}

impl Collector for BusMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let now = self.0.metrics().snapshot();
        for (name, help, value) in [
            ("bus_messages_sent", "Messages to other nodes, once for each receiver", now.sent),
            ("bus_publishes", "Commands that publish them, with this node's messages to itself", now.publishes),
            ("bus_published_bytes", "Bytes in those commands", now.publish_bytes),
            ("bus_unheard", "Publishes that nobody listened to", now.unheard),
            ("bus_pipelines", "Round trips to Redis", now.pipelines),
            ("bus_dropped", "Messages given up; their receivers read the database", now.dropped),
            ("bus_heard", "Messages from other nodes", now.heard),
            ("bus_heard_bytes", "Bytes of those", now.heard_bytes),
            ("bus_missed", "Times that something may have been lost", now.missed),
            ("bus_unreadable", "Messages that could not be read", now.unreadable),
            ("bus_foreign", "Messages of another installation on the same Redis, not delivered", now.foreign),
            ("bus_connections_made", "Connections to Redis made", now.connections_made),
            ("bus_connections_failed", "Attempts to connect to Redis that failed", now.connections_failed),
            ("bus_resubscribed", "Times that the subscription was made again", now.resubscribed),
        ] {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        let took = ConstCounter::new(now.round_trip_us as f64 / 1e6);
        let help = "Time that round trips to Redis took, together";
        took.encode(encoder.encode_descriptor("bus_round_trip", help, Some(&Unit::Seconds), took.metric_type())?)?;
        for (name, help, value) in [
            ("bus_connections", "Open connections to Redis", now.connections_open),
            ("bus_up", "1 while messages to and from other nodes flow", u64::from(self.0.is_up())),
            ("bus_queue_bytes", "Bytes that wait to be sent to other nodes", now.queue_bytes),
        ] {
            let gauge = ConstGauge::new(value as i64);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

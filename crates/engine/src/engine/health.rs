//! What operators see of the engine: gauges, readiness, and whether this node leads.

use crate::{Engine, cluster::Cluster, live_audience::LiveAudience};
use std::sync::Arc;
use tidings_domain::{
    function::Function,
    model::{LANES, Lane, Position},
};
use tidings_popups::PopupsReadiness;
use tidings_protocol::error::Refusal;

impl Engine {
    /// Sets the gauges whose values are looked up. Called before metrics are read.
    pub fn refresh_gauges(&self) {
        self.metrics.ready.set(i64::from(self.readiness().is_ok()));
        self.committer.set_queue_gauges(&self.metrics);
        let (slots, slot_limit) = self.lanes.depths();
        let (fanouts, shard_limit) = self.shards.depths();
        for lane in Lane::ALL {
            self.metrics.set_queue(format!("lane_{}", lane.name()), slots[lane as usize], slot_limit);
            self.metrics.set_queue(format!("shard_{}", lane.name()), fanouts[lane as usize], shard_limit);
        }
        for (queue, depth, limit) in self.push.depths() {
            self.metrics.set_queue(queue, depth, limit);
        }
        self.popups.refresh_gauges();
        for (queue, depth, limit) in self.receipts.depths().into_iter().chain([self.list_changes.depth()]) {
            self.metrics.set_queue(queue, depth, limit);
        }
        let (open, open_max) = self.streams.depth();
        self.metrics.set_queue("streams", open, open_max);
        let (depth, limit) = self.shards.push_depth();
        self.metrics.set_queue("shard_push", depth, limit);
        self.metrics.presence_users.set(self.presence.user_count() as i64);
        self.metrics.set_queue("presence_watches", self.presence.watches(), self.config.presence.watches_max);
        self.metrics.set_store_stats(self.store.stats());
    }

    /// Whether the node can do its work now.
    ///
    /// # Errors
    /// Why it cannot, for operators.
    pub fn readiness(&self) -> Result<(), String> {
        if self.is_draining() {
            return Err(self.end_reason().map_or("draining".into(), |reason| format!("draining, to end: {reason}")));
        }
        if let Some(damage) = self.store.damage() {
            return Err(format!("the store is damaged: {damage}"));
        }
        self.committer.readiness()?;
        if self.popups.readiness() == PopupsReadiness::Reading {
            return Err("popups are being read from the store".into());
        }
        self.cluster.as_ref().map_or(Ok(()), Cluster::readiness)
    }

    /// The positions at the start. Entries up to them are read from the store and never handed to shards.
    pub fn start_positions(&self) -> [Position; LANES] {
        self.start_positions
    }

    /// In a cluster: who has a session on this node, which shards tell.
    pub fn live_audience(&self) -> Option<Arc<LiveAudience>> {
        self.cluster.as_ref().and_then(|cluster| cluster.follower.live_audience())
    }

    /// Refuses while this node does not know the sessions of other nodes.
    pub(crate) fn check_presence(&self) -> Result<(), Refusal> {
        self.cluster.as_ref().map_or(Ok(()), Cluster::check_presence)
    }

    /// Whether this function runs here: this node leads it, as far as it has heard. The store refuses its writes if the term
    /// has ended.
    pub fn has_term(&self, function: Function) -> bool {
        self.leads.term(function).is_some()
    }

    /// Whether this node leads the function, and no other can.
    pub fn leads(&self, function: Function) -> bool {
        self.leads.of(function).leads()
    }
}

//! The plan: which roads are taken to a person who is to be told, in which order and when.

/// A road of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PlanRoad {
    /// The vendors' push services.
    Vendors,
    /// The app's webhook.
    Webhook,
}

impl PlanRoad {
    pub(crate) const ALL: [PlanRoad; 2] = [PlanRoad::Vendors, PlanRoad::Webhook];

    /// The word in records and plans.
    pub(crate) fn name(self) -> &'static str {
        match self {
            PlanRoad::Vendors => "vendors",
            PlanRoad::Webhook => "webhook",
        }
    }
}

/// A road, and how it is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedRoad {
    pub road: PlanRoad,
    /// It is taken so long after the message.
    pub after_ms: u64,
    /// Once it has reached a person, roads after it are not taken any more to that person.
    pub stops_others: bool,
}

/// The roads in the order in which they are taken. Those that are not set up are passed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoadPlan {
    pub roads: Vec<PlannedRoad>,
}

impl Default for RoadPlan {
    /// All at once, and none stops another.
    fn default() -> Self {
        let at_once = |road| PlannedRoad { road, after_ms: 0, stops_others: false };
        RoadPlan { roads: PlanRoad::ALL.map(at_once).into() }
    }
}

impl RoadPlan {
    /// Whether success of this road stops one that comes after it.
    pub(crate) fn stops_others(&self, step: usize) -> bool {
        self.roads.get(step).is_some_and(|road| road.stops_others) && step + 1 < self.roads.len()
    }
}

//! The plan of the settings: by which roads people are told while the app server has stored no policy.

/// A road of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PlanRoad {
    /// The vendors' push services.
    Vendors,
    /// The app's webhook.
    Webhook,
}

impl PlanRoad {
    const ALL: [PlanRoad; 2] = [PlanRoad::Vendors, PlanRoad::Webhook];
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

//! A popup's wall time: by one zone for all users, or by each user's own.

use super::timetable::{self, Days, Timetable, Window};
use jiff::tz::TimeZone;
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A popup's schedule and days by the wall time of one zone.
pub(super) struct ZoneClock {
    pub(super) timetable: Timetable,
    pub(super) days: Arc<Days>,
}

/// The clock by which a popup goes for one user. That of all users is borrowed: threads would contend for its count of
/// references with every decision.
pub(super) enum ClockOfPopup<'a> {
    Shared(&'a ZoneClock),
    Own(Arc<ZoneClock>),
}

impl std::ops::Deref for ClockOfPopup<'_> {
    type Target = ZoneClock;

    fn deref(&self) -> &ZoneClock {
        match self {
            ClockOfPopup::Shared(clock) => clock,
            ClockOfPopup::Own(clock) => clock,
        }
    }
}

/// A popup's schedule, from which clocks of further zones are made.
pub(super) struct Schedule {
    pub(super) starts_at: Option<u64>,
    pub(super) ends_at: Option<u64>,
    pub(super) windows: Vec<Window>,
    /// Around this time the clocks are precomputed.
    pub(super) now_ms: u64,
}

impl Schedule {
    fn clock(&self, zone: &TimeZone) -> ZoneClock {
        let Schedule { starts_at, ends_at, windows, now_ms } = self;
        let timetable = Timetable::new(*starts_at, *ends_at, windows, zone.clone(), *now_ms);
        ZoneClock { timetable, days: Arc::new(Days::new(zone.clone(), *now_ms)) }
    }
}

/// The clocks of the users' zones, each made when the first user of the zone asks: there are some hundred zones.
pub(super) struct UserClocks {
    schedule: Schedule,
    by_zone: RwLock<FxHashMap<Box<str>, Option<Arc<ZoneClock>>>>,
}

/// Zones whose clocks are kept. Above: they are made for each question.
const ZONES_MAX: usize = 1_000;

impl UserClocks {
    pub(super) fn new(schedule: Schedule) -> Self {
        UserClocks { schedule, by_zone: RwLock::default() }
    }

    /// The clock of a zone; `None`: there is no such zone.
    pub(super) fn of(&self, name: &str) -> Option<Arc<ZoneClock>> {
        if let Some(known) = self.by_zone.read().get(name) {
            return known.clone();
        }
        let clock = timetable::zone("time_zone", name).ok().map(|zone| Arc::new(self.schedule.clock(&zone)));
        let mut by_zone = self.by_zone.write();
        if by_zone.len() < ZONES_MAX {
            by_zone.insert(name.into(), clock.clone());
        }
        clock
    }
}

//! The settings of popups: how much is held, and for how long.

use super::{Settings, macros::settings};
use std::time::Duration;
use tidings_popups::PopupsConfig;

settings! {
    /// Popups: which in-app message suits a user now.
    Popups {
        /// Users held in memory, at about 170 bytes each. Above: the least recently used are dropped, and read from the store again.
        users_max: usize = PopupsConfig::default().users_max,
        /// An exposure is durable after so long: a crash forgets at most the exposures of this time. While one has waited for longer, answers wait until it is stored; where the store fails, or after ten times as long, nothing is shown (`store_unavailable`). An exposure of a popup that is `strict` is durable before it is answered.
        durable_within_ms: u64 = 100,
        /// Exposures that wait to be stored. Full: nothing is shown (`queue_full`) until some are stored.
        showings_max: usize = PopupsConfig::default().pending_exposures_max,
        /// Events that wait to be stored. Full: refused with `rate_limited` (429).
        events_max: usize = PopupsConfig::default().pending_events_max,
        /// How long events are kept for export, in days; for as long, a second event with the same id is a duplicate.
        events_kept_days: u64 = 30,
        /// How long counts are kept, in days; assignments as well, and those at most 400.
        counts_kept_days: u64 = 400,
    }
}

const DAY_S: u64 = 24 * 60 * 60;

impl Settings {
    pub(super) fn popups_config(&self) -> PopupsConfig {
        let popups = &self.popups;
        PopupsConfig {
            users_max: popups.users_max,
            durable_within: Duration::from_millis(popups.durable_within_ms),
            undurable_max: Duration::from_millis(popups.durable_within_ms),
            pending_exposures_max: popups.showings_max,
            pending_events_max: popups.events_max,
            events_per_user: self.popup_events(),
            event_retention: Duration::from_secs(popups.events_kept_days * DAY_S),
            count_retention: Duration::from_secs(popups.counts_kept_days * DAY_S),
        }
    }
}

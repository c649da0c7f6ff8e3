//! At the end the server's counts must be those of the answers that it gave.

use super::{
    catalogue::Catalogue,
    mix::{Counts, KINDS},
};
use crate::LabError;
use serde::Serialize;
use std::time::{Duration, Instant};
use tidings_client::http::HttpClient;
use tidings_protocol::http::PopupHour;

const LOOK_AGAIN: Duration = Duration::from_millis(50);
const PROBLEMS_MAX: usize = 10;

/// Sums over all popups, as answered and reported here and as counted there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Balance {
    pub(crate) here: Counts,
    pub(crate) there: Counts,
    /// Decisions that a control group kept from being shown.
    pub(crate) control: u64,
    /// Variants of popups for which a count differs.
    pub(crate) wrong: u64,
    pub(crate) problems: Vec<String>,
}

impl Balance {
    /// Reads all counts, again and again for as long as they may still grow.
    pub(crate) fn strike(
        http: &mut HttpClient,
        catalogue: &Catalogue,
        counts: &[Vec<Counts>],
        patience: Duration,
    ) -> Result<Self, LabError> {
        let began = Instant::now();
        loop {
            let balance = Balance::look(http, catalogue, counts)?;
            if balance.wrong == 0 || began.elapsed() > patience {
                return Ok(balance);
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    fn look(http: &mut HttpClient, catalogue: &Catalogue, counts: &[Vec<Counts>]) -> Result<Self, LabError> {
        let mut balance = Balance::default();
        for (known, counts) in catalogue.popups.iter().zip(counts) {
            let hours = hours_of(http, &known.id)?;
            balance.control += hours.iter().map(|hour| hour.control).sum::<u64>();
            for ((variant, _), here) in known.variants.iter().zip(counts) {
                let there = sum(hours.iter().filter(|hour| hour.variant == *variant));
                for (total, count) in balance.here.iter_mut().chain(&mut balance.there).zip(here.iter().chain(&there)) {
                    *total += count;
                }
                if *here != there {
                    balance.wrong += 1;
                    if balance.problems.len() < PROBLEMS_MAX {
                        balance.problems.push(format!(
                            "popup {} variant {variant}: shown and {KINDS:?} were {here:?}, counted are {there:?}",
                            known.id
                        ));
                    }
                }
            }
        }
        Ok(balance)
    }
}

/// All hours of a popup.
pub(crate) fn hours_of(http: &mut HttpClient, popup: &str) -> Result<Vec<PopupHour>, LabError> {
    // A run takes minutes: a day around it is plenty.
    const HALF_DAY_MS: u64 = 12 * 60 * 60 * 1000;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
    let path = format!("/v1/popups/{popup}/counts?from={}&to={}", now.saturating_sub(HALF_DAY_MS), now + HALF_DAY_MS);
    Ok(http.get::<tidings_protocol::http::PopupCounts>(&path)?.hours)
}

fn sum<'a>(hours: impl Iterator<Item = &'a PopupHour>) -> Counts {
    hours.fold(Counts::default(), |[shown, impressions, clicks, dismissals], hour| {
        [shown + hour.shown, impressions + hour.impressions, clicks + hour.clicks, dismissals + hour.dismissals]
    })
}

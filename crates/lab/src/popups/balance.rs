//! The balance at the end of a run: the server's counts must equal those of its answers.

use super::{
    catalogue::Catalogue,
    mix::{EVENT_KINDS, VariantCounts},
};
use crate::{LabError, problems::Problems, process};
use serde::Serialize;
use std::time::{Duration, Instant};
use tidings_client::http::HttpClient;
use tidings_protocol::http::PopupHour;

const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Sums over all popups: by the lab's count of answers and events (`here`), and by the server's counts (`there`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Balance {
    pub(crate) here: VariantCounts,
    pub(crate) there: VariantCounts,
    /// Decisions that showed nothing because the user was in a control group.
    pub(crate) control: u64,
    /// How many variants have a count that differs.
    pub(crate) wrong: u64,
    pub(crate) problems: Vec<String>,
}

impl Balance {
    /// Compares all counts, again until they are equal or `patience` is over: the server's may lag.
    pub(crate) fn reconcile(
        http: &mut HttpClient,
        catalogue: &Catalogue,
        counts: &[Vec<VariantCounts>],
        patience: Duration,
    ) -> Result<Self, LabError> {
        let began = Instant::now();
        loop {
            let balance = Balance::compare_counts(http, catalogue, counts)?;
            if balance.wrong == 0 || began.elapsed() > patience {
                return Ok(balance);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn compare_counts(
        http: &mut HttpClient,
        catalogue: &Catalogue,
        counts: &[Vec<VariantCounts>],
    ) -> Result<Self, LabError> {
        let mut balance = Balance::default();
        for (popup, counts) in catalogue.popups.iter().zip(counts) {
            let hours = hours_of(http, &popup.id)?;
            balance.control += hours.iter().map(|hour| hour.control).sum::<u64>();
            for ((variant, _), here) in popup.variants.iter().zip(counts) {
                let there = sum(hours.iter().filter(|hour| hour.variant == *variant));
                for (total, count) in balance.here.iter_mut().chain(&mut balance.there).zip(here.iter().chain(&there)) {
                    *total += count;
                }
                if *here != there {
                    balance.wrong += 1;
                    balance.problems.note(format!(
                        "popup {} variant {variant}: shown and {EVENT_KINDS:?} were {here:?}, counted are {there:?}",
                        popup.id
                    ));
                }
            }
        }
        Ok(balance)
    }
}

/// The hourly counts of a popup during the run.
pub(crate) fn hours_of(http: &mut HttpClient, popup: &str) -> Result<Vec<PopupHour>, LabError> {
    // A run takes minutes: a day around it is enough.
    const HALF_DAY_MS: u64 = 12 * 60 * 60 * 1000;
    let now = process::unix_ms();
    let path = format!("/v1/popups/{popup}/counts?from={}&to={}", now.saturating_sub(HALF_DAY_MS), now + HALF_DAY_MS);
    Ok(http.get::<tidings_protocol::http::PopupCounts>(&path)?.hours)
}

fn sum<'a>(hours: impl Iterator<Item = &'a PopupHour>) -> VariantCounts {
    hours.fold(VariantCounts::default(), |[shown, impressions, clicks, dismissals], hour| {
        [shown + hour.shown, impressions + hour.impressions, clicks + hour.clicks, dismissals + hour.dismissals]
    })
}

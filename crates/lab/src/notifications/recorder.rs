//! Takes the records of a run: from the clients, the senders and the fakes.

use super::{
    cast::Cast,
    planted_fault::PlantedFault,
    records::{Arrival, Records},
};
use crate::{
    offline_push::notice::{Notice, NoticeSink},
    process,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Records, which all threads of the bench add to.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) cast: Arc<Cast>,
    records: Mutex<Records>,
    planted: Option<PlantedFault>,
}

impl Recorder {
    pub(crate) fn new(cast: Arc<Cast>, planted: Option<PlantedFault>) -> Recorder {
        let records = Records { looks: vec![Vec::new(); cast.users.len()], ..Records::default() };
        Recorder { cast, records: Mutex::new(records), planted }
    }

    pub(crate) fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn problem(&self, what: String) {
        self.records().problems.push(what);
    }
}

impl NoticeSink for Recorder {
    fn note(&self, notices: &[Notice<'_>]) {
        let at = process::monotonic_ns();
        let mut records = self.records();
        for notice in notices {
            let (user, conversation) =
                (self.cast.user_number(notice.user), self.cast.conversation_number(notice.conversation));
            let (Some(user), Some(conversation)) = (user, conversation) else {
                records
                    .problems
                    .push(format!("{}: {} was notified of {}", notice.channel, notice.user, notice.conversation));
                continue;
            };
            let device = notice.device.rsplit('-').next().and_then(|place| place.parse().ok()).unwrap_or(0);
            let Notice { channel, seq, id, .. } = *notice;
            let arrival = Arrival { channel, user, device, conversation, seq, id, at };
            if notice.removed {
                records.removals.push(arrival);
                continue;
            }
            match &self.planted {
                None => records.arrivals.push(arrival),
                Some(fault) => fault.apply(arrival, &self.cast, &mut records),
            }
        }
    }

    fn fault(&self, problem: String) {
        self.problem(problem);
    }
}

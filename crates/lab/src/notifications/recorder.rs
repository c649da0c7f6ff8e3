//! Takes the records of a run: from the clients, the senders and the fakes.

use super::{
    participants::Participants,
    planted_fault::PlantedFault,
    records::{Arrival, Records},
};
use crate::{
    lock::lock,
    offline_push::notice::{Notice, NoticeSink},
    process,
};
use std::sync::{Arc, Mutex, MutexGuard};

/// Records, which all threads of the bench add to.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) participants: Arc<Participants>,
    records: Mutex<Records>,
    planted: Option<PlantedFault>,
}

impl Recorder {
    pub(crate) fn new(participants: Arc<Participants>, planted: Option<PlantedFault>) -> Recorder {
        let records = Records { looks: vec![Vec::new(); participants.users.len()], ..Records::default() };
        Recorder { participants, records: Mutex::new(records), planted }
    }

    pub(crate) fn records(&self) -> MutexGuard<'_, Records> {
        lock(&self.records)
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
            let (user, conversation) = (
                self.participants.user_number(notice.user),
                self.participants.conversation_number(notice.conversation),
            );
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
                Some(fault) => fault.apply(arrival, &self.participants, &mut records),
            }
        }
    }

    fn fault(&self, problem: String) {
        self.problem(problem);
    }
}

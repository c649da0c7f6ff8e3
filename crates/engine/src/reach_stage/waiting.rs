//! Roads that wait for their time: rows in the order in which they are due. When a row is due, each of its people is looked at
//! again: who has read the message, is back, or was reached by another road meanwhile is not told by this one.

use super::{decision::RoadWriters, worker::Worker};
use crate::{
    offline_recipients::OfflineRecipients,
    reach_gate::Unwanted,
    reach_trace::{Record, Source},
    reached_marks::{marks_of, remove_old_marks},
    road_jobs::Job,
};
use tidings_domain::{
    chat_rows::{number_in, waiting_until},
    leadership::Term,
    model::*,
    store::*,
};
use tidings_protocol::http::ReachOutcome;

/// Rows in one round.
const ROWS_PER_ROUND: usize = 100;

impl Worker {
    /// The time by which roads are due: that of the clock, but it never goes back while this thread runs. A clock that is set back
    /// holds nothing up.
    pub(super) fn due_time(&mut self) -> u64 {
        let (wall, monotonic) = (self.context.clock.now_ms(), self.context.clock.monotonic());
        let passed = self.last_time.map_or(0, |(time, at)| {
            time + u64::try_from(monotonic.saturating_duration_since(at).as_millis()).unwrap_or(0)
        });
        let time = wall.max(passed);
        self.last_time = Some((time, monotonic));
        time
    }

    /// Takes the roads whose time has come; answers whether there were any.
    pub(super) fn take_due(&mut self, term: Term) -> StoreResult<bool> {
        let now_ms = self.due_time();
        let context = self.context.clone();
        let (from, to) = waiting_until(now_ms);
        let rows = context.store.rows(RowSpace::Chat, &from, &to, ROWS_PER_ROUND)?;
        if rows.is_empty() {
            return remove_old_marks(&context, term, now_ms, &mut self.marks_removed_at);
        }
        let mut changes = Vec::new();
        for (key, row) in rows {
            match Job::decode(&row) {
                Ok(job) => self.take_row(&job, number_in(&key, 2).unwrap_or_default(), now_ms, &mut changes)?,
                Err(error) => tracing::error!(%error, "a road is not taken at its time"),
            }
            changes.push(RowChange { key, value: None });
        }
        self.write(term, changes)?;
        Ok(true)
    }

    fn take_row(&self, job: &Job, part: u64, now_ms: u64, changes: &mut Vec<RowChange>) -> StoreResult<()> {
        let context = &*self.context;
        let step = job.step as usize;
        let users: Vec<UserNo> = job.users().collect();
        let message = (ConversationNo(job.conversation), job.seq);
        let road = self.roads.plan.roads.get(step).map(|planned| planned.road);
        let mut records = Vec::new();
        let mut leave = |user: UserNo, outcome, cause: Option<&str>| {
            let why = [road.map(|road| road.name()), cause].into_iter().flatten().collect::<Vec<_>>().join(": ");
            records.push(Record::of_user(user, outcome).because(why));
        };
        match (OfflineRecipients::of(context, message.0, message.1)?, road) {
            (None, _) => users.iter().for_each(|user| leave(*user, ReachOutcome::Recalled, None)),
            // Another plan holds by now.
            (_, None) => users.iter().for_each(|user| leave(*user, ReachOutcome::Cancelled, Some("the plan"))),
            (Some(found), Some(_)) => {
                let marks = marks_of(context, &found.entry, &users)?;
                let devices = context.directory.push_devices(&users, false)?;
                let mut writers = RoadWriters::new(&self.roads, (found.message(), found.entry.at), now_ms, false)
                    .from_part(part.saturating_sub(job.step.into()))
                    .even_online(job.even_online);
                for ((no, mark), devices) in users.into_iter().zip(marks).zip(devices) {
                    let Some(user) = context.directory.user(no)? else { continue };
                    if let Some(reached_by) = mark {
                        leave(no, ReachOutcome::Cancelled, Some(reached_by.name()));
                    } else if !job.even_online && context.presence.is_active(no) {
                        leave(no, ReachOutcome::Cancelled, Some("session"));
                    } else if let Some(Unwanted { outcome, .. }) = found.why_unwanted(context, &user)? {
                        leave(no, outcome, None);
                    } else if !writers.take(step, no, &devices, changes) {
                        leave(no, ReachOutcome::NoDevice, None);
                    }
                }
                writers.finish(changes);
            }
        }
        context.trace.add(message, Source::Later { part }, now_ms, records, changes);
        Ok(())
    }
}

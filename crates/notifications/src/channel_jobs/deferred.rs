//! Rows that wait for the end of their people's quiet hours.

use super::{Due, Job, JobPlace, JobRow, JobWriter, Target};
use tidings_domain::{
    chat_rows::DeferredPlace,
    model::{ConversationNo, UserNo},
    store::{OutboxItem, RowChange},
};
use tidings_protocol::http::Channel;

/// When such a row is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Deferred {
    pub(crate) until: u64,
    pub(crate) conversation: ConversationNo,
    /// So long after the end of quiet hours the channel is due.
    pub(crate) delay_ms: u64,
    /// The channel whose worker made the row; `None`: the quiet hours had begun when the message was decided, or its channel was due.
    pub(crate) source: Option<Channel>,
    /// The end of the quiet hours for which its people waited before; 0: there were none.
    pub(crate) from: u64,
}

impl Deferred {
    pub(super) fn key(self, place: JobPlace) -> Vec<u8> {
        let Deferred { until, conversation, delay_ms, source, from } = self;
        let made_by = [from, delay_ms, source.map_or(0, |source| source.number() + 1)];
        DeferredPlace { until, conversation, position: place.position, made_by, part: place.part.number() }.key()
    }
}

/// People of a row whose quiet hours began before its channel could notify them.
pub(crate) struct DeferredPeople {
    source: Channel,
    people: Vec<(u64, Target)>,
}

impl DeferredPeople {
    pub(crate) fn of(source: Channel) -> DeferredPeople {
        DeferredPeople { source, people: Vec::new() }
    }

    pub(crate) fn add_user(&mut self, user: UserNo, until: u64) {
        self.people.push((until, Target(user.0, String::new())));
    }

    pub(crate) fn add_target(&mut self, target: Target, until: u64) {
        self.people.push((until, target));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.people.is_empty()
    }

    /// Adds the rows in which they wait.
    pub(crate) fn add_rows(self, job: &Job, place: JobPlace, changes: &mut Vec<RowChange>) {
        let DeferredPeople { source, mut people } = self;
        people.sort_by(|a, b| (a.0, a.1.0, &a.1.1).cmp(&(b.0, b.1.0, &b.1.1)));
        let conversation = ConversationNo(job.conversation);
        let message = OutboxItem { position: place.position, conversation, seq: job.seq };
        for of_one_end in people.chunk_by(|a, b| a.0 == b.0) {
            let deferred = Deferred {
                until: of_one_end[0].0,
                conversation,
                delay_ms: 0,
                source: Some(source),
                from: job.counts_from,
            };
            let mut writer = JobWriter::new(Due::Deferred(deferred), message, place.part).like(job);
            for (_, target) in of_one_end {
                if target.1.is_empty() { writer.add_user(UserNo(target.0)) } else { writer.add(target.clone()) }
            }
            changes.extend(writer.finish().iter().map(JobRow::change));
        }
    }
}

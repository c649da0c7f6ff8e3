//! Rows that wait for the end of their people's quiet hours.

use super::{Due, Job, JobPlace, JobRow, JobWriter, Target};
use tidings_domain::{
    chat_rows::DeferredPlace,
    model::{ConversationNo, UserNo},
    store::{OutboxItem, RowChange},
};
use tidings_protocol::http::Channel;

/// What found that people are not to be disturbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum DeferredBy {
    /// The decision about the message.
    Decision,
    /// A channel whose time had come.
    Waiting,
    /// The worker of a channel.
    Worker(Channel),
}

impl DeferredBy {
    fn number(self) -> u64 {
        match self {
            DeferredBy::Decision => 0,
            DeferredBy::Waiting => 1,
            DeferredBy::Worker(channel) => 2 + channel.number(),
        }
    }
}

/// When such a row is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Deferred {
    pub(crate) until: u64,
    pub(crate) conversation: ConversationNo,
    /// So long after the end of quiet hours the channel is due.
    pub(crate) delay_ms: u64,
    pub(crate) source: DeferredBy,
    /// The end of the quiet hours for which its people waited before; 0: there were none.
    pub(crate) from: u64,
}

impl Deferred {
    pub(super) fn key(self, place: JobPlace) -> Vec<u8> {
        let Deferred { until, conversation, delay_ms, source, from } = self;
        let made_by = [from, delay_ms, source.number()];
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

    /// Adds the rows in which they wait.
    pub(crate) fn add_rows(self, job: &Job, place: JobPlace, changes: &mut Vec<RowChange>) {
        let DeferredPeople { source, mut people } = self;
        people.sort_by(|a, b| (a.0, a.1.0, &a.1.1).cmp(&(b.0, b.1.0, &b.1.1)));
        let conversation = ConversationNo(job.conversation);
        let message = OutboxItem { position: place.position, conversation, seq: job.seq };
        for (others, of_one_end) in people.chunk_by(|a, b| a.0 == b.0).enumerate() {
            let deferred = Deferred {
                until: of_one_end[0].0,
                conversation,
                delay_ms: 0,
                source: DeferredBy::Worker(source),
                from: job.counts_from,
            };
            let mut writer =
                JobWriter::new(Due::Deferred(deferred), message, place.part.after_others(others)).like(job);
            for (_, target) in of_one_end {
                if target.1.is_empty() { writer.add_user(UserNo(target.0)) } else { writer.add(target.clone()) }
            }
            changes.extend(writer.finish().iter().map(JobRow::change));
        }
    }
}

//! Channels that need no service elsewhere: a push to devices that hold a connection to this server, and an event on which popups react.
//!
//! The [notification stage](crate::stage) stores a row for each message and channel with some of the people who are to be notified. One thread
//! for each channel ([`worker`]) tells those who still want to know, and removes the row; a row whose success stops other channels stays
//! until the people have it, or until the last of these channels was due.
//!
//! ```text
//! notification stage ─▶ rows ─▶ worker ─▶ push to the devices ─ acknowledged ─▶ marks, which cancel channels that wait
//! ```
//! After a crash a row is notified again: the push has the same id of its own, so that the push store recognises it. In a cluster the
//! leader does all this.
//!
//! The channel `popup` cancels no other: nobody knows when the person comes.
//!
//! In reading order: this file, [`worker`], [`device_push`], [`popup_event`].

mod device_push;
mod popup_event;
mod worker;

use crate::{
    channel_jobs::{Due, Job, JobSignals},
    channel_worker::Workers,
    offline_recipients::{OfflinePushContext, OfflineRecipients},
    policy::ChannelStep,
    provider_push::Templates,
};
use device_push::DevicePush;
use popup_event::PopupEvents;
use std::{collections::HashSet, sync::Arc, time::Duration};
use tidings_domain::{
    model::{Position, User, UserNo},
    store::{RowSpace, StoreResult},
};
use tidings_engine::engine::port::PopupEventReports;
use tidings_protocol::{
    error::Refusal,
    http::{Channel, NotificationOutcome, PolicyChannel},
};
use tidings_push::PushHandle;

/// People in a row of `device_push`: each may have a push of their own, and the row that waits for acknowledgements has room for its
/// number.
pub(crate) const PEOPLE_PER_ROW: usize = 64;
/// Rows of one message that are read for one answer.
const JOBS_READ_MAX: usize = 1_000;

/// Which of these channels are set up, and what they show.
#[derive(Debug, Clone)]
pub struct InternalChannelsConfig {
    /// Whether a policy may tell people by pushes to their devices.
    pub device_push: bool,
    /// Whether a policy may tell people by popups at their next visit.
    pub popup: bool,
    pub templates: Templates,
    /// Whether pushes carry the number of unread messages, unless the policy says.
    pub badge: bool,
    /// After a message, if the policy does not say when a channel expires.
    pub time_to_live: Duration,
}

impl Default for InternalChannelsConfig {
    fn default() -> Self {
        let time_to_live = Duration::from_secs(24 * 60 * 60);
        InternalChannelsConfig {
            device_push: false,
            popup: false,
            templates: Templates::default(),
            badge: true,
            time_to_live,
        }
    }
}

impl InternalChannelsConfig {
    /// Whether the channel is set up.
    pub(crate) fn has(&self, channel: PolicyChannel) -> bool {
        match channel {
            PolicyChannel::DevicePush => self.device_push,
            PolicyChannel::Popup => self.popup,
            PolicyChannel::Session | PolicyChannel::Providers | PolicyChannel::Webhook => false,
        }
    }

    pub(crate) fn is_any(&self) -> bool {
        PolicyChannel::ALL.into_iter().any(|channel| self.has(channel))
    }
}

/// A message for some people, as a channel tells it.
struct Telling<'a> {
    found: &'a OfflineRecipients,
    /// What the policy says about the channel; `None`: the one that decided is not kept, and the present one has no such channel.
    step: Option<&'a ChannelStep>,
    /// When it is over, and the time now, in milliseconds since 1970 UTC.
    expires_at: u64,
    now_ms: u64,
}

/// A channel's answer about one person.
struct Notified {
    user: UserNo,
    outcome: NotificationOutcome,
    /// What to ask for later, to learn whether the person has it.
    push: Option<u64>,
}

/// A channel that this server takes by itself.
trait InternalChannel: Send {
    fn channel(&self) -> Channel;

    /// Tells these people of a message. To do so again changes nothing.
    ///
    /// # Errors
    /// Nobody was notified, or perhaps some were; it is to be tried again.
    fn tell(&mut self, telling: &Telling<'_>, people: &[Arc<User>]) -> Result<Vec<Notified>, Refusal>;

    /// The ids of those users who have one of these pushes.
    ///
    /// # Errors
    /// Who has them cannot be said now.
    fn acknowledged(&mut self, pushes: &[u64]) -> Result<HashSet<String>, Refusal>;
}

/// The handle of the threads.
pub(crate) struct InternalChannels {
    context: Arc<OfflinePushContext>,
    config: InternalChannelsConfig,
    workers: Workers,
}

impl InternalChannels {
    pub(crate) fn start(
        context: Arc<OfflinePushContext>,
        config: InternalChannelsConfig,
        push: Arc<PushHandle>,
        reports: PopupEventReports,
        signals: &Arc<JobSignals>,
    ) -> InternalChannels {
        let workers = Workers::new();
        let start = |channel: Box<dyn InternalChannel>| {
            let name = channel.channel().name();
            workers.start(name, &context, signals, worker::Worker::new(context.clone(), channel, config.time_to_live));
        };
        if config.device_push {
            start(Box::new(DevicePush::new(context.clone(), config.clone(), push)));
        }
        if config.popup {
            match PopupEvents::new(context.clone(), reports) {
                Ok(channel) => start(Box::new(channel)),
                Err(error) => tracing::error!(%error, "no runtime for the channel popup"),
            }
        }
        InternalChannels { context, config, workers }
    }

    pub(crate) fn stop(&self) {
        self.workers.stop();
    }

    /// Whether the channel is set up.
    pub(crate) fn has(&self, channel: PolicyChannel) -> bool {
        self.config.has(channel)
    }

    /// Whether a channel is still to tell this user of a message.
    pub(crate) fn is_waiting_for(&self, channel: Channel, position: Position, user: UserNo) -> StoreResult<bool> {
        let (from, to) = Due::Now(channel).keys_of(position);
        let rows = self.context.store.rows(RowSpace::Chat, &from, &to, JOBS_READ_MAX)?;
        for (_, row) in rows {
            let job = Job::decode(&row)?;
            if job.pushes.is_empty() && job.users().any(|known| known == user) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

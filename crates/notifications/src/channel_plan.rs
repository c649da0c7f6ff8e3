//! The plan of the settings: by which channels people are notified while the app server has stored no policy.

use tidings_protocol::http::PolicyChannel;

/// A channel, and how it is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedChannel {
    pub channel: PolicyChannel,
    /// It is taken so long after the message.
    pub after_ms: u64,
    /// Once it has reached a person, channels after it are not taken any more to that person.
    pub stops_others: bool,
}

/// The channels in the order in which they are taken. Those that are not set up are passed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelPlan {
    pub channels: Vec<PlannedChannel>,
}

impl Default for ChannelPlan {
    /// All at once, and none stops another.
    fn default() -> Self {
        let at_once = |channel| PlannedChannel { channel, after_ms: 0, stops_others: false };
        ChannelPlan { channels: [PolicyChannel::Providers, PolicyChannel::Webhook].map(at_once).into() }
    }
}

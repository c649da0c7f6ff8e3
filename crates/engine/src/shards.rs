//! The engine's side of the shards: per shard one queue a lane and one for control, and a wake.
//!
//! A shard is a thread of the gateway that owns its users' sessions outright. Three lane queues
//! keep the lanes apart up to the thread that must serve them all: it takes direct before group
//! before broadcast, a bounded piece at a time.

use crate::{config::EngineConfig, delivery::Fanout, hub::Signal, model::*, push::PushItem};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use std::sync::Arc;
use tidings_protocol::{error::Refusal, http::SendReceipt};

/// Answers, signals and kicks waiting at a shard. Full: who tells waits, the committer among them.
const CONTROL_QUEUE: usize = 4_096;
/// Typing signals waiting at a shard, beside what others wait for. Full: dropped, they are of no use later.
const TYPING_QUEUE: usize = 256;
/// Push items waiting at a shard. Full: the push worker waits, chat does not.
const PUSH_QUEUE: usize = 1_024;

/// Wakes a shard's thread; called after something was put in one of its queues.
pub trait Wake: Send + Sync + 'static {
    fn wake(&self);
}

/// The answer to a session's send.
#[derive(Debug, Clone)]
pub struct SendReply {
    pub session: u64,
    pub reference: Option<u64>,
    pub result: Result<SendReceipt, Refusal>,
}

/// What a session hears of users that it watches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub session: u64,
    /// It is the answer to the session's request, which had this `ref`.
    pub answers: Option<Option<u64>>,
    pub changes: Vec<WatchedChange>,
}

/// A watched user's new state.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct WatchedChange {
    pub user: Arc<str>,
    pub online: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<u64>,
}

#[derive(Debug)]
pub enum Control {
    Replies(Vec<SendReply>),
    /// For every session of the user.
    Signal {
        user: UserNo,
        signal: Signal,
    },
    /// Sessions hear of users that they watch.
    Presence(Vec<Told>),
}

/// That a user types in a conversation.
#[derive(Debug, Clone)]
pub struct Typing {
    pub conversation: Arc<str>,
    pub user: Arc<str>,
    pub hearers: Hearers,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hearers {
    User(UserNo),
    /// The live members of the conversation, but one user.
    Members {
        conversation: ConversationNo,
        but: UserNo,
    },
}

/// What a shard's thread reads from.
pub struct ShardReceivers {
    pub lanes: [Receiver<Arc<Fanout>>; LANES],
    pub control: Receiver<Control>,
    pub typing: Receiver<Typing>,
    pub push: Receiver<PushItem>,
}

struct ShardSender {
    lanes: [Sender<Arc<Fanout>>; LANES],
    control: Sender<Control>,
    typing: Sender<Typing>,
    push: Sender<PushItem>,
    wake: Arc<dyn Wake>,
}

pub struct Shards {
    shards: Vec<ShardSender>,
}

impl Shards {
    pub(crate) fn new(config: &EngineConfig, wakes: Vec<Arc<dyn Wake>>) -> (Shards, Vec<ShardReceivers>) {
        let (shards, receivers) = wakes
            .into_iter()
            .map(|wake| {
                let lanes = [(); LANES].map(|()| bounded(config.shard_queue));
                let (control, control_receiver) = bounded(CONTROL_QUEUE);
                let (typing, typing_receiver) = bounded(TYPING_QUEUE);
                let (push, push_receiver) = bounded(PUSH_QUEUE);
                let receivers = ShardReceivers {
                    lanes: lanes.each_ref().map(|(_, r)| r.clone()),
                    control: control_receiver,
                    typing: typing_receiver,
                    push: push_receiver,
                };
                (ShardSender { lanes: lanes.map(|(s, _)| s), control, typing, push, wake }, receivers)
            })
            .unzip();
        (Shards { shards }, receivers)
    }

    pub fn count(&self) -> usize {
        self.shards.len()
    }

    /// The shard that owns a user's sessions.
    pub fn shard_of(&self, user: UserNo) -> usize {
        shard_of(user, self.shards.len())
    }

    /// Hands a fan-out to a shard; waits while its lane queue is full, so that the lane fills and
    /// refuses senders.
    pub(crate) fn fan_out(&self, shard: usize, fanout: Arc<Fanout>) {
        let target = &self.shards[shard];
        if target.lanes[fanout.lane as usize].send(fanout).is_ok() {
            target.wake.wake();
        }
    }

    pub(crate) fn send_replies(&self, shard: usize, replies: Vec<SendReply>) {
        let target = &self.shards[shard];
        if target.control.send(Control::Replies(replies)).is_ok() {
            target.wake.wake();
        }
    }

    /// Hands a push item to a shard unless as many as `room` wait there: a push is paced by the shards,
    /// and who paces does not wait.
    pub(crate) fn try_push(&self, shard: usize, item: PushItem, room: usize) -> Result<(), PushItem> {
        let target = &self.shards[shard];
        if target.push.len() >= room {
            return Err(item);
        }
        match target.push.try_send(item) {
            Ok(()) => {
                target.wake.wake();
                Ok(())
            }
            Err(TrySendError::Full(item)) => Err(item),
            // The shard is gone, and its sessions with it.
            Err(TrySendError::Disconnected(_)) => Ok(()),
        }
    }

    /// Push items waiting at all shards, and the limit.
    pub(crate) fn push_depth(&self) -> (usize, usize) {
        (self.shards.iter().map(|shard| shard.push.len()).sum(), PUSH_QUEUE * self.shards.len())
    }

    /// Tells a shard; waits while too much waits there.
    pub(crate) fn tell(&self, shard: usize, control: Control) {
        if shard < self.shards.len() {
            self.control(shard, control);
        }
    }

    pub(crate) fn signal(&self, user: UserNo, signal: Signal) {
        self.control(self.shard_of(user), Control::Signal { user, signal });
    }

    /// Tells who is online of a conversation, but one user, that this one types there; those whose shard has too much
    /// of that waiting are not told.
    pub(crate) fn typing(&self, conversation: &Conversation, but: UserNo, user: &Arc<str>) {
        let id: Arc<str> = conversation.id.as_str().into();
        let tell = |shard: usize, hearers| {
            let target: &ShardSender = &self.shards[shard];
            let typing = Typing { conversation: id.clone(), user: user.clone(), hearers };
            if target.typing.try_send(typing).is_ok() {
                target.wake.wake();
            }
        };
        match conversation.pair {
            Some((a, b)) => {
                for user in [a, b].into_iter().filter(|user| *user != but) {
                    tell(self.shard_of(user), Hearers::User(user));
                }
            }
            None => {
                let hearers = Hearers::Members { conversation: conversation.no, but };
                (0..self.shards.len()).for_each(|shard| tell(shard, hearers));
            }
        }
    }

    fn control(&self, shard: usize, control: Control) {
        let target = &self.shards[shard];
        if target.control.send(control).is_ok() {
            target.wake.wake();
        }
    }

    /// What waits at all shards, per lane, and the limit of one queue.
    pub(crate) fn depths(&self) -> ([usize; LANES], usize) {
        let mut depths = [0; LANES];
        for shard in &self.shards {
            for (depth, queue) in depths.iter_mut().zip(&shard.lanes) {
                *depth += queue.len();
            }
        }
        (depths, self.shards.first().and_then(|s| s.lanes[0].capacity()).unwrap_or(0) * self.shards.len())
    }
}

/// Which of `count` shards a user belongs to.
pub fn shard_of(user: UserNo, count: usize) -> usize {
    (user.0 % count as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NobodyWakes;

    impl Wake for NobodyWakes {
        fn wake(&self) {}
    }

    #[test]
    fn typing_that_nobody_takes_leaves_the_answers_alone() {
        let (shards, receivers) = Shards::new(&EngineConfig::default(), vec![Arc::new(NobodyWakes)]);
        let (kind, (name, avatar, attributes)) = (ConversationKind::Group, Default::default());
        let group = Conversation {
            no: ConversationNo(1),
            id: "g".into(),
            kind,
            pair: None,
            name,
            avatar,
            attributes,
            created_at: 0,
            member_count: 2,
        };
        for _ in 0..2 * CONTROL_QUEUE {
            shards.typing(&group, UserNo(1), &"ada".into());
        }
        assert_eq!((receivers[0].typing.len(), receivers[0].control.len()), (TYPING_QUEUE, 0));
    }
}

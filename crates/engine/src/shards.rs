//! The engine's side of the shards. Each shard has a queue for every lane, one each for control, transient frames and pushes, and
//! a wake.
//!
//! A shard is a thread of the gateway that owns its users' sessions outright. Three lane queues
//! keep the lanes apart up to the thread that must serve them all: it takes direct before group
//! before broadcast, a bounded number of fan-outs at a time.

use crate::{delivery::Fanout, desks::Desks};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use std::sync::Arc;
use tidings_domain::model::*;
use tidings_protocol::{error::Refusal, http::SendReceipt};
use tidings_push::{PushItem, ShardSink};

/// Answers, signals and kicks waiting at a shard. Full: the sender waits; the committer is one of the senders.
const CONTROL_QUEUE: usize = 4_096;
/// Typing and signals waiting at a shard, apart from controls that callers wait for. Full: dropped, for a late typing
/// signal is of no use.
const TRANSIENT_QUEUE: usize = 256;
/// Push items waiting at a shard. Full: the push worker waits, chat does not.
const PUSH_QUEUE: usize = 1_024;

/// Wakes a shard's thread.
pub trait Wake: Send + Sync + 'static {
    /// Called after an element was put into one of the shard's queues.
    fn wake(&self);
}

/// The session that gets the reply to a send.
#[derive(Debug, Clone, Copy)]
pub struct SessionReply {
    pub shard: usize,
    pub session: u64,
    pub reference: Option<u64>,
}

/// The answer to a session's send, or to its change of a message.
#[derive(Debug, Clone)]
pub struct SendReply {
    pub session: u64,
    pub reference: Option<u64>,
    pub result: Result<SendReceipt, Refusal>,
    /// Of a change: the version of the message's body that it left.
    pub version: Option<u32>,
}

/// New states of users that a session watches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchUpdate {
    pub session: u64,
    /// The update answers a request of the session, which had this `ref`.
    pub reply_to: Option<Option<u64>>,
    pub changes: Vec<WatchedChange>,
}

/// A watched user's new state.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct WatchedChange {
    pub user: Arc<str>,
    pub online: bool,
    pub active: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<u64>,
}

/// An ephemeral event for a user's sessions: no timeline holds it.
#[derive(Debug, Clone)]
pub enum Signal {
    /// The user's read mark moved.
    Read { conversation: ConversationNo, seq: u64 },
    /// A frame for all sessions of the user that have chat and room for it.
    Frame {
        /// The frame's JSON.
        frame: Arc<[u8]>,
    },
    /// Asks for the session that a popup should go to: the latest of those that accept popup frames and have room. If there
    /// is none, the channel closes without an answer.
    FindPopupSession { answer: crossbeam_channel::Sender<u64> },
    /// A popup for this session.
    Popup {
        session: u64,
        /// A `popup` frame's JSON.
        frame: Arc<[u8]>,
    },
    /// Ends this session, because another node has a later one in its place.
    Replaced { session: u64 },
    /// The app server ends these sessions: those of one device, or all.
    Kick { device_id: Option<String>, reason: String },
    /// The user is suspended: all sessions end.
    Suspend { reason: String },
}

/// An element of a shard's control queue.
#[derive(Debug)]
pub enum Control {
    Replies(Vec<SendReply>),
    /// For every session of the user.
    Signal {
        user: UserNo,
        signal: Signal,
    },
    /// New states of watched users, by session.
    Presence(Vec<WatchUpdate>),
    /// For these sessions, as far as they are bound and have room for it.
    Frame {
        sessions: Vec<u64>,
        /// The frame's JSON.
        frame: Arc<[u8]>,
    },
    /// Members of a conversation have read messages: for its live members, but those who send no read receipts.
    Receipts {
        conversation: ConversationNo,
        /// A `receipts` frame's JSON.
        frame: Arc<[u8]>,
    },
}

/// What live members of a conversation are told and nobody keeps: that a user types, or a signal.
#[derive(Debug, Clone)]
pub struct Transient {
    /// The frame's JSON.
    pub frame: Arc<[u8]>,
    pub audience: TransientAudience,
}

/// The users who are notified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransientAudience {
    User(UserNo),
    /// The live members of the conversation, except the user who types or signals.
    Members {
        conversation: ConversationNo,
        except: UserNo,
    },
}

/// The queues from which a shard's thread reads.
pub struct ShardReceivers {
    pub lanes: [Receiver<Arc<Fanout>>; LANES],
    pub control: Receiver<Control>,
    pub transient: Receiver<Transient>,
    pub push: Receiver<PushItem>,
}

struct ShardSender {
    lanes: [Sender<Arc<Fanout>>; LANES],
    control: Sender<Control>,
    transient: Sender<Transient>,
    push: Sender<PushItem>,
    wake: Arc<dyn Wake>,
}

pub struct Shards {
    shards: Vec<ShardSender>,
    desks: Arc<Desks>,
}

impl Shards {
    /// The queues of one shard for each wake. `lane_queue`: fan-outs of each lane that wait at a shard.
    pub(crate) fn new(
        lane_queue: usize,
        wakes: Vec<Arc<dyn Wake>>,
        desks: Arc<Desks>,
    ) -> (Arc<Shards>, Vec<ShardReceivers>) {
        let (shards, receivers) = wakes
            .into_iter()
            .map(|wake| {
                let lanes = [(); LANES].map(|()| bounded(lane_queue));
                let (control, control_receiver) = bounded(CONTROL_QUEUE);
                let (transient, transient_receiver) = bounded(TRANSIENT_QUEUE);
                let (push, push_receiver) = bounded(PUSH_QUEUE);
                let receivers = ShardReceivers {
                    lanes: lanes.each_ref().map(|(_, r)| r.clone()),
                    control: control_receiver,
                    transient: transient_receiver,
                    push: push_receiver,
                };
                (ShardSender { lanes: lanes.map(|(s, _)| s), control, transient, push, wake }, receivers)
            })
            .unzip();
        (Arc::new(Shards { shards, desks }), receivers)
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

    /// Push items waiting at all shards, and the limit.
    pub(crate) fn push_depth(&self) -> (usize, usize) {
        (self.shards.iter().map(|shard| shard.push.len()).sum(), PUSH_QUEUE * self.shards.len())
    }

    /// Sends a control to a shard; waits while its control queue is full. A number that names no shard is ignored.
    pub(crate) fn send_control(&self, shard: usize, control: Control) {
        if shard < self.shards.len() {
            self.put_control(shard, control);
        }
    }

    /// Signals a user's sessions; what an account learns, its agents do.
    pub(crate) fn signal(&self, user: UserNo, signal: Signal) {
        match signal {
            Signal::Read { .. } | Signal::Frame { .. } => {
                for user in self.desks.people_of(user) {
                    self.put_control(self.shard_of(user), Control::Signal { user, signal: signal.clone() });
                }
            }
            signal => self.put_control(self.shard_of(user), Control::Signal { user, signal }),
        }
    }

    /// Sends a frame that nobody keeps to the live members of a conversation, except this user. A shard whose queue of those is
    /// full is left out.
    pub(crate) fn transient(&self, conversation: &Conversation, except: UserNo, frame: &Arc<[u8]>) {
        let send = |shard: usize, audience| {
            let target: &ShardSender = &self.shards[shard];
            if target.transient.try_send(Transient { frame: frame.clone(), audience }).is_ok() {
                target.wake.wake();
            }
        };
        match self.readers_of_pair(conversation, except) {
            Some(readers) => {
                readers.into_iter().for_each(|user| send(self.shard_of(user), TransientAudience::User(user)));
            }
            None => {
                let audience = TransientAudience::Members { conversation: conversation.no, except };
                (0..self.shards.len()).for_each(|shard| send(shard, audience));
            }
        }
    }

    /// Of a direct conversation: whose sessions get what is for everybody but this user, the agents of an account among them.
    pub(crate) fn readers_of_pair(&self, conversation: &Conversation, except: UserNo) -> Option<Vec<UserNo>> {
        let (a, b) = conversation.pair?;
        let others = [a, b].into_iter().filter(|user| *user != except);
        Some(others.flat_map(|user| self.desks.people_of(user)).collect())
    }

    fn put_control(&self, shard: usize, control: Control) {
        let target = &self.shards[shard];
        if target.control.send(control).is_ok() {
            target.wake.wake();
        }
    }

    /// Fan-outs waiting at all shards, per lane, and the limit of a lane over all shards.
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

impl ShardSink for Shards {
    fn count(&self) -> usize {
        self.shards.len()
    }

    fn try_push(&self, shard: usize, item: PushItem, room: usize) -> Result<(), PushItem> {
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
            // The shard has ended, and its sessions with it.
            Err(TrySendError::Disconnected(_)) => Ok(()),
        }
    }
}

/// Which of `count` shards a user belongs to.
pub fn shard_of(user: UserNo, count: usize) -> usize {
    (user.0 % count as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_testkit::MemoryStore;

    struct NoWake;

    impl Wake for NoWake {
        fn wake(&self) {}
    }

    #[test]
    fn transient_frames_beyond_the_queue_are_dropped_and_leave_control_empty() {
        let (shards, receivers) = Shards::new(64, vec![Arc::new(NoWake)], Desks::new(Arc::new(MemoryStore::default())));
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
            settings: ConversationSettings::default(),
            blocks: PairBlocks::default(),
        };
        for _ in 0..2 * CONTROL_QUEUE {
            shards.transient(&group, UserNo(1), &b"{}"[..].into());
        }
        assert_eq!((receivers[0].transient.len(), receivers[0].control.len()), (TRANSIENT_QUEUE, 0));
    }
}

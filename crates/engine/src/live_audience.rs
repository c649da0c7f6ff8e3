//! Which commits concern a session of this node. A node of a cluster follows the commits of all nodes; one that none of its sessions
//! may see goes into the caches and no further: it is not encoded, and wakes neither a lane nor a shard. Pieces of messages that
//! grow, which are no commits, are still handed on.
//!
//! Other nodes are told which cells are taken ([`crate::cluster`]), so that they need not send what ends here.
//!
//! The users with sessions and the conversations with live members are counted in cells, several in one: a commit whose cell is
//! taken by somebody else is handed on for nothing, and one that concerns a session is always handed on.
//!
//! A commit that ended here has moved no shard's position. A user who binds then would be taken for live from a position before
//! it, and would neither get it nor read it. Therefore a shard first counts the user, then [`LiveAudience::skipped`] is read, and
//! the user goes live when the shard has come as far as that.

use crate::desks::Desks;
use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::{Mutex, MutexGuard};
use roaring::RoaringBitmap;
use serde::{Deserialize, Serialize};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering},
};
use tidings_domain::{metrics::Metrics, model::*};

/// Nodes tell each other of their cells, so that the cell of a user or a conversation must be the same on all of them: another way to
/// number them needs another gate and another report.
const CELL_BITS: u32 = 18;
/// What may wait to be told. Above: all cells are.
const UNTOLD_MAX: usize = 4_096;

/// What is counted.
#[derive(Clone, Copy)]
pub(crate) enum Counted {
    User(UserNo),
    Conversation(ConversationNo),
}

impl Counted {
    /// The number of its cell.
    pub(crate) fn cell(self) -> u32 {
        let key = match self {
            Counted::User(user) => user.0 << 1,
            Counted::Conversation(conversation) => conversation.0 << 1 | 1,
        };
        // Fibonacci hashing: numbers that follow each other lie far apart.
        (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - CELL_BITS)) as u32
    }
}

/// Messages of one conversation that another node has committed, and whose content this node was not sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    pub conversation: ConversationNo,
    pub kind: ConversationKind,
    pub pair: Option<(UserNo, UserNo)>,
    pub messages: u32,
    /// The position of the last of them.
    pub through: Position,
}

/// What other nodes are to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    /// The cell was empty.
    Taken(u32),
    /// A user has come whose conversations are not known yet.
    UserCame,
}

pub struct LiveAudience {
    cells: Box<[AtomicU32]>,
    /// Users whose memberships are being read: every conversation may be one of theirs.
    loading: AtomicU32,
    desks: Arc<Desks>,
    /// Of each lane, how far commits have ended here. Locked while it is decided which do.
    skipped: Mutex<[Position; LANES]>,
    untold: (Sender<News>, Receiver<News>),
    /// There was more news than could wait.
    has_overflowed: AtomicBool,
    metrics: Arc<Metrics>,
}

impl LiveAudience {
    pub(crate) fn new(desks: Arc<Desks>, metrics: Arc<Metrics>) -> Arc<LiveAudience> {
        Arc::new(LiveAudience {
            cells: (0..1 << CELL_BITS).map(|_| AtomicU32::new(0)).collect(),
            loading: AtomicU32::new(0),
            desks,
            skipped: Mutex::default(),
            untold: bounded(UNTOLD_MAX),
            has_overflowed: AtomicBool::new(false),
            metrics,
        })
    }

    fn add(&self, counted: Counted) {
        let cell = counted.cell();
        if self.cells[cell as usize].fetch_add(1, Ordering::Relaxed) == 0 {
            self.tell(News::Taken(cell));
        }
    }

    fn remove(&self, counted: Counted) {
        self.cells[counted.cell() as usize].fetch_sub(1, Ordering::Release);
    }

    fn may_be(&self, counted: Counted) -> bool {
        self.cells[counted.cell() as usize].load(Ordering::Acquire) > 0
    }

    fn tell(&self, news: News) {
        if self.untold.0.try_send(news).is_err() {
            self.has_overflowed.store(true, Ordering::Release);
        }
    }

    /// What other nodes are to be told, in no order.
    pub(crate) fn untold(&self) -> &Receiver<News> {
        &self.untold.1
    }

    /// Whether more has happened than [`Self::untold`] has, since the last call.
    pub(crate) fn take_overflow(&self) -> bool {
        self.has_overflowed.swap(false, Ordering::AcqRel)
    }

    /// Whether memberships are being read: every group may be one of those.
    pub(crate) fn is_loading(&self) -> bool {
        self.loading.load(Ordering::Acquire) > 0
    }

    /// The cells that are taken now.
    pub(crate) fn taken_cells(&self) -> RoaringBitmap {
        let is_taken = |(_, count): &(u32, &AtomicU32)| count.load(Ordering::Acquire) > 0;
        (0..).zip(&self.cells[..]).filter(is_taken).map(|(cell, _)| cell).collect()
    }

    /// The user's first session has come, and the user's memberships are not known yet.
    pub(crate) fn user_came(&self, user: UserNo) {
        self.loading.fetch_add(1, Ordering::Relaxed);
        self.tell(News::UserCame);
        self.add(Counted::User(user));
    }

    /// The user's conversations have been counted, or the user has left before that.
    pub(crate) fn loaded(&self) {
        self.loading.fetch_sub(1, Ordering::Release);
    }

    pub(crate) fn user_left(&self, user: UserNo) {
        self.remove(Counted::User(user));
    }

    /// A shard has the first live member of the conversation.
    pub(crate) fn conversation_came(&self, conversation: ConversationNo) {
        self.add(Counted::Conversation(conversation));
    }

    /// A shard has no live member of the conversation any more.
    pub(crate) fn conversation_left(&self, conversation: ConversationNo) {
        self.remove(Counted::Conversation(conversation));
    }

    /// Decides about commits in their order, up to this position.
    pub(crate) fn decide(&self, through: Position) -> Decision<'_> {
        Decision { audience: self, skipped: self.skipped.lock(), through }
    }

    /// Of each lane, how far commits have ended here: for a user who was counted before this call.
    pub(crate) fn skipped(&self) -> [Position; LANES] {
        *self.skipped.lock()
    }

    /// Whether what was left out of commits up to this position concerns no session of this node. If so, it ends here.
    pub(crate) fn passes(&self, left_out: &[LeftOut], through: Position) -> bool {
        let mut skipped = self.skipped.lock();
        if left_out.iter().any(|left_out| self.may_see(left_out.conversation, left_out.pair)) {
            return false;
        }
        for left_out in left_out {
            skipped[Lane::of(left_out.kind) as usize] = through;
            self.metrics.cluster.skipped.inc_by(u64::from(left_out.messages));
        }
        true
    }

    /// Whether a session of this node may see what is said in the conversation.
    fn may_see(&self, conversation: ConversationNo, pair: Option<(UserNo, UserNo)>) -> bool {
        match pair {
            // The agents of an account come and go without a commit of the conversation.
            Some((a, b)) => {
                [a, b].into_iter().any(|user| self.may_be(Counted::User(user))) || self.desks.sides(pair).is_some()
            }
            // In this order: whoever has loaded was counted before.
            None => self.is_loading() || self.may_be(Counted::Conversation(conversation)),
        }
    }

    fn concerns(&self, conversation: &Conversation, joined: &[UserNo], left: &[UserNo]) -> bool {
        self.may_see(conversation.no, conversation.pair)
            || joined.iter().chain(left).any(|user| self.may_be(Counted::User(*user)))
    }
}

/// Decides which commits concern a session of this node.
pub(crate) struct Decision<'a> {
    audience: &'a LiveAudience,
    skipped: MutexGuard<'a, [Position; LANES]>,
    through: Position,
}

impl Decision<'_> {
    pub(crate) fn concerns(&mut self, conversation: &Conversation, joined: &[UserNo], left: &[UserNo]) -> bool {
        let concerns = self.audience.concerns(conversation, joined, left);
        if !concerns {
            self.skipped[conversation.lane() as usize] = self.through;
            self.audience.metrics.cluster.skipped.inc();
        }
        concerns
    }
}

/// Counts a conversation whose members change until all shards know: until then neither a shard's count of it nor what a shard
/// has noted for a user who is loading is final.
#[derive(Clone)]
pub struct MembersHold(Arc<HeldConversation>);

struct HeldConversation {
    audience: Arc<LiveAudience>,
    conversation: ConversationNo,
}

impl MembersHold {
    pub(crate) fn new(audience: &Arc<LiveAudience>, conversation: ConversationNo) -> MembersHold {
        audience.conversation_came(conversation);
        MembersHold(Arc::new(HeldConversation { audience: audience.clone(), conversation }))
    }
}

impl std::fmt::Debug for MembersHold {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "MembersHold({})", self.0.conversation.0)
    }
}

impl Drop for HeldConversation {
    fn drop(&mut self) {
        self.audience.conversation_left(self.conversation);
    }
}

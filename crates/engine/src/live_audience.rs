//! Which commits concern a session of this node. A node of a cluster follows the commits of all nodes; one that none of its sessions
//! may see goes into the caches and no further: it is not encoded, and wakes neither a lane nor a shard. Pieces of messages that
//! grow, which are no commits, are still handed on.
//!
//! The users with sessions and the conversations with live members are counted in cells, several in one: a commit whose cell is
//! taken by somebody else is handed on for nothing, and one that concerns a session is always handed on.
//!
//! A commit that ended here has moved no shard's position. A user who binds then would be taken for live from a position before
//! it, and would neither get it nor read it. Therefore a shard first counts the user, then [`LiveAudience::skipped`] is read, and
//! the user goes live when the shard has come as far as that.

use crate::desks::Desks;
use parking_lot::{Mutex, MutexGuard};
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};
use tidings_domain::{metrics::Metrics, model::*};

const CELL_BITS: u32 = 18;

/// What is counted.
#[derive(Clone, Copy)]
enum Counted {
    User(UserNo),
    Conversation(ConversationNo),
}

pub struct LiveAudience {
    cells: Box<[AtomicU32]>,
    /// Users whose memberships are being read: every conversation may be one of theirs.
    loading: AtomicU32,
    desks: Arc<Desks>,
    /// Of each lane, how far commits have ended here. Locked while it is decided which do.
    skipped: Mutex<[Position; LANES]>,
    metrics: Arc<Metrics>,
}

impl LiveAudience {
    pub(crate) fn new(desks: Arc<Desks>, metrics: Arc<Metrics>) -> Arc<LiveAudience> {
        let cells = (0..1 << CELL_BITS).map(|_| AtomicU32::new(0)).collect();
        Arc::new(LiveAudience { cells, loading: AtomicU32::new(0), desks, skipped: Mutex::default(), metrics })
    }

    fn cell(&self, counted: Counted) -> &AtomicU32 {
        let key = match counted {
            Counted::User(user) => user.0 << 1,
            Counted::Conversation(conversation) => conversation.0 << 1 | 1,
        };
        // Fibonacci hashing: numbers that follow each other lie far apart.
        &self.cells[(key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - CELL_BITS)) as usize]
    }

    fn add(&self, counted: Counted) {
        self.cell(counted).fetch_add(1, Ordering::Relaxed);
    }

    fn remove(&self, counted: Counted) {
        self.cell(counted).fetch_sub(1, Ordering::Release);
    }

    fn may_be(&self, counted: Counted) -> bool {
        self.cell(counted).load(Ordering::Acquire) > 0
    }

    /// The user's first session has come, and the user's memberships are not known yet.
    pub(crate) fn user_came(&self, user: UserNo) {
        self.loading.fetch_add(1, Ordering::Relaxed);
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

    fn concerns(&self, conversation: &Conversation, joined: &[UserNo], left: &[UserNo]) -> bool {
        let has_audience = match conversation.pair {
            // The agents of an account come and go without a commit of the conversation.
            Some((a, b)) => {
                [a, b].into_iter().any(|user| self.may_be(Counted::User(user)))
                    || self.desks.sides(conversation.pair).is_some()
            }
            // In this order: whoever has loaded was counted before.
            None => self.loading.load(Ordering::Acquire) > 0 || self.may_be(Counted::Conversation(conversation.no)),
        };
        has_audience || joined.iter().chain(left).any(|user| self.may_be(Counted::User(*user)))
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

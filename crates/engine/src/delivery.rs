//! Stage 2 without sockets: which live sessions get which entries. One [`Delivery`] per shard, owned by its thread.
//!
//! A shard keeps, per conversation with live members here, the list of those users (its audience),
//! so that a message costs its live receivers and not its members. Direct conversations need no
//! list: their two users are looked up.
//!
//! Binding a user's first session takes two steps. The memberships are read from a snapshot by
//! another thread, while fan-outs go on; what changes meanwhile is noted and applied on top when
//! the list is installed. From that moment (its position per lane is `joined`) entries arrive live,
//! and everything up to it is read from the store: nothing is missed and nothing comes twice.

use crate::{
    chunked_slab::ChunkedSlab,
    countdown_latch::CountdownLatch,
    entry_view::encode_entry,
    live_audience::{LiveAudience, MembersHold},
    visibility::{Floors, HiddenMessages, View, is_by, oldest_target, targets_of},
};
use bytes::Bytes;
use hashbrown::HashTable;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::{hash::BuildHasher, ops::Range, sync::Arc, time::Instant};
use tidings_domain::model::*;

/// Entries of one conversation, encoded once for all receivers.
#[derive(Debug)]
pub struct Block {
    pub conversation: ConversationNo,
    pub recipients: Recipients,
    pub entries: u32,
    /// Entries as JSON, each preceded by a comma: `,{…},{…}`.
    pub json: Bytes,
    /// The same entries, each without what the one before it has, too: for clients that asked for that. Absent: they get
    /// whole ones, since there is one entry alone, or not all readers get the same entries.
    pub compact: Option<Bytes>,
}

impl Block {
    /// The entries for a client that asked for compact ones, or did not.
    pub fn entries_json(&self, is_compact: bool) -> &Bytes {
        self.compact.as_ref().filter(|_| is_compact).unwrap_or(&self.json)
    }
}

/// What the text of a message that grows has grown by. No timeline has it: a session may get two chunks as one.
#[derive(Debug)]
pub struct Chunk {
    pub conversation: ConversationNo,
    pub seq: u64,
    pub recipients: Recipients,
    /// The bytes of the text before this chunk.
    pub offset: u64,
    /// The JSON of a `stream` frame.
    pub json: Bytes,
    /// Absent: all recipients may see the message.
    pub floors: Option<Floors>,
}

/// The entries of a block that concern earlier messages, which some recipients may not see, and those that the hook has hidden.
#[derive(Debug)]
pub struct LooksBack {
    conversation: String,
    /// That of the block, whoever its reader is.
    view: View,
    floors: Floors,
    /// The entries, and where they are in the block's JSON.
    entries: Vec<(Range<usize>, StoredEntry)>,
    /// The messages that the entries concern, in order.
    targets: Vec<u64>,
    /// Whether the hook has hidden any of the entries.
    has_hidden: bool,
}

impl LooksBack {
    pub(crate) fn of(conversation: &str, view: View) -> LooksBack {
        let floors = Floors::none();
        LooksBack {
            conversation: conversation.to_owned(),
            view,
            floors,
            entries: Vec::new(),
            targets: Vec::new(),
            has_hidden: false,
        }
    }

    /// With one more entry; the parts that members may see are as they are now.
    pub(crate) fn with(mut self, floors: Floors, bytes: Range<usize>, entry: StoredEntry) -> LooksBack {
        self.targets.extend(targets_of(&entry));
        self.targets.sort_unstable();
        self.has_hidden |= entry.content.is_hidden();
        self.entries.push((bytes, entry));
        LooksBack { floors, ..self }
    }

    /// How many of the messages are behind the part of a reader that begins with this `seq`.
    fn hidden(&self, first_seq: u64) -> usize {
        self.targets.partition_point(|target| *target < first_seq)
    }

    /// Whether the hook has hidden one of the entries, and this user wrote it.
    fn has_own_hidden(&self, user: UserNo) -> bool {
        self.has_hidden
            && self.entries.iter().any(|(_, entry)| entry.content.is_hidden() && is_by(user, &entry.content))
    }

    /// The block for a reader whose part begins with this `seq`, and who sees what was hidden of these messages.
    fn encode(&self, block: &Block, first_seq: u64, hidden: HiddenMessages) -> Block {
        let mut json = Vec::with_capacity(block.json.len());
        let mut copied = 0;
        let differs = |(_, entry): &&(Range<usize>, StoredEntry)| {
            oldest_target(entry).is_some_and(|seq| seq < first_seq) || entry.content.is_hidden()
        };
        for (bytes, entry) in self.entries.iter().filter(differs) {
            // The entry itself is on its way, even to a reader who has cleared it meanwhile.
            let view = View { first_seq: first_seq.min(entry.seq), hidden, ..self.view };
            let Some(shown) = view.show(entry) else { continue };
            json.extend_from_slice(&block.json[copied..bytes.start]);
            json.push(b',');
            encode_entry(&mut json, &self.conversation, &shown);
            copied = bytes.end;
        }
        json.extend_from_slice(&block.json[copied..]);
        let (conversation, recipients, entries) = (block.conversation, block.recipients.clone(), block.entries);
        Block { conversation, recipients, entries, json: json.into(), compact: None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recipients {
    Pair(UserNo, UserNo),
    /// Of a conversation with an account: its user, the agents of the account, or all of them. Nobody is named twice.
    Users(Arc<[UserNo]>),
    /// The live members.
    Audience,
}

#[derive(Debug, Clone)]
pub enum Step {
    Block {
        block: Arc<Block>,
        /// The `seq` of the first entry.
        first_seq: u64,
        /// Absent: all recipients may see the same.
        looks_back: Option<Arc<LooksBack>>,
    },
    /// Behind the entry of its message, and before the one that ends it.
    Chunk(Arc<Chunk>),
    Join {
        conversation: ConversationNo,
        users: Arc<[UserNo]>,
        /// The last `seq` before they joined; `None`: the one before the next block.
        joined_seq: Option<u64>,
        /// In a cluster.
        hold: Option<MembersHold>,
    },
    Leave {
        conversation: ConversationNo,
        id: Arc<str>,
        users: Arc<[UserNo]>,
        /// In a cluster.
        hold: Option<MembersHold>,
    },
    /// Every entry up to the fan-out's position was handed over before; the shard counts the latch down.
    Barrier(Arc<CountdownLatch>),
}

/// A bounded run of committed entries of one lane, in commit order per conversation. Applied as a
/// whole: a session's cursor moves from one `through` to the next, never to a place in between.
#[derive(Debug)]
pub struct Fanout {
    pub lane: Lane,
    /// Every entry of the lane up to here was in this or an earlier fan-out, or concerned no session of this node.
    pub through: Position,
    pub steps: Vec<Step>,
    /// When the oldest of its entries was taken up by the committer.
    pub committed_at: Instant,
}

/// The gateway's index of a session.
pub type SessionKey = usize;

/// The sessions of a shard, as a fan-out is delivered to them.
pub trait Sink {
    /// Puts a block into the session's buffer.
    fn block(&mut self, session: SessionKey, block: &Arc<Block>, lane: Lane, through: Position);
    /// Hands the session a chunk of a message that grows.
    fn chunk(&mut self, session: SessionKey, chunk: &Arc<Chunk>, lane: Lane);
    /// Tells the session that its user left the conversation.
    fn left(&mut self, session: SessionKey, conversation: &Arc<str>);
}

#[derive(Debug, PartialEq, Eq)]
pub enum BindOutcome {
    /// The caller must read the user's memberships and hand them to [`Delivery::install`] with this number.
    NeedsMemberships(u64),
    /// The memberships are being read for another session of the user; `install` makes this session live too.
    Loading,
    /// The session is live from these positions on.
    Joined([Position; LANES]),
}

/// A membership as the store has it. The store may be ahead of the fan-outs that a shard has applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MembershipSnapshot {
    pub conversation: ConversationNo,
    pub lane: Lane,
    /// The position of the last entry before the user joined; 0 when every shard is known to have applied it. A shard
    /// that has not applied it leaves the conversation out: the join itself is still to come, and the entries before it
    /// are not for this user.
    pub joined_after: Position,
    /// The last `seq` before the user joined.
    pub joined_seq: u64,
}

/// Of a user with sessions.
enum Memberships {
    /// Being read.
    Loading(Box<Loading>),
    /// The group and official conversations whose audience the user is in.
    Known(SmallVec<[ConversationNo; 2]>),
}

struct Loading {
    /// The number of this read. The result of an earlier read, for sessions that have ended since, is stale.
    number: u64,
    /// The user's last change in each conversation since the read began: `Some` for a join, with the last `seq` before it, and
    /// `None` for a leave.
    changes: FxHashMap<ConversationNo, Option<u64>>,
}

/// A live member in a conversation's audience.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AudienceMember {
    /// The index of the user.
    user: u32,
    /// The last `seq` before the user joined, or [`JOINED_LAST`].
    joined_seq: u64,
}

/// Of a member who joined after the last block: the next one begins with the first entry that the member sees.
const JOINED_LAST: u64 = u64::MAX;

struct UserState {
    sessions: SmallVec<[SessionKey; 2]>,
    memberships: Memberships,
}

/// For whom an entry is.
#[derive(Debug, Clone, Copy)]
struct Reader {
    user: UserNo,
    /// The last `seq` before the user joined; 0 in direct conversations, which nobody joins.
    joined_seq: u64,
}

/// The users with sessions. An index by their numbers holds four bytes for each: the number itself is with the user.
#[derive(Default)]
struct Users {
    hasher: FxBuildHasher,
    by_no: HashTable<u32>,
    states: ChunkedSlab<(UserNo, UserState)>,
}

impl Users {
    fn index(&self, user: UserNo) -> Option<usize> {
        let is_user = |index: &u32| self.states[*index as usize].0 == user;
        self.by_no.find(self.hasher.hash_one(user), is_user).map(|index| *index as usize)
    }

    fn insert(&mut self, user: UserNo, state: UserState) {
        let index = self.states.insert((user, state)) as u32;
        let Users { hasher, by_no, states } = self;
        by_no.insert_unique(hasher.hash_one(user), index, |index| hasher.hash_one(states[*index as usize].0));
    }

    fn remove(&mut self, index: usize) -> UserState {
        let (user, state) = self.states.remove(index);
        if let Ok(entry) = self.by_no.find_entry(self.hasher.hash_one(user), |known| *known as usize == index) {
            entry.remove();
        }
        state
    }
}

#[derive(Default)]
pub struct Delivery {
    users: Users,
    audiences: FxHashMap<ConversationNo, Vec<AudienceMember>>,
    /// Conversations with members of whom it is not known yet after which `seq` they joined.
    joined_last: FxHashSet<ConversationNo>,
    positions: [Position; LANES],
    loads: u64,
    /// In a cluster.
    live_audience: Option<Arc<LiveAudience>>,
}

impl Delivery {
    /// A delivery to which entries up to `positions` are never handed: sessions read those from the store.
    pub fn starting_at(positions: [Position; LANES], live_audience: Option<Arc<LiveAudience>>) -> Self {
        Delivery { positions, live_audience, ..Delivery::default() }
    }

    pub fn bind(&mut self, session: SessionKey, user: UserNo) -> BindOutcome {
        if let Some(index) = self.users.index(user) {
            let (_, state) = &mut self.users.states[index];
            state.sessions.push(session);
            return match state.memberships {
                Memberships::Loading(_) => BindOutcome::Loading,
                Memberships::Known(_) => BindOutcome::Joined(self.positions),
            };
        }
        self.loads += 1;
        let loading = Loading { number: self.loads, changes: FxHashMap::default() };
        let state = UserState {
            sessions: SmallVec::from_slice(&[session]),
            memberships: Memberships::Loading(Box::new(loading)),
        };
        self.users.insert(user, state);
        self.live_audience.iter().for_each(|audience| audience.user_came(user));
        BindOutcome::NeedsMemberships(self.loads)
    }

    /// Installs the memberships that were read, with the changes since then on top. Answers the sessions that are live
    /// now, and the positions from which on they are. `None`: all sessions of this read have ended.
    pub fn install(
        &mut self,
        user: UserNo,
        number: u64,
        memberships: Vec<MembershipSnapshot>,
    ) -> Option<(SmallVec<[SessionKey; 2]>, [Position; LANES])> {
        let index = self.users.index(user)?;
        let (_, state) = &mut self.users.states[index];
        let Memberships::Loading(loading) = &mut state.memberships else { return None };
        if loading.number != number {
            return None;
        }
        let changes = std::mem::take(&mut loading.changes);
        let sessions = state.sessions.clone();
        let positions = self.positions;
        let kept = memberships.into_iter().filter(|read| read.joined_after <= positions[read.lane as usize]);
        let kept = kept.map(|read| (read.conversation, read.joined_seq)).filter(|(c, _)| !changes.contains_key(c));
        let joined = changes.iter().filter_map(|(c, joined)| joined.map(|joined_seq| (*c, joined_seq)));
        let all: Vec<_> = kept.chain(joined).collect();
        state.memberships = Memberships::Known(all.iter().map(|(conversation, _)| *conversation).collect());
        for (conversation, joined_seq) in all {
            self.enter_audience(conversation, index, joined_seq);
        }
        self.live_audience.iter().for_each(|audience| audience.loaded());
        Some((sessions, self.positions))
    }

    /// Removes a session, and with the last one of a user the user; answers whether it was the last.
    pub fn unbind(&mut self, session: SessionKey, user: UserNo) -> bool {
        let Some(index) = self.users.index(user) else { return false };
        let (_, state) = &mut self.users.states[index];
        state.sessions.retain(|s| *s != session);
        let is_last = state.sessions.is_empty();
        if is_last {
            match self.users.remove(index).memberships {
                Memberships::Loading(_) => self.live_audience.iter().for_each(|audience| audience.loaded()),
                Memberships::Known(conversations) => {
                    for conversation in conversations {
                        self.leave_audience(conversation, index);
                    }
                }
            }
            self.live_audience.iter().for_each(|audience| audience.user_left(user));
        }
        is_last
    }

    fn enter_audience(&mut self, conversation: ConversationNo, index: usize, joined_seq: u64) {
        if joined_seq == JOINED_LAST {
            self.joined_last.insert(conversation);
        }
        let members = self.audiences.entry(conversation).or_default();
        if members.is_empty() {
            self.live_audience.iter().for_each(|audience| audience.conversation_came(conversation));
        }
        members.push(AudienceMember { user: index as u32, joined_seq });
    }

    /// A block of the conversation begins with this `seq`.
    fn settle_joins(&mut self, conversation: ConversationNo, first_seq: u64) {
        if !self.joined_last.is_empty() && self.joined_last.remove(&conversation) {
            let members = self.audiences.get_mut(&conversation).into_iter().flatten();
            for member in members.filter(|member| member.joined_seq == JOINED_LAST) {
                member.joined_seq = first_seq.saturating_sub(1);
            }
        }
    }

    fn leave_audience(&mut self, conversation: ConversationNo, index: usize) {
        if let Some(audience) = self.audiences.get_mut(&conversation) {
            if let Some(at) = audience.iter().position(|member| member.user as usize == index) {
                audience.swap_remove(at);
            }
            if audience.is_empty() {
                self.audiences.remove(&conversation);
                self.joined_last.remove(&conversation);
                self.live_audience.iter().for_each(|audience| audience.conversation_left(conversation));
            }
        }
    }

    /// Applies a fan-out; answers how many entries it delivered, counted once for each session.
    pub fn apply(&mut self, fanout: &Fanout, sink: &mut impl Sink) -> u64 {
        let mut delivered = 0;
        for step in &fanout.steps {
            match step {
                Step::Block { block, first_seq, looks_back } => {
                    self.settle_joins(block.conversation, *first_seq);
                    let entries = u64::from(block.entries);
                    let mut to_session = |session, block: &Arc<Block>| {
                        sink.block(session, block, fanout.lane, fanout.through);
                    };
                    let sessions = match looks_back {
                        None => self.deliver(block.conversation, &block.recipients, |_, session| {
                            to_session(session, block);
                        }),
                        Some(looks_back) => self.deliver_in_parts(block, looks_back, to_session),
                    };
                    delivered += sessions * entries;
                }
                Step::Chunk(chunk) => {
                    self.deliver(chunk.conversation, &chunk.recipients, |reader, session| {
                        let first_seq =
                            chunk.floors.as_ref().map_or(0, |floors| floors.of(reader.user, reader.joined_seq));
                        if chunk.seq >= first_seq {
                            sink.chunk(session, chunk, fanout.lane);
                        }
                    });
                }
                Step::Barrier(latch) => latch.count_down(),
                Step::Join { conversation, users, joined_seq, hold: _ } => {
                    users.iter().for_each(|user| self.join(*conversation, *user, joined_seq.unwrap_or(JOINED_LAST)));
                }
                Step::Leave { conversation, id, users, hold: _ } => {
                    users.iter().for_each(|user| self.leave(*conversation, id, *user, sink));
                }
            }
        }
        let position = &mut self.positions[fanout.lane as usize];
        *position = fanout.through.max(*position);
        delivered
    }

    /// Delivers a block of which not all recipients may see the same: it is encoded once for each part that some may see.
    fn deliver_in_parts(
        &self,
        block: &Arc<Block>,
        looks_back: &LooksBack,
        mut to_session: impl FnMut(SessionKey, &Arc<Block>),
    ) -> u64 {
        let mut parts: FxHashMap<(usize, Option<UserNo>), Arc<Block>> = FxHashMap::default();
        self.deliver(block.conversation, &block.recipients, |reader, session| {
            let first_seq = looks_back.floors.of(reader.user, reader.joined_seq);
            let own = Some(reader.user).filter(|user| looks_back.has_own_hidden(*user));
            match (looks_back.hidden(first_seq), own) {
                (0, None) => to_session(session, block),
                part => {
                    let hidden = own.map_or(HiddenMessages::None, HiddenMessages::Of);
                    let encode = || looks_back.encode(block, first_seq, hidden).into();
                    to_session(session, parts.entry(part).or_insert_with(encode));
                }
            }
        })
    }

    /// Calls back for each live session of the recipients; answers how many there are.
    fn deliver(
        &self,
        conversation: ConversationNo,
        recipients: &Recipients,
        mut to_session: impl FnMut(Reader, SessionKey),
    ) -> u64 {
        let mut sessions = 0;
        let mut to_user = |(user, state): &(UserNo, UserState), joined_seq| {
            if let Memberships::Known(_) = state.memberships {
                let reader = Reader { user: *user, joined_seq };
                state.sessions.iter().for_each(|session| to_session(reader, *session));
                sessions += state.sessions.len() as u64;
            }
        };
        match recipients {
            Recipients::Pair(a, b) => {
                for user in [Some(a), (a != b).then_some(b)].into_iter().flatten() {
                    if let Some(index) = self.users.index(*user) {
                        to_user(&self.users.states[index], 0);
                    }
                }
            }
            Recipients::Users(users) => {
                for index in users.iter().filter_map(|user| self.users.index(*user)) {
                    to_user(&self.users.states[index], 0);
                }
            }
            Recipients::Audience => {
                for member in self.audiences.get(&conversation).into_iter().flatten() {
                    to_user(&self.users.states[member.user as usize], member.joined_seq);
                }
            }
        }
        sessions
    }

    /// Whether the user, who has a session here, is among these recipients now.
    pub fn is_recipient(&self, user: UserNo, conversation: ConversationNo, recipients: &Recipients) -> bool {
        match recipients {
            Recipients::Pair(a, b) => user == *a || user == *b,
            Recipients::Users(users) => users.contains(&user),
            Recipients::Audience => self.users.index(user).is_some_and(|index| {
                let (_, state) = &self.users.states[index];
                matches!(&state.memberships, Memberships::Known(known) if known.contains(&conversation))
            }),
        }
    }

    fn join(&mut self, conversation: ConversationNo, user: UserNo, joined_seq: u64) {
        let Some(index) = self.users.index(user) else { return };
        let (_, state) = &mut self.users.states[index];
        match &mut state.memberships {
            Memberships::Loading(loading) => drop(loading.changes.insert(conversation, Some(joined_seq))),
            Memberships::Known(known) if known.contains(&conversation) => {}
            Memberships::Known(known) => {
                known.push(conversation);
                self.enter_audience(conversation, index, joined_seq);
            }
        }
    }

    fn leave(&mut self, conversation: ConversationNo, id: &Arc<str>, user: UserNo, sink: &mut impl Sink) {
        let Some(index) = self.users.index(user) else { return };
        let (_, state) = &mut self.users.states[index];
        let known = match &mut state.memberships {
            Memberships::Loading(loading) => {
                loading.changes.insert(conversation, None);
                return;
            }
            Memberships::Known(known) => known,
        };
        if let Some(at) = known.iter().position(|c| *c == conversation) {
            known.swap_remove(at);
            for session in &state.sessions {
                sink.left(*session, id);
            }
            self.leave_audience(conversation, index);
        }
    }

    /// The live members of a conversation, with their sessions.
    pub fn audience(&self, conversation: ConversationNo) -> impl Iterator<Item = (UserNo, &[SessionKey])> {
        self.audiences.get(&conversation).into_iter().flatten().map(|member| {
            let (user, state) = &self.users.states[member.user as usize];
            (*user, state.sessions.as_slice())
        })
    }

    pub fn positions(&self) -> [Position; LANES] {
        self.positions
    }

    /// How far commits have come for a session that begins now: to these positions, or farther where they concerned nobody here.
    pub fn positions_passed(&self) -> [Position; LANES] {
        let skipped = self.live_audience.as_ref().map_or([0; LANES], |audience| audience.skipped());
        std::array::from_fn(|lane| self.positions[lane].max(skipped[lane]))
    }
}

#[cfg(test)]
#[path = "../tests/units/delivery.rs"]
mod tests;

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

use crate::countdown_latch::CountdownLatch;
use bytes::Bytes;
use rustc_hash::FxHashMap;
use slab::Slab;
use smallvec::SmallVec;
use std::{sync::Arc, time::Instant};
use tidings_domain::model::*;

/// Entries of one conversation, encoded once for all receivers.
#[derive(Debug)]
pub struct Block {
    pub conversation: ConversationNo,
    pub recipients: Recipients,
    pub entries: u32,
    /// Entries as JSON, each preceded by a comma: `,{…},{…}`.
    pub json: Bytes,
}

/// What the text of a message that grows has grown by. No timeline has it: a session may get two pieces as one.
#[derive(Debug)]
pub struct Piece {
    pub conversation: ConversationNo,
    pub seq: u64,
    pub recipients: Recipients,
    /// The bytes of the text before this piece.
    pub offset: u64,
    /// The JSON of a `stream` frame.
    pub json: Bytes,
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
    Block(Arc<Block>),
    /// Behind the entry of its message, and before the one that ends it.
    Piece(Arc<Piece>),
    Join {
        conversation: ConversationNo,
        users: Arc<[UserNo]>,
    },
    Leave {
        conversation: ConversationNo,
        id: Arc<str>,
        users: Arc<[UserNo]>,
    },
    /// Every entry up to the fan-out's position was handed over before; the shard counts the latch down.
    Barrier(Arc<CountdownLatch>),
}

/// A bounded run of committed entries of one lane, in commit order per conversation. Applied as a
/// whole: a session's cursor moves from one `through` to the next, never to a place in between.
#[derive(Debug)]
pub struct Fanout {
    pub lane: Lane,
    /// Every entry of the lane up to here was in this or an earlier fan-out.
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
    /// Hands the session a piece of a message that grows.
    fn piece(&mut self, session: SessionKey, piece: &Arc<Piece>, lane: Lane);
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
}

/// The memberships are being read.
struct Loading {
    /// The number of this read. The result of an earlier read, for sessions that have ended since, is stale.
    number: u64,
    /// The user's last change in each conversation since the read began: `true` for a join, `false` for a leave.
    changes: FxHashMap<ConversationNo, bool>,
}

#[derive(Default)]
struct UserState {
    sessions: SmallVec<[SessionKey; 2]>,
    /// Group and official conversations whose audience the user is in.
    conversations: Vec<ConversationNo>,
    loading: Option<Loading>,
}

#[derive(Default)]
pub struct Delivery {
    by_no: FxHashMap<UserNo, usize>,
    users: Slab<(UserNo, UserState)>,
    audiences: FxHashMap<ConversationNo, Vec<u32>>,
    positions: [Position; LANES],
    loads: u64,
}

impl Delivery {
    /// A delivery to which entries up to `positions` are never handed: sessions read those from the store.
    pub fn starting_at(positions: [Position; LANES]) -> Self {
        Delivery { positions, ..Delivery::default() }
    }

    pub fn bind(&mut self, session: SessionKey, user: UserNo) -> BindOutcome {
        if let Some(&index) = self.by_no.get(&user) {
            let (_, state) = &mut self.users[index];
            state.sessions.push(session);
            return if state.loading.is_some() { BindOutcome::Loading } else { BindOutcome::Joined(self.positions) };
        }
        self.loads += 1;
        let loading = Loading { number: self.loads, changes: FxHashMap::default() };
        let state =
            UserState { sessions: SmallVec::from_slice(&[session]), loading: Some(loading), ..UserState::default() };
        let index = self.users.insert((user, state));
        self.by_no.insert(user, index);
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
        let &index = self.by_no.get(&user)?;
        let (_, state) = &mut self.users[index];
        let Loading { changes, .. } = state.loading.take_if(|loading| loading.number == number)?;
        let sessions = state.sessions.clone();
        let positions = self.positions;
        let kept = memberships.into_iter().filter(|read| read.joined_after <= positions[read.lane as usize]);
        let kept = kept.map(|read| read.conversation).filter(|c| !changes.contains_key(c));
        let joined = changes.iter().filter(|(_, is_member)| **is_member).map(|(c, _)| *c);
        state.conversations = kept.chain(joined).collect();
        for conversation in &self.users[index].1.conversations {
            self.audiences.entry(*conversation).or_default().push(index as u32);
        }
        Some((sessions, self.positions))
    }

    /// Removes a session, and with the last one of a user the user.
    pub fn unbind(&mut self, session: SessionKey, user: UserNo) {
        let Some(&index) = self.by_no.get(&user) else { return };
        let (_, state) = &mut self.users[index];
        state.sessions.retain(|s| *s != session);
        if state.sessions.is_empty() {
            let (_, state) = self.users.remove(index);
            self.by_no.remove(&user);
            for conversation in state.conversations {
                self.leave_audience(conversation, index);
            }
        }
    }

    fn leave_audience(&mut self, conversation: ConversationNo, index: usize) {
        if let Some(audience) = self.audiences.get_mut(&conversation) {
            if let Some(at) = audience.iter().position(|i| *i as usize == index) {
                audience.swap_remove(at);
            }
            if audience.is_empty() {
                self.audiences.remove(&conversation);
            }
        }
    }

    /// Applies a fan-out; answers how many entries it delivered, counted once for each session.
    pub fn apply(&mut self, fanout: &Fanout, sink: &mut impl Sink) -> u64 {
        let mut delivered = 0;
        for step in &fanout.steps {
            match step {
                Step::Block(block) => {
                    let entries = u64::from(block.entries);
                    let to_session = |session| sink.block(session, block, fanout.lane, fanout.through);
                    delivered += self.deliver(block.conversation, &block.recipients, to_session) * entries;
                }
                Step::Piece(piece) => {
                    let to_session = |session| sink.piece(session, piece, fanout.lane);
                    self.deliver(piece.conversation, &piece.recipients, to_session);
                }
                Step::Barrier(latch) => latch.count_down(),
                Step::Join { conversation, users } => users.iter().for_each(|user| self.join(*conversation, *user)),
                Step::Leave { conversation, id, users } => {
                    users.iter().for_each(|user| self.leave(*conversation, id, *user, sink));
                }
            }
        }
        let position = &mut self.positions[fanout.lane as usize];
        *position = fanout.through.max(*position);
        delivered
    }

    /// Calls back for each live session of the recipients; answers how many there are.
    fn deliver(
        &self,
        conversation: ConversationNo,
        recipients: &Recipients,
        mut to_session: impl FnMut(SessionKey),
    ) -> u64 {
        let mut sessions = 0;
        let mut to_user = |state: &UserState| {
            if state.loading.is_none() {
                state.sessions.iter().for_each(|session| to_session(*session));
                sessions += state.sessions.len() as u64;
            }
        };
        match recipients {
            Recipients::Pair(a, b) => {
                for user in [Some(a), (a != b).then_some(b)].into_iter().flatten() {
                    if let Some(&index) = self.by_no.get(user) {
                        to_user(&self.users[index].1);
                    }
                }
            }
            Recipients::Users(users) => {
                for index in users.iter().filter_map(|user| self.by_no.get(user)) {
                    to_user(&self.users[*index].1);
                }
            }
            Recipients::Audience => {
                for index in self.audiences.get(&conversation).into_iter().flatten() {
                    to_user(&self.users[*index as usize].1);
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
            Recipients::Audience => self.by_no.get(&user).is_some_and(|index| {
                let (_, state) = &self.users[*index];
                state.conversations.contains(&conversation)
            }),
        }
    }

    fn join(&mut self, conversation: ConversationNo, user: UserNo) {
        let Some(&index) = self.by_no.get(&user) else { return };
        let (_, state) = &mut self.users[index];
        match &mut state.loading {
            Some(loading) => drop(loading.changes.insert(conversation, true)),
            None if state.conversations.contains(&conversation) => {}
            None => {
                state.conversations.push(conversation);
                self.audiences.entry(conversation).or_default().push(index as u32);
            }
        }
    }

    fn leave(&mut self, conversation: ConversationNo, id: &Arc<str>, user: UserNo, sink: &mut impl Sink) {
        let Some(&index) = self.by_no.get(&user) else { return };
        let (_, state) = &mut self.users[index];
        if let Some(loading) = &mut state.loading {
            loading.changes.insert(conversation, false);
            return;
        }
        if let Some(at) = state.conversations.iter().position(|c| *c == conversation) {
            state.conversations.swap_remove(at);
            for session in &state.sessions {
                sink.left(*session, id);
            }
            self.leave_audience(conversation, index);
        }
    }

    /// The live members of a conversation, with their sessions.
    pub fn audience(&self, conversation: ConversationNo) -> impl Iterator<Item = (UserNo, &[SessionKey])> {
        self.audiences.get(&conversation).into_iter().flatten().map(|index| {
            let (user, state) = &self.users[*index as usize];
            (*user, state.sessions.as_slice())
        })
    }

    pub fn positions(&self) -> [Position; LANES] {
        self.positions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: ConversationNo = ConversationNo(7);
    const IN_ROOM: MembershipSnapshot = MembershipSnapshot { conversation: ROOM, lane: Lane::Group, joined_after: 0 };
    const ALICE: UserNo = UserNo(1);
    const BOB: UserNo = UserNo(2);

    /// Records what each session is handed: JSON of entries, or a conversation that its user left.
    #[derive(Default)]
    struct Recorder(Vec<(SessionKey, String)>);

    impl Sink for Recorder {
        fn block(&mut self, session: SessionKey, block: &Arc<Block>, _: Lane, _: Position) {
            self.0.push((session, String::from_utf8_lossy(&block.json).into_owned()));
        }

        fn piece(&mut self, session: SessionKey, piece: &Arc<Piece>, _: Lane) {
            self.0.push((session, String::from_utf8_lossy(&piece.json).into_owned()));
        }

        fn left(&mut self, session: SessionKey, conversation: &Arc<str>) {
            self.0.push((session, format!("left {conversation}")));
        }
    }

    fn say(text: &'static str) -> Step {
        let json = Bytes::from_static(text.as_bytes());
        Step::Block(Arc::new(Block { conversation: ROOM, recipients: Recipients::Audience, entries: 1, json }))
    }

    fn join(user: UserNo) -> Step {
        Step::Join { conversation: ROOM, users: [user].into() }
    }

    fn leave(user: UserNo) -> Step {
        Step::Leave { conversation: ROOM, id: "room".into(), users: [user].into() }
    }

    fn apply(delivery: &mut Delivery, through: Position, steps: Vec<Step>) -> Vec<(SessionKey, String)> {
        let mut recorder = Recorder::default();
        let fanout = Fanout { lane: Lane::Group, through, steps, committed_at: Instant::now() };
        delivery.apply(&fanout, &mut recorder);
        recorder.0
    }

    /// A delivery with Alice's session 1 live in the room.
    fn with_alice() -> Delivery {
        let mut delivery = Delivery::default();
        assert_eq!(delivery.bind(1, ALICE), BindOutcome::NeedsMemberships(1));
        assert!(delivery.install(ALICE, 1, vec![IN_ROOM]).is_some());
        delivery
    }

    #[test]
    fn a_session_is_live_from_the_position_at_which_its_memberships_are_installed() {
        let mut delivery = Delivery::default();
        delivery.bind(1, ALICE);
        assert_eq!(apply(&mut delivery, 5, vec![say("early")]), [], "read from the store instead");
        let (_, positions) = delivery.install(ALICE, 1, vec![IN_ROOM]).into_iter().next().unwrap_or_default();
        assert_eq!(positions, [0, 5, 0]);
        assert_eq!(apply(&mut delivery, 6, vec![say("late")]), [(1, "late".into())]);
    }

    #[test]
    fn a_member_whose_join_the_shard_has_not_applied_gets_no_entry_from_before_it() {
        let mut delivery = Delivery::default();
        delivery.bind(7, ALICE);
        apply(&mut delivery, 4, vec![say(",1")]);
        // Read from the store: joined after the entry at position 5.
        delivery.install(ALICE, 1, vec![MembershipSnapshot { joined_after: 5, ..IN_ROOM }]);
        let heard = apply(&mut delivery, 6, vec![say(",2"), join(ALICE), say(",3")]);
        assert_eq!(heard, [(7, ",3".to_owned())]);
    }

    #[test]
    fn a_member_who_leaves_while_memberships_are_read_gets_nothing() {
        let mut delivery = Delivery::default();
        delivery.bind(1, ALICE);
        apply(&mut delivery, 5, vec![leave(ALICE)]);
        delivery.install(ALICE, 1, vec![IN_ROOM]);
        assert_eq!(apply(&mut delivery, 6, vec![say("secret")]), []);
    }

    #[test]
    fn a_member_who_joins_while_memberships_are_read_gets_each_entry_once() {
        let mut delivery = Delivery::default();
        delivery.bind(1, ALICE);
        apply(&mut delivery, 5, vec![join(ALICE)]);
        delivery.install(ALICE, 1, vec![IN_ROOM]);
        assert_eq!(apply(&mut delivery, 6, vec![say("hi")]), [(1, "hi".into())]);
    }

    #[test]
    fn memberships_read_for_an_ended_session_are_not_installed_for_the_next() {
        let mut delivery = Delivery::default();
        delivery.bind(1, ALICE);
        delivery.unbind(1, ALICE);
        apply(&mut delivery, 5, vec![leave(ALICE)]);
        assert_eq!(delivery.bind(2, ALICE), BindOutcome::NeedsMemberships(2));
        assert!(delivery.install(ALICE, 1, vec![IN_ROOM]).is_none(), "the older reading still had the room");
        assert!(delivery.install(ALICE, 2, vec![]).is_some());
        assert_eq!(apply(&mut delivery, 6, vec![say("secret")]), []);
    }

    #[test]
    fn a_member_who_leaves_is_told_so_and_gets_nothing_after_it() {
        let mut delivery = with_alice();
        let seen = apply(&mut delivery, 5, vec![say("bye"), leave(ALICE), say("after")]);
        assert_eq!(seen, [(1, "bye".into()), (1, "left room".into())]);
    }

    #[test]
    fn a_second_session_is_live_at_once_and_the_last_one_to_end_removes_the_user() {
        let mut delivery = with_alice();
        assert_eq!(delivery.bind(2, ALICE), BindOutcome::Joined([0, 0, 0]));
        assert_eq!(apply(&mut delivery, 5, vec![say("hi")]).len(), 2);
        delivery.unbind(1, ALICE);
        assert_eq!(apply(&mut delivery, 6, vec![say("hi")]).len(), 1);
        delivery.unbind(2, ALICE);
        assert_eq!(apply(&mut delivery, 7, vec![say("hi")]), []);
        assert!(delivery.audiences.is_empty() && delivery.users.is_empty());
    }

    #[test]
    fn a_direct_message_reaches_both_users_and_a_note_to_oneself_comes_once() {
        let mut delivery = with_alice();
        delivery.bind(2, BOB);
        delivery.install(BOB, 2, vec![]);
        let direct = |a, b| {
            let recipients = Recipients::Pair(a, b);
            let json = Bytes::from_static(b",1");
            Step::Block(Arc::new(Block { conversation: ConversationNo(9), recipients, entries: 1, json }))
        };
        assert_eq!(apply(&mut delivery, 5, vec![direct(ALICE, BOB)]).len(), 2);
        assert_eq!(apply(&mut delivery, 6, vec![direct(ALICE, ALICE)]).len(), 1);
    }

    #[test]
    fn a_fan_out_without_entries_does_not_move_positions_back() {
        let mut delivery = Delivery::starting_at([9; LANES]);
        apply(&mut delivery, 0, vec![join(ALICE)]);
        assert_eq!(delivery.positions(), [9; LANES]);
    }
}

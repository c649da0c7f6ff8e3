//! Unit tests of `src/delivery.rs`.

use super::*;

const ROOM: ConversationNo = ConversationNo(7);
const IN_ROOM: MembershipSnapshot =
    MembershipSnapshot { conversation: ROOM, lane: Lane::Group, joined_after: 0, joined_seq: 0 };
const ALICE: UserNo = UserNo(1);
const BOB: UserNo = UserNo(2);

/// Records what each session is handed: JSON of entries, or a conversation that its user left.
#[derive(Default)]
struct Recorder(Vec<(SessionKey, String)>);

impl Sink for Recorder {
    fn block(&mut self, session: SessionKey, block: &Arc<Block>, _: Lane, _: Position) {
        self.0.push((session, String::from_utf8_lossy(&block.json).into_owned()));
    }

    fn chunk(&mut self, session: SessionKey, chunk: &Arc<Chunk>, _: Lane) {
        self.0.push((session, String::from_utf8_lossy(&chunk.json).into_owned()));
    }

    fn left(&mut self, session: SessionKey, conversation: &Arc<str>) {
        self.0.push((session, format!("left {conversation}")));
    }
}

fn say(text: &'static str) -> Step {
    let json = Bytes::from_static(text.as_bytes());
    let recipients = Recipients::Audience;
    let block = Block { conversation: ROOM, recipients, entries: 1, json, compact: None };
    Step::Block { block: Arc::new(block), first_seq: 1, looks_back: None }
}

fn join(user: UserNo) -> Step {
    Step::Join { conversation: ROOM, users: [user].into(), joined_seq: None, hold: None }
}

fn leave(user: UserNo) -> Step {
    Step::Leave { conversation: ROOM, id: "room".into(), users: [user].into(), hold: None }
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
    assert!(delivery.audiences.is_empty() && delivery.users.states.is_empty() && delivery.users.by_no.is_empty());
}

#[test]
fn a_direct_message_reaches_both_users_and_a_note_to_oneself_comes_once() {
    let mut delivery = with_alice();
    delivery.bind(2, BOB);
    delivery.install(BOB, 2, vec![]);
    let direct = |a, b| {
        let recipients = Recipients::Pair(a, b);
        let json = Bytes::from_static(b",1");
        let block = Block { conversation: ConversationNo(9), recipients, entries: 1, json, compact: None };
        Step::Block { block: Arc::new(block), first_seq: 1, looks_back: None }
    };
    assert_eq!(apply(&mut delivery, 5, vec![direct(ALICE, BOB)]).len(), 2);
    assert_eq!(apply(&mut delivery, 6, vec![direct(ALICE, ALICE)]).len(), 1);
}

#[test]
fn a_fan_out_without_entries_does_not_move_positions_back() {
    let mut delivery = Delivery::starting_at([9; LANES], None);
    apply(&mut delivery, 0, vec![join(ALICE)]);
    assert_eq!(delivery.positions(), [9; LANES]);
}

#[test]
fn a_user_with_a_session_is_small() {
    // As an entry of a slab, which needs no further bytes for telling whether it is vacant.
    let bytes = size_of::<Result<(UserNo, UserState), usize>>();
    println!("a user with a session in the delivery of a shard: {bytes} bytes");
    assert!(bytes <= 64, "{bytes} bytes: what grew, and does every idle user need it?");
}

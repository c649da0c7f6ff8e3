//! Unit tests of `src/cluster/audiences.rs`.

use super::*;
use crate::directory::Directory;
use proptest::prelude::*;
use std::collections::BTreeSet;
use tidings_domain::commit_log::{Change, NodeInfo};
use tidings_testkit::{LocalBus, MemoryStore};

const NOBODY: &[Counted] = &[];

fn group(no: u64) -> ConversationRef {
    ConversationRef { no: ConversationNo(no), id: format!("g{no}"), kind: ConversationKind::Group, pair: None }
}

fn direct(a: u64, b: u64) -> ConversationRef {
    let (no, id, kind) = (ConversationNo(1_000 + 10 * a + b), format!("{a}:{b}"), ConversationKind::Direct);
    ConversationRef { no, id, kind, pair: Some((UserNo(a), UserNo(b))) }
}

fn said(conversation: u32, position: Position, kind: EntryKind) -> WireItem {
    let content = NewEntry {
        kind,
        sender: Some(Sender { no: UserNo(position), id: format!("u{position}") }),
        client_msg_id: Some(position.to_string()),
        content_type: "text".into(),
        body: "\"hi\"".into(),
        mentions: vec![],
        silent: false,
        skip_push: false,
        details: None,
        request: EntryRequest::default(),
    };
    let entry = Some(StoredEntry { seq: position, position, at: 1_000 + position, content });
    WireItem { conversation: Some(conversation), entry, change: None }
}

fn batch_of(conversations: Vec<ConversationRef>, items: Vec<WireItem>) -> WireBatch {
    WireBatch { after: 0, through: items.len() as u64, conversations, items }
}

/// Nothing is known of any node. User 9 is an account with agents.
fn unknown() -> PeerAudiences {
    PeerAudiences::new(|pair| pair.is_some_and(|(a, b)| [a, b].contains(&UserNo(9))))
}

fn report(number: u64, is_whole: bool, cells: &[Counted]) -> AudienceReport {
    let mut bytes = Vec::new();
    cells.iter().map(|counted| counted.cell()).collect::<RoaringBitmap>().serialize_into(&mut bytes).unwrap();
    AudienceReport { name: "b".into(), boot_id: 1, number, is_whole, wants_groups: false, cells: bytes }
}

/// The batch as the node `b` gets it, if that is not all of it; and whether it may wait.
fn part(audiences: &PeerAudiences, batch: &WireBatch) -> Option<(Part, bool)> {
    let Unseen { conversations, may_wait } = audiences.unseen_by("b", batch, &batch.brings_audience())?;
    let part = part_of("a", batch, &conversations)?;
    let may_wait = may_wait && part.is_empty;
    Some((part, may_wait))
}

/// What is left out for the node `b`, by conversation: how many messages.
fn left_out(audiences: &PeerAudiences, batch: &WireBatch) -> Vec<(ConversationNo, u32)> {
    let Some((Part { message, .. }, _)) = part(audiences, batch) else { return vec![] };
    let Some(BusMessage::CommittedInPart(part)) = BusMessage::decode(&message) else { panic!("a part") };
    part.left_out.iter().map(|left_out| (left_out.conversation, left_out.messages)).collect()
}

#[test]
fn what_no_session_of_a_peer_may_see_is_left_out() {
    let conversations = vec![group(1), group(2), direct(3, 4), direct(5, 6)];
    let items = (0..8).map(|n| said(n % 4, u64::from(n) + 1, EntryKind::Message)).collect();
    let batch = batch_of(conversations.clone(), items);
    let nos: Vec<_> = conversations.iter().map(|conversation| conversation.no).collect();
    let audiences = unknown();
    assert!(left_out(&audiences, &batch).is_empty(), "nothing is known of the peer");
    audiences.note(report(1, true, &[Counted::Conversation(ConversationNo(2)), Counted::User(UserNo(6))]));
    assert_eq!(left_out(&audiences, &batch), [(nos[0], 2), (nos[2], 2)]);
    assert!(audiences.unseen_by("c", &batch, &batch.brings_audience()).is_none(), "another peer");
    audiences.note(AudienceReport { wants_groups: true, ..report(2, false, NOBODY) });
    assert_eq!(left_out(&audiences, &batch), [(nos[2], 2)]);
    audiences.note(report(3, false, &[Counted::User(UserNo(3))]));
    assert_eq!(left_out(&audiences, &batch), [(nos[0], 2)], "the node takes all groups no more");
}

#[test]
fn what_nobody_keeps_goes_to_the_peers_that_may_see_it() {
    let audiences = unknown();
    let peers: Vec<Arc<str>> = vec!["a".into(), "b".into()];
    let sees = |of: ConversationRef| audiences.peers_that_may_see(&peers, &of.into_conversation()).len();
    assert_eq!(sees(group(1)), 2, "nothing is known of them");
    audiences.note(report(1, true, &[Counted::Conversation(ConversationNo(2)), Counted::User(UserNo(3))]));
    assert_eq!((sees(group(1)), sees(group(2)), sees(direct(3, 4)), sees(direct(5, 6))), (1, 2, 2, 1));
    assert_eq!(sees(direct(5, 9)), 2, "agents may be anywhere");
    assert!(part(&audiences, &batch_of(vec![direct(5, 9)], vec![said(0, 1, EntryKind::Message)])).is_none());
}

#[test]
fn a_peer_of_which_a_report_was_lost_gets_everything() {
    let batch = batch_of(vec![group(1)], vec![said(0, 1, EntryKind::Message)]);
    let told = |reports: Vec<AudienceReport>| {
        let audiences = unknown();
        reports.into_iter().for_each(|report| audiences.note(report));
        left_out(&audiences, &batch).len()
    };
    let empty = |number, is_whole| report(number, is_whole, NOBODY);
    assert_eq!(told(vec![empty(1, true), empty(2, false), empty(3, false)]), 1);
    assert_eq!(told(vec![empty(1, false)]), 0, "the first one was lost");
    assert_eq!(told(vec![empty(1, true), empty(3, false)]), 0, "the second one was lost");
    assert_eq!(told(vec![empty(1, true), empty(3, false), empty(4, false)]), 0);
    assert_eq!(told(vec![empty(1, true), empty(3, false), empty(4, true)]), 1, "a whole one makes up for it");
    assert_eq!(told(vec![empty(1, true), AudienceReport { boot_id: 2, ..empty(2, false) }]), 0, "another process");
    assert_eq!(told(vec![empty(1, true), AudienceReport { cells: vec![1], ..empty(2, true) }]), 0, "unreadable");
}

#[test]
fn only_a_peer_without_any_session_may_wait_and_only_where_nothing_else_is_told() {
    let audiences = unknown();
    let may_wait = |batch: &WireBatch| part(&audiences, batch).is_some_and(|(_, may_wait)| may_wait);
    let plain = batch_of(vec![group(1)], vec![said(0, 1, EntryKind::Message)]);
    audiences.note(report(1, true, NOBODY));
    assert!(may_wait(&plain));
    let mark = Change::Read { conversation: ConversationNo(1), user: UserNo(1), seq: 1 };
    let marked = WireItem { conversation: None, entry: None, change: Some(mark) };
    assert!(!may_wait(&batch_of(vec![group(1)], vec![said(0, 1, EntryKind::Message), marked])));
    audiences.note(report(2, false, &[Counted::User(UserNo(1))]));
    assert!(!may_wait(&plain));
}

#[test]
fn a_batch_that_may_bring_a_conversation_its_audience_has_all_of_it() {
    let audiences = unknown();
    audiences.note(report(1, true, NOBODY));
    let no = ConversationNo(1);
    let with = |change| {
        let changed = WireItem { conversation: Some(0), entry: None, change: Some(change) };
        left_out(&audiences, &batch_of(vec![group(1)], vec![changed, said(0, 2, EntryKind::Message)])).len()
    };
    let members =
        |conversation| Change::Members { conversation, joined: vec![UserNo(1)], left: vec![], changed: vec![] };
    assert_eq!((with(members(no)), with(members(ConversationNo(2)))), (0, 1));
    assert_eq!(with(Change::Conversation(ConversationNo(2))), 0, "an account may have got agents");
    assert_eq!(with(Change::Opaque), 0);
    assert_eq!(with(Change::Mute { conversation: no, user: UserNo(1) }), 1);
}

#[test]
fn a_batch_is_encoded_anew_only_where_that_spares_something() {
    let audiences = unknown();
    audiences.note(report(1, true, &[Counted::Conversation(ConversationNo(2))]));
    let with_body = |bytes: usize| {
        let mut long = said(1, 2, EntryKind::Message);
        long.entry.as_mut().unwrap().content.body = "x".repeat(bytes).into();
        part(&audiences, &batch_of(vec![group(1), group(2)], vec![said(0, 1, EntryKind::Message), long])).is_some()
    };
    assert_eq!((with_body(100), with_body(10_000)), (true, false));
    let edit = batch_of(vec![group(1)], vec![said(0, 1, EntryKind::Edit)]);
    assert!(part(&audiences, &edit).is_none(), "every node takes note of an edit");
}

/// A report: its number, whether it is whole, whether groups are wanted, and cells.
type Report = (u64, bool, bool, Vec<u32>);

/// The reports that the node `b` has got.
#[derive(Default)]
struct Heard(parking_lot::Mutex<Vec<Report>>);

impl tidings_domain::bus::MessageHandler for Heard {
    fn on_message(&self, message: Bytes) {
        let Some(BusMessage::Audience(report)) = BusMessage::decode(&message) else { panic!("a report") };
        let AudienceReport { number, is_whole, wants_groups, cells, .. } = report;
        let cells = RoaringBitmap::deserialize_from(&cells[..]).unwrap().iter().collect();
        self.0.lock().push((number, is_whole, wants_groups, cells));
    }

    fn on_gap(&self) {}
}

#[test]
fn a_node_tells_what_is_new_and_now_and_then_everything() {
    let (store, bus) = (Arc::new(MemoryStore::shared()), Arc::new(LocalBus::default()));
    let (metrics, gates) = (Arc::new(Metrics::new()), Arc::new(OpenGates::default()));
    let directory = Directory::new(store.clone(), 10, true);
    let audience = LiveAudience::new(directory.desks.clone(), metrics.clone());
    let me = NodeInfo { name: "a".into(), boot_id: 1, ..NodeInfo::default() };
    let times = (Duration::from_secs(10), Duration::MAX);
    let nodes = Arc::new(ClusterNodes::new(me, times, true, gates.clone(), (store, bus.clone()), metrics));
    let teller =
        AudienceTeller { audience: audience.clone(), nodes: nodes.clone(), gates: gates.clone(), bus: bus.clone() };
    let (other, heard) = (LocalBus::clone(&bus), Arc::new(Heard::default()));
    other.listen("b", heard.clone());
    let mut told = Told::nothing();
    let tell = |told: &mut Told| {
        teller.tell(told, audience.untold().try_iter().collect::<Vec<_>>().into_iter());
        std::mem::take(&mut *heard.0.lock())
    };
    let cell = |user| Counted::User(UserNo(user)).cell();
    let sorted = |mut cells: Vec<u32>| {
        cells.sort_unstable();
        cells
    };
    audience.user_came(UserNo(1));
    audience.loaded();
    assert_eq!(tell(&mut told), [], "there is no peer");
    nodes.on_hello("b", 2);
    assert_eq!(tell(&mut told), [], "a node of another version may not know reports");
    gates.note_open(Gate::Audiences);
    assert_eq!(tell(&mut told), [(1, true, true, vec![cell(1)])]);
    assert_eq!(tell(&mut told), [], "nothing is new");
    audience.user_came(UserNo(2));
    audience.user_came(UserNo(1));
    assert_eq!(tell(&mut told), [(2, false, true, vec![cell(2)])], "the cell of the other one was taken");
    told.user_came_at = Instant::now().checked_sub(GROUPS_WANTED_FOR);
    assert_eq!(tell(&mut told), [], "conversations are being read still");
    audience.loaded();
    audience.loaded();
    assert_eq!(tell(&mut told), [(3, false, false, vec![])]);
    audience.user_left(UserNo(2));
    audience.conversation_came(ConversationNo(7));
    told.whole.as_mut().unwrap().0 = Instant::now().checked_sub(TOLD_EVERY).unwrap();
    let all = sorted(vec![cell(1), Counted::Conversation(ConversationNo(7)).cell()]);
    assert_eq!(tell(&mut told), [(4, true, false, all)]);
    (100..100_000).for_each(|no| audience.conversation_came(ConversationNo(no)));
    let reports = tell(&mut told);
    assert!(matches!(&reports[..], [(5, true, false, cells)] if cells.len() > 80_000), "more than can wait");
}

proptest! {
    #[test]
    fn a_part_has_all_that_is_not_left_out_and_ends_as_the_batch_does(
        items in prop::collection::vec((0..4u32, 0..4u8), 1..30),
        unseen in prop::collection::vec(any::<bool>(), 4),
    ) {
        let conversations = vec![group(1), group(2), direct(3, 4), direct(5, 6)];
        let item = |(at, (conversation, what)): (usize, &(u32, u8))| {
            let position = at as u64 + 1;
            match what {
                0 => said(*conversation, position, EntryKind::Recall),
                1 => {
                    let of = conversations[*conversation as usize].no;
                    let change = Some(Change::Mute { conversation: of, user: UserNo(1) });
                    WireItem { conversation: None, entry: None, change }
                }
                _ => said(*conversation, position, EntryKind::Message),
            }
        };
        let batch = batch_of(conversations.clone(), items.iter().enumerate().map(item).collect());
        let part = leave_out("a", &batch, &unseen);
        let encoded = BusMessage::CommittedInPart(part.clone()).encode();
        prop_assert_eq!(BusMessage::decode(&encoded), Some(BusMessage::CommittedInPart(part.clone())));
        // What is kept is as it was, and in its order.
        let named = |of: &WireBatch, item: &WireItem| {
            (item.conversation.map(|at| of.conversations[at as usize].clone()), item.entry.clone(), item.change.clone())
        };
        let is_left_out = |item: &&WireItem| {
            let is_message = item.entry.as_ref().is_some_and(|entry| entry.content.kind == EntryKind::Message);
            is_message && item.conversation.is_some_and(|at| unseen[at as usize])
        };
        let kept: Vec<_> = part.batch.items.iter().map(|item| named(&part.batch, item)).collect();
        let expected: Vec<_> =
            batch.items.iter().filter(|item| !is_left_out(item)).map(|item| named(&batch, item)).collect();
        prop_assert_eq!(kept, expected);
        // The rest is counted, up to its last position.
        for (at, conversation) in conversations.iter().enumerate() {
            let gone = batch.items.iter().filter(is_left_out).filter(|item| item.conversation == Some(at as u32));
            let positions: BTreeSet<_> = gone.map(|item| item.entry.as_ref().unwrap().position).collect();
            let told = part.left_out.iter().find(|left_out| left_out.conversation == conversation.no);
            let told = told.map(|told| (told.messages as usize, told.through, told.kind, told.pair));
            let expected = positions.last().map(|last| (positions.len(), *last, conversation.kind, conversation.pair));
            prop_assert_eq!(told, expected);
        }
        let last = batch.items.last().unwrap();
        let marks = Some(last).filter(is_left_out).and_then(|item| item.entry.as_ref()).map(EntryMarks::of);
        prop_assert_eq!(part.last, marks);
    }
}

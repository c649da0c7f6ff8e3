//! However often a device is disconnected: from its last cursor on it gets every message once and in order, or the exact
//! ranges to fetch.

use crate::support::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::time::Duration;
use tidings_client::session::Session;
use tidings_domain::model::Actor;
use tidings_protocol::{
    error::ErrorCode,
    frames::{ClientFrame, ServerFrame},
    http::{ConversationKind, HistoryQuery},
    limits::{BODY_BYTES_MAX, HISTORY_PAGE_BYTES_MAX, INBOX_ENTRIES_MAX},
};

const CONVERSATIONS: [&str; 4] = ["alice~bob", "g1", "g2", "news"];
const MESSAGES: usize = 500;

fn with_conversations() -> Server {
    let server = Server::start();
    server.users(&["alice", "bob"]);
    server.group("g1", &["alice", "bob"]);
    server.group("g2", &["alice", "bob"]);
    server.conversation(ConversationKind::Official, "news", &["alice", "bob"]);
    server
}

#[test]
fn random_disconnects_lose_duplicate_and_reorder_nothing() {
    for seed in 1..=6 {
        println!("seed {seed}");
        random_disconnects(seed);
    }
}

fn random_disconnects(seed: u64) {
    let server = with_conversations();
    let mut random = StdRng::seed_from_u64(seed);
    let mut session = server.open("bob", "phone");
    let mut cursor = session.cursor.clone().unwrap();
    let mut inbox = Inbox::default();
    let plan: Vec<&str> = (0..MESSAGES).map(|_| CONVERSATIONS[random.random_range(0..4)]).collect();
    std::thread::scope(|scope| {
        let server = &server;
        scope.spawn(move || {
            for (n, conversation) in plan.into_iter().enumerate() {
                server.say("alice", conversation, &n.to_string());
            }
        });
        let mut connections = 1;
        while inbox.count() < MESSAGES {
            for _ in 0..random.random_range(0..12) {
                let frame = session.next(Duration::from_millis(random.random_range(1..20))).unwrap();
                if let Some(ServerFrame::Messages { cursor: next, entries }) = frame {
                    inbox.take(&entries);
                    cursor = next;
                }
            }
            if random.random_bool(0.3) {
                session.write(&ClientFrame::Unbind).unwrap();
            }
            drop(session);
            session = server.resume("bob", "phone", &cursor);
            connections += 1;
            assert!(bound(&session).resume.complete, "fewer were missed than an inbox holds");
        }
        println!("  {connections} connections");
        assert!(frames_until_pong(&mut session).is_empty(), "nothing comes twice");
    });
    let mut texts: Vec<usize> = inbox.0.values().flatten().map(|text| text.parse().unwrap()).collect();
    texts.sort_unstable();
    assert_eq!(texts, (0..MESSAGES).collect::<Vec<_>>());
}

#[test]
fn a_cursor_can_be_used_any_number_of_times_while_the_history_lasts() {
    let server = with_conversations();
    let cursor = server.open("bob", "phone").cursor.unwrap();
    for n in 0..20 {
        server.say("alice", CONVERSATIONS[n % 4], &n.to_string());
    }
    for _ in 0..3 {
        let mut session = server.resume("bob", "phone", &cursor);
        assert_eq!(session.cursor.as_ref(), Some(&cursor), "not past what has not come");
        let mut inbox = Inbox::default();
        inbox.take(&entries(&mut session, 20));
        assert_eq!(bound(&session).resume.ranges, []);
        let latest = session.cursor.clone().unwrap();
        assert_ne!(latest, cursor);
        assert_eq!(bound(&server.resume("bob", "tablet", &latest)).cursor, latest);
    }
}

/// Fetches a range by history frames with the largest page allowed.
fn fetch(session: &mut Session, conversation: &str, from_seq: u64, to_seq: u64, inbox: &mut Inbox) {
    let mut next_seq = from_seq;
    while next_seq <= to_seq {
        let query = HistoryQuery { from_seq: Some(next_seq), to_seq: Some(to_seq), ..HistoryQuery::default() };
        let query = HistoryQuery { limit: Some(70), ..query };
        session.write(&ClientFrame::History { reference: Some(1), conversation: conversation.into(), query }).unwrap();
        let frame = session.next_where(PATIENCE, |f| matches!(f, ServerFrame::History { .. })).unwrap();
        let Some(ServerFrame::History { page, .. }) = frame else { panic!("{frame:?}") };
        inbox.take(&page.entries);
        let bytes: usize = page.entries.iter().map(|e| e.body.get().len()).sum();
        assert!(bytes < HISTORY_PAGE_BYTES_MAX + BODY_BYTES_MAX, "a page of {bytes} bytes");
        next_seq = page.entries.last().unwrap().seq + 1;
        assert_eq!(page.more, next_seq <= to_seq);
    }
}

/// Sends `per_conversation` messages of `text` to three conversations while bob is away, then has him catch up.
fn catch_up(per_conversation: usize, text: &str) {
    let server = with_conversations();
    let cursor = server.open("bob", "phone").cursor.unwrap();
    let all: Vec<_> =
        (0..per_conversation).flat_map(|_| &CONVERSATIONS[1..]).map(|c| message_to("alice", c, text)).collect();
    // Another device of bob's stays connected: when it has everything, no live message is still to come.
    let mut present = server.open("bob", "laptop");
    for part in all.chunks(20) {
        let results = server.wait(server.engine.send_batch(&Actor::App, part.to_vec())).unwrap();
        assert!(results.iter().all(Result::is_ok));
        entries(&mut present, part.len());
    }
    let mut session = server.resume("bob", "phone", &cursor);
    let resume = bound(&session).resume.clone();
    assert!(!resume.complete && !resume.reset && !resume.ranges.is_empty(), "{resume:?}");
    let left: u64 = resume.ranges.iter().map(|r| r.to_seq - r.from_seq + 1).sum();
    let newest = entries(&mut session, all.len() - left as usize);
    assert!(!newest.is_empty() && newest.len() <= INBOX_ENTRIES_MAX);
    // A page without bounds that is cut short ends with the newest entry.
    let page = server.engine.history(&Actor::App, "g1", &HistoryQuery { limit: Some(70), ..HistoryQuery::default() });
    let page = page.unwrap();
    assert_eq!(page.entries.last().unwrap().seq, page.last_seq);
    assert!(page.more && page.entries.windows(2).all(|pair| pair[0].seq + 1 == pair[1].seq));
    // The entries of the ranges and then those that came by themselves: together every entry, exactly once and in order.
    let mut inbox = Inbox::default();
    for range in &resume.ranges {
        fetch(&mut session, &range.conversation, range.from_seq, range.to_seq, &mut inbox);
    }
    inbox.take(&newest);
    assert_eq!(inbox.count(), all.len());
    // Live delivery follows.
    server.say("alice", "g1", "live");
    inbox.take(&entries(&mut session, 1));
}

#[test]
fn messages_beyond_the_inbox_are_named_as_exact_ranges() {
    catch_up(400, "x");
}

#[test]
fn entries_too_large_for_one_frame_are_named_as_exact_ranges() {
    catch_up(110, &"x".repeat(60_000));
}

#[test]
fn a_cursor_of_another_history_or_ahead_of_this_one_is_reset() {
    let server = with_conversations();
    for n in 0..6 {
        server.say("alice", CONVERSATIONS[n % 4], "x");
    }
    let epoch = server.engine.store.epoch();
    for cursor in
        [format!("{:x}.0.0.0", epoch + 1), format!("{epoch:x}.0.999999.0"), format!("{epoch:x}.{}.0.0", u64::MAX)]
    {
        let mut session = server.resume("bob", "phone", &cursor);
        assert!(bound(&session).resume.reset && !bound(&session).resume.complete, "{cursor}");
        // A reset comes with the newest entries, from which the client starts again.
        let mut inbox = Inbox::default();
        inbox.take(&entries(&mut session, 6));
        assert!(bound(&session).cursor.starts_with(&format!("{epoch:x}.")));
    }
}

#[test]
fn an_unreadable_cursor_is_refused() {
    let server = with_conversations();
    for cursor in ["", "x", "1.2.3", "1.2.3.4.5", "1.-2.3.4", "1.2.3.99999999999999999999999"] {
        let mut session = Session::connect(server.address).unwrap();
        session.write(&bind_frame(&token("bob"), "phone", Some(cursor))).unwrap();
        check_end(&mut session, ErrorCode::CursorInvalid);
    }
}

#[test]
fn messages_before_joining_are_history_and_not_missed() {
    let server = with_conversations();
    server.users(&["carol"]);
    let cursor = server.open("carol", "phone").cursor.unwrap();
    server.say("alice", "g1", "before");
    server.change_members("g1", &["carol"], &[]);
    server.say("alice", "g1", "after");
    let mut session = server.resume("carol", "phone", &cursor);
    // The notice of joining, and the messages since.
    let seqs: Vec<u64> = entries(&mut session, 2).iter().map(|e| e.seq).collect();
    assert_eq!(seqs, [2, 3]);
    assert!(bound(&session).resume.complete);
}

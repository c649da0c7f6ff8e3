//! History by sequence and time, unread counts, read marks and mutes, at and beyond their limits.

use crate::support::*;
use std::sync::Arc;
use tidings_domain::model::Actor;
use tidings_engine::config::EngineConfig;
use tidings_protocol::{error::ErrorCode, http::*, limits::*};
use tidings_testkit::MemoryStore;

fn world() -> World {
    let world = World::new(EngineConfig::default(), Arc::new(MemoryStore::default()));
    world.users(&["alice", "bob"]);
    world.conversation(ConversationKind::Group, "g", &["alice", "bob"]);
    world
}

/// Sends `count` messages, a batch at a time.
fn say(world: &World, count: usize, change: impl Fn(usize, &mut SendRequest)) {
    let requests: Vec<SendRequest> = (0..count)
        .map(|n| {
            let mut request = SendRequest { client_msg_id: None, ..message("alice", "g", &n.to_string()) };
            change(n, &mut request);
            request
        })
        .collect();
    for batch in requests.chunks(SEND_BATCH_MAX) {
        let sent = world.wait(world.engine.send_batch(&Actor::App, batch.to_vec())).unwrap();
        assert!(sent.iter().all(Result::is_ok), "{:?}", sent.iter().find(|sent| sent.is_err()));
        world.take_fanouts();
    }
}

fn bobs(world: &World) -> ConversationView {
    world.engine.conversations(&world.user("bob"), None, None, 0).unwrap().conversations.remove(0)
}

#[test]
fn a_page_of_history_has_the_requested_range() {
    let world = world();
    // One message a second, from noon on.
    for n in 0..20 {
        world.clock.set(NOON + n * 1_000);
        say(&world, 1, |_, _| ());
    }
    let all = HistoryQuery::default();
    let at = |seconds: u64| Some(NOON + seconds * 1_000);
    let cases = [
        (HistoryQuery { ..all.clone() }, 1..=20, false),
        (HistoryQuery { limit: Some(3), ..all.clone() }, 18..=20, true),
        (HistoryQuery { from_seq: Some(5), limit: Some(3), ..all.clone() }, 5..=7, true),
        (HistoryQuery { to_seq: Some(5), limit: Some(3), ..all.clone() }, 3..=5, true),
        (HistoryQuery { from_seq: Some(5), to_seq: Some(6), ..all.clone() }, 5..=6, false),
        (HistoryQuery { from_time: at(18), ..all.clone() }, 19..=20, false),
        (HistoryQuery { to_time: at(1), ..all.clone() }, 1..=2, false),
        (HistoryQuery { from_time: at(2), to_time: at(4), limit: Some(2), ..all.clone() }, 3..=4, true),
        (HistoryQuery { from_seq: Some(0), to_seq: Some(u64::MAX), ..all.clone() }, 1..=20, false),
    ];
    for (query, expected, more) in cases {
        let page = world.engine.history(&Actor::App, "g", &query).unwrap();
        let seqs: Vec<u64> = page.entries.iter().map(|entry| entry.seq).collect();
        assert_eq!((seqs, page.more), (expected.collect(), more), "{query:?}");
        assert_eq!((page.first_seq, page.last_seq), (1, 20));
    }
    for empty in [
        HistoryQuery { from_seq: Some(21), ..all.clone() },
        HistoryQuery { from_seq: Some(9), to_seq: Some(8), ..all.clone() },
        HistoryQuery { from_time: at(60), ..all.clone() },
        HistoryQuery { to_seq: Some(0), ..all.clone() },
        HistoryQuery { from_seq: Some(u64::MAX), ..all.clone() },
        HistoryQuery { from_time: Some(u64::MAX), to_time: Some(u64::MAX), ..all.clone() },
    ] {
        let page = world.engine.history(&Actor::App, "g", &empty).unwrap();
        assert!(page.entries.is_empty() && !page.more, "{empty:?}");
    }
    for (limit, code) in [(0, ErrorCode::InvalidField), (HISTORY_PAGE_MAX + 1, ErrorCode::LimitExceeded)] {
        let refusal = world.engine.history(&Actor::App, "g", &HistoryQuery { limit: Some(limit), ..all.clone() });
        assert_eq!(refusal.unwrap_err().code, code);
    }
}

#[test]
fn large_bodies_make_a_page_shorter_from_either_end() {
    let world = world();
    let large = serde_json::value::to_raw_value(&"x".repeat(50_000)).unwrap();
    say(&world, 60, |_, request| request.body = large.clone());
    for from_seq in [None, Some(1)] {
        let (mut seen, mut query) =
            (Vec::new(), HistoryQuery { from_seq, limit: Some(500), ..HistoryQuery::default() });
        loop {
            let page = world.engine.history(&Actor::App, "g", &query).unwrap();
            let bytes: usize = page.entries.iter().map(|entry| entry.body.get().len()).sum();
            assert!(bytes < HISTORY_PAGE_BYTES_MAX + BODY_BYTES_MAX, "{bytes}");
            let (first, last) = (page.entries[0].seq, page.entries.last().unwrap().seq);
            assert_eq!(page.entries.len() as u64, last - first + 1, "no hole");
            seen.extend(first..=last);
            if !page.more {
                break;
            }
            match from_seq {
                Some(_) => query.from_seq = Some(last + 1),
                None => query.to_seq = Some(first - 1),
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (1..=60).collect::<Vec<_>>());
    }
}

#[test]
fn unread_counts_others_messages_that_are_not_silent_up_to_a_limit() {
    let world = world();
    let bob = world.user("bob");
    say(&world, 10, |n, request| {
        request.silent = n == 0;
        request.from = Some(if n == 1 { "bob" } else { "alice" }.into());
        request.mentions = match n {
            0..=2 => vec!["bob".into()],
            3 => vec!["@all".into()],
            4 => vec!["alice".into()],
            _ => vec![],
        };
    });
    let line = bobs(&world);
    assert_eq!((line.unread, line.mentions, line.unread_capped), (8, 2, false));
    let mark = world.wait(world.engine.mark_read(&bob, "g", 3)).unwrap();
    assert_eq!((mark.seq, mark.unread), (3, 7));
    let back = world.wait(world.engine.mark_read(&bob, "g", 1)).unwrap();
    assert_eq!((back.seq, back.unread), (3, 7), "a mark never moves back");
    let beyond = world.wait(world.engine.mark_read(&bob, "g", u64::MAX)).unwrap();
    assert_eq!((beyond.seq, beyond.unread), (10, 0), "nor beyond the newest entry");

    say(&world, UNREAD_COUNT_MAX as usize, |_, _| ());
    let line = bobs(&world);
    assert_eq!((line.unread, line.unread_capped), (UNREAD_COUNT_MAX, false));
    say(&world, 1, |_, _| ());
    let line = bobs(&world);
    assert_eq!((line.unread, line.unread_capped), (UNREAD_COUNT_MAX, true));
}

#[test]
fn many_own_messages_do_not_slow_the_list_down() {
    let world = world();
    say(&world, 1, |_, _| ());
    say(&world, UNREAD_ENTRIES_MAX + 200, |_, request| request.from = Some("bob".into()));
    say(&world, 1, |_, _| ());
    let line = bobs(&world);
    assert_eq!((line.unread, line.unread_capped), (1, true), "at least one");
    let bob = world.user("bob");
    world.wait(world.engine.mark_read(&bob, "g", line.last_seq - 1)).unwrap();
    let line = bobs(&world);
    assert_eq!((line.unread, line.unread_capped), (1, false));
}

#[test]
fn a_mute_ends_by_itself() {
    let world = world();
    let bob = world.user("bob");
    let mute = |muted, until| world.wait(world.engine.set_mute(&bob, "g", Mute { muted, until })).unwrap();
    let shown = || (bobs(&world).muted, bobs(&world).muted_until);
    assert_eq!(shown(), (false, None));
    mute(true, None);
    assert_eq!(shown(), (true, None));
    mute(true, Some(NOON + 1_000));
    assert_eq!(shown(), (true, Some(NOON + 1_000)));
    world.clock.set(NOON + 1_000);
    assert_eq!(shown(), (false, None));
    mute(true, None);
    mute(false, None);
    assert_eq!(shown(), (false, None));
}

#[test]
fn an_invalid_do_not_disturb_window_is_refused() {
    let world = world();
    let set = |start: &str, end: &str, zone: &str| {
        let window = DailyWindow { start: start.into(), end: end.into(), time_zone: zone.into() };
        world.wait(world.engine.set_do_not_disturb("bob", Some(window))).map_err(|refusal| refusal.code)
    };
    assert_eq!(set("22:00", "07:00", "Europe/Berlin"), Ok(()));
    for (start, end, zone) in [
        ("24:00", "07:00", "UTC"),
        ("22:60", "07:00", "UTC"),
        ("9:00", "10:00", "UTC"),
        ("+9:00", "10:00", "UTC"),
        ("22:00", "", "UTC"),
        ("22:00", "07:00", "Nowhere/Atlantis"),
        ("22:00", "07:00", ""),
    ] {
        assert_eq!(set(start, end, zone), Err(ErrorCode::InvalidField), "{start} to {end} in {zone:?}");
    }
    assert_eq!(world.engine.user_profile("bob", true).unwrap().do_not_disturb.unwrap().start, "22:00");
    assert_eq!(world.engine.user_profile("bob", false).unwrap().do_not_disturb, None);
}

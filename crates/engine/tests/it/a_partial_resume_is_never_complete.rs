//! A resume answers all missed entries, or also the exact ranges of the rest, or a reset; only the first is complete.

use crate::support::*;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tidings_domain::{model::*, store::*};
use tidings_engine::config::EngineConfig;
use tidings_protocol::{
    error::ErrorCode,
    http::*,
    ids::direct_id,
    limits::{CONVERSATIONS_PER_USER_MAX, INBOX_BYTES_MAX, INBOX_ENTRIES_MAX},
    resume::RemovedRange,
};
use tidings_store::{EmbeddedOptions, EmbeddedStore};
use tidings_testkit::MemoryStore;

const DAY: u64 = 24 * 60 * 60 * 1_000;

fn world(store: Arc<dyn Store>) -> World {
    let world = World::new(EngineConfig::default(), store);
    world.users(&["alice", "bob"]);
    world
}

fn rooms(world: &World, count: usize) -> Vec<String> {
    let ids: Vec<String> = (0..count).map(|n| format!("room{n:03}")).collect();
    ids.iter().for_each(|id| world.conversation(ConversationKind::Group, id, &["alice", "bob"]));
    ids
}

fn say(world: &World, room: &str, texts: impl Iterator<Item = String>) {
    for text in texts {
        world.wait(world.engine.send(&Actor::App, message("alice", room, &text))).unwrap();
        world.take_fanouts();
    }
}

/// For each conversation, the `seq`s that Bob was sent and those in the ranges to fetch.
fn synced(world: &World, cursor: &str) -> (SyncAnswer, BTreeMap<String, Vec<u64>>) {
    let answer = world.engine.sync(&world.user("bob"), Some(cursor)).unwrap();
    let mut all: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for range in &answer.resume.ranges {
        assert!(range.from_seq <= range.to_seq, "{range:?}");
        all.entry(range.conversation.clone()).or_default().extend(range.from_seq..=range.to_seq);
    }
    for entry in &answer.entries {
        all.entry(entry.conversation.clone()).or_default().push(entry.seq);
    }
    (answer, all)
}

#[test]
fn entries_beyond_the_inbox_limit_are_named_as_ranges() {
    let world = world(Arc::new(MemoryStore::default()));
    let rooms = rooms(&world, 50);
    let cursor = world.engine.sync(&world.user("bob"), None).unwrap().cursor;
    // 1,000 entries: the newest 800 are in forty rooms; the ten oldest rooms are never read.
    for room in &rooms {
        say(&world, room, (0..20).map(|n| format!("{room}-{n}")));
    }
    let (answer, all) = synced(&world, &cursor);
    assert_eq!((answer.entries.len(), answer.resume.complete), (INBOX_ENTRIES_MAX, false));
    assert_eq!(answer.resume.ranges.len(), 10);
    assert!(rooms.iter().all(|room| all[room] == (1..=20).collect::<Vec<_>>()), "{all:?}");
    let (answer, all) = synced(&world, &answer.cursor);
    assert!(answer.resume.complete && all.is_empty());
}

/// Adds direct conversations to Bob's, in the store itself and without users, who would cost time.
fn chats(world: &World, from: usize, to: usize) {
    let bob = world.user("bob").no;
    for part in (from..to).collect::<Vec<_>>().chunks(1_000) {
        let ids: Vec<String> = part.iter().map(|n| format!("customer{n}")).collect();
        let users = ids.iter().map(|id| UserPatch { id: id.clone(), ..UserPatch::default() }).collect();
        world.engine.store.commit(&[Proposal::PutUsers(users)], 1).unwrap();
        let chat = |id: &String| {
            let other = world.engine.store.user_no(id).unwrap().unwrap();
            let members = vec![(bob, Role::Member), (other, Role::Member)];
            let pair = Some((bob.min(other), bob.max(other)));
            let (id, kind) = (direct_id("bob", id), ConversationKind::Direct);
            let (name, avatar, attributes) = (None, None, None);
            Proposal::CreateConversation(NewConversation {
                id,
                kind,
                pair,
                name,
                avatar,
                attributes,
                members,
                settings: ConversationSettings::default(),
            })
        };
        world.engine.store.commit(&ids.iter().map(chat).collect::<Vec<_>>(), 1).unwrap();
    }
}

#[test]
fn a_user_with_too_many_conversations_gets_an_incomplete_resume() {
    let world = world(Arc::new(MemoryStore::default()));
    chats(&world, 0, 12_000);
    let room = &rooms(&world, 1)[0];
    let cursor = world.engine.sync(&world.user("bob"), None).unwrap().cursor;
    say(&world, room, ["first".to_owned()].into_iter());
    let (answer, all) = synced(&world, &cursor);
    assert!(answer.resume.complete, "{:?}", answer.resume);
    assert_eq!(all[room], [1]);
    // As many conversations as a resume reads: there may be more.
    chats(&world, 12_000, CONVERSATIONS_PER_USER_MAX);
    say(&world, room, ["second".to_owned()].into_iter());
    let (answer, _) = synced(&world, &answer.cursor);
    assert!(!answer.resume.complete && answer.resume.ranges.is_empty(), "{:?}", answer.resume);
}

#[test]
fn large_bodies_shorten_the_inbox_and_the_rest_is_named_as_ranges() {
    let world = world(Arc::new(MemoryStore::default()));
    let rooms = rooms(&world, 2);
    let cursor = world.engine.sync(&world.user("bob"), None).unwrap().cursor;
    let large = "x".repeat(60_000);
    for n in 0..40 {
        let mut request = message("alice", &rooms[n % 2], &format!("m{n}"));
        request.body = serde_json::value::to_raw_value(&large).unwrap();
        world.wait(world.engine.send(&Actor::App, request)).unwrap();
    }
    let (answer, all) = synced(&world, &cursor);
    let bytes: usize = answer.entries.iter().map(|entry| entry.body.get().len()).sum();
    assert!(bytes < INBOX_BYTES_MAX + large.len() + 2, "{bytes}");
    assert!(!answer.resume.complete && answer.entries.len() >= 17);
    assert!(rooms.iter().all(|room| all[room] == (1..=20).collect::<Vec<_>>()), "{all:?}");
}

#[test]
fn a_cursor_of_another_epoch_resets_the_resume() {
    let world = world(Arc::new(MemoryStore::default()));
    let room = rooms(&world, 1).remove(0);
    say(&world, &room, (0..5).map(|n| n.to_string()));
    let (epoch, last) = (world.engine.store.epoch(), world.engine.store.last_position());
    for (epoch, position) in [(epoch + 1, 0), (epoch, last + 1)] {
        let (answer, all) = synced(&world, &Cursor { epoch, positions: [0, position, 0] }.to_string());
        assert!(answer.resume.reset && !answer.resume.complete && answer.resume.ranges.is_empty());
        assert_eq!(all[&room], [1, 2, 3, 4, 5], "the newest of everything, to begin with");
    }
    let answer = world.engine.sync(&world.user("bob"), None).unwrap();
    assert!(answer.resume.complete && answer.entries.is_empty(), "a new device has missed nothing");
    let refusal = world.engine.sync(&world.user("bob"), Some("1.2.3")).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::CursorInvalid);
}

#[test]
fn a_resume_across_removed_entries_is_incomplete() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(EmbeddedOptions::new(folder.path())).unwrap();
    let world = world(Arc::new(store));
    let room = rooms(&world, 1).remove(0);
    say(&world, &room, ["seen".to_owned()].into_iter());
    let early = world.engine.sync(&world.user("bob"), None).unwrap().cursor;
    say(&world, &room, (0..5).map(|n| format!("old{n}")));
    let late = world.engine.sync(&world.user("bob"), None).unwrap().cursor;
    world.clock.set(NOON + 3 * DAY);
    say(&world, &room, (0..5).map(|n| format!("new{n}")));
    let retention = Retention { age_max: Some(Duration::from_secs(24 * 60 * 60)), bytes_max: None };
    assert_eq!(world.engine.store.retain(retention, NOON + 3 * DAY).unwrap(), 6);

    let (answer, all) = synced(&world, &early);
    assert_eq!(all[&room], (7..=11).collect::<Vec<_>>());
    assert!(!answer.resume.complete && answer.resume.ranges.is_empty(), "2 to 6 are gone: {:?}", answer.resume);
    assert_eq!(
        answer.resume.removed,
        [RemovedRange { conversation: room.clone(), first_seq: 7 }],
        "from 7 on it is complete"
    );
    // A client that had seen the removed entries has missed none of them.
    let (answer, all) = synced(&world, &late);
    assert_eq!(all[&room], (7..=11).collect::<Vec<_>>());
    assert!(answer.resume.complete, "{:?}", answer.resume);
    let page = world.engine.history(&Actor::App, &room, &HistoryQuery::default()).unwrap();
    assert_eq!((page.first_seq, page.last_seq, page.more), (7, 11, false));
}

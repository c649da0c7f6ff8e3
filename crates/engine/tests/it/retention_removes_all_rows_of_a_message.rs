//! With a message that retention removes go its reactions, the places of its answers, its mentions and its pin.

use crate::support::*;
use std::{sync::Arc, time::Duration};
use tidings_domain::{
    model::{Actor, ConversationKind},
    store::{Retention, RowSpace, Store},
};
use tidings_engine::config::EngineConfig;
use tidings_protocol::{error::ErrorCode, http::SendRequest};
use tidings_store::{EmbeddedOptions, EmbeddedStore};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// One row of each kind that belongs to messages: how many there are.
fn rows(store: &dyn Store) -> [usize; 5] {
    [b'r', b'y', b'm', b'A', b'P'].map(|kind| store.rows(RowSpace::Chat, &[kind], &[kind + 1], 1_000).unwrap().len())
}

#[test]
fn rows_of_removed_messages_go_with_them_and_others_stay() {
    let folder = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions { disk_reserve_bytes: 0, ..EmbeddedOptions::new(folder.path()) };
    let store = Arc::new(EmbeddedStore::open(options).unwrap());
    let world = World::new(EngineConfig { shards: 1, ..EngineConfig::default() }, store.clone());
    world.users(&["ada", "ben"]);
    let ada = Actor::User(world.user("ada"));
    for room in ["one", "two"] {
        world.conversation(ConversationKind::Group, room, &["ada", "ben"]);
    }
    // On the first day and on the fifth: a message that mentions, one that answers it, a reaction and a pin in each room.
    let mut pinned = Vec::new();
    for day in [0, 4] {
        world.clock.advance(DAY * day);
        for room in ["one", "two"] {
            let mentioning = SendRequest {
                mentions: vec!["ben".into(), "@all".into()],
                ..message("ada", room, &format!("{room}-{day}-ben"))
            };
            let first = world.wait(world.engine.send(&Actor::App, mentioning)).unwrap().seq;
            let answer = SendRequest { reply_to: Some(first), ..message("ben", room, &format!("{room}-{day}-yes")) };
            world.wait(world.engine.send(&Actor::App, answer)).unwrap();
            world.wait(world.engine.react(&ada, None, room, first, "+1", true)).unwrap();
            world.wait(world.engine.pin(&ada, None, room, first, true)).unwrap();
            pinned.push((room, first));
            world.take_fanouts();
        }
    }
    assert_eq!(rows(&*store), [4, 4, 4, 4, 2]);
    let retention = Retention { age_max: Some(DAY * 2), bytes_max: None };
    assert!(world.engine.remove_old(retention).unwrap() > 0);
    assert_eq!(rows(&*store), [2, 2, 2, 2, 2]);
    for (at, (room, seq)) in pinned.into_iter().enumerate() {
        let is_kept = at >= 2;
        let pins = world.engine.pins(&ada, room).unwrap().entries;
        assert_eq!(pins.iter().any(|entry| entry.seq == seq), is_kept);
        let unpinned = world.wait(world.engine.pin(&ada, None, room, seq, false));
        assert_eq!(unpinned.map_err(|refusal| refusal.code).err(), (!is_kept).then_some(ErrorCode::NotFound));
    }
    assert_eq!(rows(&*store), [2, 2, 2, 2, 0]);
    assert_eq!(world.engine.mentions(&world.user("ben"), None, 10).unwrap().entries.len(), 2);
    assert_eq!(world.engine.remove_old(retention).unwrap(), 0);
    let report = store.check(tidings_popups::check_popups).unwrap();
    assert!(report.is_sound(), "{report}");
}

//! The outbox: entries that await offline push, and notifications that are stored.

use super::*;

pub(super) const CHECKS: &[Check] = &[
    ("the outbox holds messages that may be pushed, in commit order", contents),
    ("the outbox drops consumed items", done),
    ("the outbox is read in pages", pages),
    ("the outbox's progress never goes back", never_back),
    ("notifications are kept, listed and removed, each in its table", notifications),
];

fn positions(items: &[OutboxItem]) -> Vec<Position> {
    items.iter().map(|item| item.position).collect()
}

fn contents(store: &dyn Store) {
    let u = users(store, 1);
    let (one, two) = (group(store, "one", &u), group(store, "two", &u));
    let batch = [
        append(one, message(u[0], "a")),
        append(one, NewEntry { silent: true, ..message(u[0], "b") }),
        append(two, NewEntry { skip_push: true, ..message(u[0], "c") }),
        append(two, NewEntry { silent: false, skip_push: false, ..notice(EntryKind::MemberChange) }),
        append(two, message(u[0], "d")),
        append(one, message(u[0], "a")),
        append(one, NewEntry { silent: false, skip_push: false, ..notice(EntryKind::Message) }),
    ];
    let found: Vec<_> = store.commit(&batch, NOON).unwrap().iter().map(appended).collect();
    let item = |a: &Appended| OutboxItem { position: a.position, conversation: a.conversation, seq: a.seq };
    assert_eq!(store.outbox(0, 100).unwrap(), [item(&found[0]), item(&found[4]), item(&found[6])]);
    assert_eq!(store.outbox_position().unwrap(), 0);
}

fn done(store: &dyn Store) {
    let u = users(store, 1);
    let room = group(store, "g", &u);
    fill(store, room, u[0], 20);
    let all = positions(&store.outbox(0, 100).unwrap());
    assert_eq!(all.len(), 20);
    for kept in [19, 13, 12, 5, 0] {
        let through = all[20 - kept - 1];
        assert_eq!(commit(store, Proposal::AdvanceOutbox { through, dead: vec![] }), Outcome::Done);
        assert_eq!(positions(&store.outbox(0, 100).unwrap()), all[20 - kept..]);
        assert_eq!(store.outbox_position().unwrap(), through);
    }
    let more = appended(&commit(store, append(room, message(u[0], "more"))));
    assert_eq!(positions(&store.outbox(0, 100).unwrap()), [more.position]);
    let last = appended(&commit(store, append(room, message(u[0], "last"))));
    let batch =
        [append(room, message(u[0], "own")), Proposal::AdvanceOutbox { through: last.position + 1, dead: vec![] }];
    store.commit(&batch, NOON).unwrap();
    assert_eq!(store.outbox(0, 100).unwrap(), [], "an entry of the same batch is consumed too");
}

fn pages(store: &dyn Store) {
    let u = users(store, 1);
    let room = group(store, "g", &u);
    let batch: Vec<_> = (0..300).map(|n| append(room, message(u[0], &n.to_string()))).collect();
    let all: Vec<_> = store.commit(&batch, NOON).unwrap().iter().map(|o| appended(o).position).collect();
    let mut found: Vec<Position> = vec![];
    loop {
        let page = store.outbox(found.last().copied().unwrap_or(0), 70).unwrap();
        assert!(page.len() <= 70);
        if page.is_empty() {
            break;
        }
        found.extend(positions(&page));
    }
    assert_eq!(found, all);
}

fn never_back(store: &dyn Store) {
    let u = users(store, 1);
    let room = group(store, "g", &u);
    fill(store, room, u[0], 9);
    let all = positions(&store.outbox(0, 100).unwrap());
    let batch = [all[5], all[2]].map(|through| Proposal::AdvanceOutbox { through, dead: vec![] });
    store.commit(&batch, NOON).unwrap();
    assert_eq!(store.outbox_position().unwrap(), all[5]);
    commit(store, Proposal::AdvanceOutbox { through: all[3], dead: vec![] });
    assert_eq!(store.outbox_position().unwrap(), all[5]);
    assert_eq!(positions(&store.outbox(0, 100).unwrap()), all[6..]);
}

fn notifications(store: &dyn Store) {
    for table in NotificationTable::ALL {
        notifications_of(store, table);
    }
    // What one table has is not in another.
    for table in NotificationTable::ALL {
        let found = store.stored_notifications(table, None, 10).unwrap();
        assert_eq!(found.iter().map(|found| found.key.table).collect::<Vec<_>>(), [table, table]);
    }
}

fn notifications_of(store: &dyn Store, table: NotificationTable) {
    let key = |id| NotificationKey { table, id };
    let given_up = |id| StoredNotification {
        key: key(id),
        failed_at: NOON + id % 1_000,
        attempts: 12,
        last_error: "503 ünavailable".into(),
        event: "{\"n\":1}".into(),
    };
    let stored = |after, limit| store.stored_notifications(table, after, limit).unwrap();
    commit(store, Proposal::AdvanceOutbox { through: 0, dead: vec![given_up(3), given_up(1)] });
    commit(store, Proposal::AdvanceOutbox { through: 0, dead: vec![given_up(7)] });
    assert_eq!(stored(None, 10), [1, 3, 7].map(given_up));
    assert_eq!(stored(Some(1), 1), [given_up(3)]);
    let delete = |ids: &[u64]| Proposal::DeleteStoredNotifications { keys: ids.iter().map(|id| key(*id)).collect() };
    assert_eq!(commit(store, delete(&[3, 99])), Outcome::Done);
    assert_eq!(stored(None, 10), [1, 7].map(given_up));
    let batch =
        [delete(&[7]), Proposal::AdvanceOutbox { through: 0, dead: vec![given_up(7), given_up(8)] }, delete(&[8])];
    store.commit(&batch, NOON).unwrap();
    assert_eq!(stored(None, 10), [1, 7].map(given_up));
    // Ids up to 2^63 are listed in order.
    let above = [1 << 62, 1 << 62 | 5, 1 << 62 | 1 << 61, (1 << 63) - 2];
    commit(store, Proposal::AdvanceOutbox { through: 0, dead: above.iter().rev().map(|id| given_up(*id)).collect() });
    assert_eq!(stored(Some(7), 10), above.map(given_up));
    assert_eq!(stored(Some((1 << 62) - 1), 2), [above[0], above[1]].map(given_up));
    let again = StoredNotification { attempts: 3, ..given_up(above[1]) };
    commit(store, Proposal::AdvanceOutbox { through: 0, dead: vec![again.clone()] });
    assert_eq!(stored(Some(above[1] - 1), 1), [again]);
    commit(store, delete(&above));
    assert_eq!(stored(None, 10), [1, 7].map(given_up));
}

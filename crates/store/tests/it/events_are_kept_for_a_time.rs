//! A folder keeps the log of its commits while events are kept, removes what is old, and never shows a part for the whole.

use crate::support::{self, NOON};
use tidings_domain::{commit_log::PruneProgress, model::*, store::*};
use tidings_store::{EmbeddedOptions, EmbeddedStore};

fn open(folder: &std::path::Path, event_log: bool) -> EmbeddedStore {
    let store = EmbeddedStore::open(EmbeddedOptions { event_log, ..support::options(folder) }).unwrap();
    store.open_gates().unwrap();
    store
}

/// Makes new users, so many in one commit: their names are longer than a row may be.
fn users(store: &EmbeddedStore, prefix: &str, count: usize, now_ms: u64) {
    let user = |n| UserPatch { id: format!("{prefix}-{n:040}"), ..UserPatch::default() };
    store.commit(&[Proposal::PutUsers((0..count).map(user).collect())], now_ms).unwrap();
}

fn positions(store: &EmbeddedStore, after: Position) -> Vec<Position> {
    store.log_after(after, 100).unwrap().records.iter().map(|record| record.position).collect()
}

#[test]
fn what_is_old_is_removed_and_who_lacks_it_is_notified() {
    let folder = support::scratch();
    let store = open(folder.path(), true);
    assert_eq!(store.log_start().unwrap(), Some(0));
    for (number, minute) in [0, 1, 2].into_iter().enumerate() {
        users(&store, &format!("u{number}"), 500, NOON + minute * 60_000);
    }
    assert_eq!(positions(&store, 0), [1, 2, 3]);
    assert_eq!(store.prune_log(NOON).unwrap(), PruneProgress { removed: 0, more: false });
    assert_eq!(store.prune_log(NOON + 60_000).unwrap(), PruneProgress { removed: 1, more: false });
    assert_eq!(store.log_start().unwrap(), Some(1));
    assert!(matches!(store.log_after(0, 100), Err(StoreError::Pruned(_))));
    assert_eq!(positions(&store, 1), [2, 3]);
    drop(store);
    let store = open(folder.path(), true);
    assert_eq!((store.log_start().unwrap(), positions(&store, 1)), (Some(1), vec![2, 3]));
    assert!(store.check(tidings_popups::check_popups).unwrap().is_sound());
}

#[test]
fn a_log_that_was_not_kept_for_a_time_begins_anew() {
    let folder = support::scratch();
    let store = open(folder.path(), true);
    users(&store, "kept", 1, NOON);
    let seen = store.last_position();
    drop(store);
    let store = open(folder.path(), false);
    assert_eq!(store.log_start().unwrap(), None);
    assert!(matches!(store.log_after(0, 100), Err(StoreError::Pruned(_))));
    users(&store, "not-kept", 1, NOON);
    drop(store);
    let store = open(folder.path(), true);
    let start = store.log_start().unwrap().unwrap();
    assert_eq!(start, store.last_position());
    let missed = store.log_after(seen, 100);
    assert!(matches!(missed, Err(StoreError::Pruned(_))), "what happened meanwhile is not left out: {missed:?}");
    users(&store, "again", 1, NOON);
    assert_eq!(positions(&store, start), [start + 1]);
}

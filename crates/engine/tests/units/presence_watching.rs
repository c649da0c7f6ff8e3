//! Unit tests of `src/presence/watching.rs`.

#![allow(clippy::unwrap_used)]
use super::*;

const LAPTOP: Watcher = (0, 1);
const PHONE: Watcher = (1, 2);
const ADA: UserNo = UserNo(77);
const ROOM: ConversationNo = ConversationNo(7);

fn users(numbers: std::ops::Range<u64>) -> Vec<UserNo> {
    numbers.map(UserNo).collect()
}

#[test]
fn a_session_watches_each_user_once_up_to_its_limit() {
    let mut watchers = Watchers::default();
    let most = WATCHED_USERS_MAX as u64;
    watchers.add((LAPTOP, ADA), &[users(0..most), users(0..most)].concat(), None, 5_000).unwrap();
    watchers.add((LAPTOP, ADA), &users(0..10), None, 5_000).unwrap();
    assert_eq!((watchers.watches, watchers.of_user[&UserNo(0)].by.len()), (WATCHED_USERS_MAX, 1));
    let refusal = watchers.add((LAPTOP, ADA), &users(most..most + 1), None, 5_000).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::LimitExceeded);
    watchers.remove(LAPTOP, Some(&users(0..1)));
    watchers.add((LAPTOP, ADA), &users(most..most + 1), None, 5_000).unwrap();
}

#[test]
fn all_sessions_together_have_a_limit_and_leave_nothing_behind() {
    let mut watchers = Watchers::default();
    watchers.add((LAPTOP, ADA), &users(0..3), None, 5).unwrap();
    let refusal = watchers.add((PHONE, ADA), &users(0..3), None, 5).unwrap_err();
    assert_eq!((refusal.code, refusal.retry_after_ms), (ErrorCode::QueueFull, Some(FULL_RETRY_AFTER_MS)));
    watchers.add((PHONE, ADA), &users(0..2), None, 5).unwrap();
    watchers.remove(LAPTOP, None);
    assert_eq!((watchers.watches, watchers.of_user.len(), watchers.of_session.len()), (2, 2, 1));
    watchers.remove(PHONE, Some(&users(0..9)));
    assert_eq!((watchers.watches, watchers.of_user.capacity(), watchers.of_session.capacity()), (0, 0, 0));
}

#[test]
fn a_watch_ends_with_the_last_conversation_on_which_it_rests() {
    let mut watchers = Watchers::default();
    watchers.add((LAPTOP, ADA), &users(0..3), Some(ROOM), 9).unwrap();
    watchers.add((LAPTOP, ADA), &users(0..1), None, 9).unwrap();
    watchers.add((PHONE, UserNo(1)), &users(2..3), Some(ROOM), 9).unwrap();
    watchers.end(ConversationNo(8), &[ADA]);
    assert_eq!(watchers.watches, 4);
    watchers.end(ROOM, &[UserNo(1)]);
    assert_eq!((watchers.watches, watchers.of_user.contains_key(&UserNo(1))), (2, false), "nor does who left watch");
    watchers.end(ROOM, &[ADA]);
    assert_eq!((watchers.watches, watchers.of_user.contains_key(&UserNo(0))), (1, true), "there is a direct one");
    watchers.remove(LAPTOP, None);
    assert!(watchers.by_user.is_empty() && watchers.of_session.is_empty());
}

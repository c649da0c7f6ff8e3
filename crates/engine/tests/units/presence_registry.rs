//! Unit tests of `src/presence/registry.rs`.

use super::*;

const ANN: UserNo = UserNo(1);

fn entry(session: u64, kind: &str) -> PresenceSession {
    PresenceSession {
        session,
        node: NodeNo(session as u32),
        device_id: "d".into(),
        device_kind: kind.into(),
        since: 7,
        chat: true,
        background: false,
    }
}

fn sessions(registry: &Registry) -> Vec<u64> {
    registry.sessions_of(ANN).iter().map(|entry| entry.session).collect()
}

#[test]
fn a_user_with_one_session_takes_at_most_48_bytes_of_the_map() {
    let (user, sessions) = (size_of::<UserNo>(), size_of::<Sessions>());
    println!("a user with one session: {user} + {sessions} bytes of the map");
    assert!(user + sessions <= 48);
}

#[test]
fn the_first_and_the_last_session_of_a_user_are_told_apart() {
    let registry = Registry::default();
    let arrive = |session: u64| registry.arrive(ANN, entry(session, "web"), |_| ()).arrival;
    let leave = |session: u64| registry.stripe(ANN).write().leave(ANN, NodeNo(0), session);
    let left = |node, was_last: bool| {
        let activity = Activity { before: true, after: !was_last };
        Some(Departure { node: NodeNo(node), stamp: 7, was_last, activity })
    };
    assert_eq!(arrive(1), Arrival::First);
    assert_eq!(arrive(2), Arrival::Further);
    assert_eq!(arrive(3), Arrival::Further);
    assert_eq!(
        arrive(2),
        Arrival::Again { node: NodeNo(2), stamp: 7 },
        "the same session is one, however often it is told"
    );
    assert_eq!(sessions(&registry), [1, 2, 3]);
    assert_eq!(leave(4), None);
    assert_eq!(leave(2), left(2, false));
    assert_eq!(leave(1), left(1, false));
    assert_eq!((sessions(&registry), registry.user_count()), (vec![3], 1));
    assert_eq!(leave(1), None);
    assert_eq!(leave(3), left(3, true));
    assert_eq!((sessions(&registry), registry.user_count()), (vec![], 0));
}

#[test]
fn names_of_device_kinds_are_kept_for_as_long_as_a_session_has_them() {
    let registry = Registry::default();
    let kinds = || registry.sessions_of(ANN).iter().map(|entry| entry.device_kind.to_string()).collect::<Vec<_>>();
    registry.arrive(ANN, entry(1, "web"), |_| ());
    for number in 0..2 * KINDS_MAX {
        registry.arrive(ANN, entry(2, &format!("kind {number}")), |_| ());
    }
    assert_eq!(kinds(), ["web".into(), format!("kind {}", 2 * KINDS_MAX - 1)]);
    registry.arrive(ANN, entry(3, "one more"), |_| ());
    for session in [2, 1] {
        registry.stripe(ANN).write().leave(ANN, NodeNo(0), session).unwrap();
    }
    assert_eq!((kinds(), registry.kinds.read().numbers.len()), (vec!["one more".to_owned()], 2));
    assert!(registry.kinds.read().words.len() <= 4, "numbers are used again");
}

#[test]
fn a_session_with_one_name_too_many_is_shown_as_other() {
    let registry = Registry::default();
    let users = 1..=KINDS_MAX as u64;
    for user in users.clone() {
        registry.arrive(UserNo(user), entry(user, &format!("kind {user}")), |_| ());
    }
    let kind = |user| registry.sessions_of(UserNo(user))[0].device_kind.to_string();
    assert_eq!((kind(1), kind(*users.end())), ("kind 1".into(), OTHER.into()));
    registry.stripe(UserNo(1)).write().leave(UserNo(1), NodeNo(0), 1).unwrap();
    registry.arrive(ANN, entry(1, "one more"), |_| ());
    assert_eq!(kind(ANN.0), "one more");
}

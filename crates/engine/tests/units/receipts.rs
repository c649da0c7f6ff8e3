//! Unit tests of `src/receipts/mod.rs`.

use super::*;

const ANN: UserNo = UserNo(1);
const ROOM: ConversationNo = ConversationNo(7);

#[test]
fn the_farthest_cursor_of_a_users_devices_counts_in_each_lane() {
    let receipts = Receipts::default();
    receipts.note_stored(ANN, &Cursor { epoch: 3, positions: [5, 1, 0] });
    receipts.note_stored(ANN, &Cursor { epoch: 3, positions: [4, 2, 0] });
    assert_eq!(receipts.waiting_stored(10, 3), [(ANN, [5, 2, 0])]);
}

#[test]
fn positions_are_known_here_until_they_are_in_the_store() {
    let receipts = Receipts::default();
    receipts.note_stored(ANN, &Cursor { epoch: 3, positions: [5, 1, 0] });
    let first = receipts.waiting_stored(10, 3);
    assert_eq!(receipts.pending_stored(ANN, 3), [5, 1, 0], "while they are written");
    // The user comes farther meanwhile.
    receipts.note_stored(ANN, &Cursor { epoch: 3, positions: [6, 1, 0] });
    receipts.stored_done(&first);
    assert_eq!(receipts.pending_stored(ANN, 3), [6, 1, 0]);
    let second = receipts.waiting_stored(10, 3);
    assert_eq!(second, [(ANN, [6, 1, 0])]);
    receipts.stored_done(&second);
    assert_eq!((receipts.waiting_stored(10, 3), receipts.pending_stored(ANN, 3)), (vec![], [0, 0, 0]));
}

#[test]
fn positions_of_another_epoch_are_dropped() {
    let receipts = Receipts::default();
    receipts.note_stored(ANN, &Cursor { epoch: 3, positions: [9, 9, 9] });
    receipts.note_stored(UserNo(2), &Cursor { epoch: 4, positions: [1, 1, 1] });
    assert_eq!(receipts.waiting_stored(10, 5), [], "the store has another history by now");
    receipts.note_stored(ANN, &Cursor { epoch: 5, positions: [1, 0, 0] });
    assert_eq!(receipts.waiting_stored(10, 5), [(ANN, [1, 0, 0])]);
}

#[test]
fn moves_of_one_member_become_one() {
    let receipts = Receipts::default();
    let read = |before, seq| ReceiptMove { conversation: ROOM, user: ANN, what: ReceiptKind::Read, before, seq };
    [read(Some(2), 3), read(Some(3), 6), read(None, 4)].into_iter().for_each(|told| receipts.note(told));
    let moves = receipts.take_moves();
    let expected = PendingMove { before: Some(2), seq: 6, is_local: true };
    assert_eq!(moves[&ROOM][&(ANN, ReceiptKind::Read)], expected);
    receipts.note_remote(vec![read(Some(6), 7)]);
    assert!(!receipts.take_moves()[&ROOM][&(ANN, ReceiptKind::Read)].is_local);
    assert!(receipts.take_moves().is_empty());
}

#[test]
fn users_and_moves_beyond_the_bounds_are_passed_over() {
    let receipts = Receipts::default();
    let told = |user, seq| ReceiptMove { conversation: ROOM, user, what: ReceiptKind::Read, before: None, seq };
    for user in (0..STORED_USERS_MAX as u64 + 9).map(UserNo) {
        receipts.note_stored(user, &Cursor { epoch: 0, positions: [1, 1, 1] });
        receipts.note(told(user, 1));
    }
    assert_eq!(receipts.depths().map(|(_, depth, _)| depth), [STORED_USERS_MAX, MOVES_MAX]);
    receipts.note_stored(UserNo(0), &Cursor { epoch: 0, positions: [2, 1, 1] });
    let stored = receipts.waiting_stored(usize::MAX, 0);
    assert!(stored.contains(&(UserNo(0), [2, 1, 1])), "a user who is known already goes on");
}

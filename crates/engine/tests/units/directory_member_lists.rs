//! Unit tests of `src/directory/member_lists.rs`.

use super::*;
use tidings_domain::store::{NewConversation, Outcome, Proposal, StoreError, UserPatch};
use tidings_testkit::MemoryStore;

/// A room of the first two of four users.
fn room(store: &MemoryStore) -> StoreResult<(Conversation, Vec<UserNo>)> {
    let patches = (0..4).map(|n| UserPatch { id: format!("u{n}"), ..UserPatch::default() }).collect();
    store.commit(&[Proposal::PutUsers(patches)], 1)?;
    let users = (0..4).map(|n| store.user_no(&format!("u{n}")));
    let users: Vec<UserNo> = users.collect::<StoreResult<Vec<_>>>()?.into_iter().flatten().collect();
    let new = NewConversation {
        id: "room".into(),
        kind: ConversationKind::Group,
        pair: None,
        name: None,
        avatar: None,
        attributes: None,
        members: users[..2].iter().map(|user| (*user, Role::Member)).collect(),
        settings: ConversationSettings::default(),
    };
    match store.commit(&[Proposal::CreateConversation(new)], 1)?.pop() {
        Some(Outcome::Conversation { conversation, .. }) => Ok((conversation, users)),
        _ => Err(StoreError::Damaged("no room".into())),
    }
}

fn change(room: &Conversation, add: &[UserNo], remove: &[UserNo]) -> Proposal {
    let add = add.iter().map(|user| (*user, Role::Member)).collect();
    let (remove, conversation) = (remove.to_vec(), room.no);
    Proposal::ChangeMembers { conversation, add, remove, heir: None, act: None, members_max: 10, notice: None }
}

#[test]
fn a_list_follows_the_changes_that_are_noted() -> StoreResult<()> {
    let store = MemoryStore::default();
    let (room, users) = room(&store)?;
    let lists = MemberLists::default();
    let members = || {
        let found = lists.members(&store, &room)?.unwrap_or_default();
        StoreResult::Ok(found.iter().map(|(user, membership)| (*user, membership.read_seq)).collect::<Vec<_>>())
    };
    assert_eq!(members()?, [(users[0], 0), (users[1], 0)]);
    // What is not noted is not read again.
    store.commit(&[change(&room, &users[2..3], &users[..1])], 2)?;
    assert_eq!(members()?, [(users[0], 0), (users[1], 0)]);
    lists.note_changed(room.no, users[0]);
    lists.note_changed(room.no, users[2]);
    lists.note_read(room.no, users[1], 7);
    lists.note_read(room.no, users[1], 5);
    lists.note_read(room.no, users[3], 5);
    assert_eq!(members()?, [(users[1], 7), (users[2], 0)]);
    lists.clear();
    assert_eq!(members()?, [(users[1], 0), (users[2], 0)], "as it is stored");
    Ok(())
}

#[test]
fn a_conversation_that_is_too_large_has_no_list() -> StoreResult<()> {
    let store = MemoryStore::default();
    let (room, _) = room(&store)?;
    let large = Conversation { member_count: LIST_MEMBERS_MAX as u64 + 1, ..room };
    assert!(MemberLists::default().members(&store, &large)?.is_none());
    Ok(())
}

#![allow(clippy::unwrap_used)]
use super::*;
use tidings_domain::store::{NewConversation, UserPatch};
use tidings_testkit::MemoryStore;

#[test]
fn after_a_change_of_a_later_version_everything_is_read_anew() {
    let store = Arc::new(MemoryStore::shared());
    let directory = Directory::new(store.clone(), 100, true);
    let patch = |name: &str| UserPatch { id: "ada".into(), name: Some(name.into()), ..UserPatch::default() };
    let members = vec![(UserNo(1), Role::Member)];
    let (kind, pair) = (ConversationKind::Group, None);
    let (avatar, attributes) = Default::default();
    let settings = ConversationSettings::default();
    let name = Some("G".into());
    let new = NewConversation { id: "g".into(), kind, pair, name, avatar, attributes, members, settings };
    store.commit(&[Proposal::PutUsers(vec![patch("Ada")]), Proposal::CreateConversation(new)], 1).unwrap();
    let no = directory.require_conversation("g").unwrap().no;
    let seen = || {
        let user = directory.user(UserNo(1)).unwrap().unwrap();
        let is_member = directory.membership(no, UserNo(1)).unwrap().is_some();
        let conversation = directory.conversation(no).unwrap().unwrap();
        (user.name.clone(), is_member, conversation.member_count)
    };
    assert_eq!(seen(), (Some("Ada".into()), true, 1));
    // Another node changes all of it.
    let (add, remove) = (vec![], vec![UserNo(1)]);
    let leave =
        Proposal::ChangeMembers { conversation: no, add, remove, heir: None, act: None, members_max: 9, notice: None };
    store.commit(&[Proposal::PutUsers(vec![patch("Ada L.")]), leave], 2).unwrap();
    assert_eq!(seen(), (Some("Ada".into()), true, 1), "from memory");
    directory.invalidate_remote(Some(&Change::Opaque), None);
    assert_eq!(seen(), (Some("Ada L.".into()), false, 0));
}

#[test]
fn a_user_without_extras_is_small() {
    // With the two counts that an `Arc` has. Allocators have a size of 128 bytes, and none right above it.
    let bytes = size_of::<User>() + 2 * size_of::<usize>();
    println!("a user in the directory: {bytes} bytes");
    assert!(bytes <= 128, "{bytes} bytes: what grew, and does every user need it?");
}

//! The members of conversations that had messages of late, for the stage that decides who is notified of a message: they are read
//! once, and from then on only the members who changed.
//!
//! A change is noted before the next commit is announced, so that a message finds the members that it was committed after. A list
//! that is being read takes notes too: the read may or may not have seen the change.

use parking_lot::Mutex;
use quick_cache::{Weighter, unsync::Cache};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use tidings_domain::{
    model::*,
    store::{Store, StoreResult},
};

/// Members of a list. Larger conversations are read page by page for each message.
const LIST_MEMBERS_MAX: usize = 5_000;
/// Members of all lists. Full: the list that was used longest ago is dropped, and read again when it is needed.
const MEMBERS_MAX: u64 = 1_000_000;
/// How many lists are expected.
const LISTS: usize = 10_000;

/// The members of a conversation, in the order of their numbers.
pub type MemberList = Arc<Vec<(UserNo, Membership)>>;

/// What has changed for a member since the list was read.
#[derive(Clone, Copy)]
enum MemberChange {
    ReadTo(u64),
    /// The membership began, ended, or changed otherwise.
    Reload,
}

type MemberChanges = FxHashMap<UserNo, MemberChange>;

#[derive(Clone)]
struct List {
    members: MemberList,
    changes: MemberChanges,
}

#[derive(Clone)]
struct ByMembers;

impl Weighter<ConversationNo, List> for ByMembers {
    fn weight(&self, _: &ConversationNo, list: &List) -> u64 {
        list.members.len() as u64 + 1
    }
}

struct Lists {
    lists: Cache<ConversationNo, List, ByMembers>,
    /// Of lists that are being read.
    loading: FxHashMap<ConversationNo, MemberChanges>,
}

/// One thread reads lists; others note changes.
pub(crate) struct MemberLists(Mutex<Lists>);

impl Default for MemberLists {
    fn default() -> Self {
        let lists = Cache::with_weighter(LISTS, MEMBERS_MAX, ByMembers);
        MemberLists(Mutex::new(Lists { lists, loading: FxHashMap::default() }))
    }
}

impl Lists {
    fn note(&mut self, conversation: ConversationNo, user: UserNo, change: MemberChange) {
        let note = |changes: &mut MemberChanges| {
            let known = changes.entry(user).or_insert(change);
            *known = match (*known, change) {
                (MemberChange::ReadTo(a), MemberChange::ReadTo(b)) => MemberChange::ReadTo(a.max(b)),
                _ => MemberChange::Reload,
            };
        };
        if let Some(mut list) = self.lists.get_mut(&conversation) {
            note(&mut list.changes);
        } else if let Some(changes) = self.loading.get_mut(&conversation) {
            note(changes);
        }
    }
}

impl MemberLists {
    /// A member's read mark has moved.
    pub(crate) fn note_read(&self, conversation: ConversationNo, user: UserNo, seq: u64) {
        self.0.lock().note(conversation, user, MemberChange::ReadTo(seq));
    }

    /// A membership began, ended, or changed.
    pub(crate) fn note_changed(&self, conversation: ConversationNo, user: UserNo) {
        self.0.lock().note(conversation, user, MemberChange::Reload);
    }

    /// Forgets all, since changes may have been missed.
    pub(crate) fn clear(&self) {
        self.0.lock().lists.clear();
    }

    /// The members as they are now; `None` for conversations that are too large for a list.
    pub(crate) fn members(&self, store: &dyn Store, conversation: &Conversation) -> StoreResult<Option<MemberList>> {
        let no = conversation.no;
        if conversation.member_count > LIST_MEMBERS_MAX as u64 {
            return Ok(None);
        }
        let (mut members, changes) = {
            let mut lists = self.0.lock();
            let known = lists.lists.get_mut(&no).map(|mut list| {
                let changes = std::mem::take(&mut list.changes);
                (list.members.clone(), changes)
            });
            match known {
                Some((members, changes)) if changes.is_empty() => return Ok(Some(members)),
                Some((members, changes)) => {
                    // Until it is back the list notes its changes here, so that the members are changed in place.
                    lists.lists.remove(&no);
                    lists.loading.insert(no, MemberChanges::default());
                    (Some(members), changes)
                }
                None => {
                    lists.loading.insert(no, MemberChanges::default());
                    (None, MemberChanges::default())
                }
            }
        };
        let loaded = match &mut members {
            Some(members) => apply(store, no, Arc::make_mut(members), changes).map(|()| true),
            None => store.members(no, None, LIST_MEMBERS_MAX + 1).map(|found| {
                let fits = found.len() <= LIST_MEMBERS_MAX;
                members = fits.then(|| Arc::new(found));
                fits
            }),
        };
        let mut lists = self.0.lock();
        let changes = lists.loading.remove(&no).unwrap_or_default();
        loaded?;
        if let Some(members) = &members {
            lists.lists.insert(no, List { members: members.clone(), changes });
        }
        Ok(members)
    }
}

fn apply(
    store: &dyn Store,
    conversation: ConversationNo,
    members: &mut Vec<(UserNo, Membership)>,
    changes: MemberChanges,
) -> StoreResult<()> {
    for (user, change) in changes {
        let place = members.binary_search_by_key(&user, |(member, _)| *member);
        match (change, place) {
            (MemberChange::ReadTo(seq), Ok(at)) => members[at].1.read_seq = members[at].1.read_seq.max(seq),
            (MemberChange::ReadTo(_), Err(_)) => {}
            (MemberChange::Reload, place) => match (store.membership(conversation, user)?, place) {
                (Some(membership), Ok(at)) => members[at].1 = membership,
                (Some(membership), Err(at)) => members.insert(at, (user, membership)),
                (None, Ok(at)) => drop(members.remove(at)),
                (None, Err(_)) => {}
            },
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "../../tests/units/directory_member_lists.rs"]
mod tests;

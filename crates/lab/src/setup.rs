//! Users and conversations for a run.

use crate::{LabError, job::Conversation};
use tidings_client::http::HttpClient;
use tidings_protocol::{
    http::{ChangeMembers, ConversationKind, CreateConversation, UserUpsert},
    limits::{MEMBERS_BATCH_MAX, USERS_BATCH_MAX},
};

/// `prefix-0`, `prefix-1`, …
pub(crate) fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}-{number}")).collect()
}

pub(crate) fn users(http: &mut HttpClient, users: Vec<UserUpsert>) -> Result<(), LabError> {
    for part in users.chunks(USERS_BATCH_MAX) {
        http.upsert_users(part.to_vec())?;
    }
    Ok(())
}

pub(crate) fn named_users(http: &mut HttpClient, ids: &[String]) -> Result<(), LabError> {
    users(http, ids.iter().map(|id| UserUpsert { id: id.clone(), ..UserUpsert::default() }).collect())
}

/// Users `tag-0`, `tag-1`, … by the hundred thousand.
pub(crate) fn many_users(http: &mut HttpClient, tag: &str, count: usize) -> Result<(), LabError> {
    for start in (0..count).step_by(USERS_BATCH_MAX) {
        let part = start..(start + USERS_BATCH_MAX).min(count);
        let part = part.map(|number| UserUpsert { id: format!("{tag}-{number}"), ..UserUpsert::default() });
        http.upsert_users(part.collect())?;
    }
    Ok(())
}

/// A group of these users, who exist already.
pub(crate) fn group(http: &mut HttpClient, id: &str, members: &[String]) -> Result<Conversation, LabError> {
    room(http, ConversationKind::Group, id, members)
}

/// A group, or an official account with followers.
pub(crate) fn room(
    http: &mut HttpClient,
    kind: ConversationKind,
    id: &str,
    members: &[String],
) -> Result<Conversation, LabError> {
    http.create_conversation(&CreateConversation {
        id: Some(id.into()),
        kind,
        name: Some(id.into()),
        avatar: None,
        attributes: None,
        owner: None,
        members: Vec::new(),
    })?;
    for part in members.chunks(MEMBERS_BATCH_MAX) {
        http.change_members(id, &ChangeMembers { add: part.to_vec(), remove: Vec::new(), role: None })?;
    }
    // Entries about the set-up itself stand before the run.
    let card = http.conversation(id)?;
    Ok(Conversation { id: id.into(), base_seq: card.last_seq })
}

/// A direct conversation of two users, who exist already.
pub(crate) fn direct(http: &mut HttpClient, a: &str, b: &str) -> Result<Conversation, LabError> {
    let card = http.create_conversation(&CreateConversation {
        id: None,
        kind: ConversationKind::Direct,
        name: None,
        avatar: None,
        attributes: None,
        owner: None,
        members: vec![a.into(), b.into()],
    })?;
    Ok(Conversation { id: card.id, base_seq: card.last_seq })
}

//! Creates the users and conversations of a run.

use crate::{
    LabError,
    mix::share::MixShare,
    worker_protocol::{Conversation, MixConfig},
};
use serde_json::json;
use tidings_client::http::HttpClient;
use tidings_protocol::{
    http::{ChangeMembers, ConversationKind, CreateConversation, Role, UserUpsert},
    limits::{MEMBERS_BATCH_MAX, USERS_BATCH_MAX},
};

/// `prefix-0`, `prefix-1`, …
pub(crate) fn numbered_ids(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}-{number}")).collect()
}

/// Whether this one is among `some` that are spread evenly over `all`.
pub(crate) fn is_among(number: usize, some: usize, all: usize) -> bool {
    (number + 1) * some / all > number * some / all
}

pub(crate) fn upsert_users(http: &mut HttpClient, users: Vec<UserUpsert>) -> Result<(), LabError> {
    for part in users.chunks(USERS_BATCH_MAX) {
        http.upsert_users(part.to_vec())?;
    }
    Ok(())
}

pub(crate) fn create_users(http: &mut HttpClient, ids: &[String]) -> Result<(), LabError> {
    upsert_users(http, ids.iter().map(|id| UserUpsert { id: id.clone(), ..UserUpsert::default() }).collect())
}

/// Creates users `tag-0`, `tag-1`, …, of whom only one batch at a time is in memory.
pub(crate) fn create_numbered_users(http: &mut HttpClient, tag: &str, count: usize) -> Result<(), LabError> {
    for start in (0..count).step_by(USERS_BATCH_MAX) {
        let part = start..(start + USERS_BATCH_MAX).min(count);
        let part = part.map(|number| UserUpsert { id: format!("{tag}-{number}"), ..UserUpsert::default() });
        http.upsert_users(part.collect())?;
    }
    Ok(())
}

/// Creates a group of these users, who exist already.
pub(crate) fn create_group(http: &mut HttpClient, id: &str, members: &[String]) -> Result<Conversation, LabError> {
    create_conversation(http, ConversationKind::Group, id, members)
}

/// Creates a group, or an official account with followers, of users who exist already.
pub(crate) fn create_conversation(
    http: &mut HttpClient,
    kind: ConversationKind,
    id: &str,
    members: &[String],
) -> Result<Conversation, LabError> {
    http.create_conversation(&CreateConversation {
        id: Some(id.into()),
        name: Some(id.into()),
        ..conversation_of(kind)?
    })?;
    for part in members.chunks(MEMBERS_BATCH_MAX) {
        http.change_members(id, &ChangeMembers { add: part.to_vec(), remove: Vec::new(), role: None })?;
    }
    // Notices about the members who were added come before the run.
    let card = http.conversation(id)?;
    Ok(Conversation { id: id.into(), base_seq: card.last_seq })
}

/// How many members of a conversation with a mix may change the messages of others.
const MODERATORS: usize = 4;

/// Makes the first of these members, who are online, moderators of their conversation, and says what the mix is to be.
pub(crate) fn prepare_mix(
    http: &mut HttpClient,
    conversation: &mut Conversation,
    online: &[String],
    share: MixShare,
) -> Result<MixConfig, LabError> {
    if !share.is_on() {
        return Ok(MixConfig::default());
    }
    let moderators = &online[..online.len().min(MODERATORS)];
    let change = ChangeMembers { add: moderators.to_vec(), remove: Vec::new(), role: Some(Role::Admin) };
    http.change_members(&conversation.id, &change)?;
    conversation.base_seq = http.conversation(&conversation.id)?.last_seq;
    Ok(MixConfig { per_message: share.per_message(), moderators: moderators.len(), seed: rand::random() })
}

/// Creates a direct conversation of two users, who exist already.
pub(crate) fn create_direct(http: &mut HttpClient, a: &str, b: &str) -> Result<Conversation, LabError> {
    let members = vec![a.into(), b.into()];
    let card =
        http.create_conversation(&CreateConversation { members, ..conversation_of(ConversationKind::Direct)? })?;
    Ok(Conversation { id: card.id, base_seq: card.last_seq })
}

/// A conversation of which nothing is said.
fn conversation_of(kind: ConversationKind) -> Result<CreateConversation, LabError> {
    Ok(serde_json::from_value(json!({ "kind": kind })).map_err(std::io::Error::from)?)
}

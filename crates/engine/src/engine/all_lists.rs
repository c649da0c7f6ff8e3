//! Lists of all users and all conversations, for app servers: in the order of their ids, which an index has. Whatever else a list asks
//! for is looked at in each row, of so many rows in a page, so that no page reads everything.

use crate::{Engine, attributes::attributes_value, engine::conversations::details_with, paging::page_limit};
use tidings_domain::{
    model::*,
    refusals::store_refusal,
    store::{NamedKind, StoreResult},
    stored_id::StoredId,
};
use tidings_protocol::{error::Refusal, http::*, limits::*};

const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 200;
/// Rows that are read at once at least: a filter may let few pass.
const ROWS_PER_READ_MIN: usize = 100;

/// A field of attributes, and its value as text.
fn attribute_asked(asked: Option<&str>) -> Result<Option<(&str, &str)>, Refusal> {
    match asked.map(|text| text.split_once(':').filter(|(name, _)| !name.is_empty())) {
        None => Ok(None),
        Some(None) => Err(Refusal::field("attribute", "must be a name, a colon and a value")),
        Some(asked) => Ok(asked),
    }
}

fn has_attribute(attributes: Option<&str>, asked: Option<(&str, &str)>) -> bool {
    let Some((name, value)) = asked else { return true };
    match attributes_value(attributes).as_ref().and_then(|all| all.get(name)) {
        Some(serde_json::Value::String(text)) => text == value,
        Some(other) => serde_json::from_str::<serde_json::Value>(value).is_ok_and(|asked| asked == *other),
        None => false,
    }
}

fn begins_with(name: Option<&str>, prefix: Option<&str>) -> bool {
    let Some(prefix) = prefix else { return true };
    name.is_some_and(|name| name.to_lowercase().starts_with(&prefix.to_lowercase()))
}

impl Engine {
    /// What `find` finds of the numbers behind the ids from `after` on, of as many as a page looks at; and the id to go on from.
    fn page_of_ids<T>(
        &self,
        of: NamedKind,
        (prefix, after): (&Option<String>, &Option<String>),
        limit: usize,
        find: impl Fn(&[u64]) -> StoreResult<Vec<Option<T>>>,
    ) -> Result<(Vec<T>, Option<String>), Refusal> {
        let (prefix, after) = (prefix.as_deref().unwrap_or_default(), after.as_deref().unwrap_or_default());
        if !after.is_empty() && StoredId::parse(after).is_none() {
            return Err(Refusal::field("after", "is no id: give the `next` of the page before"));
        }
        let ids = self.store.ids(of, prefix, after, LIST_EXAMINED_MAX).map_err(store_refusal)?;
        let mut found = Vec::with_capacity(limit.min(ids.len()));
        let mut examined = 0;
        for part in ids.chunks(limit.max(ROWS_PER_READ_MIN)) {
            let numbers: Vec<u64> = part.iter().map(|(_, no)| *no).collect();
            for ((id, _), one) in part.iter().zip(find(&numbers).map_err(store_refusal)?) {
                examined += 1;
                found.extend(one);
                let is_last = examined == ids.len();
                if (found.len() == limit && !is_last) || (is_last && examined == LIST_EXAMINED_MAX) {
                    return Ok((found, Some(id.clone())));
                }
            }
        }
        Ok((found, None))
    }

    /// Users in the order of their ids. Blocks.
    ///
    /// # Errors
    /// `invalid_field`, `limit_exceeded`; `store_unavailable`.
    pub fn list_users(&self, query: &UserListQuery) -> Result<UserProfiles, Refusal> {
        let limit = page_limit(query.limit, PAGE_DEFAULT, PAGE_MAX)?;
        let attribute = attribute_asked(query.attribute.as_deref())?;
        let now_ms = self.clock.now_ms();
        let passes = |user: &User| {
            begins_with(user.name.as_deref(), query.name_prefix.as_deref())
                && has_attribute(user.attributes(), attribute)
                && query.suspended.is_none_or(|suspended| user.suspension_at(now_ms).is_some() == suspended)
        };
        let (users, next) = self.page_of_ids(NamedKind::User, (&query.id_prefix, &query.after), limit, |nos| {
            let nos: Vec<_> = nos.iter().copied().map(UserNo).collect();
            let profile = |user: Option<User>| user.filter(passes).map(|user| self.profile_of(&user, true));
            Ok(self.store.users(&nos)?.into_iter().map(profile).collect())
        })?;
        Ok(UserProfiles { users, next })
    }

    /// Conversations in the order of their ids. Blocks.
    ///
    /// # Errors
    /// `invalid_field`, `limit_exceeded`; `not_found`: no such member; `store_unavailable`.
    pub fn list_all_conversations(&self, query: &ConversationListQuery) -> Result<ConversationList, Refusal> {
        let limit = page_limit(query.limit, PAGE_DEFAULT, PAGE_MAX)?;
        let attribute = attribute_asked(query.attribute.as_deref())?;
        let member = query.member.as_deref().map(|member| self.directory.require_user(member)).transpose()?;
        let passes = |conversation: &Conversation| {
            !conversation.is_deleted()
                && query.kind.is_none_or(|kind| conversation.kind == kind)
                && begins_with(conversation.name.as_deref(), query.name_prefix.as_deref())
                && has_attribute(conversation.attributes.as_deref(), attribute)
                && query.importing.is_none_or(|importing| conversation.is_importing() == importing)
        };
        let page = (&query.id_prefix, &query.after);
        let (found, next) = self.page_of_ids(NamedKind::Conversation, page, limit, |nos| {
            let nos: Vec<_> = nos.iter().copied().map(ConversationNo).collect();
            let mut found: Vec<_> = self.store.conversations(&nos)?.into_iter().map(|one| one.filter(passes)).collect();
            if let Some(member) = &member {
                let memberships = self.store.memberships(member.no, &nos)?;
                found.iter_mut().zip(memberships).filter(|(_, one)| one.is_none()).for_each(|(found, _)| *found = None);
            }
            if let Some(since) = query.active_since {
                let heads = self.store.heads(&nos)?;
                found
                    .iter_mut()
                    .zip(heads)
                    .filter(|(_, head)| head.last_at < since)
                    .for_each(|(found, _)| *found = None);
            }
            Ok(found.into_iter().map(|one| one.map(|conversation| conversation.no)).collect())
        })?;
        // As the directory has them, which knows whose users block each other.
        let found = self.directory.conversations(&found).map_err(store_refusal)?;
        let found: Vec<_> = found.into_iter().flatten().collect();
        let nos: Vec<_> = found.iter().map(|conversation| conversation.no).collect();
        let heads = self.store.heads(&nos).map_err(store_refusal)?;
        let conversations =
            found.iter().zip(heads).map(|(conversation, head)| details_with(conversation, head)).collect();
        Ok(ConversationList { conversations, next })
    }

    /// The details of those of these conversations that the actor may read. Blocks.
    ///
    /// # Errors
    /// `limit_exceeded`; `store_unavailable`.
    pub fn query_conversations(&self, actor: &Actor, ids: &[String]) -> Result<ConversationList, Refusal> {
        if ids.len() > CONVERSATIONS_QUERY_MAX {
            let most = CONVERSATIONS_QUERY_MAX as u64;
            return Err(Refusal::limit("conversations in a query", most, ids.len() as u64));
        }
        let mut conversations = Vec::with_capacity(ids.len());
        for id in ids {
            match self.conversation_details(actor, id) {
                Ok(details) => conversations.push(details),
                Err(refusal) if refusal.code.http_status() < 500 => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(ConversationList { conversations, next: None })
    }
}

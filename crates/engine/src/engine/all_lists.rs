//! Lists of all users and all conversations, for app servers: in the order of their ids, which an index has. Whatever else a list asks
//! for is looked at in each row, of so many rows in a page, so that no page reads everything.

use crate::{Engine, attributes::attributes_value, paging::page_limit};
use tidings_domain::{
    model::*,
    refusals::store_refusal,
    store::{NamedKind, StoreResult},
    stored_id::StoredId,
};
use tidings_protocol::{error::Refusal, http::*, limits::*};

const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 200;

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
    /// Ids from `after` on, as many as a page looks at, each with what `find` finds of it; and the id to go on from.
    fn page_of_ids<T>(
        &self,
        of: NamedKind,
        (prefix, after): (&Option<String>, &Option<String>),
        limit: usize,
        mut find: impl FnMut(u64) -> StoreResult<Option<T>>,
    ) -> Result<(Vec<T>, Option<String>), Refusal> {
        let (prefix, after) = (prefix.as_deref().unwrap_or_default(), after.as_deref().unwrap_or_default());
        if !after.is_empty() && StoredId::parse(after).is_none() {
            return Err(Refusal::field("after", "is no id: give the `next` of the page before"));
        }
        let ids = self.store.ids(of, prefix, after, LIST_EXAMINED_MAX).map_err(store_refusal)?;
        let examined = ids.len();
        let mut found = Vec::with_capacity(limit.min(examined));
        for (at, (id, no)) in ids.into_iter().enumerate() {
            found.extend(find(no).map_err(store_refusal)?);
            let is_last = at + 1 == examined;
            if (found.len() == limit && !is_last) || (is_last && examined == LIST_EXAMINED_MAX) {
                return Ok((found, Some(id)));
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
                && has_attribute(user.attributes.as_deref(), attribute)
                && query.suspended.is_none_or(|suspended| user.suspension_at(now_ms).is_some() == suspended)
        };
        let (users, next) = self.page_of_ids(NamedKind::User, (&query.id_prefix, &query.after), limit, |no| {
            Ok(self.store.user(UserNo(no))?.filter(passes).map(|user| self.profile_of(&user, true)))
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
        let passes = |conversation: &Conversation| -> StoreResult<bool> {
            let by_details = !conversation.is_deleted()
                && query.kind.is_none_or(|kind| conversation.kind == kind)
                && begins_with(conversation.name.as_deref(), query.name_prefix.as_deref())
                && has_attribute(conversation.attributes.as_deref(), attribute)
                && query.importing.is_none_or(|importing| conversation.is_importing() == importing);
            if !by_details {
                return Ok(false);
            }
            if let Some(member) = &member
                && self.store.membership(conversation.no, member.no)?.is_none()
            {
                return Ok(false);
            }
            match query.active_since {
                Some(since) => Ok(self.store.head(conversation.no)?.last_at >= since),
                None => Ok(true),
            }
        };
        let page = (&query.id_prefix, &query.after);
        let (found, next) = self.page_of_ids(NamedKind::Conversation, page, limit, |no| {
            let Some(conversation) = self.store.conversation(ConversationNo(no))? else { return Ok(None) };
            Ok(passes(&conversation)?.then_some(conversation.no))
        })?;
        // As the directory has them, which knows whose users block each other.
        let found = self.directory.conversations(&found).map_err(store_refusal)?;
        let conversations = found.iter().flatten().map(|conversation| self.details_of(conversation));
        Ok(ConversationList { conversations: conversations.collect::<Result<_, _>>()?, next })
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

//! What conditions of a policy can look at: attributes of the message, and of the person who may be notified of it.

use tidings_domain::model::{Conversation, ConversationKind, NewEntry, User};
use tidings_popups::rules::{Attributes, Value};

pub(super) const KIND: &str = "message.kind";
pub(super) const TYPE: &str = "message.type";
pub(super) const CONVERSATION: &str = "message.conversation";
pub(super) const SENDER: &str = "sender";
pub(super) const MENTION: &str = "mention";
pub(super) const MENTION_ALL: &str = "mention_all";
pub(super) const UNREAD: &str = "unread";
pub(super) const LANGUAGE: &str = "language";
pub(super) const TIME_ZONE: &str = "time_zone";

/// The attributes that conditions can name, besides those of the user's profile.
pub(super) const ATTRIBUTES: [&str; 9] =
    [KIND, TYPE, CONVERSATION, SENDER, MENTION, MENTION_ALL, UNREAD, LANGUAGE, TIME_ZONE];

/// A message, as conditions see it. It is the same for all who may be notified.
#[derive(Debug, Clone, Copy)]
pub struct MessageFacts<'a> {
    /// The kind of its conversation.
    pub kind: ConversationKind,
    /// The app's word for what it is.
    pub content_type: &'a str,
    /// The conversation's id.
    pub conversation: &'a str,
    /// The sender's id; absent when the app server speaks as the conversation.
    pub sender: Option<&'a str>,
    /// The ids whom it mentions.
    pub mentions: &'a [String],
    /// Whether it mentions all members.
    pub mentions_all: bool,
}

impl<'a> MessageFacts<'a> {
    /// Those of an entry in a conversation.
    pub fn of(conversation: &'a Conversation, entry: &'a NewEntry) -> MessageFacts<'a> {
        MessageFacts {
            kind: conversation.kind,
            content_type: &entry.content_type,
            conversation: &conversation.id,
            sender: entry.sender.as_ref().map(|sender| sender.id.as_str()),
            mentions: entry.mentioned(),
            mentions_all: entry.mentions_all(),
        }
    }

    fn mentions(&self, user: &str) -> bool {
        self.mentions_all || self.mentions.iter().any(|id| id == user)
    }
}

/// A person who may be notified.
#[derive(Debug, Clone, Copy)]
pub struct PersonFacts<'a> {
    pub user: &'a User,
    /// How many messages the person has not read; absent: it was not counted, since no condition asks for it.
    pub unread: Option<u64>,
    /// When the person's oldest unread direct message was sent, in milliseconds since 1970 UTC.
    pub unread_since: Option<u64>,
}

impl<'a> PersonFacts<'a> {
    /// Of a person about whom nothing had to be looked up.
    pub fn of(user: &'a User) -> PersonFacts<'a> {
        PersonFacts { user, unread: None, unread_since: None }
    }

    /// The attributes of a message as this person sees it.
    pub(super) fn attributes(&self, message: &MessageFacts<'a>) -> Attributes<'a> {
        let text = |text: &'a str| Value::Text(text.into());
        let always = [
            (KIND, text(kind_name(message.kind))),
            (TYPE, text(message.content_type)),
            (CONVERSATION, text(message.conversation)),
            (MENTION, Value::Bool(message.mentions(&self.user.id))),
            (MENTION_ALL, Value::Bool(message.mentions_all)),
        ];
        let known = [
            (SENDER, message.sender.map(text)),
            (UNREAD, self.unread.map(|unread| Value::Number(unread as f64))),
            (LANGUAGE, self.user.language().map(text)),
            (TIME_ZONE, self.user.time_zone().map(text)),
        ];
        let known = known.into_iter().filter_map(|(name, value)| Some((name, value?)));
        always.into_iter().chain(known).collect()
    }
}

/// The name of a kind, as in JSON.
pub(super) fn kind_name(kind: ConversationKind) -> &'static str {
    match kind {
        ConversationKind::Direct => "direct",
        ConversationKind::Group => "group",
        ConversationKind::Official => "official",
    }
}

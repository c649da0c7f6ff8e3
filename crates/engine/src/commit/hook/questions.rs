//! What the hook is asked: one question for each request.

use super::Question;
use crate::{
    commit::{CommitRequest, Origin},
    directory::Directory,
    hook::kind_name,
};
use serde::Serialize;
use serde_json::value::RawValue;
use std::sync::Arc;
use tidings_domain::{
    model::*,
    store::{MessageChange, NewConversation, Proposal, UserPatch},
};

#[derive(Serialize)]
struct Questions<'a> {
    questions: Vec<QuestionView<'a>>,
}

#[derive(Serialize, Default)]
struct QuestionView<'a> {
    id: u64,
    operation: &'static str,
    /// Who asks for it; absent: an app server in nobody's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<Arc<str>>,
    /// An app server asks for it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    app_server: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation: Option<ConversationView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<MessageView<'a>>,
    /// The message that is edited, ended or reacted to.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reaction: Option<&'a str>,
    /// Of a new conversation its first members; of a change those who come or get another role.
    #[serde(skip_serializing_if = "Option::is_none")]
    add: Option<Vec<MemberView>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remove: Option<Vec<Arc<str>>>,
    /// What of a conversation's card changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<ProfileView<'a>>,
    /// What of users' cards changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    users: Option<Vec<ProfileView<'a>>>,
}

#[derive(Serialize)]
struct ConversationView<'a> {
    id: &'a str,
    kind: &'static str,
    /// The operation opens it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    new: bool,
}

#[derive(Serialize)]
struct MessageView<'a> {
    /// The sender; of an account its id, while `user` is the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_msg_id: Option<&'a str>,
    #[serde(rename = "type", skip_serializing_if = "str::is_empty")]
    content_type: &'a str,
    body: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    mentions: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    reply_to: Option<u64>,
    /// The message begins to grow.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    grows: bool,
    /// The message has grown, and this is its whole body.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    ended: bool,
}

#[derive(Serialize)]
struct MemberView {
    user: Arc<str>,
    role: Role,
}

#[derive(Serialize)]
struct ProfileView<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    avatar: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attributes: Option<&'a RawValue>,
}

/// The body of a request with these questions.
pub(super) fn encode(questions: &[Question], directory: &Directory) -> Vec<u8> {
    let questions = questions.iter().map(|question| Ids(directory).view(question)).collect();
    // Writing to memory cannot fail.
    serde_json::to_vec(&Questions { questions }).unwrap_or_default()
}

fn raw(json: &str) -> Option<&RawValue> {
    serde_json::from_str(json).ok()
}

/// The ids of users. One that cannot be read is left out.
struct Ids<'d>(&'d Directory);

impl Ids<'_> {
    fn of(&self, user: UserNo) -> Option<Arc<str>> {
        self.0.user(user).ok().flatten().map(|user| user.id.as_str().into())
    }

    fn members(&self, members: impl Iterator<Item = (UserNo, Role)>) -> Vec<MemberView> {
        members.filter_map(|(user, role)| Some(MemberView { user: self.of(user)?, role })).collect()
    }

    fn view<'a>(&self, question: &'a Question) -> QuestionView<'a> {
        let Question { id, operation, request, .. } = question;
        let CommitRequest { proposal, by, conversation, stream, .. } = request;
        let conversation = conversation.as_deref().map(|conversation| ConversationView {
            id: &conversation.id,
            kind: kind_name(conversation.kind),
            new: matches!(proposal, Proposal::OpenDirect { .. }),
        });
        let user = match (by, super::entry_of(proposal).and_then(NewEntry::author), proposal) {
            (Origin::User(user), ..) => self.of(*user),
            (_, Some(author), _) => Some(author.id.as_str().into()),
            (_, None, Proposal::React { user, .. }) => Some(user.id.as_str().into()),
            _ => None,
        };
        let view = QuestionView {
            id: *id,
            operation: operation.name(),
            user,
            app_server: *by == Origin::AppServer,
            conversation,
            ..QuestionView::default()
        };
        let message = |entry: &'a NewEntry, ended| {
            Some(MessageView {
                from: entry.sender.as_ref().map(|sender| sender.id.as_str()),
                client_msg_id: entry.client_msg_id.as_deref(),
                content_type: &entry.content_type,
                body: raw(&entry.body),
                mentions: &entry.mentions,
                reply_to: entry.reply_to(),
                grows: stream.is_some(),
                ended,
            })
        };
        match proposal {
            Proposal::Append { entry, .. } | Proposal::OpenDirect { entry, .. } => {
                QuestionView { message: message(entry, false), ..view }
            }
            Proposal::ChangeMessage { target, change, entry, .. } => {
                let ended = matches!(change, MessageChange::EndStream { .. });
                QuestionView { message: message(entry, ended), target: Some(*target), ..view }
            }
            Proposal::React { target, key, .. } => QuestionView { target: Some(*target), reaction: Some(key), ..view },
            Proposal::CreateConversation(NewConversation { id, kind, name, avatar, attributes, members, .. }) => {
                let (name, avatar, attributes) =
                    (name.as_deref(), avatar.as_deref(), attributes.as_deref().and_then(raw));
                QuestionView {
                    conversation: Some(ConversationView { id, kind: kind_name(*kind), new: true }),
                    add: Some(self.members(members.iter().copied())),
                    profile: Some(ProfileView { id: None, name, avatar, attributes }),
                    ..view
                }
            }
            Proposal::ChangeMembers { add, remove, heir, .. } => QuestionView {
                add: Some(self.members(add.iter().copied().chain(heir.map(|heir| (heir, Role::Owner))))),
                remove: Some(remove.iter().filter_map(|user| self.of(*user)).collect()),
                ..view
            },
            Proposal::UpdateConversation { name, avatar, attributes, .. } => {
                let (name, avatar, attributes) =
                    (name.as_deref(), avatar.as_deref(), attributes.as_deref().and_then(raw));
                QuestionView { profile: Some(ProfileView { id: None, name, avatar, attributes }), ..view }
            }
            Proposal::PutUsers(patches) => {
                let profile = |patch: &'a UserPatch| ProfileView {
                    id: Some(&patch.id),
                    name: patch.name.as_deref(),
                    avatar: patch.avatar.as_deref(),
                    attributes: patch.attributes.as_deref().and_then(raw),
                };
                QuestionView { users: Some(patches.iter().map(profile).collect()), ..view }
            }
            // Nothing else is asked about.
            _ => view,
        }
    }
}

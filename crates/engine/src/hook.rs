//! The hook: an app server of the customer's that has a say before a user's operation is committed. Here is what is asked of it and
//! what follows when it fails; how questions wait and what becomes of their answers is in `commit`, through which every operation goes.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};
use tidings_domain::model::ConversationKind;

/// The way to the hook.
pub trait HookTransport: fmt::Debug + Send + Sync + 'static {
    /// Sends a call without waiting. The answer is handed over on a thread that may block.
    fn send(&self, call: HookCall);
}

type OnAnswer = Box<dyn FnOnce(Result<Vec<u8>, String>) + Send>;

/// A request to the hook. One that is dropped has failed.
pub struct HookCall {
    /// `{"questions":[…]}`.
    pub body: Vec<u8>,
    on_answer: Option<OnAnswer>,
}

impl HookCall {
    pub(crate) fn new(body: Vec<u8>, on_answer: OnAnswer) -> HookCall {
        HookCall { body, on_answer: Some(on_answer) }
    }

    /// Hands over the body of the hook's answer, or why there is none.
    pub fn answer(mut self, answer: Result<Vec<u8>, String>) {
        self.finish(answer);
    }

    fn finish(&mut self, answer: Result<Vec<u8>, String>) {
        if let Some(on_answer) = self.on_answer.take() {
            on_answer(answer);
        }
    }
}

impl Drop for HookCall {
    fn drop(&mut self) {
        self.finish(Err("the request was given up".into()));
    }
}

/// An operation that the hook may be asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookOperation {
    /// A message, whole or as it begins to grow.
    Send,
    /// Another body of a message: an edit, or the end of one that grew.
    Edit,
    /// A reaction that is given. It may always be taken back.
    React,
    /// A new conversation. One that a message opens is asked about with the message.
    Create,
    /// Members come or go, or have other roles.
    Members,
    /// The card of a conversation, or of users.
    Profile,
}

impl HookOperation {
    pub const ALL: [HookOperation; 6] = [
        HookOperation::Send,
        HookOperation::Edit,
        HookOperation::React,
        HookOperation::Create,
        HookOperation::Members,
        HookOperation::Profile,
    ];

    /// The word of the settings and of questions.
    pub fn name(self) -> &'static str {
        match self {
            HookOperation::Send => "send",
            HookOperation::Edit => "edit",
            HookOperation::React => "react",
            HookOperation::Create => "create",
            HookOperation::Members => "members",
            HookOperation::Profile => "profile",
        }
    }
}

const KINDS: [ConversationKind; 3] = [ConversationKind::Direct, ConversationKind::Group, ConversationKind::Official];

/// The word of the settings and of questions.
pub(crate) fn kind_name(kind: ConversationKind) -> &'static str {
    match kind {
        ConversationKind::Direct => "direct",
        ConversationKind::Group => "group",
        ConversationKind::Official => "official",
    }
}

/// Operations in kinds of conversations: a bit for each pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HookScope(u32);

impl HookScope {
    /// Every operation in every kind of conversation.
    pub const ALL: HookScope = HookScope((1 << (HookOperation::ALL.len() * KINDS.len())) - 1);

    /// Whether the operation is among them in a conversation of this kind; without one, in any.
    pub fn has(self, operation: HookOperation, kind: Option<ConversationKind>) -> bool {
        KINDS.iter().filter(|of| kind.is_none_or(|kind| kind == **of)).any(|kind| self.0 & bit(operation, *kind) != 0)
    }

    /// The operations of both.
    #[must_use]
    pub fn and(self, other: HookScope) -> HookScope {
        HookScope(self.0 | other.0)
    }
}

fn bit(operation: HookOperation, kind: ConversationKind) -> u32 {
    let place = KINDS.iter().position(|of| *of == kind).unwrap_or(0);
    1 << (operation as usize * KINDS.len() + place)
}

/// A word that names no operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not an operation of the hook: one of send, edit, react, create, members, profile, or one of them in one kind of \
     conversation, such as \"send:group\" (direct, group, official)"
)]
pub struct NoSuchHookOperation(String);

/// `send`, or `send:group`.
impl FromStr for HookScope {
    type Err = NoSuchHookOperation;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let (name, kind) = word.split_once(':').map_or((word, None), |(name, kind)| (name, Some(kind)));
        let operation = HookOperation::ALL.into_iter().find(|operation| operation.name() == name);
        let kinds = KINDS.into_iter().filter(|of| kind.is_none_or(|kind| kind == kind_name(*of)));
        let bits = operation.map_or(0, |operation| kinds.map(|kind| bit(operation, kind)).sum());
        if bits == 0 { Err(NoSuchHookOperation(word.into())) } else { Ok(HookScope(bits)) }
    }
}

/// What is asked, and what bounds it.
#[derive(Debug, Clone)]
pub struct HookConfig {
    pub transport: Arc<dyn HookTransport>,
    /// What is asked about.
    pub on: HookScope,
    /// Of these, what is refused when the hook fails; everything else is allowed then.
    pub closed: HookScope,
    /// Whether operations of app servers are asked about, too.
    pub app_servers: bool,
    /// A question that has waited for this long without being sent has failed. How long an answer may take, the transport knows.
    pub time_limit: Duration,
    /// Questions of each lane that wait to be sent, and as many of operations without a conversation. Full: the next question fails
    /// at once. One user may have at most as many waiting as there are free places; beyond that the user is refused.
    pub waiting_max: usize,
    /// Questions in one request.
    pub batch_max: usize,
    /// Requests under way at once. Meanwhile questions gather for the next one.
    pub requests_max: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_chosen_in_all_kinds_of_conversations_or_in_one() {
        let scope = |words: &[&str]| {
            words
                .iter()
                .map(|word| word.parse::<HookScope>())
                .try_fold(HookScope::default(), |all, one| one.map(|one| all.and(one)))
        };
        let chosen = scope(&["send:group", "edit"]).unwrap_or_default();
        for operation in HookOperation::ALL {
            for kind in KINDS {
                let expected = operation == HookOperation::Edit
                    || (operation == HookOperation::Send && kind == ConversationKind::Group);
                assert_eq!(chosen.has(operation, Some(kind)), expected, "{operation:?} {kind:?}");
                assert!(HookScope::ALL.has(operation, Some(kind)) && !HookScope::default().has(operation, Some(kind)));
            }
        }
        assert!(chosen.has(HookOperation::Send, None) && !chosen.has(HookOperation::Profile, None));
        for word in ["", "sends", "send:", "send:room", ":group"] {
            assert_eq!(scope(&[word]), Err(NoSuchHookOperation(word.into())));
        }
    }
}

//! What a caller may do: the claims of a verified token, the scopes that it grants, and which scope each operation needs. The
//! listeners verify tokens, and check the operation of each request before they call the engine, which asks here what a member may
//! write in a conversation.

use crate::Engine;
use std::{fmt, str::FromStr};
use tidings_domain::{
    model::{Actor, Conversation, ConversationKind, PairBlocks, Posting, Role, User, UserNo},
    refusals::{not_a_member, store_refusal, until_text},
    restrictions::RestrictionKind,
};
use tidings_protocol::error::{ErrorCode, Refusal};

/// A kind of operation that a token may grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Scope {
    /// Receive messages, read history, lists and details, move read marks, mute, leave, follow.
    Read = 1,
    /// Send messages and typing signals.
    Send = 1 << 1,
    /// Open direct conversations.
    OpenDirect = 1 << 2,
    /// Create groups, change their details and members.
    OpenGroup = 1 << 3,
    /// Watch the presence of other users.
    Presence = 1 << 4,
    /// Ask for popups, report popup events, and be sent popups.
    Popups = 1 << 5,
    /// Register as a device for pushes.
    Push = 1 << 6,
}

impl Scope {
    pub const ALL: [Scope; 7] =
        [Scope::Read, Scope::Send, Scope::OpenDirect, Scope::OpenGroup, Scope::Presence, Scope::Popups, Scope::Push];

    pub fn name(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Send => "send",
            Scope::OpenDirect => "open_direct",
            Scope::OpenGroup => "open_group",
            Scope::Presence => "presence",
            Scope::Popups => "popups",
            Scope::Push => "push",
        }
    }
}

/// Stands before the names of scopes where a claim has words of other services that might be taken for them.
const SCOPE_PREFIX: &str = "tidings:";

/// A set of [`Scope`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scopes(u8);

impl Scopes {
    pub const NONE: Scopes = Scopes(0);
    pub const ALL: Scopes = Scopes((1 << Scope::ALL.len()) - 1);

    pub fn contains(self, scope: Scope) -> bool {
        self.0 & scope as u8 != 0
    }

    #[must_use]
    pub fn with(self, scope: Scope) -> Scopes {
        Scopes(self.0 | scope as u8)
    }

    /// The scopes of a claim, each as its name or as `tidings:` and its name. `None`: there are words, and all of them are of other
    /// services, so that the claim says nothing of this one.
    pub fn of_words<'a>(words: impl IntoIterator<Item = &'a str>) -> Option<Scopes> {
        let mut words = words.into_iter().filter(|word| !word.is_empty()).peekable();
        let (mut scopes, mut says_nothing) = (Scopes::NONE, words.peek().is_some());
        for word in words {
            let own = word.strip_prefix(SCOPE_PREFIX);
            let scope: Option<Scope> = own.unwrap_or(word).parse().ok();
            says_nothing &= own.is_none() && scope.is_none();
            scopes = scope.map_or(scopes, |scope| scopes.with(scope));
        }
        (!says_nothing).then_some(scopes)
    }

    /// Whether the set has the scope of the operation.
    pub fn allow(self, operation: Operation) -> bool {
        self.contains(operation.scope())
    }

    /// Checks that the set has the scope of the operation.
    ///
    /// # Errors
    /// `forbidden`, with the scope that is missing.
    pub fn check(self, operation: Operation) -> Result<(), Refusal> {
        let scope = operation.scope();
        if self.contains(scope) {
            Ok(())
        } else {
            Err(Refusal::new(
                ErrorCode::Forbidden,
                format!("scope: the token does not allow this; it needs {:?}", scope.name()),
            ))
        }
    }
}

/// What a caller asks for, over any listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Bind a session that takes messages.
    ReceiveMessages,
    /// Read messages, what became of them, and what was missed.
    ReadMessages,
    /// Read one's own lists of conversations, and those of accounts.
    ReadLists,
    /// Read users, conversations, their members and their desks.
    ReadDetails,
    /// Move the read mark, or say what is stored.
    MoveMark,
    /// Read or set what holds for oneself: preferences, mutes, quiet hours, receipts, push tokens.
    SetPreferences,
    /// Report a message to moderators.
    Report,
    /// Follow an account, or leave a conversation.
    FollowOrLeave,
    Send,
    /// Begin a message that grows, append to it, end it.
    GrowMessage,
    /// Edit or recall.
    ChangeMessage,
    React,
    Pin,
    Typing,
    /// Signal something to the live members of a conversation.
    Signal,
    Assign,
    OpenDirect,
    OpenGroup,
    /// Change a conversation's details, its members or its desk.
    ChangeConversation,
    WatchPresence,
    AskForPopup,
    ReportPopupEvents,
    /// Be sent popups that nobody asked for.
    ReceivePopups,
    /// Register as a device for pushes.
    ReceivePushes,
}

impl Operation {
    /// The scope that allows the operation.
    pub fn scope(self) -> Scope {
        match self {
            Operation::ReceiveMessages
            | Operation::ReadMessages
            | Operation::ReadLists
            | Operation::ReadDetails
            | Operation::MoveMark
            | Operation::SetPreferences
            | Operation::Report
            | Operation::FollowOrLeave => Scope::Read,
            Operation::Send
            | Operation::GrowMessage
            | Operation::ChangeMessage
            | Operation::React
            | Operation::Pin
            | Operation::Typing
            | Operation::Signal
            | Operation::Assign => Scope::Send,
            Operation::OpenDirect => Scope::OpenDirect,
            Operation::OpenGroup | Operation::ChangeConversation => Scope::OpenGroup,
            Operation::WatchPresence => Scope::Presence,
            Operation::AskForPopup | Operation::ReportPopupEvents | Operation::ReceivePopups => Scope::Popups,
            Operation::ReceivePushes => Scope::Push,
        }
    }
}

/// A word that names no scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a scope; expected one of read, send, open_direct, open_group, presence, popups, push")]
pub struct NoSuchScope(String);

impl FromStr for Scope {
    type Err = NoSuchScope;

    fn from_str(word: &str) -> Result<Self, NoSuchScope> {
        Scope::ALL.into_iter().find(|scope| scope.name() == word).ok_or_else(|| NoSuchScope(word.into()))
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The claims of a verified token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenClaims {
    /// The user's id.
    pub user: String,
    pub scopes: Scopes,
    /// When the token was issued, in milliseconds since 1970 UTC, if it says so.
    pub issued_at: Option<u64>,
    /// When the token expires, in milliseconds since 1970 UTC.
    pub expires_at: u64,
    /// A node of this cluster signed the token for one of its sessions, after it had checked the session's own token.
    pub signed_by_node: bool,
}

impl TokenClaims {
    /// Checks that the user of the token may come in: the token is not revoked, and the user is not suspended.
    ///
    /// # Errors
    /// `unauthorized`, `user_suspended`.
    pub fn check_user(&self, user: &User, now_ms: u64) -> Result<(), Refusal> {
        self.check_revoked(user)?;
        check_not_suspended(user, now_ms)
    }

    /// Checks that the token was issued after the user's tokens were last revoked. A token that does not say when it
    /// was issued counts as older.
    ///
    /// # Errors
    /// `unauthorized`: the token is revoked.
    fn check_revoked(&self, user: &User) -> Result<(), Refusal> {
        let is_good =
            self.signed_by_node || user.revoked_at == 0 || self.issued_at.is_some_and(|at| at >= user.revoked_at);
        if is_good {
            return Ok(());
        }
        let why = match self.issued_at {
            Some(_) => "the token is not valid: the user's tokens were revoked after it was issued (`iat`)",
            None => {
                "the token is not valid: the user's tokens were revoked, and it does not say when it was issued (`iat`)"
            }
        };
        Err(Refusal::new(ErrorCode::Unauthorized, why))
    }
}

/// Checks that a user is not suspended. Tokens are checked wherever they come in; what an app server does in the name of a user is
/// checked where it is done.
///
/// # Errors
/// `user_suspended`.
pub fn check_not_suspended(user: &User, now_ms: u64) -> Result<(), Refusal> {
    user.suspension_at(now_ms).map_or(Ok(()), |suspension| Err(suspension_refusal(&suspension.reason)))
}

/// The refusal of whatever a suspended user asks for, and the end of the user's sessions.
pub fn suspension_refusal(reason: &str) -> Refusal {
    let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    Refusal::new(ErrorCode::UserSuspended, format!("the user is suspended{reason}"))
}

/// The caller of an operation, and the scopes that it has.
#[derive(Debug, Clone)]
pub struct Caller {
    pub actor: Actor,
    pub scopes: Scopes,
}

impl Caller {
    /// An app server, which may do everything.
    pub const APP: Caller = Caller { actor: Actor::App, scopes: Scopes::ALL };
}

impl From<&Caller> for Caller {
    fn from(caller: &Caller) -> Caller {
        caller.clone()
    }
}

/// An actor without a token, who is held to no scopes.
impl From<&Actor> for Caller {
    fn from(actor: &Actor) -> Caller {
        Caller { actor: actor.clone(), scopes: Scopes::ALL }
    }
}

/// Refuses what a user does in a direct conversation in which one blocks the other.
///
/// # Errors
/// `blocked`.
fn check_pair_blocks(user: UserNo, conversation: &Conversation) -> Result<(), Refusal> {
    match conversation.pair {
        Some(pair) if !conversation.blocks.is_none() => Err(blocked(pair.0 == user, conversation.blocks)),
        _ => Ok(()),
    }
}

/// The refusal of what the first of a pair does, or the second. Who is blocked learns no more than that it cannot be done.
pub(crate) fn blocked(is_first: bool, PairBlocks(by_first, by_second): PairBlocks) -> Refusal {
    let is_own = if is_first { by_first } else { by_second };
    let why = if is_own { "you block this user: end the block first" } else { "this user cannot be reached" };
    Refusal::new(ErrorCode::Blocked, why)
}

/// What a member writes in a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writing {
    /// A message, whole or growing, an edit, or a sign of typing.
    Content,
    /// A reaction.
    Reaction,
    /// A pin, or its end.
    Pin,
}

impl Engine {
    /// Checks that a user may write in a conversation, and answers the user's role there: membership, a suspension, a block, a mute, and who may send. Every
    /// way of writing passes here; what a user takes back (a recall, a reaction) does not.
    ///
    /// A mute holds for a member whoever calls; who may send concerns users, and not an app server that writes in a user's name.
    ///
    /// # Errors
    /// `not_a_member`, `user_suspended`, `blocked`, `muted`, `forbidden`; `store_unavailable`.
    pub(crate) fn check_may_write(
        &self,
        actor: &Actor,
        user: &User,
        conversation: &Conversation,
        writing: Writing,
    ) -> Result<Role, Refusal> {
        if user.suspension().is_some() {
            check_not_suspended(user, self.clock.now_ms())?;
        }
        if let Some((a, b)) = conversation.pair {
            let is_member = user.no == a || user.no == b;
            return if is_member {
                check_pair_blocks(user.no, conversation).map(|()| Role::Member)
            } else {
                Err(not_a_member(&user.id, &conversation.id))
            };
        }
        let membership = self.directory.membership(conversation.no, user.no).map_err(store_refusal)?;
        let Some(membership) = membership else { return Err(not_a_member(&user.id, &conversation.id)) };
        if membership.restricted {
            self.check_mute(user, conversation)?;
        }
        let only_admins = conversation.posting() == Posting::Admins && writing == Writing::Content;
        if only_admins && membership.role < Role::Admin && matches!(actor, Actor::User(_)) {
            let of_what = match conversation.kind {
                ConversationKind::Official => "of an official account ",
                ConversationKind::Group | ConversationKind::Direct => "",
            };
            let why = format!("only the owner and admins {of_what}may send");
            return Err(Refusal::new(ErrorCode::Forbidden, why));
        }
        Ok(membership.role)
    }

    fn check_mute(&self, user: &User, conversation: &Conversation) -> Result<(), Refusal> {
        let restrictions = self.directory.restrictions(conversation.no, user.no).map_err(store_refusal)?;
        let now_ms = self.clock.now_ms();
        let Some(mute) = restrictions.holding(RestrictionKind::Mute, now_ms) else { return Ok(()) };
        let why = mute.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
        let why = format!("user {:?} is muted in the conversation{}{why}", user.id, until_text(mute.until));
        let retry_after_ms = mute.until.map(|until| until.saturating_sub(now_ms));
        Err(Refusal { retry_after_ms, ..Refusal::new(ErrorCode::Muted, why) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_domain::model::{Suspension, UserExtras, UserNo};

    fn user(revoked_at: u64) -> User {
        User { revoked_at, ..User::new(UserNo(1), "ada".into(), 0) }
    }

    #[test]
    fn a_set_of_scopes_allows_those_it_names_and_no_other() {
        let of = |words: &str| Scopes::of_words(words.split(' '));
        let scopes = of("read openid tidings:push").unwrap_or_default();
        assert_eq!(
            (of("openid profile"), of(""), of("tidings:all openid")),
            (None, Some(Scopes::NONE), Some(Scopes::NONE))
        );
        for scope in Scope::ALL {
            let allowed = matches!(scope, Scope::Read | Scope::Push);
            assert_eq!(scopes.contains(scope), allowed, "{scope}");
            assert!(Scopes::ALL.contains(scope) && !Scopes::NONE.contains(scope), "{scope}");
            assert_eq!(scope.name().parse(), Ok(scope));
        }
        assert!("everything".parse::<Scope>().is_err());
        assert!(scopes.allow(Operation::MoveMark) && scopes.check(Operation::ReceivePushes).is_ok());
        let refusal = scopes.check(Operation::React).err().map(|refusal| refusal.detail);
        assert_eq!(refusal.as_deref(), Some("scope: the token does not allow this; it needs \"send\""));
    }

    #[test]
    fn a_suspended_user_is_refused_until_the_suspension_ends() {
        let suspension = |until| Suspension { until, reason: "spam".into(), by: "mod".into(), at: 1 };
        let check = |until, now_ms| {
            let suspension = Some(Box::new(suspension(until)));
            let user = user(0).with_extras(UserExtras { suspension, ..UserExtras::default() });
            let claims = TokenClaims {
                user: "ada".into(),
                scopes: Scopes::ALL,
                issued_at: None,
                expires_at: 9_000,
                signed_by_node: true,
            };
            claims.check_user(&user, now_ms).map_err(|refusal| (refusal.code, refusal.detail))
        };
        let refused = Err((ErrorCode::UserSuspended, "the user is suspended: spam".to_owned()));
        assert_eq!((check(None, u64::MAX), check(Some(5), 4), check(Some(5), 5)), (refused.clone(), refused, Ok(())));
    }

    #[test]
    fn a_token_from_before_the_revocation_is_refused() {
        let check = |issued_at, revoked_at, signed_by_node| {
            let claims =
                TokenClaims { user: "ada".into(), scopes: Scopes::ALL, issued_at, expires_at: 9_000, signed_by_node };
            claims.check_revoked(&user(revoked_at)).is_ok()
        };
        assert!(check(None, 0, false) && check(Some(1_000), 0, false), "never revoked");
        assert!(check(Some(5_000), 5_000, false) && check(Some(5_001), 5_000, false));
        assert!(!check(Some(4_999), 5_000, false) && !check(None, 5_000, false));
        assert!(check(None, 5_000, true), "the session's node has checked its own token");
    }
}

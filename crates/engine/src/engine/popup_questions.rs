//! The entrance for what apps say to popups. Every listener hands a question, or a report of events, to the function here with
//! the caller, and encodes the answer: HTTP with and without the router, sessions of both protocols.
//!
//! Only the leader of popups answers. A session's question is passed on to the leader here; the leader gets it as an HTTP request,
//! whose listener calls the same function. An HTTP request of a node that does not lead is passed on as a whole, as all
//! requests for the leader are, and does not come here.

use crate::Engine;
use tidings_domain::{function::Function, model::Actor};
use tidings_popups::{PopupDecision, QuestionBody};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{PopupEvent, PopupEventsAccepted},
};

/// Who asks or reports.
#[derive(Debug, Clone, Copy)]
pub struct PopupCaller<'a> {
    /// An app server, which names the user; or a user, who asks for nobody else.
    pub actor: &'a Actor,
    /// The session of this node on which the question came; absent for an HTTP request.
    pub session: Option<u64>,
}

impl PopupCaller<'_> {
    /// The user whom the question is about.
    fn user_of<'q>(&'q self, question: &'q QuestionBody<'_>) -> Result<&'q str, Refusal> {
        match (self.actor, question.user()) {
            (Actor::App, Some(user)) => Ok(user),
            (Actor::App, None) => Err(Refusal::field("user", "is missing")),
            (Actor::User(user), None | Some("me")) => Ok(&user.id),
            (Actor::User(user), Some(named)) if named == user.id => Ok(&user.id),
            (Actor::User(_), Some(_)) => {
                let why = match self.session {
                    Some(_) => "a session asks for its own user only",
                    None => "a user's token asks for that user only",
                };
                Err(Refusal::new(ErrorCode::Forbidden, why))
            }
        }
    }
}

/// The answer to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PopupAnswer {
    /// A `Decision` as JSON; absent: no popup is to be shown now.
    pub decision: Option<Vec<u8>>,
    /// If nothing is shown: after how many milliseconds to ask again. Absent: time alone will not make a popup due.
    pub retry_after_ms: Option<u64>,
}

impl From<PopupDecision> for PopupAnswer {
    fn from(decision: PopupDecision) -> Self {
        let PopupDecision { exposure, retry_after_ms } = decision;
        PopupAnswer { decision: exposure.map(|exposure| exposure.json), retry_after_ms }
    }
}

impl Engine {
    /// Answers the JSON of a `DecideRequest`. Waits only for what is not in memory, for an exposure that must be durable
    /// first, or for the leader.
    ///
    /// # Errors
    /// The text is no JSON (`malformed`) or no question (`invalid_field`), the caller may not ask about the user
    /// (`forbidden`), the decision is refused (see [`PopupService::decide`](tidings_popups::PopupService::decide)), or no
    /// leader could be asked (`node_unavailable`).
    pub async fn answer_popup_question(&self, caller: PopupCaller<'_>, json: &[u8]) -> Result<PopupAnswer, Refusal> {
        let part = if caller.session.is_some() { "question" } else { "body" };
        let body = QuestionBody::read_part(part, json)?;
        let user = caller.user_of(&body)?;
        // The connection is the app's session unless the app names one that outlives it.
        let own_session = caller.session.map(|session| self.popups.session_name(session));
        if self.is_for_another_node(caller) {
            return self.decide_at_leader(user, own_session.as_deref(), json).await;
        }
        let mut question = body.for_user(user);
        question.session = question.session.or(own_session.as_deref());
        question.fingerprint ^= caller.session.unwrap_or(0);
        Ok(self.popups.decide(&question).await?.into())
    }

    /// Reports what users did with popups; returns once the events are durable.
    ///
    /// # Errors
    /// Those of [`PopupService::report_events`](tidings_popups::PopupService::report_events), or no leader could be asked
    /// (`node_unavailable`).
    pub async fn report_popup_events(
        &self,
        caller: PopupCaller<'_>,
        events: Vec<PopupEvent>,
    ) -> Result<PopupEventsAccepted, Refusal> {
        match caller.actor {
            Actor::User(user) if self.is_for_another_node(caller) => {
                self.leader_requests.report_popup_events(Some(user.id.clone()), events).await
            }
            actor => self.popups.report_events(actor, events).await,
        }
    }

    /// Whether a session of this node has to be answered by the leader, which is another node.
    fn is_for_another_node(&self, caller: PopupCaller<'_>) -> bool {
        caller.session.is_some() && !self.has_term(Function::Popups)
    }
}

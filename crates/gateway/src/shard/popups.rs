//! Popups on a session: questions, event reports, and popups that are sent because the app server triggered them.

use super::{FrameOutcome, Shard, decoding::missing_field};
use crate::connection::Phase;
use serde::Serialize;
use serde_json::value::RawValue;
use tidings_domain::model::{Actor, UserNo};
use tidings_engine::{
    access::Operation,
    engine::popup_questions::{PopupAnswer, PopupCaller},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    frames::RawClientFrame,
    http::PopupEvent,
    json,
};

/// The answer to a session's popup question.
#[derive(Serialize)]
struct Answer<'a> {
    t: &'static str,
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    reference: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    show: Option<&'a RawValue>,
}

impl Shard {
    /// A popup question: which popup suits the session's user now?
    pub(super) fn handle_popup(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        let (Some(user), Some(question)) = (self.user(key), frame.question) else {
            return self.refuse(key, frame.reference, missing_field("question", "popup"));
        };
        let (question, reference) = (question.to_owned(), frame.reference);
        self.answer_later(key, reference, |engine, session| async move {
            let caller = PopupCaller { actor: &Actor::User(user), session: Some(session) };
            put_answer(&engine.answer_popup_question(caller, question.get().as_bytes()).await?, reference)
        })
    }

    /// Reports of what the user did with popups.
    pub(super) fn handle_popup_events(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        let (Some(user), Some(events)) = (self.user(key), frame.events) else {
            return self.refuse(key, frame.reference, missing_field("events", "popup_events"));
        };
        let events: Vec<PopupEvent> = match json::read_text("events", events.get()) {
            Ok(events) => events,
            Err(refusal) => return self.refuse(key, frame.reference, refusal),
        };
        self.confirm_later(key, frame.reference, |engine, session| async move {
            let caller = PopupCaller { actor: &Actor::User(user), session: Some(session) };
            engine.report_popup_events(caller, events).await.map(drop)
        })
    }

    /// The latest session of the user that takes popups and has room for one.
    pub(super) fn find_popup_session(&self, user: UserNo) -> Option<usize> {
        self.sessions_of(user).into_iter().rev().find(|key| self.takes_popups(*key))
    }

    fn takes_popups(&self, key: usize) -> bool {
        let connection = &self.connections[key];
        connection.phase != Phase::Closing
            && connection
                .binding
                .as_ref()
                .is_some_and(|binding| binding.chat && binding.scopes.allow(Operation::ReceivePopups))
            && connection.outbound.queued_bytes() <= self.parts.config.session_buffer_bytes
    }

    /// Sends a popup that was chosen for this session. If the session has ended since, the popup is lost, as it is when
    /// the app closes before it has drawn it.
    pub(super) fn send_popup(&mut self, session: u64, frame: &[u8]) {
        let Some(key) = self.find(session).filter(|key| self.takes_popups(*key)) else { return };
        let connection = &mut self.connections[key];
        connection.queue_json(frame);
        self.scheduler.flush_soon(connection, key);
    }
}

fn put_answer(answer: &PopupAnswer, reference: Option<u64>) -> Result<Vec<u8>, Refusal> {
    let PopupAnswer { decision, retry_after_ms } = answer;
    let show = decision.as_deref().map(serde_json::from_slice).transpose();
    let show = show.map_err(|error| Refusal::new(ErrorCode::Internal, error.to_string()))?;
    let answer = Answer { t: "popup", reference, retry_after_ms: *retry_after_ms, show };
    Ok(serde_json::to_vec(&answer).unwrap_or_default())
}

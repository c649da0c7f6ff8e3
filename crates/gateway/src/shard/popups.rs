//! Popups on a session: questions, event reports, and popups that are sent because the app server triggered them.

use super::{FrameOutcome, Shard, decoding::missing_field};
use crate::{
    commands::Command,
    connection::Phase,
    encoding::{error_json, json},
};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use std::{collections::BTreeMap, sync::Arc};
use tidings_domain::model::{Actor, User, UserNo};
use tidings_engine::{Engine, access::Scope};
use tidings_popups::QuestionBody;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    frames::{RawClientFrame, ServerFrame},
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
        let session = match self.begin_request(key) {
            Ok(session) => session,
            Err(refusal) => return self.refuse(key, frame.reference, refusal),
        };
        let (question, reference) = (question.to_owned(), frame.reference);
        let (engine, shard) = self.handles();
        self.parts.runtime.spawn(async move {
            let answered = answer(&engine, &user, session, &question, reference).await;
            let json = answered.unwrap_or_else(|refusal| {
                engine.metrics.count_refusal(refusal.code);
                error_json(reference, &refusal)
            });
            shard.send(Command::Answer { session, json });
        });
        FrameOutcome::Continue
    }

    /// Reports of what the user did with popups.
    pub(super) fn handle_popup_events(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        let (Some(user), Some(frame_events)) = (self.user(key), frame.events) else {
            return self.refuse(key, frame.reference, missing_field("events", "popup_events"));
        };
        let events: Vec<PopupEvent> = match json::read_text("events", frame_events.get()) {
            Ok(events) => events,
            Err(refusal) => return self.refuse(key, frame.reference, refusal),
        };
        let session = match self.begin_request(key) {
            Ok(session) => session,
            Err(refusal) => return self.refuse(key, frame.reference, refusal),
        };
        let reference = frame.reference;
        let (engine, shard) = self.handles();
        if !engine.has_leader_term() {
            let events = [br#"{"events":"#, frame_events.get().as_bytes(), b"}"].concat();
            self.parts.runtime.spawn(async move {
                let json = match engine.report_to_leader(&user.id, events).await {
                    Ok(_) => json(&ServerFrame::Ok { reference: reference.unwrap_or(0) }),
                    Err(refusal) => {
                        engine.metrics.count_refusal(refusal.code);
                        error_json(reference, &refusal)
                    }
                };
                shard.send(Command::Answer { session, json });
            });
            return FrameOutcome::Continue;
        }
        self.parts.runtime.spawn(async move {
            let json = match engine.popups.report_events(&Actor::User(user), events).await {
                Ok(_) => json(&ServerFrame::Ok { reference: reference.unwrap_or(0) }),
                Err(refusal) => {
                    engine.metrics.count_refusal(refusal.code);
                    error_json(reference, &refusal)
                }
            };
            shard.send(Command::Answer { session, json });
        });
        FrameOutcome::Continue
    }

    /// The latest session of the user that takes popups and has room for one.
    pub(super) fn find_popup_session(&self, user: UserNo) -> Option<usize> {
        self.sessions_of(user).into_iter().rev().find(|key| self.takes_popups(*key))
    }

    fn takes_popups(&self, key: usize) -> bool {
        let connection = &self.connections[key];
        connection.phase != Phase::Closing
            && connection.binding.as_ref().is_some_and(|binding| binding.chat && binding.scopes.contains(Scope::Popups))
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

async fn answer(
    engine: &Arc<Engine>,
    user: &User,
    session: u64,
    question_text: &RawValue,
    reference: Option<u64>,
) -> Result<Vec<u8>, Refusal> {
    let body = QuestionBody::read_part("question", question_text.get().as_bytes())?;
    if body.user().is_some_and(|named| named != "me" && named != user.id) {
        return Err(Refusal::new(ErrorCode::Forbidden, "a session asks for its own user only"));
    }
    // The connection is the app's session unless the app names one that outlives it.
    let own = engine.popups.session_name(session);
    if !engine.has_leader_term() {
        return answer_of_leader(engine, user, &own, question_text, reference).await;
    }
    let mut question = body.for_user(&user.id);
    question.session = question.session.or(Some(&own));
    question.fingerprint ^= session;
    let decision = engine.popups.decide(&question).await?;
    let show = decision.exposure.map(|exposure| String::from_utf8_lossy(&exposure.json).into_owned());
    put_answer(show, decision.retry_after_ms, reference)
}

/// The same, decided by the leader.
async fn answer_of_leader(
    engine: &Engine,
    user: &User,
    own_session: &str,
    question: &RawValue,
    reference: Option<u64>,
) -> Result<Vec<u8>, Refusal> {
    let unreadable = |error: serde_json::Error| Refusal::field("question", error);
    let mut question: BTreeMap<String, Box<RawValue>> = serde_json::from_str(question.get()).map_err(unreadable)?;
    if question.get("session").is_none_or(|session| session.get() == "null") {
        question.insert("session".into(), to_raw_value(own_session).map_err(unreadable)?);
    }
    let question = serde_json::to_vec(&question).map_err(unreadable)?;
    let (show, retry_after_ms) = engine.decide_at_leader(&user.id, question).await?;
    put_answer(show, retry_after_ms, reference)
}

fn put_answer(show: Option<String>, retry_after_ms: Option<u64>, reference: Option<u64>) -> Result<Vec<u8>, Refusal> {
    let show = show.map(RawValue::from_string).transpose();
    let show = show.map_err(|error| Refusal::new(ErrorCode::Internal, error.to_string()))?;
    let answer = Answer { t: "popup", reference, retry_after_ms, show: show.as_deref() };
    Ok(serde_json::to_vec(&answer).unwrap_or_default())
}

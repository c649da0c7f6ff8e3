//! What sessions ask of the leader when another node leads: popup decisions, and reports of popup events.

use super::popup_questions::PopupAnswer;
use crate::{
    Engine,
    cluster::leader_client::{LeaderClient, LeaderRequest, LeaderResponse},
};
use serde_json::value::{RawValue, to_raw_value};
use std::{collections::BTreeMap, sync::Arc};
use tidings_domain::refusals::leader_unavailable;
use tidings_protocol::{
    error::Refusal,
    http::{PopupEvent, PopupEvents, PopupEventsAccepted, Problem},
};

impl Engine {
    /// Has the engine reach the leader by this client. Only the first call counts.
    pub fn set_leader_client(&self, client: Arc<dyn LeaderClient>) {
        let _ = self.leader_client.set(client);
    }

    /// The leader's response, if the leader did not refuse.
    async fn ask_leader(&self, request: LeaderRequest) -> Result<LeaderResponse, Refusal> {
        let response = self.leader_client.get().ok_or_else(leader_unavailable)?.send(request)?.await?;
        if response.status < 300 {
            return Ok(response);
        }
        let problem: Problem = serde_json::from_slice(&response.body).map_err(|_| leader_unavailable())?;
        let (retry_after_ms, reason) = (response.retry_after_ms, problem.reason.map(Into::into));
        Err(Refusal { code: problem.code, detail: problem.detail, retry_after_ms, reason })
    }

    /// Has the leader decide which popup suits a user. `own_session` is the session of a question that names none.
    ///
    /// # Errors
    /// The leader's refusal, or `node_unavailable` if no leader could be asked.
    pub(crate) async fn decide_at_leader(
        &self,
        user: &str,
        own_session: Option<&str>,
        question: &[u8],
    ) -> Result<PopupAnswer, Refusal> {
        let body = with_session(question, own_session).map_err(|error| Refusal::field("question", error))?;
        let request = LeaderRequest { user: user.into(), path: "/v1/popups/decide", body };
        let response = self.ask_leader(request).await?;
        let decision = (response.status == 200).then(|| String::from_utf8(response.body)).transpose();
        let decision = decision.map_err(|_| leader_unavailable())?.map(String::into_bytes);
        Ok(PopupAnswer { decision, retry_after_ms: response.retry_after_ms })
    }

    /// Reports a user's popup events to the leader.
    ///
    /// # Errors
    /// The leader's refusal, or `node_unavailable` if no leader could be asked.
    pub(crate) async fn report_to_leader(
        &self,
        user: &str,
        events: Vec<PopupEvent>,
    ) -> Result<PopupEventsAccepted, Refusal> {
        let body = serde_json::to_vec(&PopupEvents { events }).map_err(|error| Refusal::field("events", error))?;
        let request = LeaderRequest { user: user.into(), path: "/v1/popup-events", body };
        let response = self.ask_leader(request).await?;
        serde_json::from_slice(&response.body).map_err(|_| leader_unavailable())
    }
}

/// The question with this session, unless it names one itself.
fn with_session(question: &[u8], own_session: Option<&str>) -> serde_json::Result<Vec<u8>> {
    let mut fields: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(question)?;
    if fields.get("session").is_none_or(|session| session.get() == "null")
        && let Some(own_session) = own_session
    {
        fields.insert("session".into(), to_raw_value(own_session)?);
    }
    serde_json::to_vec(&fields)
}

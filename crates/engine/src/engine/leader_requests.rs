//! What sessions ask of the leader when another node leads: popup decisions, and reports of popup events.

use crate::{
    cluster::leader_client::{LeaderClient, LeaderRequest, LeaderResponse},
    engine::Engine,
};
use std::sync::Arc;
use tidings_domain::refusals::leader_unavailable;
use tidings_protocol::{
    error::Refusal,
    http::{PopupEventsAccepted, Problem},
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
        Err(Refusal { code: problem.code, detail: problem.detail, retry_after_ms: response.retry_after_ms })
    }

    /// Has the leader decide which popup suits a user: a `Decision` as JSON, if there is one, and the milliseconds
    /// after which to ask again.
    ///
    /// # Errors
    /// The leader's refusal, or `node_unavailable` if no leader could be asked.
    pub async fn decide_at_leader(
        &self,
        user: &str,
        question: Vec<u8>,
    ) -> Result<(Option<String>, Option<u64>), Refusal> {
        let request = LeaderRequest { user: user.into(), path: "/v1/popups/decide", body: question };
        let response = self.ask_leader(request).await?;
        let show = (response.status == 200).then(|| String::from_utf8(response.body).map_err(|_| leader_unavailable()));
        Ok((show.transpose()?, response.retry_after_ms))
    }

    /// Reports a user's popup events to the leader.
    ///
    /// # Errors
    /// The leader's refusal, or `node_unavailable` if no leader could be asked.
    pub async fn report_to_leader(&self, user: &str, events: Vec<u8>) -> Result<PopupEventsAccepted, Refusal> {
        let request = LeaderRequest { user: user.into(), path: "/v1/popup-events", body: events };
        let response = self.ask_leader(request).await?;
        serde_json::from_slice(&response.body).map_err(|_| leader_unavailable())
    }
}

//! What this node asks of the leader of a function when another node leads it: popup decisions and reports of popup events for sessions,
//! pushes of journeys, and what an erasure does with devices.

use super::popup_questions::PopupAnswer;
use crate::{
    Engine,
    cluster::leader_client::{LeaderClient, LeaderRequest, LeaderResponse, PendingResponse},
};
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};
use tidings_domain::{function::Function, refusals::leader_unavailable};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{PopupEvent, PopupEventsAccepted, Problem, UserDevices},
};

/// The way to the leaders on other nodes.
#[derive(Clone, Default)]
pub(crate) struct LeaderRequests(Arc<OnceLock<Arc<dyn LeaderClient>>>);

impl LeaderRequests {
    /// Begins a request.
    ///
    /// # Errors
    /// `node_unavailable`: no leader can be asked; `queue_full`.
    pub(crate) fn begin(&self, request: LeaderRequest) -> Result<PendingResponse, Refusal> {
        self.0.get().ok_or_else(leader_unavailable)?.send(request)
    }

    /// The response of a leader that did not refuse.
    ///
    /// # Errors
    /// The leader's refusal, or those of [`LeaderRequests::begin`].
    pub(crate) async fn ask(&self, request: LeaderRequest) -> Result<LeaderResponse, Refusal> {
        let response = self.begin(request)?.await;
        accepted(response.map_err(|_| leader_unavailable())?)
    }

    /// The same, which blocks.
    pub(crate) fn ask_blocking(&self, request: LeaderRequest) -> Result<LeaderResponse, Refusal> {
        wait(self.begin(request)?)
    }
}

/// Waits for the response of a leader that does not refuse. Blocks.
pub(crate) fn wait(response: PendingResponse) -> Result<LeaderResponse, Refusal> {
    accepted(response.blocking_recv().map_err(|_| leader_unavailable())?)
}

fn accepted(response: Result<LeaderResponse, Refusal>) -> Result<LeaderResponse, Refusal> {
    let response = response?;
    if response.status < 300 {
        return Ok(response);
    }
    let Problem { code, detail, reason, .. } = read(&response)?;
    Err(Refusal { code, detail, retry_after_ms: response.retry_after_ms, reason: reason.map(Into::into) })
}

fn read<T: DeserializeOwned>(response: &LeaderResponse) -> Result<T, Refusal> {
    serde_json::from_slice(&response.body).map_err(|_| leader_unavailable())
}

impl LeaderRequests {
    /// Reports popup events to the leader, on this user's behalf; `None`: on the server's.
    ///
    /// # Errors
    /// The leader's refusal, or `node_unavailable` if no leader could be asked.
    pub(crate) async fn report_popup_events(
        &self,
        user: Option<String>,
        events: Vec<PopupEvent>,
    ) -> Result<PopupEventsAccepted, Refusal> {
        read(&self.ask(LeaderRequest::ReportPopupEvents { user, events }).await?)
    }
}

impl Engine {
    /// Has the engine reach leaders by this client. Only the first call counts.
    pub fn set_leader_client(&self, client: Arc<dyn LeaderClient>) {
        let _ = self.leader_requests.0.set(client);
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
        let question = with_session(question, own_session).map_err(|error| Refusal::field("question", error))?;
        let request = LeaderRequest::DecidePopup { user: user.into(), question };
        let response = self.leader_requests.ask(request).await?;
        let decision = (response.status == 200).then(|| String::from_utf8(response.body)).transpose();
        let decision = decision.map_err(|_| leader_unavailable())?.map(String::into_bytes);
        Ok(PopupAnswer { decision, retry_after_ms: response.retry_after_ms })
    }

    /// Removes all devices of a user, whichever node leads pushes. Blocks.
    ///
    /// # Errors
    /// `not_found` for an unknown user, or `store_unavailable`, `node_unavailable`: some may be removed.
    pub(crate) fn remove_devices(&self, user: &str) -> Result<(), Refusal> {
        let is_own = self.has_term(Function::Push);
        let devices = if is_own {
            self.push.user_devices(user)?
        } else {
            read::<UserDevices>(&self.leader_requests.ask_blocking(LeaderRequest::UserDevices { user: user.into() })?)?
        };
        for device in devices.devices {
            let device_id = device.device_id;
            let removed = if is_own {
                self.push.remove_device(user, &device_id)
            } else {
                self.leader_requests
                    .ask_blocking(LeaderRequest::RemoveDevice { user: user.into(), device_id })
                    .map(drop)
            };
            match removed {
                // Another attempt has removed it, whose answer was lost.
                Err(refusal) if refusal.code == ErrorCode::NotFound => {}
                removed => removed?,
            }
        }
        Ok(())
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

//! A hook of the lab's own, which allows everything at once.

use super::{
    http1::{Answer, Handler, HttpServer, Request},
    notice::NoticeSink,
    tally::NoticeTally,
};
use crate::LabError;
use serde::Deserialize;
use std::{fmt::Write, sync::Arc};

/// The hook. It ends with this handle.
pub(crate) struct HookDouble(HttpServer);

impl HookDouble {
    pub(crate) fn start() -> Result<HookDouble, LabError> {
        Ok(HookDouble(HttpServer::start("hook", Arc::new(Calls(NoticeTally::default())))?))
    }

    /// The settings that have a server ask this hook about every send, also of an app server; without an answer it is refused.
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        let settings = [
            ("URL", format!("http://{}/", self.0.address)),
            ("SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into()),
            ("ON", "send".into()),
            ("CLOSED", "send".into()),
            ("APP_SERVERS", "true".into()),
            ("WAITING_MAX", "100000".into()),
        ];
        settings.map(|(name, value)| (format!("TIDINGS_HOOK_{name}"), value)).into()
    }
}

struct Calls(NoticeTally);

#[derive(Deserialize)]
struct Call {
    questions: Vec<Question>,
}

#[derive(Deserialize)]
struct Question {
    id: u64,
}

impl Handler for Calls {
    fn answer(&self, request: Request<'_>) -> Result<Option<Answer>, String> {
        let call: Call = serde_json::from_slice(request.body).map_err(|error| error.to_string())?;
        let mut body = String::from(r#"{"answers":["#);
        for (n, Question { id }) in call.questions.iter().enumerate() {
            let _ = write!(body, r#"{}{{"id":{id},"action":"allow"}}"#, if n == 0 { "" } else { "," });
        }
        body.push_str("]}");
        Ok(Some(Answer { status: 200, body }))
    }

    fn sink(&self) -> &dyn NoticeSink {
        &self.0
    }
}

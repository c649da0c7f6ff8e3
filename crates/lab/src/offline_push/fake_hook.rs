//! A hook of the lab's own, which allows everything at once, or never answers.

use super::{
    http_server::{Answer, Handler, HttpServer, Request, answer},
    notice::NoticeSink,
    tally::NoticeTally,
};
use crate::{LabError, server::Target, setup::create_users};
use clap::ValueEnum;
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;
use std::{
    fmt::Write,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};
use tidings_protocol::http::SendRequest;

/// Threads that send to the group of which the hook that hangs is asked.
const FLOODERS: usize = 4;
const FLOOD_GROUP: &str = "hook-group";
const FLOOD_BATCH: usize = 50;
/// The pause after a batch that was refused.
const FLOOD_PAUSE: Duration = Duration::from_millis(10);

/// What the lab's hook does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HookMode {
    /// It is asked before each send, and allows it at once.
    Allows,
    /// It is asked before messages to groups alone, and never answers; some users send to a group all the time.
    Hangs,
}

/// The hook. It ends with this handle.
pub(crate) struct FakeHook {
    server: HttpServer,
    mode: HookMode,
}

impl FakeHook {
    pub(crate) fn start(mode: HookMode) -> Result<FakeHook, LabError> {
        let calls = Calls { mode, sink: NoticeTally::default() };
        Ok(FakeHook { server: HttpServer::start("hook", calls)?, mode })
    }

    /// The settings that have a server ask this hook, also about what an app server sends; without an answer it is refused.
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        let on = match self.mode {
            HookMode::Allows => "send",
            HookMode::Hangs => "send:group",
        };
        let settings = [
            ("URL", format!("http://{}/", self.server.address)),
            ("SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into()),
            ("ON", on.into()),
            ("CLOSED", on.into()),
            ("APP_SERVERS", "true".into()),
            ("WAITING_MAX", "100000".into()),
        ];
        settings.map(|(name, value)| (format!("TIDINGS_HOOK_{name}"), value)).into()
    }

    /// Has some users send to a group until the flood is dropped, if the hook hangs.
    pub(crate) fn flood(&self, target: &Target) -> Result<Option<Flood>, LabError> {
        if self.mode == HookMode::Allows {
            return Ok(None);
        }
        let users: Vec<String> = (0..FLOODERS).map(|number| format!("hook-user-{number}")).collect();
        create_users(&mut target.http(), &users)?;
        let group = json!({ "kind": "group", "id": FLOOD_GROUP, "members": users });
        let _: serde_json::Value = target.http().post("/v1/conversations", &group)?;
        let stops = Arc::new(AtomicBool::new(false));
        let start = |user: String| {
            let (mut http, stops) = (target.http(), stops.clone());
            let message = json!({ "from": user, "conversation": FLOOD_GROUP, "body": { "text": "held up" } });
            let message: SendRequest = serde_json::from_value(message).map_err(std::io::Error::other)?;
            let send = move || {
                while !stops.load(Ordering::Relaxed) {
                    // All of it is refused, sooner or later.
                    let _ = http.send_batch(vec![message.clone(); FLOOD_BATCH]);
                    std::thread::sleep(FLOOD_PAUSE);
                }
            };
            Ok(std::thread::Builder::new().name("lab-flood".into()).spawn(send)?)
        };
        let threads = users.into_iter().map(start).collect::<Result<Vec<_>, LabError>>()?;
        Ok(Some(Flood { stops, threads }))
    }
}

/// Users who send to a group of which the hook does not answer.
pub(crate) struct Flood {
    stops: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

struct Calls {
    mode: HookMode,
    sink: NoticeTally,
}

#[derive(Deserialize)]
struct Call {
    questions: Vec<Question>,
}

#[derive(Deserialize)]
struct Question {
    id: u64,
}

impl Handler for Calls {
    fn answer(&self, request: &Request) -> Result<Answer, String> {
        let call: Call = serde_json::from_slice(request.body()).map_err(|error| error.to_string())?;
        let mut body = String::from(r#"{"answers":["#);
        for (n, Question { id }) in call.questions.iter().enumerate() {
            let _ = write!(body, r#"{}{{"id":{id},"action":"allow"}}"#, if n == 0 { "" } else { "," });
        }
        body.push_str("]}");
        Ok(answer(StatusCode::OK, body))
    }

    /// Until the server no longer waits.
    fn hangs(&self, _request: &Request) -> bool {
        self.mode == HookMode::Hangs
    }

    fn sink(&self) -> &dyn NoticeSink {
        &self.sink
    }
}

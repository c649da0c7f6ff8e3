//! Asks each node, on a thread of its own, for what only the leader does, and who leads.

use crate::lock::lock;
use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_client::http::HttpClient;
use tidings_protocol::http::NodesAnswer;

const INTERVAL: Duration = Duration::from_millis(50);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// What a node answered last.
#[derive(Debug, Clone, Default)]
pub(super) struct Answers {
    /// The last time that it pushed and decided a popup: when that was asked, and when it was answered.
    pub(super) done: Option<(Instant, Instant)>,
    pub(super) asked: u64,
    pub(super) refused: u64,
    /// The address and the boot id of the node that it says leads.
    pub(super) leader: Option<(String, String)>,
}

/// The probe of one node. It ends when dropped.
pub(super) struct Probe {
    answers: Arc<Mutex<Answers>>,
    stop: Arc<AtomicBool>,
}

impl Probe {
    pub(super) fn start(address: SocketAddr, api_key: &str) -> Probe {
        let probe = Probe { answers: Arc::default(), stop: Arc::default() };
        let (answers, stop, api_key) = (probe.answers.clone(), probe.stop.clone(), api_key.to_owned());
        std::thread::spawn(move || {
            let mut http = None;
            while !stop.load(Ordering::Relaxed) {
                let client = http.get_or_insert_with(|| client(address, &api_key));
                let asked = Instant::now();
                let is_done = is_answered(client);
                let leader = client.get::<NodesAnswer>("/v1/admin/nodes").ok();
                let mut answers = lock(&answers);
                answers.asked += 1;
                if is_done {
                    answers.done = Some((asked, Instant::now()));
                } else {
                    answers.refused += 1;
                }
                if let Some(nodes) = leader {
                    let leads = nodes.nodes.into_iter().find(|node| node.leads);
                    answers.leader = leads.map(|node| (node.address, node.boot_id));
                } else {
                    http = None;
                }
                drop(answers);
                std::thread::sleep(INTERVAL);
            }
        });
        probe
    }

    pub(super) fn answers(&self) -> Answers {
        lock(&self.answers).clone()
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn client(address: SocketAddr, api_key: &str) -> HttpClient {
    let mut http = HttpClient::new(address, api_key.to_owned());
    http.set_timeout(REQUEST_TIMEOUT);
    http
}

/// Whether a node answers what only the leader does: a push, and the decision about a popup.
fn is_answered(http: &mut HttpClient) -> bool {
    let push = json!({ "to": { "users": ["user-1"] }, "type": "bench", "body": {}, "ttl_s": 60 });
    let decide = json!({ "user": "user-1", "placement": "home" });
    let mut post = |path: &str, body: &Value| {
        http.exchange("POST", path, body.to_string().as_bytes()).is_ok_and(|answer| (200..300).contains(&answer.status))
    };
    post("/v1/push", &push) && post("/v1/popups/decide", &decide)
}

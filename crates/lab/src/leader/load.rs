//! Requests at every node at a steady rate: conversations that a first message opens, and messages in those that are open.

use crate::lock::lock;
use serde_json::value::RawValue;
use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tidings_client::http::HttpClient;
use tidings_protocol::http::SendRequest;

/// Threads of each node, so that one request that waits does not keep the others from being made.
const THREADS: usize = 4;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct Load {
    nodes: Vec<Arc<NodeLoad>>,
    stop: Arc<AtomicBool>,
    refused: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

/// What the requests at one node show.
#[derive(Default)]
struct NodeLoad {
    is_silent: AtomicBool,
    /// The longest wait since the last look, and since when the requests under way wait.
    longest: Mutex<Waits>,
}

type Waits = (Duration, Vec<Option<Instant>>);

impl Load {
    pub(super) fn start(addresses: &[SocketAddr], api_key: &str, per_second: f64) -> Load {
        let (stop, refused) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let nodes: Vec<Arc<NodeLoad>> = addresses
            .iter()
            .map(|_| {
                Arc::new(NodeLoad { longest: Mutex::new((Duration::ZERO, vec![None; THREADS])), ..NodeLoad::default() })
            })
            .collect();
        let mut threads = Vec::new();
        let interval = Duration::from_secs_f64(THREADS as f64 / per_second.max(0.1));
        for (number, (address, node)) in addresses.iter().zip(&nodes).enumerate() {
            for thread in 0..THREADS {
                let (address, node, stop, refused) = (*address, node.clone(), stop.clone(), refused.clone());
                let api_key = api_key.to_owned();
                threads.push(std::thread::spawn(move || {
                    let sender = Sender { address, api_key, number: number * THREADS + thread };
                    sender.run(&node, thread, interval, &stop, &refused);
                }));
            }
        }
        Load { nodes, stop, refused, threads }
    }

    /// No requests at this node from now on, or requests again.
    pub(super) fn set_silent(&self, node: usize, is_silent: bool) {
        self.nodes[node].is_silent.store(is_silent, Ordering::Relaxed);
    }

    /// The longest wait of a request since the last call, of those still under way too; not at the node `but`.
    pub(super) fn take_longest(&self, but: Option<usize>) -> Duration {
        let of = |node: &NodeLoad| {
            let mut longest = lock(&node.longest);
            let waiting = longest.1.iter().flatten().map(Instant::elapsed).max().unwrap_or_default();
            std::mem::take(&mut longest.0).max(waiting)
        };
        let others = self.nodes.iter().enumerate().filter(|(number, _)| Some(*number) != but);
        others.map(|(_, node)| of(node)).max().unwrap_or_default()
    }

    /// Ends the load; answers how many requests were refused.
    pub(super) fn stop(&mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.refused.load(Ordering::Relaxed)
    }
}

struct Sender {
    address: SocketAddr,
    api_key: String,
    number: usize,
}

impl Sender {
    fn run(&self, node: &NodeLoad, thread: usize, interval: Duration, stop: &AtomicBool, refused: &AtomicU64) {
        let mut http = self.client();
        for turn in 0_usize.. {
            std::thread::sleep(interval);
            if stop.load(Ordering::Relaxed) {
                return;
            }
            if node.is_silent.load(Ordering::Relaxed) {
                continue;
            }
            let began = Instant::now();
            lock(&node.longest).1[thread] = Some(began);
            let sent = http.send(&self.request(turn));
            let mut longest = lock(&node.longest);
            longest.1[thread] = None;
            // A node that was killed, or is frozen, is not waited for.
            match sent {
                Ok(_) => longest.0 = longest.0.max(began.elapsed()),
                Err(_) => {
                    refused.fetch_add(1, Ordering::Relaxed);
                    http = self.client();
                }
            }
        }
    }

    fn client(&self) -> HttpClient {
        let mut http = HttpClient::new(self.address, self.api_key.clone());
        http.set_timeout(REQUEST_TIMEOUT);
        http
    }

    /// Every second one opens a conversation between two users who had none.
    fn request(&self, turn: usize) -> SendRequest {
        let pair = turn / 2 * 64 + self.number;
        let user = |number: usize| Some(format!("user-{}", number % 2_000));
        SendRequest {
            conversation: None,
            to: user(pair / 1_999 + pair + 1),
            from: user(pair),
            client_msg_id: Some(format!("{}-{turn}", self.number)),
            content_type: "text".into(),
            body: RawValue::from_string("\"hello\"".into()).unwrap_or_default(),
            mentions: vec![],
            silent: false,
            skip_push: false,
            reply_to: None,
            expires: None,
        }
    }
}

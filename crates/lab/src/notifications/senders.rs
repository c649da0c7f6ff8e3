//! Sends the messages of a round at their times, over HTTP, and each again until it is answered: also while the server is away.

use super::{
    participants::PlannedMessage,
    recorder::Recorder,
    records::{Read, SentMessage},
};
use crate::{latency::Latencies, lock::lock, process};
use serde_json::json;
use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};
use tidings_client::{
    ClientError,
    http::{HttpClient, path_segment},
};
use tidings_protocol::http::SendReceipt;

/// Connections that send.
const CONNECTIONS: usize = 8;
/// A send without an answer for so long is repeated.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// The messages of one round on their way.
pub(crate) struct RoundSenders {
    threads: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    lateness: Arc<Mutex<Latencies>>,
}

/// How a server is reached.
#[derive(Debug, Clone)]
pub(crate) struct Listener {
    pub(crate) address: SocketAddr,
    pub(crate) api_key: String,
}

impl Listener {
    pub(crate) fn http(&self) -> HttpClient {
        let mut http = HttpClient::new(self.address, self.api_key.clone());
        http.set_timeout(ANSWER_TIMEOUT);
        http
    }
}

impl RoundSenders {
    /// Starts to send. `name` differs from those of other rounds.
    pub(crate) fn start(
        listener: &Listener,
        name: &str,
        messages: Vec<PlannedMessage>,
        recorder: &Arc<Recorder>,
    ) -> Self {
        let (messages, next) = (Arc::new(messages), Arc::new(AtomicUsize::new(0)));
        let (stop, lateness) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Latencies::default())));
        let begins = process::monotonic_ns();
        let threads = (0..CONNECTIONS).filter_map(|_| {
            let (messages, next, stop) = (messages.clone(), next.clone(), stop.clone());
            let (listener, name, recorder, lateness) =
                (listener.clone(), name.to_owned(), recorder.clone(), lateness.clone());
            let work = move || {
                let mut http = listener.http();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(message) = messages.get(number) else { return };
                    let due = begins + message.due_ns;
                    std::thread::sleep(Duration::from_nanos(due.saturating_sub(process::monotonic_ns())));
                    lock(&lateness).record(due, process::monotonic_ns());
                    if !send(&mut http, &format!("{name}-{number}"), message, &recorder, &stop) {
                        return;
                    }
                }
            };
            std::thread::Builder::new().name("notify-sender".into()).spawn(work).ok()
        });
        RoundSenders { threads: threads.collect(), stop, lateness }
    }

    /// Whether all messages are answered.
    pub(crate) fn are_done(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// How late messages were sent, in microseconds.
    pub(crate) fn finish(self) -> Latencies {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            let _ = thread.join();
        }
        lock(&self.lateness).clone()
    }
}

/// Whether a request may be repeated after this failure.
fn is_passing(error: &ClientError) -> bool {
    match error {
        ClientError::Io(_) => true,
        ClientError::Refused { problem, .. } => problem.code.retryable(),
        _ => false,
    }
}

/// Sends a message until it is answered; answers whether it was.
fn send(http: &mut HttpClient, name: &str, message: &PlannedMessage, recorder: &Recorder, stop: &AtomicBool) -> bool {
    let participants = &recorder.participants;
    let mentions: Vec<&str> = message.mentions.iter().map(|user| participants.users[*user].id.as_str()).collect();
    let body = json!({
        "conversation": participants.conversations[message.conversation].id, "from": participants.users[message.sender].id,
        "client_msg_id": name, "body": { "text": name }, "mentions": mentions,
        "silent": message.silent, "skip_push": message.skip_push,
    });
    let sent_at = process::monotonic_ns();
    loop {
        match http.post::<SendReceipt>("/v1/messages", &body) {
            Ok(receipt) => {
                let PlannedMessage { conversation, sender, silent, skip_push, .. } = *message;
                let answered_at = process::monotonic_ns();
                let seq = receipt.seq;
                let sent = SentMessage { conversation, seq, sender, silent, skip_push, sent_at, answered_at };
                recorder.records().messages.push(sent);
                return true;
            }
            Err(error) if is_passing(&error) && !stop.load(Ordering::Relaxed) => std::thread::sleep(RETRY_PAUSE),
            Err(error) => {
                recorder.problem(format!("{name} was not sent: {error}"));
                return false;
            }
        }
    }
}

/// Has a user read a conversation up to its newest message, as on another device. `in_peace`: nothing is under way.
pub(crate) fn read_all(http: &mut HttpClient, user: usize, conversation: usize, in_peace: bool, recorder: &Recorder) {
    let (id, user_id) = (&recorder.participants.conversations[conversation].id, &recorder.participants.users[user].id);
    let newest = {
        let records = recorder.records();
        records.messages.iter().filter(|sent| sent.conversation == conversation).map(|sent| sent.seq).max()
    };
    let Some(seq) = newest else { return };
    let number = {
        let mut records = recorder.records();
        records.reads.push(Read { user, conversation, seq, at: process::monotonic_ns(), answered_at: None, in_peace });
        records.reads.len() - 1
    };
    let path = format!("/v1/users/{}/conversations/{}/read", path_segment(user_id), path_segment(id));
    match http.put::<serde_json::Value>(&path, &json!({ "seq": seq })) {
        Ok(_) => recorder.records().reads[number].answered_at = Some(process::monotonic_ns()),
        // It may have been done all the same; the model allows for both.
        Err(error) if is_passing(&error) => {}
        Err(error) => recorder.problem(format!("{user_id} could not read {id}: {error}")),
    }
}

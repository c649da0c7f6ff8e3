//! Senders that outlive their server: what is not answered is sent again, under the same `client_msg_id`.

use crate::server::OwnServer;
use serde_json::value::RawValue;
use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tidings_client::{ClientError, http::HttpClient, session::Session, token};
use tidings_protocol::{
    frames::ServerFrame,
    http::{NewMessage, SendRequest},
};

/// A send that is not answered within this is sent again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Answered sends that are sent once more after a kill: their answer must not change.
const ASKED_AGAIN: u64 = 3;
/// Unanswered sends of a session.
const PIPELINE: usize = 16;

/// Where the server is now; it listens elsewhere after each start.
pub(super) struct Whereabouts {
    address: Mutex<SocketAddr>,
    stop: AtomicBool,
    api_key: String,
    token_key: String,
}

impl Whereabouts {
    pub(super) fn new(server: &OwnServer) -> Self {
        Whereabouts {
            address: Mutex::new(server.address),
            stop: AtomicBool::new(false),
            api_key: server.api_key.clone(),
            token_key: server.token_key.clone(),
        }
    }

    pub(super) fn moved_to(&self, address: SocketAddr) {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = address;
    }

    /// Tells all senders to end.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn address(&self) -> SocketAddr {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// What a sender knows at the end.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Per `client_msg_id`: the first acknowledged `seq`.
    pub(super) acknowledged: HashMap<String, u64>,
    pub(super) retries: u64,
    pub(super) asked_again: u64,
    /// A second answer that differs from the first.
    pub(super) contradictions: Vec<String>,
}

impl Told {
    pub(super) fn note(&mut self, id: String, seq: u64) {
        match self.acknowledged.insert(id.clone(), seq) {
            Some(first) if first != seq => {
                self.contradictions.push(format!("{id} answered with {first}, then with {seq}"));
                self.acknowledged.insert(id, first);
            }
            _ => {}
        }
    }
}

pub(super) fn body(id: &str) -> Box<RawValue> {
    // A short plain text always serializes.
    RawValue::from_string(format!("{{\"text\":\"{id}\"}}")).unwrap_or_default()
}

pub(super) fn send_over_http(at: &Whereabouts, conversation: &str, user: &str, name: &str) -> Told {
    let mut told = Told::default();
    let mut http = HttpClient::new(at.address(), at.api_key.clone());
    http.set_timeout(ANSWER_TIMEOUT);
    let mut again: Vec<String> = Vec::new();
    let mut number = 0u64;
    while !at.stopping() {
        let id = again.pop().unwrap_or_else(|| {
            number += 1;
            format!("h{name}-{number}")
        });
        let request = SendRequest {
            conversation: Some(conversation.into()),
            to: None,
            from: Some(user.into()),
            client_msg_id: Some(id.clone()),
            content_type: "text".into(),
            body: body(&id),
            mentions: Vec::new(),
            silent: false,
            skip_push: false,
        };
        match http.send(&request) {
            Ok(receipt) => told.note(id, receipt.seq),
            Err(ClientError::Refused { .. }) => again.push(id),
            Err(_) => {
                told.retries += 1;
                // The newest answered ones, too: a crash must not change what was answered.
                let newest = (number.saturating_sub(ASKED_AGAIN)..number).map(|n| format!("h{name}-{n}"));
                let answered: Vec<String> = newest.filter(|old| told.acknowledged.contains_key(old)).collect();
                told.asked_again += answered.len() as u64;
                again.extend(answered);
                again.push(id);
                std::thread::sleep(Duration::from_millis(5));
                http = HttpClient::new(at.address(), at.api_key.clone());
                http.set_timeout(ANSWER_TIMEOUT);
            }
        }
    }
    told
}

/// Pipelined: several sends are unanswered when the kill comes, and all are sent again.
pub(super) fn send_over_websocket(at: &Whereabouts, conversation: &str, user: &str, name: &str) -> Told {
    let mut told = Told::default();
    let mut number = 0;
    let mut unanswered: Vec<u64> = Vec::new();
    while !at.stopping() {
        if let Err(_lost) = session(at, conversation, user, name, &mut told, &mut number, &mut unanswered) {
            told.retries += unanswered.len() as u64;
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    told
}

fn session(
    at: &Whereabouts,
    conversation: &str,
    user: &str,
    name: &str,
    told: &mut Told,
    number: &mut u64,
    unanswered: &mut Vec<u64>,
) -> Result<(), ClientError> {
    let token = token::sign(&at.token_key, user, Duration::from_secs(3600));
    let mut session = Session::open(at.address(), &token, name, None)?;
    let send = |session: &mut Session, reference: u64| {
        let id = format!("w{name}-{reference}");
        let message = NewMessage {
            body: body(&id),
            client_msg_id: Some(id),
            content_type: "text".into(),
            mentions: Vec::new(),
            silent: false,
            skip_push: false,
        };
        session.send(reference, conversation, message)
    };
    for reference in unanswered.iter() {
        send(&mut session, *reference)?;
    }
    while !at.stopping() {
        while unanswered.len() < PIPELINE {
            *number += 1;
            unanswered.push(*number);
            send(&mut session, *number)?;
        }
        match session.next(ANSWER_TIMEOUT)? {
            Some(ServerFrame::Sent { results }) => {
                for sent in results {
                    let Some(reference) = sent.reference else { continue };
                    unanswered.retain(|other| *other != reference);
                    told.note(format!("w{name}-{reference}"), sent.receipt.seq);
                }
            }
            Some(ServerFrame::Error { reference: Some(reference), .. }) => {
                std::thread::sleep(Duration::from_millis(5));
                send(&mut session, reference)?;
            }
            Some(_) => {}
            None => return Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
    }
    Ok(())
}

//! Senders that outlive their server: an unanswered send is repeated with the same `client_msg_id`.

use crate::{client_engine::session::user_token, server::OwnServer};
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
use tidings_client::{ClientError, http::HttpClient, session::Session};
use tidings_protocol::{
    frames::ServerFrame,
    http::{NewMessage, SendRequest},
};

/// A send that is not answered within this is repeated.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How many answered sends are repeated after a kill: their answer must not change.
const ANSWERED_RETRIES: u64 = 3;
/// Unanswered sends per session.
const PIPELINE: usize = 16;

/// The server's current address, which differs after each start, and the keys to use there.
pub(super) struct ServerLocation {
    address: Mutex<SocketAddr>,
    stop: AtomicBool,
    api_key: String,
    token_key: String,
}

impl ServerLocation {
    pub(super) fn new(server: &OwnServer) -> Self {
        ServerLocation {
            address: Mutex::new(server.address),
            stop: AtomicBool::new(false),
            api_key: server.api_key.clone(),
            token_key: server.token_key.clone(),
        }
    }

    pub(super) fn set_address(&self, address: SocketAddr) {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = address;
    }

    /// Tells all senders to stop.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(super) fn address(&self) -> SocketAddr {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn token_key(&self) -> &str {
        &self.token_key
    }

    pub(super) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// The answers that a sender got.
#[derive(Debug, Default)]
pub(super) struct SenderLog {
    /// The first acknowledged `seq` by `client_msg_id`.
    pub(super) acknowledged: HashMap<String, u64>,
    pub(super) retries: u64,
    pub(super) asked_again: u64,
    /// Second answers that differ from the first.
    pub(super) contradictions: Vec<String>,
}

impl SenderLog {
    pub(super) fn record_answer(&mut self, id: String, seq: u64) {
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

pub(super) fn send_over_http(server: &ServerLocation, conversation: &str, user: &str, name: &str) -> SenderLog {
    let mut log = SenderLog::default();
    let mut http = HttpClient::new(server.address(), server.api_key.clone());
    http.set_timeout(ANSWER_TIMEOUT);
    let mut again: Vec<String> = Vec::new();
    let mut number = 0u64;
    while !server.stopping() {
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
            reply_to: None,
            expires: None,
        };
        match http.send(&request) {
            Ok(receipt) => log.record_answer(id, receipt.seq),
            Err(ClientError::Refused { .. }) => again.push(id),
            Err(_) => {
                log.retries += 1;
                // Repeat the newest answered sends as well: a crash must not change an answer.
                let newest = (number.saturating_sub(ANSWERED_RETRIES)..number).map(|n| format!("h{name}-{n}"));
                let answered: Vec<String> = newest.filter(|old| log.acknowledged.contains_key(old)).collect();
                log.asked_again += answered.len() as u64;
                again.extend(answered);
                again.push(id);
                std::thread::sleep(Duration::from_millis(5));
                http = HttpClient::new(server.address(), server.api_key.clone());
                http.set_timeout(ANSWER_TIMEOUT);
            }
        }
    }
    log
}

/// Sends with a pipeline: several sends are unanswered when the server is killed, and all are repeated.
pub(super) fn send_over_websocket(server: &ServerLocation, conversation: &str, user: &str, name: &str) -> SenderLog {
    let mut log = SenderLog::default();
    let mut number = 0;
    let mut unanswered: Vec<u64> = Vec::new();
    while !server.stopping() {
        if let Err(_lost) = run_session(server, conversation, user, name, &mut log, &mut number, &mut unanswered) {
            log.retries += unanswered.len() as u64;
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    log
}

fn run_session(
    server: &ServerLocation,
    conversation: &str,
    user: &str,
    name: &str,
    log: &mut SenderLog,
    number: &mut u64,
    unanswered: &mut Vec<u64>,
) -> Result<(), ClientError> {
    let token = user_token(&server.token_key, user);
    let mut session = Session::open(server.address(), &token, name, None)?;
    let send = |session: &mut Session, reference: u64| {
        let id = format!("w{name}-{reference}");
        let message = NewMessage {
            body: body(&id),
            client_msg_id: Some(id),
            content_type: "text".into(),
            mentions: Vec::new(),
            silent: false,
            skip_push: false,
            reply_to: None,
            expires: None,
        };
        session.send(reference, conversation, message)
    };
    for reference in unanswered.iter() {
        send(&mut session, *reference)?;
    }
    while !server.stopping() {
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
                    log.record_answer(format!("w{name}-{reference}"), sent.receipt.seq);
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

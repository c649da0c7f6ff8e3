//! A webhook of the lab's own: the server under test tells it of messages to members who are offline.

use super::{
    http_server::{Answer, Handler, HttpServer, Request, answer},
    notice::{Notice, NoticeSink, OfflineChannel},
};
use crate::{LabError, server::random_key};
use http::StatusCode;
use serde::Deserialize;
use std::{borrow::Cow, sync::Arc};

/// The webhook. It ends with this handle.
pub(crate) struct FakeWebhook {
    server: HttpServer,
}

impl FakeWebhook {
    pub(crate) fn start(sink: Arc<dyn NoticeSink>) -> Result<FakeWebhook, LabError> {
        Ok(FakeWebhook { server: HttpServer::start("webhook", Calls { sink })? })
    }

    /// The settings that have a server call this webhook.
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        vec![
            ("TIDINGS_WEBHOOK_URL".into(), format!("http://{}/", self.server.address)),
            ("TIDINGS_WEBHOOK_SECRET".into(), random_key()),
        ]
    }
}

struct Calls {
    sink: Arc<dyn NoticeSink>,
}

/// What the webhook reads of a call.
#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow)]
    events: Vec<Event<'a>>,
}

#[derive(Deserialize)]
struct Event<'a> {
    id: Option<u64>,
    #[serde(borrow)]
    entry: EventEntry<'a>,
    #[serde(borrow)]
    recipients: Vec<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct EventEntry<'a> {
    #[serde(borrow)]
    conversation: Cow<'a, str>,
    seq: u64,
    at: u64,
}

impl Handler for Calls {
    fn answer(&self, request: &Request) -> Result<Answer, String> {
        let call: Call<'_> = serde_json::from_slice(request.body()).map_err(|error| error.to_string())?;
        let of_event = |event: &'_ Event<'_>| event.recipients.len();
        let mut notices = Vec::with_capacity(call.events.iter().map(of_event).sum());
        for event in &call.events {
            notices.extend(event.recipients.iter().map(|user| Notice {
                channel: OfflineChannel::Webhook,
                user,
                device: "",
                conversation: &event.entry.conversation,
                seq: event.entry.seq,
                id: event.id,
                removed: false,
                sent_at_ms: Some(event.entry.at),
            }));
        }
        self.sink.note(&notices);
        Ok(answer(StatusCode::NO_CONTENT, ""))
    }

    fn sink(&self) -> &dyn NoticeSink {
        &*self.sink
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::offline_push::tally::{Expectation, NoticeTally};
    use std::{
        io::{Read, Write},
        net::TcpStream,
        time::Duration,
    };

    /// Calls the webhook as a server does, with events of these messages for these members.
    fn call(webhook: &FakeWebhook, events: &[(u64, &[&str])]) -> String {
        let event = |(seq, recipients): &(u64, &[&str])| {
            serde_json::json!({ "event": "message", "recipients": recipients,
                "entry": { "conversation": "house", "seq": seq, "at": 1, "body": {} } })
        };
        post(webhook, &serde_json::json!({ "events": events.iter().map(event).collect::<Vec<_>>() }).to_string())
    }

    fn post(webhook: &FakeWebhook, body: &str) -> String {
        let mut connection = TcpStream::connect(webhook.server.address).unwrap();
        write!(
            connection,
            "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    }

    fn tally_of(calls: &[&[(u64, &[&str])]]) -> Arc<NoticeTally> {
        let tally = Arc::new(NoticeTally::default());
        let webhook = FakeWebhook::start(tally.clone()).unwrap();
        for events in calls {
            assert!(call(&webhook, events).starts_with("HTTP/1.1 204 "));
        }
        tally
    }

    fn expected() -> Vec<Expectation> {
        let members = ["ben", "cleo"].map(str::to_owned);
        let members = members.into_iter().map(|user| (user, Vec::new())).collect();
        vec![Expectation { conversation: "house".into(), members, messages: vec![(2, None), (3, None), (4, None)] }]
    }

    #[test]
    fn each_message_counts_once_for_each_member() {
        let tally = tally_of(&[&[(2, &["ben", "cleo"]), (3, &["cleo"])], &[(3, &["ben"]), (4, &["cleo", "ben"])]]);
        let counts = tally.finish(&[OfflineChannel::Webhook], &expected(), Duration::ZERO);
        assert!(counts.balances(), "{counts:?}");
        let channel = &counts.channels[0];
        assert_eq!((channel.expected, channel.notified, channel.requests), (6, 6, 2));
    }

    #[test]
    fn what_is_lost_doubled_or_told_to_others_is_found() {
        let tally = tally_of(&[&[(2, &["ben", "cleo"]), (3, &["ben", "cleo"]), (4, &["ben"])]]);
        let lost = tally.finish(&[OfflineChannel::Webhook], &expected(), Duration::ZERO);
        assert_eq!((lost.balances(), lost.channels[0].lost, lost.channels[0].doubled), (false, 1, 0));
        assert_eq!(lost.problems, ["webhook: cleo was notified of 2 of 3 messages in house; not of 4"]);
        let all: &[(u64, &[&str])] = &[(2, &["ben", "cleo"]), (3, &["ben", "cleo"]), (4, &["ben", "cleo"])];
        let doubled = tally_of(&[all, &[(3, &["ben"])]]);
        let doubled = doubled.finish(&[OfflineChannel::Webhook], &expected(), Duration::ZERO);
        assert_eq!((doubled.balances(), doubled.channels[0].lost, doubled.channels[0].doubled), (false, 0, 1));
        let others = tally_of(&[all, &[(3, &["ada"])]]);
        let others = others.finish(&[OfflineChannel::Webhook], &expected(), Duration::ZERO);
        assert_eq!((others.balances(), others.channels[0].unentitled), (false, 1));
        assert_eq!(others.problems, ["webhook: ada was notified of house 3, and is not entitled to it"]);
    }

    #[test]
    fn a_call_that_cannot_be_read_fails_the_run() {
        let tally = Arc::new(NoticeTally::default());
        let webhook = FakeWebhook::start(tally.clone()).unwrap();
        assert_eq!(post(&webhook, "nope"), "", "the connection ends");
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while tally.problems() == 0 {
            assert!(std::time::Instant::now() < end, "the call is a problem");
            std::thread::yield_now();
        }
        assert!(!tally.finish(&[OfflineChannel::Webhook], &[], Duration::ZERO).balances());
    }
}

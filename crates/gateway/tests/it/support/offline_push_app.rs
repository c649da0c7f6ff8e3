//! An app server that is told by webhook of messages to offline users.
#![allow(unreachable_pub)]
#![expect(clippy::disallowed_methods, reason = "a channel of a test ends with it")]

use crate::support::PATIENCE;
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::sync::Arc;
use tidings_notifications::webhook::{Webhook, WebhookDelivery, WebhookError};

/// A webhook that records the texts and recipients of its deliveries.
pub struct App(Sender<(String, Vec<String>)>);

impl Webhook for App {
    fn deliver(&self, delivery: &WebhookDelivery) -> Result<(), WebhookError> {
        let body: serde_json::Value = serde_json::from_slice(&delivery.body).unwrap();
        for event in body["events"].as_array().unwrap() {
            let recipients = event["recipients"].as_array().unwrap();
            let recipients = recipients.iter().map(|user| user.as_str().unwrap().to_owned()).collect();
            self.0.send((event["entry"]["body"].as_str().unwrap().to_owned(), recipients)).unwrap();
        }
        Ok(())
    }
}

pub fn app() -> (Arc<App>, Receiver<(String, Vec<String>)>) {
    let (told, hears) = unbounded();
    (Arc::new(App(told)), hears)
}

/// What the app server is told next: a message's text and those to whom it was sent.
#[track_caller]
pub fn told(hears: &Receiver<(String, Vec<String>)>) -> (String, Vec<String>) {
    hears.recv_timeout(PATIENCE).expect("the webhook is told")
}

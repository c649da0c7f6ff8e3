//! What clients say to brokers and read from them, by protocol: binary ones, which no file describes. The brokers on the other end
//! are mosquitto, nats-server or others: what they do not understand fails the run.
//!
//! - [`mqtt`]: MQTT 3.1.1 and 5, by the packets of rumqttc;
//! - [`nats`]: NATS core, whose lines are read here.

mod mqtt;
mod nats;

use mqtt::MqttVersion;
use serde::Deserialize;
use std::ops::Range;

/// The protocol of a broker, as drivers name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Protocol {
    #[serde(rename = "mqtt")]
    Mqtt311,
    Mqtt5,
    Nats,
}

/// What a server has sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Packet {
    /// The connection is accepted; of a receiver, its subscription too.
    Ready,
    /// A message's payload, as a range of the bytes that were read.
    Message(Range<usize>),
    /// The server asks whether the client is there.
    Ping,
    /// What needs no answer.
    Other,
}

impl Protocol {
    /// What a client writes as soon as it is connected: who it is, and with `topic` what it subscribes to.
    pub(super) fn put_hello(self, name: &str, topic: Option<&str>, out: &mut Vec<u8>) {
        match self.mqtt_version() {
            Some(version) => mqtt::put_hello(version, name, topic, out),
            None => nats::put_hello(name, topic, out),
        }
    }

    /// A message to all receivers, with the lowest assurance that the protocol has: no broker stores it.
    pub(super) fn put_publish(self, topic: &str, payload: &[u8], out: &mut Vec<u8>) {
        match self.mqtt_version() {
            Some(version) => mqtt::put_publish(version, topic, payload, out),
            None => nats::put_publish(topic, payload, out),
        }
    }

    pub(super) fn put_pong(self, out: &mut Vec<u8>) {
        if self == Protocol::Nats {
            out.extend_from_slice(nats::PONG);
        }
    }

    /// The first packet in these bytes with its length; `None` while it is incomplete. `subscribes`: the client's
    /// subscription is answered, too, by MQTT.
    pub(super) fn read(self, bytes: &[u8], subscribes: bool) -> Result<Option<(Packet, usize)>, String> {
        match self.mqtt_version() {
            Some(version) => mqtt::read(version, bytes, subscribes),
            None => nats::read(bytes),
        }
    }

    fn mqtt_version(self) -> Option<MqttVersion> {
        match self {
            Protocol::Mqtt311 => Some(MqttVersion::V311),
            Protocol::Mqtt5 => Some(MqttVersion::V5),
            Protocol::Nats => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Reads every packet, with the bytes arriving one by one.
    pub(super) fn all(protocol: Protocol, bytes: &[u8], subscribes: bool) -> Vec<(Packet, Vec<u8>)> {
        let (mut found, mut start) = (Vec::new(), 0);
        for end in 0..=bytes.len() {
            if let Some((packet, length)) = protocol.read(&bytes[start..end], subscribes).unwrap() {
                let payload = match &packet {
                    Packet::Message(range) => bytes[start + range.start..start + range.end].to_vec(),
                    _ => Vec::new(),
                };
                assert_eq!(length, end - start, "taken when it is complete");
                found.push((packet, payload));
                start = end;
            }
        }
        assert_eq!(start, bytes.len());
        found
    }
}

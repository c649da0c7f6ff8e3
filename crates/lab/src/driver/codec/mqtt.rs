//! MQTT 3.1.1 and 5 with QoS 0, by the packets of rumqttc. Its event loop is not used: ten thousand connections in one reactor are what
//! the load takes.

use super::Packet;
use bytes::BytesMut;
use rumqttc::{
    mqttbytes::{self, QoS, v4},
    v5::mqttbytes::{QoS as QoS5, v5},
};
use std::fmt::Display;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MqttVersion {
    V311,
    V5,
}

/// The longest packet that is read: far longer than any body of a run.
const PACKET_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Of the only subscription of a connection.
const SUBSCRIPTION_ID: u16 = 1;

fn told(error: impl Display) -> String {
    error.to_string()
}

/// Our own packets are as the protocol wants them; one that is too long for it is not sent, and then counts as lost.
pub(super) fn put_hello(version: MqttVersion, name: &str, topic: Option<&str>, out: &mut Vec<u8>) {
    let mut bytes = BytesMut::new();
    // A clean session, and no keep-alive.
    match version {
        MqttVersion::V311 => {
            let _ = v4::Connect { keep_alive: 0, ..v4::Connect::new(name) }.write(&mut bytes);
            if let Some(topic) = topic {
                let subscribe = v4::Subscribe { pkid: SUBSCRIPTION_ID, ..v4::Subscribe::new(topic, QoS::AtMostOnce) };
                let _ = subscribe.write(&mut bytes);
            }
        }
        MqttVersion::V5 => {
            let connect = v5::Connect { keep_alive: 0, client_id: name.into(), clean_start: true, properties: None };
            let _ = connect.write(&None, &None, &mut bytes);
            if let Some(topic) = topic {
                let filter = v5::Filter::new(topic, QoS5::AtMostOnce);
                let _ = v5::Subscribe { pkid: SUBSCRIPTION_ID, ..v5::Subscribe::new(filter, None) }.write(&mut bytes);
            }
        }
    }
    out.extend_from_slice(&bytes);
}

pub(super) fn put_publish(version: MqttVersion, topic: &str, payload: &[u8], out: &mut Vec<u8>) {
    let mut bytes = BytesMut::with_capacity(payload.len() + topic.len() + 16);
    let _ = match version {
        MqttVersion::V311 => v4::Publish::new(topic, QoS::AtMostOnce, payload).write(&mut bytes).map_err(told),
        MqttVersion::V5 => {
            v5::Publish::new(topic, QoS5::AtMostOnce, payload.to_vec(), None).write(&mut bytes).map_err(told)
        }
    };
    out.extend_from_slice(&bytes);
}

pub(super) fn read(version: MqttVersion, bytes: &[u8], subscribes: bool) -> Result<Option<(Packet, usize)>, String> {
    // The fixed header is the same in both versions.
    let length = match mqttbytes::check(bytes.iter(), PACKET_BYTES_MAX) {
        Ok(header) => header.frame_length(),
        Err(mqttbytes::Error::InsufficientBytes(_)) => return Ok(None),
        Err(error) => return Err(told(error)),
    };
    let mut packet = BytesMut::from(&bytes[..length]);
    let accepted = || if subscribes { Packet::Other } else { Packet::Ready };
    // The payload is what a packet ends with.
    let message = |payload: usize| Packet::Message(length - payload..length);
    let packet = match version {
        MqttVersion::V311 => match v4::Packet::read(&mut packet, PACKET_BYTES_MAX).map_err(told)? {
            v4::Packet::Publish(publish) => message(publish.payload.len()),
            v4::Packet::ConnAck(v4::ConnAck { code: v4::ConnectReturnCode::Success, .. }) => accepted(),
            v4::Packet::ConnAck(refused) => return Err(format!("the connection was refused: {:?}", refused.code)),
            v4::Packet::SubAck(answer) => match answer.return_codes[..] {
                [v4::SubscribeReasonCode::Success(_)] => Packet::Ready,
                _ => return Err(format!("the subscription was refused: {:?}", answer.return_codes)),
            },
            other => return Err(format!("an unexpected packet: {other:?}")),
        },
        MqttVersion::V5 => match v5::Packet::read(&mut packet, None).map_err(told)? {
            v5::Packet::Publish(publish) => message(publish.payload.len()),
            v5::Packet::ConnAck(v5::ConnAck { code: v5::ConnectReturnCode::Success, .. }) => accepted(),
            v5::Packet::ConnAck(refused) => return Err(format!("the connection was refused: {:?}", refused.code)),
            v5::Packet::SubAck(answer) => match answer.return_codes[..] {
                [v5::SubscribeReasonCode::Success(_)] => Packet::Ready,
                _ => return Err(format!("the subscription was refused: {:?}", answer.return_codes)),
            },
            // Only version 5 lets a server say why it ends a connection.
            v5::Packet::Disconnect(why) => return Err(format!("it disconnects: {:?}", why.reason_code)),
            other => return Err(format!("an unexpected packet: {other:?}")),
        },
    };
    Ok(Some((packet, length)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{
        super::{Protocol, tests::all},
        *,
    };

    #[test]
    fn packets_of_version_3_1_1_are_read_from_any_parts() {
        // CONNACK, SUBACK, and a PUBLISH to "a/b", byte by byte as in the standard's figures 3.9, 3.26 and 3.11.
        let bytes = [&[0x20, 2, 0, 0, 0x90, 3, 0, 1, 0, 0x30, 9, 0, 3][..], b"a/b", b"1234"].concat();
        let packets = all(Protocol::Mqtt311, &bytes, true);
        assert_eq!((&packets[0].0, &packets[1].0), (&Packet::Other, &Packet::Ready));
        assert_eq!(packets[2].1, b"1234");
        let long = [&[0x30, 0x85, 0x02, 0, 3][..], b"a/b", &[7; 256]].concat();
        assert_eq!(all(Protocol::Mqtt311, &long, true)[0].1, [7; 256]);
        assert!(Protocol::Mqtt311.read(&[0x20, 2, 0, 5], false).unwrap_err().contains("refused"));
        assert!(Protocol::Mqtt311.read(&[0x30, 0xFF, 0xFF, 0xFF, 0xFF], false).is_err());
    }

    #[test]
    fn packets_of_version_5_are_read_from_any_parts() {
        // CONNACK with a topic alias maximum, SUBACK without properties, PUBLISH to "a/b" with a content type.
        let bytes = [
            &[0x20, 6, 0, 0, 3, 0x22, 0, 10, 0x90, 4, 0, 1, 0, 0, 0x30, 14, 0, 3][..],
            b"a/b",
            &[4, 3, 0, 1, b'x'],
            b"1234",
        ]
        .concat();
        let packets = all(Protocol::Mqtt5, &bytes, true);
        assert_eq!((&packets[0].0, &packets[1].0), (&Packet::Other, &Packet::Ready));
        assert_eq!(packets[2].1, b"1234");
        // "Not authorized" of a connection and of a subscription; "server shutting down".
        assert!(Protocol::Mqtt5.read(&[0x20, 3, 0, 0x87, 0], false).unwrap_err().contains("refused: NotAuthorized"));
        assert!(Protocol::Mqtt5.read(&[0x90, 4, 0, 1, 0, 0x87], true).unwrap_err().contains("refused"));
        assert!(Protocol::Mqtt5.read(&[0xE0, 2, 0x8B, 0], true).unwrap_err().contains("ServerShuttingDown"));
    }

    #[test]
    fn what_a_client_writes_is_of_its_version() {
        for (protocol, level) in [(Protocol::Mqtt311, 4), (Protocol::Mqtt5, 5)] {
            let mut out = Vec::new();
            protocol.put_hello("lab-1", Some("a"), &mut out);
            assert_eq!(out[2..9], [0, 4, b'M', b'Q', b'T', b'T', level]);
            assert_eq!(out[9..12], [0b10, 0, 0], "a clean session without keep-alive");
            let connect = 2 + usize::from(out[1]);
            assert_eq!(out[connect], 0x82, "then the subscription");
            out.clear();
            protocol.put_publish("a", b"xyz", &mut out);
            assert_eq!((out[0], out.ends_with(b"xyz")), (0x30, true));
        }
    }
}

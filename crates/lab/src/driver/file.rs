//! A driver's file as it is written. What the keys mean, and which go together, is checked when a
//! [`Driver`](super::description::Driver) is made of it; docs/drivers.md describes each.

use super::codec::Protocol;
use crate::toml_file::Time;
use serde::Deserialize;
use std::collections::BTreeMap;
use toml::Spanned;

/// Whether a file is of a broker.
#[derive(Debug, Deserialize)]
pub(super) struct DriverKind {
    pub(super) protocol: Option<toml::Value>,
}

/// Of a broker: its protocol says all else.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BrokerFile {
    pub(super) name: String,
    pub(super) about: String,
    pub(super) protocol: Protocol,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DriverFile {
    pub(super) name: String,
    pub(super) about: String,
    pub(super) token: Option<TokenFile>,
    pub(super) session: SessionFile,
    pub(super) login: Option<ExchangeFile>,
    pub(super) subscribe: Option<ExchangeFile>,
    pub(super) publish: Spanned<PublishFile>,
    pub(super) delivery: DeliveryFile,
    pub(super) refused: Option<Spanned<MatchFile>>,
    pub(super) heartbeat: Option<HeartbeatFile>,
    #[serde(default)]
    pub(super) reply: Vec<ReplyFile>,
    pub(super) acknowledge: Option<AcknowledgeFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SessionFile {
    pub(super) path: Spanned<String>,
    #[serde(default)]
    pub(super) headers: BTreeMap<Spanned<String>, Spanned<String>>,
    /// A frame has several messages, each in a line.
    #[serde(default)]
    pub(super) lines: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenFile {
    pub(super) request: RequestFile,
    #[serde(rename = "at")]
    pub(super) place: Spanned<PlaceFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RequestFile {
    pub(super) method: Option<Spanned<String>>,
    pub(super) path: Spanned<String>,
    #[serde(default)]
    pub(super) headers: BTreeMap<Spanned<String>, Spanned<String>>,
    pub(super) body: Option<Spanned<String>>,
}

/// A frame, and the message that answers it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExchangeFile {
    pub(super) frame: Spanned<String>,
    pub(super) answer: Option<Spanned<MatchFile>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PublishFile {
    pub(super) frame: Option<Spanned<String>>,
    pub(super) answer: Option<Spanned<MatchFile>>,
    pub(super) request: Option<RequestFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeliveryFile {
    pub(super) marker: Spanned<PlaceFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HeartbeatFile {
    pub(super) every: Spanned<Time>,
    pub(super) frame: Spanned<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplyFile {
    pub(super) to: Spanned<MatchFile>,
    pub(super) frame: Spanned<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AcknowledgeFile {
    pub(super) id: Spanned<PlaceFile>,
    pub(super) frame: Spanned<String>,
}

/// Where something stands in a message: one of the two.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlaceFile {
    pub(super) pointer: Option<Spanned<String>>,
    pub(super) between: Option<Spanned<[String; 2]>>,
}

/// Which messages are meant: one of the four.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MatchFile {
    pub(super) is: Option<Spanned<String>>,
    pub(super) begins: Option<Spanned<String>>,
    pub(super) contains: Option<Spanned<String>>,
    pub(super) pointer: Option<Spanned<String>>,
}

//! A driver's file: what clients send, and what they look for. docs/drivers.md describes each key.

use super::{
    codec::Protocol,
    message::{Matcher, Place},
    template::{
        InAcknowledgements, InFrames, InPublishRequests, InPublishes, InRequests, InSessions, Known, Placeholder,
        Template, Text, Values,
    },
};
use crate::toml_file::{Mistake, Time};
use serde::{Deserialize, Deserializer, de::Error};
use std::{collections::BTreeMap, time::Duration};

/// How to speak to a server that others wrote.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Driver {
    pub(crate) name: String,
    pub(crate) about: String,
    /// What a broker speaks; nothing else of it is described. Unset: a WebSocket server.
    #[serde(skip)]
    pub(super) broker: Option<Protocol>,
    pub(super) token: Option<TokenSource>,
    pub(super) session: Session,
    pub(super) login: Option<Exchange<InFrames>>,
    pub(super) subscribe: Option<Exchange<InFrames>>,
    pub(super) publish: Publish,
    /// Unset: a broker hands out the marker alone.
    #[serde(deserialize_with = "given")]
    pub(super) delivery: Option<Delivery>,
    pub(super) refused: Option<Matcher>,
    pub(super) heartbeat: Option<Heartbeat>,
    #[serde(default, rename = "reply")]
    pub(super) replies: Vec<Reply>,
    pub(super) acknowledge: Option<Acknowledge>,
}

/// Whether a file is of a broker.
#[derive(Debug, Deserialize)]
struct DriverKind {
    protocol: Option<toml::Value>,
}

/// Of a broker: its protocol says all else.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BrokerFile {
    name: String,
    about: String,
    protocol: Protocol,
}

/// The request that each client gets its token from, and where in the answer that stands.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenSource {
    pub(super) request: Request<InRequests>,
    #[serde(rename = "at")]
    pub(super) place: Place,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Session {
    #[serde(deserialize_with = "path")]
    pub(super) path: Text<InSessions>,
    #[serde(default, deserialize_with = "headers")]
    pub(super) headers: Headers<InSessions>,
    /// A frame has several messages, each in a line.
    #[serde(default)]
    pub(super) lines: bool,
}

pub(super) type Headers<K> = BTreeMap<HeaderName, Text<K>>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, bound = "K: Known")]
pub(super) struct Request<K> {
    #[serde(default)]
    method: Method,
    #[serde(deserialize_with = "path")]
    path: Text<K>,
    #[serde(default = "BTreeMap::new", deserialize_with = "headers")]
    headers: Headers<K>,
    body: Option<Text<K>>,
}

/// A frame, and the message that answers it; without one it counts as answered.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, bound = "K: Known")]
pub(super) struct Exchange<K> {
    pub(super) frame: Text<K>,
    pub(super) answer: Option<Matcher>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Delivery {
    pub(super) marker: Place,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Heartbeat {
    #[serde(deserialize_with = "interval")]
    pub(super) every: Duration,
    pub(super) frame: Text<InFrames>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reply {
    pub(super) to: Matcher,
    pub(super) frame: Text<InFrames>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Acknowledge {
    pub(super) id: Place,
    pub(super) frame: Text<InAcknowledgements>,
}

/// How a message is published: on the sender's session, or by HTTP.
#[derive(Debug, Deserialize)]
#[serde(try_from = "PublishFile")]
pub(super) enum Publish {
    Frame(Exchange<InPublishes>),
    Request(Request<InPublishRequests>),
}

/// Without an answer: no broker answers what it does not store.
impl Default for Publish {
    fn default() -> Self {
        Publish::Frame(Exchange::default())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishFile {
    frame: Option<Text<InPublishes>>,
    answer: Option<Matcher>,
    request: Option<Request<InPublishRequests>>,
}

impl TryFrom<PublishFile> for Publish {
    type Error = &'static str;

    fn try_from(file: PublishFile) -> Result<Self, &'static str> {
        match file {
            PublishFile { frame: Some(frame), answer, request: None } => Ok(Publish::Frame(Exchange { frame, answer })),
            PublishFile { frame: None, answer: Some(_), request: Some(_) } => {
                Err("a request has an answer of its own: `refused` says which of them are refusals")
            }
            PublishFile { frame: None, answer: None, request: Some(request) } => {
                let in_body = request.body.as_ref().is_some_and(|body| body.has(Placeholder::Marker));
                if in_body || request.path.has(Placeholder::Marker) {
                    Ok(Publish::Request(request))
                } else {
                    Err("a request must have {marker} in its path or its body: deliveries are told apart by it")
                }
            }
            _ => Err("must have one of `frame` and `request`"),
        }
    }
}

impl Driver {
    pub(super) fn read(text: &str) -> Result<Self, Mistake> {
        if toml::from_str::<DriverKind>(text)?.protocol.is_none() {
            return Ok(toml::from_str(text)?);
        }
        let BrokerFile { name, about, protocol } = toml::from_str(text)?;
        Ok(Driver { name, about, broker: Some(protocol), ..Driver::default() })
    }

    /// What makes a session: its path, its headers, its login and its token.
    fn of_sessions(&self) -> Vec<&Template> {
        let token = self.token.iter().flat_map(|token| token.request.templates());
        let headers = self.session.headers.values().map(|value| &**value);
        let login = self.login.iter().map(|login| &*login.frame);
        token.chain(headers).chain(login).chain([&*self.session.path]).collect()
    }

    /// Whether a placeholder needs a value from the options.
    pub(super) fn needs(&self, placeholder: Placeholder) -> bool {
        let mut templates = self.of_sessions();
        templates.extend(self.subscribe.iter().map(|subscribe| &*subscribe.frame));
        match &self.publish {
            Publish::Frame(exchange) => templates.push(&exchange.frame),
            Publish::Request(request) => templates.extend(request.templates()),
        }
        templates.extend(self.heartbeat.iter().map(|heartbeat| &*heartbeat.frame));
        templates.extend(self.replies.iter().map(|reply| &*reply.frame));
        templates.extend(self.acknowledge.iter().map(|acknowledge| &*acknowledge.frame));
        templates.iter().any(|template| template.has(placeholder))
    }

    /// Whether a session is made for one channel.
    pub(super) fn binds_sessions_to_channels(&self) -> bool {
        self.of_sessions().iter().any(|template| template.has(Placeholder::Channel))
    }

    /// Whether senders have a session of their own, and publish on it.
    pub(super) fn publishes_on_sessions(&self) -> bool {
        matches!(self.publish, Publish::Frame(_))
    }

    /// Whether the server tells that it has taken a message.
    pub(super) fn has_answers(&self) -> bool {
        match &self.publish {
            Publish::Frame(exchange) => exchange.answer.is_some(),
            Publish::Request(_) => true,
        }
    }
}

impl<K: Known> Request<K> {
    fn templates(&self) -> impl Iterator<Item = &Template> {
        let headers = self.headers.values().map(|value| &**value);
        headers.chain([&*self.path]).chain(self.body.as_deref())
    }

    pub(super) fn put(&self, values: &Values<'_>, host: &str, out: &mut Vec<u8>) {
        let body = self.body.as_ref().map(|body| body.fill(values)).unwrap_or_default();
        put_head(out, &self.method.0, &self.path, &self.headers, values, host);
        if !has_header(&self.headers, "content-type") {
            out.extend_from_slice(b"Content-Type: application/json\r\n");
        }
        out.extend_from_slice(format!("Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
    }
}

/// The request line and the headers, without the empty line.
pub(super) fn put_head<K>(
    out: &mut Vec<u8>,
    method: &str,
    path: &Template,
    headers: &Headers<K>,
    values: &Values<'_>,
    host: &str,
) {
    out.extend_from_slice(format!("{method} {} HTTP/1.1\r\n", path.fill(values)).as_bytes());
    if !has_header(headers, "host") {
        out.extend_from_slice(format!("Host: {host}\r\n").as_bytes());
    }
    for (HeaderName(name), value) in headers {
        out.extend_from_slice(format!("{name}: {}\r\n", value.fill(values)).as_bytes());
    }
}

fn has_header<K>(headers: &Headers<K>, wanted: &str) -> bool {
    headers.keys().any(|HeaderName(name)| name.eq_ignore_ascii_case(wanted))
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Method(String);

impl Default for Method {
    fn default() -> Self {
        Method("POST".to_owned())
    }
}

impl TryFrom<String> for Method {
    type Error = &'static str;

    fn try_from(method: String) -> Result<Self, &'static str> {
        let is_word = !method.is_empty() && method.chars().all(|c| c.is_ascii_uppercase());
        is_word.then_some(Method(method)).ok_or("a method is a word such as `POST`")
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct HeaderName(String);

/// What the lab writes itself.
const OWN_HEADERS: [&str; 7] = [
    "connection",
    "content-length",
    "sec-websocket-extensions",
    "sec-websocket-key",
    "sec-websocket-version",
    "transfer-encoding",
    "upgrade",
];

impl TryFrom<String> for HeaderName {
    type Error = &'static str;

    fn try_from(name: String) -> Result<Self, &'static str> {
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_') {
            return Err("a header's name is of letters, digits, `-` and `_`");
        }
        if OWN_HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
            return Err("this header is the lab's to write");
        }
        Ok(HeaderName(name))
    }
}

fn headers<'de, D: Deserializer<'de>, K: Known>(deserializer: D) -> Result<Headers<K>, D::Error> {
    let headers = Headers::<K>::deserialize(deserializer)?;
    if headers.values().all(|value| value.is_one_line()) {
        Ok(headers)
    } else {
        Err(D::Error::custom("a header is one line"))
    }
}

fn path<'de, D: Deserializer<'de>, K: Known>(deserializer: D) -> Result<Text<K>, D::Error> {
    let path = String::deserialize(deserializer)?;
    if !path.starts_with('/') {
        return Err(D::Error::custom("a path begins with `/`"));
    }
    if path.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(D::Error::custom("a path has no spaces"));
    }
    Text::of(&path).map_err(D::Error::custom)
}

fn interval<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let Time(every) = Time::deserialize(deserializer)?;
    if every.is_zero() { Err(D::Error::custom("must be above 0")) } else { Ok(every) }
}

/// Unlike other optional keys, one that must be there.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

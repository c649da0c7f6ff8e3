//! A driver whose parts go together: what clients send, and what they look for.

use super::{
    codec::Protocol,
    file::{BrokerFile, DriverFile, DriverKind, ExchangeFile, MatchFile, PublishFile, RequestFile},
    message::{Matcher, Place},
    template::{IN_ACKNOWLEDGEMENTS, IN_FRAMES, IN_PUBLISHES, IN_REQUESTS, IN_SESSIONS, Placeholder, Template, Values},
};
use crate::toml_file::Mistake;
use std::{collections::BTreeMap, time::Duration};
use toml::Spanned;

/// How to speak to a server that others wrote.
#[derive(Debug, Default)]
pub(crate) struct Driver {
    pub(crate) name: String,
    pub(crate) about: String,
    /// What a broker speaks; nothing else of it is described. Unset: a WebSocket server.
    pub(super) broker: Option<Protocol>,
    /// The request that each client gets its token from, and where in the answer that stands.
    pub(super) token: Option<(Request, Place)>,
    pub(super) path: Template,
    pub(super) headers: Vec<(String, Template)>,
    pub(super) lines: bool,
    pub(super) login: Option<Exchange>,
    pub(super) subscribe: Option<Exchange>,
    pub(super) publish: Publish,
    /// Unset: a broker hands out the marker alone.
    pub(super) marker: Option<Place>,
    pub(super) refused: Option<Matcher>,
    pub(super) heartbeat: Option<(Duration, Template)>,
    pub(super) replies: Vec<(Matcher, Template)>,
    pub(super) acknowledge: Option<(Place, Template)>,
}

#[derive(Debug)]
pub(super) struct Request {
    method: String,
    path: Template,
    headers: Vec<(String, Template)>,
    body: Template,
}

/// A frame, and the message that answers it; without one it counts as answered.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    pub(super) frame: Template,
    pub(super) answer: Option<Matcher>,
}

/// Without an answer: no broker answers what it does not store.
impl Default for Publish {
    fn default() -> Self {
        Publish::Frame(Exchange::default())
    }
}

/// How a message is published: on the sender's session, or by HTTP.
#[derive(Debug)]
pub(super) enum Publish {
    Frame(Exchange),
    Request(Request),
}

impl Driver {
    pub(super) fn read(text: &str) -> Result<Self, Mistake> {
        match toml::from_str::<DriverKind>(text)?.protocol {
            None => Driver::of(&toml::from_str(text)?),
            Some(_) => Ok(Driver::of_broker(toml::from_str(text)?)),
        }
    }

    fn of_broker(BrokerFile { name, about, protocol }: BrokerFile) -> Self {
        Driver { name, about, broker: Some(protocol), ..Driver::default() }
    }

    fn of(file: &DriverFile) -> Result<Self, Mistake> {
        let exchange = |file: &Option<ExchangeFile>| file.as_ref().map(exchange_of).transpose();
        let driver = Driver {
            name: file.name.clone(),
            about: file.about.clone(),
            broker: None,
            token: match &file.token {
                Some(token) => Some((Request::of(&token.request, IN_REQUESTS)?, Place::of(&token.place)?)),
                None => None,
            },
            path: path_of(&file.session.path, IN_SESSIONS)?,
            headers: headers_of(&file.session.headers, IN_SESSIONS)?,
            lines: file.session.lines,
            login: exchange(&file.login)?,
            subscribe: exchange(&file.subscribe)?,
            publish: Publish::of(&file.publish)?,
            marker: Some(Place::of(&file.delivery.marker)?),
            refused: matcher_of(&file.refused)?,
            heartbeat: match &file.heartbeat {
                Some(heartbeat) if heartbeat.every.get_ref().0.is_zero() => {
                    return Err(Mistake::at(heartbeat.every.span(), "must be above 0"));
                }
                Some(heartbeat) => Some((heartbeat.every.get_ref().0, Template::of(&heartbeat.frame, IN_FRAMES)?)),
                None => None,
            },
            replies: (file.reply.iter())
                .map(|reply| Ok((Matcher::of(&reply.to)?, Template::of(&reply.frame, IN_FRAMES)?)))
                .collect::<Result<_, Mistake>>()?,
            acknowledge: match &file.acknowledge {
                Some(file) => Some((Place::of(&file.id)?, Template::of(&file.frame, IN_ACKNOWLEDGEMENTS)?)),
                None => None,
            },
        };
        Ok(driver)
    }

    /// Whether a placeholder needs a value from the options.
    pub(super) fn needs(&self, placeholder: Placeholder) -> bool {
        let in_exchange = |exchange: &Option<Exchange>| exchange.as_ref().is_some_and(|one| one.frame.has(placeholder));
        let in_request = |request: &Request| request.has(placeholder);
        let in_publish = match &self.publish {
            Publish::Frame(exchange) => exchange.frame.has(placeholder),
            Publish::Request(request) => in_request(request),
        };
        let in_frames = self.heartbeat.iter().any(|(_, frame)| frame.has(placeholder))
            || self.replies.iter().any(|(_, frame)| frame.has(placeholder))
            || self.acknowledge.iter().any(|(_, frame)| frame.has(placeholder));
        in_publish
            || in_frames
            || in_exchange(&self.login)
            || in_exchange(&self.subscribe)
            || self.path.has(placeholder)
            || self.headers.iter().any(|(_, value)| value.has(placeholder))
            || self.token.as_ref().is_some_and(|(request, _)| in_request(request))
    }

    /// Whether a session is made for one channel, by its path, its headers or its login.
    pub(super) fn binds_sessions_to_channels(&self) -> bool {
        let has = |template: &Template| template.has(Placeholder::Channel);
        let token = self.token.as_ref().is_some_and(|(request, _)| request.has(Placeholder::Channel));
        has(&self.path)
            || self.headers.iter().any(|(_, value)| has(value))
            || self.login.as_ref().is_some_and(|login| has(&login.frame))
            || token
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

impl Request {
    fn of(file: &RequestFile, known: &[Placeholder]) -> Result<Self, Mistake> {
        let method = match &file.method {
            None => "POST".to_owned(),
            Some(method)
                if method.get_ref().chars().all(|c| c.is_ascii_uppercase()) && !method.get_ref().is_empty() =>
            {
                method.get_ref().clone()
            }
            Some(method) => return Err(Mistake::at(method.span(), "a method is a word such as `POST`")),
        };
        Ok(Request {
            method,
            path: path_of(&file.path, known)?,
            headers: headers_of(&file.headers, known)?,
            body: file.body.as_ref().map(|body| Template::of(body, known)).transpose()?.unwrap_or_default(),
        })
    }

    fn has(&self, placeholder: Placeholder) -> bool {
        let headers = self.headers.iter().any(|(_, value)| value.has(placeholder));
        headers || self.path.has(placeholder) || self.body.has(placeholder)
    }

    pub(super) fn put(&self, values: &Values<'_>, host: &str, out: &mut Vec<u8>) {
        let body = self.body.fill(values);
        put_head(out, &self.method, &self.path, &self.headers, values, host);
        if !self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
            out.extend_from_slice(b"Content-Type: application/json\r\n");
        }
        out.extend_from_slice(format!("Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
    }
}

/// The request line and the headers, without the empty line.
pub(super) fn put_head(
    out: &mut Vec<u8>,
    method: &str,
    path: &Template,
    headers: &[(String, Template)],
    values: &Values<'_>,
    host: &str,
) {
    out.extend_from_slice(format!("{method} {} HTTP/1.1\r\n", path.fill(values)).as_bytes());
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        out.extend_from_slice(format!("Host: {host}\r\n").as_bytes());
    }
    for (name, value) in headers {
        out.extend_from_slice(format!("{name}: {}\r\n", value.fill(values)).as_bytes());
    }
}

impl Publish {
    fn of(written: &Spanned<PublishFile>) -> Result<Self, Mistake> {
        let file = written.get_ref();
        let publish = match (&file.frame, &file.request) {
            (Some(frame), None) => Publish::Frame(Exchange {
                frame: Template::of(frame, IN_PUBLISHES)?,
                answer: matcher_of(&file.answer)?,
            }),
            (None, Some(request)) => {
                if let Some(answer) = &file.answer {
                    let what = "a request has an answer of its own: `refused` says which of them are refusals";
                    return Err(Mistake::at(answer.span(), what));
                }
                // A request has no place among the frames of a session.
                let known = [IN_SESSIONS, &[Placeholder::Marker]].concat();
                Publish::Request(Request::of(request, &known)?)
            }
            _ => return Err(Mistake::at(written.span(), "must have one of `frame` and `request`")),
        };
        let (place, has_marker) = match (&publish, &file.frame, &file.request) {
            (Publish::Frame(exchange), Some(frame), _) => (frame.span(), exchange.frame.has(Placeholder::Marker)),
            (Publish::Request(request), _, Some(file)) => {
                let span = file.body.as_ref().map_or(file.path.span(), Spanned::span);
                (span, request.body.has(Placeholder::Marker) || request.path.has(Placeholder::Marker))
            }
            _ => (written.span(), true),
        };
        if has_marker {
            Ok(publish)
        } else {
            Err(Mistake::at(place, "must have {marker}: deliveries are told apart by it"))
        }
    }
}

fn exchange_of(file: &ExchangeFile) -> Result<Exchange, Mistake> {
    Ok(Exchange { frame: Template::of(&file.frame, IN_FRAMES)?, answer: matcher_of(&file.answer)? })
}

fn matcher_of(written: &Option<Spanned<MatchFile>>) -> Result<Option<Matcher>, Mistake> {
    written.as_ref().map(Matcher::of).transpose()
}

fn path_of(written: &Spanned<String>, known: &[Placeholder]) -> Result<Template, Mistake> {
    match written.get_ref() {
        path if !path.starts_with('/') => Err(Mistake::at(written.span(), "a path begins with `/`")),
        path if path.contains(|c: char| c.is_whitespace() || c.is_control()) => {
            Err(Mistake::at(written.span(), "a path has no spaces"))
        }
        _ => Template::of(written, known),
    }
}

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

fn headers_of(
    written: &BTreeMap<Spanned<String>, Spanned<String>>,
    known: &[Placeholder],
) -> Result<Vec<(String, Template)>, Mistake> {
    let header = |(name, value): (&Spanned<String>, &Spanned<String>)| {
        let text = name.get_ref();
        if text.is_empty() || !text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_') {
            return Err(Mistake::at(name.span(), "a header's name is of letters, digits, `-` and `_`"));
        }
        if OWN_HEADERS.contains(&text.to_ascii_lowercase().as_str()) {
            return Err(Mistake::at(name.span(), "this header is the lab's to write"));
        }
        if value.get_ref().contains(char::is_control) {
            return Err(Mistake::at(value.span(), "a header is one line"));
        }
        Ok((text.clone(), Template::of(value, known)?))
    };
    written.iter().map(header).collect()
}

//! The populations of a scenario: who takes part, and how many.

use crate::{
    client_engine::http::ConnectionUse,
    message_clients::ChatSpec,
    mix::share::MixShare,
    options::SendProtocol,
    scenario::{
        file::{PopulationFile, PopulationKind},
        values::Via,
    },
    toml_file::{Mistake, Time},
};
use std::{ops::Range, time::Duration};
use toml::Spanned;

/// A population whose keys go together.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Population {
    pub(crate) members: Members,
    /// Its load client has the lowest priority and may run on any core, so that it does not delay one that measures.
    pub(crate) background: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Members {
    Conversation {
        official: bool,
        members: usize,
        online: usize,
        senders: usize,
        via: SendProtocol,
        /// Every member online says once in this interval what it has stored and read.
        receipts: Option<Duration>,
        texts: Texts,
    },
    Direct {
        pairs: usize,
        /// Of so many the recipient is offline, and another session of the sender receives.
        offline: usize,
        senders: usize,
        via: SendProtocol,
        texts: Texts,
    },
    /// Pairs of users without a conversation: the message opens it.
    NewConversations {
        pairs: usize,
        senders: usize,
        texts: Texts,
    },
    /// Devices that are bound while the phase lasts.
    Devices {
        devices: usize,
        over_websocket: bool,
    },
    /// Users whose connections come and go.
    Connections {
        users: usize,
        over_websocket: bool,
        stay: Option<Duration>,
    },
    /// The authors of a recorded chat, all in one group.
    Chat(ChatSpec),
    PopupUsers(PopupUsers),
    Streams(Streams),
}

/// Messages that grow, each in a group of its writer and its readers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Streams {
    pub(crate) streams: usize,
    pub(crate) readers: usize,
    pub(crate) chunk_bytes: usize,
}

/// Users who are decided for, and the popups that there are for them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PopupUsers {
    pub(crate) users: u32,
    pub(crate) popups: usize,
    pub(crate) connections: usize,
    pub(crate) connection_use: ConnectionUse,
    /// Between two popups of a user.
    pub(crate) gap_s: u64,
    /// Users who are due and nevertheless told to come back, of those asked for, at most.
    pub(crate) nothing_share: f64,
}

/// The messages that a population sends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Texts {
    pub(crate) body_bytes: usize,
    /// Unanswered sends per WebSocket session.
    pub(crate) pipeline: usize,
}

const SENDERS: usize = 16;
const BODY_BYTES: usize = 200;
const PIPELINE: usize = 64;
const POPUPS: usize = 100;
const POPUP_CONNECTIONS: usize = 32;
/// The shortest gap: for a second before its end a user is not asked for.
const GAP_S_MIN: u64 = 3;
const NOTHING_SHARE: f64 = 0.01;
const READERS: usize = 2;
const CHUNK_BYTES: usize = 20;
/// The shortest chunk: the numbers of stream and chunk, and what separates them.
const CHUNK_BYTES_MIN: usize = 12;

/// The keys of each kind.
fn keys_of(kind: PopulationKind) -> &'static [&'static str] {
    match kind {
        PopulationKind::Group | PopulationKind::Official => &[
            "members",
            "online",
            "offline_share",
            "senders",
            "via",
            "receipts",
            "body_bytes",
            "pipeline",
            "background",
        ],
        PopulationKind::Direct => &["pairs", "offline_share", "senders", "via", "body_bytes", "pipeline", "background"],
        PopulationKind::NewConversations => &["pairs", "senders", "body_bytes", "background"],
        PopulationKind::Devices => &["devices", "via"],
        PopulationKind::Connections => &["users", "via", "stay"],
        PopulationKind::Chat => &["file", "limit", "online", "offline_share", "mix", "background"],
        PopulationKind::PopupUsers => &["users", "popups", "connections", "keep_alive", "gap", "nothing_share"],
        PopulationKind::Streams => &["streams", "readers", "chunk_bytes"],
    }
}

fn span_of<T>(value: &Option<Spanned<T>>) -> Option<Range<usize>> {
    value.as_ref().map(Spanned::span)
}

/// The value of a key, which must be at least 1; `usual` unless it is given.
fn count(value: &Option<Spanned<usize>>, usual: usize) -> Result<usize, Mistake> {
    match value {
        None => Ok(usual),
        Some(value) if *value.get_ref() == 0 => Err(Mistake::at(value.span(), "must be at least 1")),
        Some(value) => Ok(*value.get_ref()),
    }
}

/// The same for a key that must be given.
fn needed(value: &Option<Spanned<usize>>, name: &str, file: &Spanned<PopulationFile>) -> Result<usize, Mistake> {
    match value {
        Some(_) => count(value, 1),
        None => Err(Mistake::at(file.get_ref().kind.span(), format!("a population of this kind needs `{name}`"))),
    }
}

fn send_protocol(via: &Option<Spanned<Via>>) -> Result<SendProtocol, Mistake> {
    match via.as_ref().map(|via| (*via.get_ref(), via.span())) {
        None | Some((Via::Http, _)) => Ok(SendProtocol::Http),
        Some((Via::Ws, _)) => Ok(SendProtocol::Ws),
        Some((Via::Miop, span)) => Err(Mistake::at(span, "messages are sent by `http` or `ws`")),
    }
}

fn over_websocket(via: &Option<Spanned<Via>>) -> Result<bool, Mistake> {
    match via.as_ref().map(|via| (*via.get_ref(), via.span())) {
        None | Some((Via::Miop, _)) => Ok(false),
        Some((Via::Ws, _)) => Ok(true),
        Some((Via::Http, span)) => Err(Mistake::at(span, "connections are opened by `miop` or `ws`")),
    }
}

impl Population {
    /// Whether its work is done by load clients for messages, which agents can start.
    pub(crate) fn sends_messages(&self) -> bool {
        matches!(
            self.members,
            Members::Conversation { .. } | Members::Direct { .. } | Members::NewConversations { .. } | Members::Chat(_)
        )
    }

    /// Whether a driver can load it: conversations that there are from the beginning.
    pub(crate) fn can_be_driven(&self) -> bool {
        matches!(self.members, Members::Conversation { .. } | Members::Direct { .. })
    }

    pub(crate) fn of(written: &Spanned<PopulationFile>) -> Result<Self, Mistake> {
        let file = written.get_ref();
        let kind = *file.kind.get_ref();
        refuse_other_keys(file, keys_of(kind))?;
        let texts =
            Texts { body_bytes: count(&file.body_bytes, BODY_BYTES)?, pipeline: count(&file.pipeline, PIPELINE)? };
        let senders = count(&file.senders, SENDERS)?;
        let members = match kind {
            PopulationKind::Group | PopulationKind::Official => {
                let members = needed(&file.members, "members", written)?;
                let offline = offline_of(file, members)?;
                let online = count(&file.online, members - offline)?;
                if let (Some(share), Some(_)) = (&file.offline_share, &file.online) {
                    return Err(Mistake::at(share.span(), "either `online` or `offline_share`"));
                }
                if online > members {
                    let span = span_of(&file.online).unwrap_or_default();
                    return Err(Mistake::at(span, format!("there are {members} members: no more can be online")));
                }
                let official = kind == PopulationKind::Official;
                let (via, receipts) =
                    (send_protocol(&file.via)?, file.receipts.as_ref().map(|every| every.get_ref().0));
                Members::Conversation { official, members, online, senders, via, receipts, texts }
            }
            PopulationKind::Direct => {
                let pairs = needed(&file.pairs, "pairs", written)?;
                let offline = offline_of(file, pairs)?;
                Members::Direct { pairs, offline, senders, via: send_protocol(&file.via)?, texts }
            }
            PopulationKind::NewConversations => {
                Members::NewConversations { pairs: needed(&file.pairs, "pairs", written)?, senders, texts }
            }
            PopulationKind::Devices => Members::Devices {
                devices: needed(&file.devices, "devices", written)?,
                over_websocket: over_websocket(&file.via)?,
            },
            PopulationKind::Connections => Members::Connections {
                users: needed(&file.users, "users", written)?,
                over_websocket: over_websocket(&file.via)?,
                stay: file.stay.as_ref().map(|stay| stay.get_ref().0),
            },
            PopulationKind::Chat => {
                let Some(path) = &file.file else {
                    return Err(Mistake::at(file.kind.span(), "a population of this kind needs `file`"));
                };
                let mix = file
                    .mix
                    .as_ref()
                    .map(|mix| mix.get_ref().parse::<MixShare>().map_err(|why| Mistake::at(mix.span(), why)));
                Members::Chat(ChatSpec {
                    file: path.get_ref().clone(),
                    limit: file.limit.as_ref().map(|limit| *limit.get_ref()),
                    online: file.online.as_ref().map(|online| *online.get_ref()),
                    offline_share: file.offline_share.as_ref().map(|share| *share.get_ref()),
                    mix: mix.transpose()?.unwrap_or_default(),
                })
            }
            PopulationKind::PopupUsers => {
                let is_kept = file.keep_alive.as_ref().is_none_or(|keep| *keep.get_ref());
                let gap_s = file.gap.as_ref().map_or(GAP_S_MIN, |gap| gap.get_ref().0.as_secs());
                if let Some(gap) = file.gap.as_ref().filter(|_| gap_s < GAP_S_MIN) {
                    return Err(Mistake::at(gap.span(), format!("must be at least {GAP_S_MIN}s")));
                }
                Members::PopupUsers(PopupUsers {
                    users: u32::try_from(needed(&file.users, "users", written)?).unwrap_or(u32::MAX),
                    popups: count(&file.popups, POPUPS)?,
                    connections: count(&file.connections, POPUP_CONNECTIONS)?,
                    connection_use: if is_kept { ConnectionUse::Kept } else { ConnectionUse::OneRequest },
                    gap_s,
                    nothing_share: file.nothing_share.as_ref().map_or(NOTHING_SHARE, |share| *share.get_ref()),
                })
            }
            PopulationKind::Streams => {
                let chunk_bytes = count(&file.chunk_bytes, CHUNK_BYTES)?;
                if chunk_bytes < CHUNK_BYTES_MIN {
                    let span = span_of(&file.chunk_bytes).unwrap_or_default();
                    return Err(Mistake::at(span, format!("must be at least {CHUNK_BYTES_MIN}")));
                }
                let streams = needed(&file.streams, "streams", written)?;
                Members::Streams(Streams { streams, readers: count(&file.readers, READERS)?, chunk_bytes })
            }
        };
        Ok(Population { members, background: file.background.as_ref().is_some_and(|low| *low.get_ref()) })
    }
}

/// How many of so many are offline, and are to be told by offline push.
fn offline_of(file: &PopulationFile, count: usize) -> Result<usize, Mistake> {
    let Some(share) = &file.offline_share else { return Ok(0) };
    let offline = (count as f64 * share.get_ref()).round() as usize;
    if (1..count).contains(&offline) {
        Ok(offline)
    } else {
        Err(Mistake::at(share.span(), "must leave somebody online and somebody offline, such as 0.5"))
    }
}

fn refuse_other_keys(file: &PopulationFile, known: &[&str]) -> Result<(), Mistake> {
    let given = [
        ("members", span_of(&file.members)),
        ("online", span_of(&file.online)),
        ("offline_share", span_of(&file.offline_share)),
        ("pairs", span_of(&file.pairs)),
        ("senders", span_of(&file.senders)),
        ("devices", span_of(&file.devices)),
        ("users", span_of(&file.users)),
        ("popups", span_of(&file.popups)),
        ("connections", span_of(&file.connections)),
        ("via", span_of(&file.via)),
        ("body_bytes", span_of(&file.body_bytes)),
        ("pipeline", span_of(&file.pipeline)),
        ("stay", span_of::<Time>(&file.stay)),
        ("keep_alive", span_of(&file.keep_alive)),
        ("gap", span_of::<Time>(&file.gap)),
        ("nothing_share", span_of(&file.nothing_share)),
        ("streams", span_of(&file.streams)),
        ("readers", span_of(&file.readers)),
        ("chunk_bytes", span_of(&file.chunk_bytes)),
        ("background", span_of(&file.background)),
        ("receipts", span_of::<Time>(&file.receipts)),
        ("file", span_of(&file.file)),
        ("limit", span_of(&file.limit)),
        ("mix", span_of(&file.mix)),
    ];
    for (name, span) in given {
        if let Some(span) = span
            && !known.contains(&name)
        {
            let known: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
            return Err(Mistake::at(
                span,
                format!("a population of this kind has no `{name}`, but {}", known.join(", ")),
            ));
        }
    }
    Ok(())
}

//! The populations of a scenario: who takes part, and how many.

use crate::{
    client_engine::{device::DeviceProtocol, http::ConnectionUse},
    devices::invalid_frames::VECTORS,
    message_clients::ChatSpec,
    mix::share::MixShare,
    options::SendProtocol,
    scenario::{
        file::{PopulationFile, PopulationKind},
        values::Via,
    },
    toml_file::{Mistake, Time},
};
use std::{ops::Range, path::PathBuf, time::Duration};
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
        /// The members' clients ask for compact entries.
        compact: bool,
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
    Devices(DeviceSpec),
    /// Users whose connections come and go.
    Connections {
        devices: DeviceSpec,
        stay: Option<Duration>,
    },
    /// Devices that violate the protocol.
    FaultyDevices(FaultyDeviceSpec),
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

/// Devices, and their load clients.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DeviceSpec {
    pub(crate) devices: usize,
    pub(crate) via: DeviceProtocol,
    /// The heartbeat interval that they ask for.
    pub(crate) heartbeat: Duration,
    /// Connections between begun and bound, per load client.
    pub(crate) under_way: usize,
    /// Load clients; unset: as many as they need.
    pub(crate) clients: Option<usize>,
    /// All must be bound within this.
    pub(crate) within: Duration,
    /// So many connect to the first gateway, and none of the others does; unset: they connect to all in turn.
    pub(crate) on_first_gateway: Option<usize>,
    /// They have bound before, to a server that was started anew since.
    pub(crate) known: bool,
}

/// Devices that violate the protocol, and by how much.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FaultyDeviceSpec {
    /// Their sockets never bind.
    pub(crate) devices: DeviceSpec,
    /// Their heartbeats stop.
    pub(crate) silent: usize,
    /// How many files a server may open that gets twice as many devices.
    pub(crate) descriptors: u64,
    /// The protocol's test vectors.
    pub(crate) vectors: PathBuf,
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
const HEARTBEAT: Duration = Duration::from_secs(60);
const UNDER_WAY: usize = 256;
const BOUND_WITHIN: Duration = Duration::from_secs(300);
const SILENT: usize = 1_000;
const FAULTY_DESCRIPTORS: u64 = 1_024;
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
            "compact",
            "body_bytes",
            "pipeline",
            "background",
        ],
        PopulationKind::Direct => &["pairs", "offline_share", "senders", "via", "body_bytes", "pipeline", "background"],
        PopulationKind::NewConversations => &["pairs", "senders", "body_bytes", "background"],
        PopulationKind::Devices => {
            &["devices", "via", "heartbeat", "under_way", "clients", "within", "on_first_gateway", "known"]
        }
        PopulationKind::Connections => &["users", "via", "stay", "under_way", "clients"],
        PopulationKind::FaultyDevices => &["devices", "under_way", "silent", "descriptors", "vectors"],
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
        Some((Via::Miop | Via::Miops, span)) => Err(Mistake::at(span, "messages are sent by `http` or `ws`")),
    }
}

impl DeviceSpec {
    fn of(file: &PopulationFile, devices: usize) -> Result<Self, Mistake> {
        let via = match file.via.as_ref().map(|via| (*via.get_ref(), via.span())) {
            None | Some((Via::Miop, _)) => DeviceProtocol::Miop,
            Some((Via::Miops, _)) => DeviceProtocol::Miops,
            Some((Via::Ws, _)) => DeviceProtocol::Ws,
            Some((Via::Http, span)) => {
                return Err(Mistake::at(span, "connections are opened by `miop`, `miops` or `ws`"));
            }
        };
        let time = |value: &Option<Spanned<Time>>, usual| value.as_ref().map_or(usual, |time| time.get_ref().0);
        Ok(DeviceSpec {
            devices,
            via,
            heartbeat: time(&file.heartbeat, HEARTBEAT),
            under_way: count(&file.under_way, UNDER_WAY)?,
            clients: file.clients.as_ref().map(|_| count(&file.clients, 1)).transpose()?,
            within: time(&file.within, BOUND_WITHIN),
            on_first_gateway: file.on_first_gateway.as_ref().map(|devices| *devices.get_ref()),
            known: file.known.as_ref().is_some_and(|known| *known.get_ref()),
        })
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

    /// Whether agents can start its load clients.
    pub(crate) fn takes_agents(&self) -> bool {
        self.sends_messages() || matches!(self.members, Members::Devices(_))
    }

    /// Whether its devices have bound before, to a server that is started anew then.
    pub(crate) fn is_known(&self) -> bool {
        matches!(&self.members, Members::Devices(devices) if devices.known)
    }

    /// Whether its devices encrypt their connections.
    pub(crate) fn needs_tls(&self) -> bool {
        match &self.members {
            Members::Devices(devices) | Members::Connections { devices, .. } => devices.via == DeviceProtocol::Miops,
            _ => false,
        }
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
                let compact = file.compact.as_ref().is_some_and(|compact| *compact.get_ref());
                Members::Conversation { official, members, online, senders, via, receipts, compact, texts }
            }
            PopulationKind::Direct => {
                let pairs = needed(&file.pairs, "pairs", written)?;
                let offline = offline_of(file, pairs)?;
                Members::Direct { pairs, offline, senders, via: send_protocol(&file.via)?, texts }
            }
            PopulationKind::NewConversations => {
                Members::NewConversations { pairs: needed(&file.pairs, "pairs", written)?, senders, texts }
            }
            PopulationKind::Devices => {
                Members::Devices(DeviceSpec::of(file, needed(&file.devices, "devices", written)?)?)
            }
            PopulationKind::Connections => Members::Connections {
                devices: DeviceSpec::of(file, needed(&file.users, "users", written)?)?,
                stay: file.stay.as_ref().map(|stay| stay.get_ref().0),
            },
            PopulationKind::FaultyDevices => Members::FaultyDevices(FaultyDeviceSpec {
                devices: DeviceSpec::of(file, needed(&file.devices, "devices", written)?)?,
                silent: count(&file.silent, SILENT)?,
                descriptors: file.descriptors.as_ref().map_or(FAULTY_DESCRIPTORS, |most| *most.get_ref()),
                vectors: file.vectors.as_ref().map_or_else(|| VECTORS.into(), |folder| folder.get_ref().clone()),
            }),
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
        ("compact", span_of(&file.compact)),
        ("file", span_of(&file.file)),
        ("limit", span_of(&file.limit)),
        ("mix", span_of(&file.mix)),
        ("heartbeat", span_of::<Time>(&file.heartbeat)),
        ("under_way", span_of(&file.under_way)),
        ("clients", span_of(&file.clients)),
        ("within", span_of::<Time>(&file.within)),
        ("on_first_gateway", span_of(&file.on_first_gateway)),
        ("known", span_of(&file.known)),
        ("silent", span_of(&file.silent)),
        ("descriptors", span_of(&file.descriptors)),
        ("vectors", span_of(&file.vectors)),
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

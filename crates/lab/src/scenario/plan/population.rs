//! The populations of a scenario: who takes part, and how many.

pub(crate) use super::keys::Texts;
use super::keys::{Keys, PIPELINE};
use crate::{
    client_engine::{device::DeviceProtocol, http::ConnectionUse},
    devices::invalid_frames::VECTORS,
    message_clients::{ChatSpec, GroupSpec, PairSpec},
    mix::share::MixShare,
    scenario::file::{PopulationFile, PopulationKind},
    toml_file::{Mistake, Time},
};
use std::{path::PathBuf, time::Duration};
use tidings_protocol::http::ConversationKind;
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
    Conversation(GroupSpec, Texts),
    /// Users by twos, with a conversation or without one: then the message opens it.
    Pairs(PairSpec, Texts),
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

impl DeviceSpec {
    /// So many, with the keys that all kinds of devices have.
    fn of(keys: &mut Keys<'_>, devices: usize) -> Result<Self, Mistake> {
        Ok(DeviceSpec {
            devices,
            via: DeviceProtocol::Miop,
            heartbeat: HEARTBEAT,
            under_way: keys.count("under_way")?.unwrap_or(UNDER_WAY),
            clients: None,
            within: BOUND_WITHIN,
            on_first_gateway: None,
            known: false,
        })
    }
}

impl Population {
    /// Whether its work is done by load clients for messages, which agents can start.
    pub(crate) fn sends_messages(&self) -> bool {
        self.members.send_messages()
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
        matches!(self.members, Members::Conversation(..) | Members::Pairs(PairSpec { are_open: true, .. }, _))
    }

    pub(crate) fn of(written: &Spanned<PopulationFile>) -> Result<Self, Mistake> {
        let (mut keys, kind) = Keys::of(written)?;
        let members = Members::of(kind, &mut keys)?;
        let background = members.send_messages() && keys.get("background")?.unwrap_or(false);
        keys.refuse_others()?;
        Ok(Population { members, background })
    }
}

impl Members {
    fn of(kind: PopulationKind, keys: &mut Keys<'_>) -> Result<Self, Mistake> {
        Ok(match kind {
            PopulationKind::Group | PopulationKind::Official => Members::conversation(kind, keys)?,
            PopulationKind::Direct => {
                let pairs = keys.needed("pairs")?;
                let (offline, senders) = (keys.offline_of(pairs)?, keys.senders()?);
                let via = keys.send_protocol()?;
                Members::Pairs(PairSpec { offline, via, ..PairSpec::of(pairs, senders) }, keys.texts()?)
            }
            PopulationKind::NewConversations => {
                let (pairs, senders) = (keys.needed("pairs")?, keys.senders()?);
                let texts = Texts { body_bytes: keys.body_bytes()?, pipeline: PIPELINE };
                Members::Pairs(PairSpec { are_open: false, ..PairSpec::of(pairs, senders) }, texts)
            }
            PopulationKind::Devices => {
                let devices = keys.needed("devices")?;
                Members::Devices(DeviceSpec {
                    via: keys.device_protocol()?,
                    heartbeat: keys.time("heartbeat")?.unwrap_or(HEARTBEAT),
                    clients: keys.count("clients")?,
                    within: keys.time("within")?.unwrap_or(BOUND_WITHIN),
                    on_first_gateway: keys.get("on_first_gateway")?,
                    known: keys.get("known")?.unwrap_or(false),
                    ..DeviceSpec::of(keys, devices)?
                })
            }
            PopulationKind::Connections => {
                let users = keys.needed("users")?;
                let (via, clients, stay) = (keys.device_protocol()?, keys.count("clients")?, keys.time("stay")?);
                Members::Connections { devices: DeviceSpec { via, clients, ..DeviceSpec::of(keys, users)? }, stay }
            }
            PopulationKind::FaultyDevices => {
                let devices = keys.needed("devices")?;
                Members::FaultyDevices(FaultyDeviceSpec {
                    devices: DeviceSpec::of(keys, devices)?,
                    silent: keys.count("silent")?.unwrap_or(SILENT),
                    descriptors: keys.get("descriptors")?.unwrap_or(FAULTY_DESCRIPTORS),
                    vectors: keys.get("vectors")?.unwrap_or_else(|| VECTORS.into()),
                })
            }
            PopulationKind::Chat => {
                let file = keys.get("file")?.ok_or_else(|| keys.needs("file"))?;
                let (limit, online) = (keys.get("limit")?, keys.get("online")?);
                let (offline_share, mix) = (keys.get("offline_share")?, keys.read::<String>("mix")?);
                let mix = mix.map(|mix| mix.get_ref().parse::<MixShare>().map_err(|why| Mistake::at(mix.span(), why)));
                Members::Chat(ChatSpec {
                    file,
                    limit,
                    online,
                    offline_share,
                    mix: mix.transpose()?.unwrap_or_default(),
                })
            }
            PopulationKind::PopupUsers => {
                let users = u32::try_from(keys.needed("users")?).unwrap_or(u32::MAX);
                let is_kept = keys.get("keep_alive")?.unwrap_or(true);
                let gap = keys.read::<Time>("gap")?;
                let gap_s = gap.as_ref().map_or(GAP_S_MIN, |gap| gap.get_ref().0.as_secs());
                if let Some(gap) = gap.filter(|_| gap_s < GAP_S_MIN) {
                    return Err(Mistake::at(gap.span(), format!("must be at least {GAP_S_MIN}s")));
                }
                Members::PopupUsers(PopupUsers {
                    users,
                    popups: keys.count("popups")?.unwrap_or(POPUPS),
                    connections: keys.count("connections")?.unwrap_or(POPUP_CONNECTIONS),
                    connection_use: if is_kept { ConnectionUse::Kept } else { ConnectionUse::OneRequest },
                    gap_s,
                    nothing_share: keys.get("nothing_share")?.unwrap_or(NOTHING_SHARE),
                })
            }
            PopulationKind::Streams => {
                let streams = keys.needed("streams")?;
                let chunk_bytes = keys.read("chunk_bytes")?;
                if let Some(bytes) = chunk_bytes.as_ref().filter(|bytes| *bytes.get_ref() < CHUNK_BYTES_MIN) {
                    return Err(Mistake::at(bytes.span(), format!("must be at least {CHUNK_BYTES_MIN}")));
                }
                let chunk_bytes = chunk_bytes.map_or(CHUNK_BYTES, Spanned::into_inner);
                Members::Streams(Streams { streams, readers: keys.count("readers")?.unwrap_or(READERS), chunk_bytes })
            }
        })
    }

    fn conversation(kind: PopulationKind, keys: &mut Keys<'_>) -> Result<Self, Mistake> {
        let members = keys.needed("members")?;
        let online = keys.read::<usize>("online")?;
        let offline = keys.offline_of(members)?;
        if let Some(online) = &online {
            let wrong = match *online.get_ref() {
                0 => Some("must be at least 1".to_owned()),
                _ if offline > 0 => Some("either `online` or `offline_share`".to_owned()),
                online if online > members => Some(format!("there are {members} members: no more can be online")),
                _ => None,
            };
            if let Some(what) = wrong {
                return Err(Mistake::at(online.span(), what));
            }
        }
        let is_official = kind == PopulationKind::Official;
        let online = online.map_or(members - offline, Spanned::into_inner);
        let spec = GroupSpec {
            kind: if is_official { ConversationKind::Official } else { ConversationKind::Group },
            via: keys.send_protocol()?,
            receipts_interval: keys.time("receipts")?,
            compact: keys.get("compact")?.unwrap_or(false),
            ..GroupSpec::of(members, online, keys.senders()?)
        };
        Ok(Members::Conversation(spec, keys.texts()?))
    }

    fn send_messages(&self) -> bool {
        matches!(self, Members::Conversation(..) | Members::Pairs(..) | Members::Chat(_))
    }
}

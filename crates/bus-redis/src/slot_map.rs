//! Which channel a node listens on, and which server owns it.

use redis::Value;
use tidings_domain::installation::InstallationId;

/// A Redis Cluster spreads its keys and sharded channels over so many slots.
const SLOTS: u16 = 16_384;
/// Hash tags that channels are spread by. A tag's slot never changes, so a cluster's slots can be laid out for the tags; so
/// many of them spread evenly over the primaries of a large cluster.
const TAGS: u64 = 256;

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// The channel that a node listens on, and its slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Channel {
    pub(crate) name: String,
    pub(crate) slot: u16,
    /// In the name and in each frame. `None`: the channel of a node whose program does not know installations.
    pub(crate) installation: Option<InstallationId>,
}

impl Channel {
    pub(crate) fn of(prefix: &str, installation: Option<InstallationId>, node: &str) -> Self {
        // FNV-1a: the same in every version and on every machine.
        let hash = node
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        let tag = format!("p{}", hash % TAGS);
        let of_installation = installation.map(|installation| format!(":{installation}")).unwrap_or_default();
        // Redis computes the slot from what is in the first braces alone.
        let name = format!("{prefix}{{{tag}}}{of_installation}:node:{node}");
        Self { slot: crc16(tag.as_bytes()) % SLOTS, name, installation }
    }
}

/// CRC16-XMODEM: the Redis Cluster specification, "Key distribution model".
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        (0..8).fold(
            crc ^ (u16::from(*byte) << 8),
            |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 },
        )
    })
}

/// Which server owns each slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SlotMap {
    /// Not a cluster: one server owns every slot.
    Standalone(Address),
    /// Ranges of slots (first, last) and their primaries.
    Cluster(Vec<(u16, u16, Address)>),
}

impl SlotMap {
    pub(crate) fn owner(&self, slot: u16) -> Option<&Address> {
        match self {
            Self::Standalone(address) => Some(address),
            Self::Cluster(ranges) => {
                ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot)).map(|(_, _, owner)| owner)
            }
        }
    }

    pub(crate) fn addresses(&self) -> Vec<Address> {
        match self {
            Self::Standalone(address) => vec![address.clone()],
            Self::Cluster(ranges) => ranges.iter().map(|(_, _, owner)| owner.clone()).collect(),
        }
    }

    /// Parses the answer to `CLUSTER SLOTS`. A server that does not know its own host leaves it empty: that server is then the
    /// one that was asked.
    pub(crate) fn parse(asked: &Address, answer: &Value) -> Option<Self> {
        let Value::Array(rows) = answer else { return None };
        let ranges: Option<Vec<_>> = rows.iter().map(|row| parse_range(asked, row)).collect();
        ranges.filter(|ranges| !ranges.is_empty()).map(Self::Cluster)
    }
}

fn parse_range(asked: &Address, row: &Value) -> Option<(u16, u16, Address)> {
    let Value::Array(row) = row else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &row[..] else { return None };
    let [host, Value::Int(port), ..] = &primary[..] else { return None };
    let host = match host {
        Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
        Value::SimpleString(host) => host.clone(),
        Value::Nil => String::new(),
        _ => return None,
    };
    let host = if host.is_empty() || host == "?" { asked.host.clone() } else { host };
    Some(((*first).try_into().ok()?, (*last).try_into().ok()?, Address { host, port: (*port).try_into().ok()? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_computed_as_redis_cluster_specifies() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        // What `CLUSTER KEYSLOT foo` answers.
        assert_eq!(crc16(b"foo") % SLOTS, 12_182);
    }

    #[test]
    fn a_channel_keeps_its_slot_and_channels_spread_over_slots() {
        let here = Some(InstallationId(0xab));
        let channel = Channel::of("tidings", here, "node-1");
        assert_eq!(channel.name, format!("tidings{{p195}}:{}ab:node:node-1", "0".repeat(30)));
        let channel = Channel::of("tidings", None, "node-1");
        assert_eq!((&*channel.name, channel.slot), ("tidings{p195}:node:node-1", crc16(b"p195") % SLOTS));
        let mut thirds = [0; 3];
        (0..300).for_each(|n| thirds[usize::from(Channel::of("t", here, &format!("node-{n}")).slot) * 3 / 16_384] += 1);
        assert!(thirds.iter().all(|third| *third > 60), "{thirds:?}");
    }

    #[test]
    fn the_answer_to_cluster_slots_is_parsed() {
        let asked = Address { host: "asked".into(), port: 1 };
        let row = |first, last, host: Value| {
            let node =
                Value::Array(vec![host, Value::Int(7000), Value::BulkString(b"id".to_vec()), Value::Array(vec![])]);
            Value::Array(vec![Value::Int(first), Value::Int(last), node.clone(), node])
        };
        let answer = Value::Array(vec![row(0, 99, Value::BulkString(b"a".to_vec())), row(100, 16_383, Value::Nil)]);
        let map = SlotMap::parse(&asked, &answer).expect("readable");
        let host = |slot| map.owner(slot).map(|owner| owner.host.as_str());
        assert_eq!((host(99), host(100), host(16_383)), (Some("a"), Some("asked"), Some("asked")));
        assert_eq!(SlotMap::parse(&asked, &Value::Array(vec![])), None);
        assert_eq!(SlotMap::parse(&asked, &Value::Okay), None);
    }
}

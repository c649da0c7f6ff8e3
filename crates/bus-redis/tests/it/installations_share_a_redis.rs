//! Installations on one Redis, with the same prefix and names of nodes, hear nothing of each other; and during an upgrade a node
//! and one whose program does not know installations hear each other.

use crate::support::{
    Node, config,
    redis::{RedisServer, wait_until},
    redis_node,
};
use bytes::Bytes;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};
use tidings_bus_redis::{FRAGMENT_BYTES_MAX, RedisBus, RedisBusConfig};
use tidings_domain::{
    bus::{Bus, MessageHandler},
    installation::InstallationId,
};

/// For so many seconds both installations are under load: `TIDINGS_TEST_INSTALLATIONS_S=600` for ten minutes.
fn load_time() -> Duration {
    let seconds = std::env::var("TIDINGS_TEST_INSTALLATIONS_S").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(3))
}

fn of_installation(installation: u128, redis: &RedisServer) -> RedisBusConfig {
    RedisBusConfig { installation: InstallationId(installation), ..config(&[redis.url()]) }
}

/// Checks what one node of an installation receives: messages of its installation alone, in order, none lost.
#[derive(Default)]
struct Checked {
    installation: u8,
    received: AtomicU64,
    gaps: AtomicU64,
    wrong: AtomicBool,
}

impl MessageHandler for Checked {
    fn on_message(&self, message: Bytes) {
        let expected = self.received.fetch_add(1, SeqCst);
        let number = message.get(1..9).map(|number| u64::from_le_bytes(number.try_into().unwrap()));
        if message.first() != Some(&self.installation) || number != Some(expected) {
            self.wrong.store(true, SeqCst);
        }
    }

    fn on_gap(&self) {
        self.gaps.fetch_add(1, SeqCst);
    }
}

#[test]
fn installations_under_load_hear_nothing_of_each_other() {
    let redis = RedisServer::start(&[]);
    let installations: Vec<(RedisBus, RedisBus, Arc<Checked>)> = (1..=2)
        .map(|installation: u8| {
            let bus = || RedisBus::start(of_installation(installation.into(), &redis)).unwrap();
            let (a, b) = (bus(), bus());
            let checked = Arc::new(Checked { installation, ..Checked::default() });
            a.listen("a", Arc::new(Checked { installation, ..Checked::default() }));
            b.listen("b", checked.clone());
            wait_until("both are up", || a.is_up() && b.is_up());
            (a, b, checked)
        })
        .collect();
    let (gaps_before, until) =
        (installations.iter().map(|(_, _, b)| b.gaps.load(SeqCst)).sum::<u64>(), Instant::now() + load_time());
    let sent: Vec<u64> = std::thread::scope(|scope| {
        let senders: Vec<_> = installations
            .iter()
            .map(|(a, _, checked)| {
                scope.spawn(move || {
                    let to: [Arc<str>; 1] = ["b".into()];
                    let mut number = 0_u64;
                    while Instant::now() < until {
                        // Now and then one that takes several frames.
                        let size = if number % 1_000 == 999 { FRAGMENT_BYTES_MAX + 100 } else { 200 };
                        let mut message = vec![0; size];
                        message[0] = checked.installation;
                        message[1..9].copy_from_slice(&number.to_le_bytes());
                        assert!(a.send(&to, message.into()));
                        number += 1;
                        // No more is on the way than the queue has room for.
                        while number - checked.received.load(SeqCst) > 1_000 {
                            assert!(!checked.wrong.load(SeqCst), "a message of another installation, or out of order");
                            std::thread::sleep(Duration::from_micros(200));
                        }
                    }
                    wait_until("all have arrived", || checked.received.load(SeqCst) == number);
                    number
                })
            })
            .collect();
        senders.into_iter().map(|sender| sender.join().unwrap()).collect()
    });
    for ((a, b, checked), sent) in installations.iter().zip(&sent) {
        assert!(!checked.wrong.load(SeqCst), "a message of another installation, or out of order");
        assert_eq!(checked.received.load(SeqCst), *sent);
        for bus in [a, b] {
            let metrics = bus.metrics().snapshot();
            assert_eq!((metrics.foreign, metrics.unreadable, metrics.dropped), (0, 0, 0));
        }
    }
    let gaps = installations.iter().map(|(_, _, b)| b.gaps.load(SeqCst)).sum::<u64>();
    assert_eq!(gaps, gaps_before, "nothing was lost");
    println!("{sent:?} messages, none in the other installation");
}

/// The channel of a node, as the documentation of the bus spells it.
fn channel(installation: Option<u128>, node: &str) -> String {
    let hash = node
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let installation = installation.map(|id| format!(":{id:032x}")).unwrap_or_default();
    format!("tidings{{p{}}}{installation}:node:{node}", hash % 256)
}

/// A frame with one message.
fn frame(installation: Option<u128>, sequence: u64, message: &str) -> Vec<u8> {
    let of_installation = installation.map(|id| id.to_le_bytes().to_vec()).unwrap_or_default();
    let version = if installation.is_some() { 2 } else { 1 };
    let header = [&[version, 0][..], &of_installation, &77_u64.to_le_bytes(), &sequence.to_le_bytes()].concat();
    [header, message.as_bytes().to_vec()].concat()
}

fn publish(redis: &RedisServer, channel: &str, frame: &[u8]) -> usize {
    let mut connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
    redis::cmd("SPUBLISH").arg(channel).arg(frame).query(&mut connection).unwrap()
}

#[test]
fn a_frame_of_another_installation_is_counted_and_neither_delivered_nor_a_gap() {
    let redis = RedisServer::start(&[]);
    let node = redis_node(of_installation(1, &redis), "a");
    let gaps = node.received.gap_count();
    assert_eq!(publish(&redis, &channel(Some(1), "a"), &frame(Some(2), 5, "foreign")), 1);
    assert_eq!(publish(&redis, &channel(Some(1), "a"), &frame(Some(1), 1, "own")), 1);
    node.received.wait_for(1);
    assert_eq!(node.received.messages(), ["own"]);
    let metrics = node.bus.metrics().snapshot();
    assert_eq!((metrics.foreign, metrics.unreadable, node.received.gap_count()), (1, 0, gaps));
    assert_eq!(publish(&redis, &channel(None, "a"), &frame(None, 1, "without an installation")), 0, "nobody listens");
}

/// A node of the version before: it listens on the channel without an installation.
struct OlderNode(redis::Connection);

impl OlderNode {
    fn listening(redis: &RedisServer, name: &str) -> Self {
        let mut connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
        connection.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let subscribe = redis::cmd("SSUBSCRIBE").arg(channel(None, name)).get_packed_command();
        connection.send_packed_command(&subscribe).unwrap();
        connection.recv_response().unwrap();
        OlderNode(connection)
    }

    /// The content of the next frame with a message.
    fn next(&mut self) -> Vec<u8> {
        loop {
            let values = match self.0.recv_response().unwrap() {
                redis::Value::Array(values) | redis::Value::Push { data: values, .. } => values,
                other => panic!("{other:?}"),
            };
            let Some(redis::Value::BulkString(bytes)) = values.last() else { panic!("{values:?}") };
            assert_eq!(bytes[0], 1, "a form that the node knows");
            if bytes[1] == 0 {
                return bytes[18..].to_vec();
            }
        }
    }
}

#[test]
fn a_node_and_one_that_knows_no_installation_hear_each_other_until_that_one_is_upgraded() {
    let redis = RedisServer::start(&[]);
    let mut older = OlderNode::listening(&redis, "older");
    let [new, other] = ["new", "other"].map(|name| redis_node(of_installation(1, &redis), name));
    let to: [Arc<str>; 2] = ["older".into(), "other".into()];
    new.bus.set_peers_without_installation(&["older".into()]);
    assert!(new.bus.send(&to, Bytes::from_static(b"to both")));
    assert_eq!(older.next(), b"to both");
    other.received.wait_for(1);
    let reply = frame(None, 1, "from the older node");
    wait_until("the new node listens for it", || publish(&redis, &channel(None, "new"), &reply) == 1);
    new.received.wait_for(1);
    assert_eq!(new.received.messages(), ["from the older node"]);
    assert!(new.bus.is_up());

    // It is started again with the new program.
    let upgraded = redis_node(of_installation(1, &redis), "older");
    new.bus.set_peers_without_installation(&[]);
    new.reach(&upgraded);
    let again = frame(None, 2, "from another installation's node");
    wait_until("the new node no longer listens", || publish(&redis, &channel(None, "new"), &again) == 0);
}

#[test]
fn a_peer_on_another_redis_is_unheard_until_it_is_on_the_same() {
    let [here, there] = [(); 2].map(|()| RedisServer::start(&[]));
    let often = |redis: &RedisServer| RedisBusConfig {
        heartbeat_every: Duration::from_millis(20),
        ..of_installation(1, redis)
    };
    let (a, b, c) = (redis_node(often(&here), "a"), redis_node(often(&there), "b"), redis_node(often(&here), "c"));
    let names: [Arc<str>; 2] = ["b".into(), "c".into()];
    assert!(a.bus.send(&names, Bytes::from_static(b"hello")));
    c.received.wait_for(1);
    let unheard = |node: &Node<RedisBus>, at_least| node.bus.unheard_by(Duration::from_millis(at_least));
    wait_until("b is unheard", || unheard(&a, 200) == [names[0].clone()]);
    assert!(unheard(&a, 3_600_000).is_empty());
    drop(b);
    let _b = redis_node(often(&here), "b");
    // Nothing is sent: the bus asks by itself.
    wait_until("b is heard", || unheard(&a, 0).is_empty());
    let gaps = c.received.gap_count();
    a.reach(&c);
    assert_eq!(c.received.gap_count(), gaps, "questions whether anybody listens are no loss");
}

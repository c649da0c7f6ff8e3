//! Unit tests of `src/cluster/agreement.rs`.

use super::*;
use tidings_domain::{commit_log::NodeInfo, function::Function};
use tidings_testkit::{LocalBus, ManualClock, MemoryStore};

const NOON: u64 = 1_772_366_400_000;
const HOUR: u64 = 3_600_000;
const LEASE: Duration = Duration::from_secs(600);

struct Node {
    agreement: Agreement,
    clock: Arc<ManualClock>,
    metrics: Arc<Metrics>,
}

fn node(store: &MemoryStore, boot_id: u64, settings: &[(SharedSetting, &str)]) -> Node {
    let name = format!("node-{boot_id}");
    store.heartbeat(&NodeInfo { name, boot_id, ..NodeInfo::default() }, 600_000, &Function::ALL, true).unwrap();
    let (clock, metrics) = (Arc::new(ManualClock::default()), Arc::new(Metrics::new()));
    clock.set(NOON);
    let time = Arc::new(StoreTime::new(clock.clone()));
    let fingerprints = settings.iter().map(|(setting, value)| (setting.name.into(), (*value).into())).collect();
    let bus = Arc::new(LocalBus::default());
    Node { agreement: Agreement::new((boot_id, LEASE), fingerprints, time, bus, metrics.clone()), clock, metrics }
}

fn exchange(store: &MemoryStore, nodes: &[Node], rounds: u32) {
    for _ in 0..rounds {
        nodes.iter().for_each(|node| node.agreement.exchange(store).unwrap());
    }
}

#[test]
fn nodes_name_each_other_where_a_setting_differs_that_both_know() {
    let store = MemoryStore::shared();
    let mut nodes = vec![
        node(&store, 1, &[(CLUSTER_SECRET, "a"), (API_KEYS, "k")]),
        node(&store, 2, &[(CLUSTER_SECRET, "b"), (API_KEYS, "k")]),
        node(&store, 3, &[(CLUSTER_SECRET, "b"), (TOKEN_KEYS, "t")]),
    ];
    exchange(&store, &nodes, 2);
    let [first, second, third] = &nodes[..] else { unreachable!() };
    let told = first.agreement.warnings();
    assert_eq!(told.len(), 1);
    let expected = "[cluster] secret of nodes node-2, node-3 differs from this node's: ";
    assert!(told[0].starts_with(expected) && told[0].ends_with("give all nodes one secret"), "{told:?}");
    assert_eq!(first.metrics.cluster.differences.get(), 2);
    assert_eq!(first.agreement.differences_of(2), [CLUSTER_SECRET.name]);
    assert_eq!(first.agreement.differences_of(1), [""; 0]);
    assert!(second.agreement.warnings()[0].starts_with("[cluster] secret of node node-1 differs"));
    assert_eq!(third.agreement.differences_of(2), [""; 0]);
    assert!(nodes.iter().all(|node| node.agreement.readiness().is_ok()));

    // The first node is started again with the others' secret.
    nodes[0] = node(&store, 4, &[(CLUSTER_SECRET, "b")]);
    store.release_lease(1).unwrap();
    exchange(&store, &nodes, 2);
    assert!(nodes.iter().all(|node| node.agreement.warnings().is_empty()));
    assert_eq!(nodes[1].metrics.cluster.differences.get(), 0);
}

#[test]
fn a_node_whose_clock_is_far_off_is_not_ready_unless_all_are() {
    let store = MemoryStore::shared();
    store.set_clock(NOON);
    let nodes = [node(&store, 1, &[]), node(&store, 2, &[])];
    let ready = || [0, 1].map(|n: usize| nodes[n].agreement.readiness().is_ok());
    exchange(&store, &nodes, 2);
    assert!(nodes.iter().all(|node| node.agreement.warnings().is_empty()));

    nodes[0].clock.set(NOON + 2_000);
    exchange(&store, &nodes, 2 * CLOCK_OFF_ROUNDS);
    let told = nodes[0].agreement.warnings();
    assert!(told.len() == 1 && told[0].contains("clock is 2.0 s ahead of PostgreSQL's"), "{told:?}");
    assert_eq!((ready(), nodes[0].metrics.cluster.clock_ahead.get()), ([true; 2], 2.0));

    nodes[0].clock.set(NOON + HOUR);
    exchange(&store, &nodes, 1);
    assert_eq!(ready(), [true; 2], "until it is known how the other's clock is");
    exchange(&store, &nodes, CLOCK_OFF_ROUNDS);
    assert_eq!(ready(), [false, true]);
    assert!(nodes[0].agreement.readiness().unwrap_err().contains("3600.0 s ahead"));

    // The other as well: now it is the store's clock that is wrong.
    nodes[1].clock.set(NOON + HOUR);
    exchange(&store, &nodes, 3 * CLOCK_OFF_ROUNDS);
    assert_eq!(ready(), [true; 2]);
    store.set_clock(NOON + HOUR);
    exchange(&store, &nodes, 1);
    assert!(nodes.iter().all(|node| node.agreement.warnings().is_empty()));
}

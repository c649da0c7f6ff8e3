//! Unit tests of `src/cluster/gates.rs`.

use super::*;
use tidings_domain::commit_log::NodeDetails;

const LEASE: Duration = Duration::from_secs(10);

fn node(details: NodeDetails) -> NodeInfo {
    NodeInfo { details, ..NodeInfo::default() }
}

fn view(nodes: &[&NodeInfo], open_gates: &[&str]) -> ClusterView {
    let open_gates = open_gates.iter().map(|gate| (*gate).to_owned()).collect();
    ClusterView { nodes: nodes.iter().map(|node| (*node).clone()).collect(), open_gates, ..ClusterView::default() }
}

fn all() -> Vec<&'static str> {
    Gate::ALL.iter().map(|gate| gate.name()).collect()
}

#[test]
fn gates_open_once_every_live_node_has_known_them_for_a_lease() {
    let (new, old) = (node(NodeDetails::of_this_program()), node(NodeDetails::default()));
    let mut gates = ClusterGates::new(Arc::default());
    let start = Instant::now();
    let mut due =
        |nodes: &[&NodeInfo], seconds| gates.due(&view(nodes, &[]), LEASE, start + Duration::from_secs(seconds));
    assert!(due(&[&new, &old], 0).is_empty() && due(&[&new, &old], 100).is_empty());
    assert!(due(&[&new], 101).is_empty(), "the old node may come back");
    assert!(due(&[&new, &old], 105).is_empty());
    assert!(due(&[&new, &new], 106).is_empty() && due(&[&new, &new], 115).is_empty());
    assert_eq!(due(&[&new, &new], 116), all());
    assert!(gates.due(&view(&[&new], &all()), LEASE, start + Duration::from_secs(200)).is_empty(), "they are open");
}

#[test]
fn an_open_gate_that_a_node_does_not_know_stops_it() {
    let (new, old) = (node(NodeDetails::of_this_program()), node(NodeDetails::default()));
    let mut gates = ClusterGates::new(Arc::default());
    assert_eq!(gates.note(&old, &view(&[&new], &[])), Ok(()));
    assert!(!gates.open.is_open(Gate::ALL[0]));
    assert_eq!(gates.note(&new, &view(&[&new, &old], &all())), Ok(()));
    assert!(Gate::ALL.iter().all(|gate| gates.open.is_open(*gate)));
    for (me, open) in [(&old, Gate::ALL[0].name()), (&new, "of_a_later_version")] {
        assert_eq!(gates.note(me, &view(&[&new], &[open])), Err(UnknownGate(open.into())));
    }
}

//! What is wrong with the rows of push is found and named.
#![allow(clippy::unwrap_used)]

mod support;

use support::*;
use tidings_engine::{
    push::{DeviceNo, rows::*},
    store::Term,
};
use tidings_store::check::check;

const DEVICE: DeviceNo = DeviceNo(0);

/// A device of `u1`, and a push that waits for it.
fn sound() -> Vec<PushRow> {
    let device = StoredDevice {
        no: DEVICE,
        user: 1,
        device_id: "d".into(),
        device_kind: "phone".into(),
        app_version: None,
        tags: vec![],
        first_bound: NOON,
    };
    let push = StoredPush {
        push: 1,
        stage: Stage::Running,
        closed: false,
        to_many: false,
        content_type: "offer".into(),
        collapse_key: None,
        high: false,
        body_bytes: 2,
        parts: 1,
        client_push_id: Some("a".into()),
        accepted_at: NOON,
        send_at: None,
        started_at: Some(NOON),
        expires_at: NOON + 1,
        ended_at: None,
        due_at: NOON + 1,
        order: 1,
        targets: 1,
        refused_full: 0,
        unknown: 0,
    };
    let pending =
        StoredPending { device: DEVICE, push: 1, high: false, expires_at: NOON + 1, collapse_key: None, order: 1 };
    let (fate, delivered_at, ended_at) = (Fate::Waits, None, None);
    vec![
        PushRow::Counters { push: 1, device: 1, epoch: 1 },
        PushRow::Device(device),
        PushRow::Push(push),
        PushRow::Part { push: 1, part: 0, bytes: b"{}".to_vec() },
        PushRow::Name { client_push_id: "a".into(), push: 1 },
        PushRow::Timer { at: NOON + 1, push: 1 },
        PushRow::Pending(pending),
        PushRow::Target(StoredTarget { push: 1, device: DEVICE, fate, delivered_at, ended_at }),
    ]
}

/// Without the row of this key, the check names each of `named` and nothing else.
fn finds(without: Option<PushKey>, named: &[&str]) {
    let folder = scratch();
    {
        let store = open(folder.path());
        populate(&store);
        let puts: Vec<_> = sound().into_iter().map(PushChange::Put).collect();
        store.write_push(Term::ALONE, &puts).unwrap();
        let drop = without.map(PushChange::Drop);
        store.write_push(Term::ALONE, drop.as_slice()).unwrap();
    }
    let report = check(folder.path()).unwrap();
    assert_eq!(report.fault_count as usize, named.len(), "{report}");
    for named in named {
        assert!(report.faults.iter().any(|fault| fault.contains(named)), "{named:?} is not in\n{report}");
    }
}

#[test]
fn what_agrees_is_sound() {
    finds(None, &[]);
}

#[test]
fn a_push_without_its_row_is_missed_by_all_that_name_it() {
    let named =
        ["waits for device 0", "is a target of push 1", "Name(\"a\") is of no push", "Part(1, 0) is of no push"];
    finds(Some(PushKey::Push(1)), &named);
}

#[test]
fn a_device_without_its_row_is_missed() {
    finds(Some(PushKey::Device(DEVICE)), &["waits for device 0, which does not exist"]);
}

#[test]
fn a_push_without_a_timer_would_never_end() {
    finds(Some(PushKey::Timer(NOON + 1, 1)), &["push 1 has no timer"]);
}

#[test]
fn a_target_that_nothing_waits_for_and_the_other_way_round() {
    finds(Some(PushKey::Pending(DEVICE, 1)), &["push 1 is not handed to device 0"]);
    finds(Some(PushKey::Target(1, DEVICE)), &["push 1 waits for device 0, and is through there"]);
}

#[test]
fn numbers_that_were_not_given_out() {
    finds(Some(PushKey::Counters), &["a device's number", "a push's number"]);
}

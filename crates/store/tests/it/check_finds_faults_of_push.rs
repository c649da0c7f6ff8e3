//! Faults in the rows of push are found and named.

use crate::support::*;
use tidings_domain::{push_store::*, store::Term};
use tidings_store::check::check;

const DEVICE: DeviceNo = DeviceNo(0);

/// A device of `u1`, and a push that is pending for it.
fn sound_rows() -> Vec<PushRow> {
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
        stage: PushStage::Running,
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
        start_order: 1,
        targets: 1,
        refused_full: 0,
        unknown: 0,
        request: None,
    };
    let pending = StoredPending {
        device: DEVICE,
        push: 1,
        high: false,
        expires_at: NOON + 1,
        collapse_key: None,
        start_order: 1,
    };
    let (state, delivered_at, ended_at) = (TargetState::Pending, None, None);
    vec![
        PushRow::Counters { push: 1, device: 1, epoch: 1 },
        PushRow::Device(device),
        PushRow::Push(push),
        PushRow::Part { push: 1, part: 0, bytes: b"{}".to_vec() },
        PushRow::ClientPushId { client_push_id: "a".into(), push: 1, request: None },
        PushRow::Timer { at: NOON + 1, push: 1 },
        PushRow::Pending(pending),
        PushRow::Target(StoredTarget { push: 1, device: DEVICE, state, delivered_at, ended_at }),
    ]
}

/// Removes the row of this key, and expects that the check names each of `named` and no other fault.
fn finds(without: Option<PushKey>, named: &[&str]) {
    let folder = scratch();
    {
        let store = open(folder.path());
        populate(&store);
        let puts: Vec<_> = sound_rows().into_iter().map(PushChange::Put).collect();
        store.write_push(Term::ALONE, &puts).unwrap();
        let drop = without.map(PushChange::Delete);
        store.write_push(Term::ALONE, drop.as_slice()).unwrap();
    }
    let report = check(folder.path(), tidings_popups::check_popups).unwrap();
    assert_eq!(report.fault_count as usize, named.len(), "{report}");
    for named in named {
        assert!(report.faults.iter().any(|fault| fault.contains(named)), "{named:?} is not in\n{report}");
    }
}

#[test]
fn rows_that_agree_are_sound() {
    finds(None, &[]);
}

#[test]
fn each_row_that_names_a_missing_push_is_found() {
    let named = [
        "is pending for device 0",
        "is a target of push 1",
        "ClientPushId(\"a\") belongs to a push that does not exist",
        "Part(1, 0) belongs to a push that does not exist",
    ];
    finds(Some(PushKey::Push(1)), &named);
}

#[test]
fn a_push_pending_for_a_missing_device_is_found() {
    finds(Some(PushKey::Device(DEVICE)), &["is pending for device 0, which does not exist"]);
}

#[test]
fn a_push_without_a_timer_is_found() {
    finds(Some(PushKey::Timer(NOON + 1, 1)), &["push 1 has no timer"]);
}

#[test]
fn a_target_and_its_pending_row_must_both_be_there() {
    finds(Some(PushKey::Pending(DEVICE, 1)), &["push 1 is not pending for device 0"]);
    finds(Some(PushKey::Target(1, DEVICE)), &["push 1 is pending for device 0, though its target is done"]);
}

#[test]
fn numbers_beyond_the_counters_are_found() {
    finds(Some(PushKey::Counters), &["a device has a number", "a push has a number"]);
}

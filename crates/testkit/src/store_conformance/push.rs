//! The rows of push: writes, reads in order, and the longest rows.

use super::*;
use tidings_domain::{push_store::*, request_digest::RequestHasher};
use tidings_protocol::http::PushProvider;

pub(super) const CHECKS: &[Check] = &[
    ("a push row has the value last put, until it is dropped", put_and_drop),
    ("the push rows of a range are read in the order of their keys", order),
    ("push rows read together are returned in the order of the request", together),
    ("a push row may be as long as the limit", longest),
    ("a write of push rows is all or nothing", whole),
];

fn every_row() -> Vec<PushRow> {
    let device = |no: u32| {
        PushRow::Device(StoredDevice {
            no: DeviceNo(no),
            user: 7,
            device_id: format!("d{no}"),
            device_kind: "phone".into(),
            app_version: Some("1.2".into()),
            tags: vec!["news".into(), "é".into()],
            first_bound: NOON,
        })
    };
    let pending = |device: u32, push: u64| {
        PushRow::Pending(StoredPending {
            device: DeviceNo(device),
            push,
            high: push % 2 == 1,
            expires_at: NOON,
            collapse_key: Some("k".into()),
            start_order: push,
        })
    };
    let target = |push: u64, device: u32| {
        let (delivered_at, ended_at) = (Some(NOON), None);
        PushRow::Target(StoredTarget {
            push,
            device: DeviceNo(device),
            state: TargetState::Pending,
            delivered_at,
            ended_at,
        })
    };
    let mut rows = vec![
        PushRow::Counters { push: 9, device: 3, epoch: 1 },
        PushRow::LastBound { device: DeviceNo(1), at: NOON },
        PushRow::ClientPushId {
            client_push_id: "order 7".into(),
            push: 3,
            request: Some(RequestHasher::new("push").digest()),
        },
        PushRow::Push(StoredPush {
            push: 3,
            stage: PushStage::Running,
            closed: false,
            to_many: true,
            content_type: "offer".into(),
            collapse_key: None,
            high: true,
            body_bytes: 2,
            parts: 1,
            client_push_id: None,
            accepted_at: NOON,
            send_at: None,
            started_at: Some(NOON),
            expires_at: NOON + 1,
            ended_at: None,
            due_at: NOON + 1,
            start_order: 3,
            targets: 2,
            refused_full: 0,
            unknown: 1,
            request: None,
        }),
        PushRow::Part { push: 3, part: 0, bytes: b"{}".to_vec() },
        PushRow::RecoveryIndex { index: RecoveryIndex::Scheduled, push: 4 },
        PushRow::Collapse { device: DeviceNo(1), collapse_key: "k".into(), push: 3 },
        PushRow::Chunk { push: 3, set: AudienceSet::Acknowledged, chunk: 2, bytes: vec![0, 0, 1] },
        PushRow::Fallback { push: 3, part: FallbackPart::Request, chunk: 0, bytes: b"{}".to_vec() },
        PushRow::Fallback { push: 3, part: FallbackPart::Connected, chunk: 1, bytes: vec![0, 0, 1] },
        PushRow::Fallback { push: 3, part: FallbackPart::Sent(PushProvider::Fcm), chunk: 1, bytes: vec![0, 0, 1] },
        PushRow::FallbackTimer(StoredFallbackTimer { at: NOON, push: 3, whom: FallbackDevices::NotConnected, next: 7 }),
        PushRow::Notes { no: (NOON, 7), bytes: vec![0, 1] },
        PushRow::Notes { no: (NOON, 256), bytes: vec![] },
    ];
    rows.extend([256, 1, 255, 65_536].map(device));
    rows.extend([(256, 1), (1, 256), (1, 255), (1, u64::MAX), (2, 0)].map(|(device, push)| pending(device, push)));
    rows.extend([(1, 2), (1, 256), (256, 1)].map(|(push, device)| target(push, device)));
    rows.extend([(NOON, 256), (NOON, 2), (2, 9)].map(|(at, push)| PushRow::Timer { at, push }));
    rows
}

fn together(store: &dyn Store) {
    let rows = every_row();
    let (there, gone): (Vec<_>, Vec<_>) = rows.iter().cloned().enumerate().partition(|(n, _)| n % 3 > 0);
    put(store, &rows);
    let drops: Vec<PushChange> = gone.iter().map(|(_, row)| PushChange::Delete(row.key())).collect();
    store.write_push(Term::ALONE, &drops).unwrap();
    let keys: Vec<PushKey> = rows.iter().rev().map(PushRow::key).collect();
    let expected: Vec<Option<PushRow>> =
        rows.iter().enumerate().rev().map(|(n, row)| (n % 3 > 0).then(|| row.clone())).collect();
    assert_eq!(store.push_rows_of(&keys).unwrap(), expected);
    assert_eq!(store.push_rows_of(&[]).unwrap(), []);
    let drops: Vec<PushChange> = there.iter().map(|(_, row)| PushChange::Delete(row.key())).collect();
    store.write_push(Term::ALONE, &drops).unwrap();
}

fn put(store: &dyn Store, rows: &[PushRow]) {
    store.write_push(Term::ALONE, &rows.iter().cloned().map(PushChange::Put).collect::<Vec<_>>()).unwrap();
}

/// Drops all rows: those of these checks do not agree with each other, and the folder is checked afterwards.
fn clear(store: &dyn Store) {
    let rows = store.push_rows(&PushKey::Counters, &PushKey::FallbackTimer(u64::MAX, u64::MAX), usize::MAX);
    let drops: Vec<_> = rows.unwrap().iter().map(|row| PushChange::Delete(row.key())).collect();
    store.write_push(Term::ALONE, &drops).unwrap();
}

fn put_and_drop(store: &dyn Store) {
    let rows = every_row();
    put(store, &rows);
    for row in &rows {
        assert_eq!(store.push_row(&row.key()).unwrap().as_ref(), Some(row));
    }
    let changed = PushRow::Counters { push: 10, device: 3, epoch: 1 };
    put(store, std::slice::from_ref(&changed));
    assert_eq!(store.push_row(&PushKey::Counters).unwrap(), Some(changed));
    let drops: Vec<_> = rows.iter().map(|row| PushChange::Delete(row.key())).collect();
    store.write_push(Term::ALONE, &drops).unwrap();
    store.write_push(Term::ALONE, &drops).unwrap();
    assert!(rows.iter().all(|row| store.push_row(&row.key()).unwrap().is_none()));
    store.write_push(Term::ALONE, &[]).unwrap();
}

fn order(store: &dyn Store) {
    let mut rows = every_row();
    put(store, &rows);
    rows.sort_by_key(PushRow::key);
    let (first, last) = (rows[0].key(), rows[rows.len() - 1].key());
    assert_eq!(store.push_rows(&first, &last, usize::MAX).unwrap(), rows);
    assert_eq!(store.push_rows(&first, &last, 3).unwrap(), rows[..3]);
    assert_eq!(store.push_rows(&first, &last, 0).unwrap(), []);
    assert_eq!(store.push_rows(&last, &first, 10).unwrap(), []);
    for from in 0..rows.len() {
        for to in from..rows.len() {
            let found = store.push_rows(&rows[from].key(), &rows[to].key(), usize::MAX).unwrap();
            assert_eq!(found, rows[from..=to]);
        }
    }
    let of_device = (PushKey::Pending(DeviceNo(1), 256), PushKey::Pending(DeviceNo(1), u64::MAX));
    let found = store.push_rows(&of_device.0, &of_device.1, usize::MAX).unwrap();
    assert_eq!(found.iter().map(PushRow::key).collect::<Vec<_>>(), [of_device.0, of_device.1]);
    clear(store);
}

fn longest(store: &dyn Store) {
    let bytes: Vec<u8> = (0..PUSH_ROW_BYTES_MAX - 32).map(|n| n as u8).collect();
    let row = PushRow::Part { push: u64::MAX, part: u32::MAX, bytes };
    put(store, std::slice::from_ref(&row));
    assert_eq!(store.push_row(&row.key()).unwrap(), Some(row));
    clear(store);
}

fn whole(store: &dyn Store) {
    let timers: Vec<_> = (0..PUSH_ROWS_PER_WRITE as u64).map(|push| PushRow::Timer { at: 1, push }).collect();
    put(store, &timers);
    let mut changes: Vec<_> = timers.iter().map(|row| PushChange::Delete(row.key())).collect();
    changes.push(PushChange::Put(PushRow::Timer { at: 2, push: 1 }));
    store.write_push(Term::ALONE, &changes).unwrap();
    let found = store.push_rows(&PushKey::Timer(0, 0), &PushKey::Timer(u64::MAX, 0), usize::MAX).unwrap();
    assert_eq!(found, [PushRow::Timer { at: 2, push: 1 }]);
    clear(store);
}
